//! The device that a command runs on.

use std::sync::Arc;

use portcullis::auto::{AutoDevice, Settings};
use portcullis::device::{Device, DeviceError, DeviceInfo, DeviceKind, LoadOptions};
use portcullis::devices::{self, Selector};
use portcullis::program::Program;

use super::out;

/// A device, and how it was chosen.
pub struct Chosen {
    /// The chosen device.
    pub device: Arc<dyn Device>,
    /// The chosen device as `auto`, if it is one that picks a device per batch.
    auto: Option<Arc<AutoDevice>>,
}

impl Chosen {
    /// The device that is asked for; of `auto` all that it may choose from.
    pub fn open(selector: &Selector, settings: Settings) -> Result<Chosen, DeviceError> {
        if *selector != Selector::Auto {
            return Ok(Chosen { device: selector.open()?, auto: None });
        }
        let mut candidates = devices::candidates()?;
        if candidates.len() == 1 {
            return Ok(Chosen { device: candidates.swap_remove(0), auto: None });
        }
        Ok(Chosen::among(candidates, settings))
    }

    /// The one that `auto` takes where nothing is known.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn first() -> Result<Chosen, DeviceError> {
        Ok(Chosen { device: devices::open_auto()?, auto: None })
    }

    /// Of these devices the one that each batch is best at.
    pub fn among(candidates: Vec<Arc<dyn Device>>, settings: Settings) -> Chosen {
        let auto = Arc::new(AutoDevice::new(candidates, settings));
        Chosen { device: auto.clone(), auto: Some(auto) }
    }

    /// What takes batches most of whose packets are of one flow, from a GPU that nobody asked for
    /// by name.
    pub fn elephant_flow_device(&self) -> Option<Arc<dyn Device>> {
        self.auto.as_ref().and_then(|_| devices::open("cpu").ok())
    }

    /// What batches are to be made for, once the filter is loaded.
    pub fn kind(&self) -> DeviceKind {
        self.auto.as_ref().map_or(self.device.info().kind, |auto| auto.kind())
    }

    /// Says what is odd about the choice, once the filter is loaded.
    pub fn warn(&self) {
        self.auto.iter().flat_map(|auto| auto.take_warnings()).for_each(|note| out::warn(&note));
    }

    /// What `auto` would choose for a filter on this machine, by what is kept: nothing is loaded or
    /// measured.
    pub fn foreseen(program: &Arc<Program>) -> String {
        let candidates = match devices::candidates() {
            Ok(candidates) => candidates,
            Err(error) => return format!("device auto: {error}\n"),
        };
        let [device] = &candidates[..] else {
            let auto = AutoDevice::new(candidates, Settings::default());
            return match auto.predict(program, &LoadOptions::default()) {
                Ok(explanation) => explanation.to_string(),
                Err(why) => format!("device auto: ignoring the cached calibration: {why}\n"),
            };
        };
        alone(device.info())
    }

    /// Why it is what it is, once the filter is loaded.
    pub fn explain(&self) -> String {
        match self.auto.as_ref().and_then(|auto| auto.explain()) {
            Some(explanation) => explanation.to_string(),
            None => alone(self.device.info()),
        }
    }
}

fn alone(info: &DeviceInfo) -> String {
    format!("device {} ({}): there is nothing to choose from\n", info.id, out::printable(&info.name))
}
