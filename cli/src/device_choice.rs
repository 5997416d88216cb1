//! Opens the device that `--device` names, and explains the choice of `auto`.

use std::sync::Arc;

use portcullis::auto::{AutoDevice, Settings};
use portcullis::device::{Device, DeviceError, DeviceInfo, DeviceKind, LoadOptions};
use portcullis::devices::{self, Selector};
use portcullis::program::Program;

use super::out;

/// The device of a command, and how it was chosen.
pub struct DeviceChoice {
    /// The chosen device.
    pub device: Arc<dyn Device>,
    /// The chosen device as `auto`, if it is one that picks a device per batch.
    auto: Option<Arc<AutoDevice>>,
}

impl DeviceChoice {
    /// Opens the device that `--device` names; for `auto`, every device that it may choose.
    pub fn open(selector: &Selector, settings: Settings) -> Result<DeviceChoice, DeviceError> {
        if *selector != Selector::Auto {
            return Ok(DeviceChoice { device: selector.open()?, auto: None });
        }
        let mut candidates = devices::candidates()?;
        if candidates.len() == 1 {
            return Ok(DeviceChoice { device: candidates.swap_remove(0), auto: None });
        }
        Ok(DeviceChoice::among(candidates, settings))
    }

    /// Opens the device that `auto` takes without calibration: a hardware GPU, else the CPU.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn first() -> Result<DeviceChoice, DeviceError> {
        Ok(DeviceChoice { device: devices::open_auto()?, auto: None })
    }

    /// A device that picks one of `candidates` for each batch, by estimated cost.
    pub fn among(candidates: Vec<Arc<dyn Device>>, settings: Settings) -> DeviceChoice {
        let auto = Arc::new(AutoDevice::new(candidates, settings));
        DeviceChoice { device: auto.clone(), auto: Some(auto) }
    }

    /// The device for batches dominated by one flow (an elephant flow), which a GPU handles badly;
    /// `None` if the user named the device.
    pub fn elephant_flow_device(&self) -> Option<Arc<dyn Device>> {
        self.auto.as_ref().and_then(|_| devices::open("cpu").ok())
    }

    /// The kind of device that batches should be sized for. Valid once the filter is loaded.
    pub fn kind(&self) -> DeviceKind {
        self.auto.as_ref().map_or(self.device.info().kind, |auto| auto.kind())
    }

    /// Prints warnings about the choice. Call once the filter is loaded.
    pub fn warn(&self) {
        self.auto.iter().flat_map(|auto| auto.take_warnings()).for_each(|note| out::warn(&note));
    }

    /// Describes what `auto` would choose for a filter on this machine by the cached calibration;
    /// loads and measures nothing.
    pub fn describe_prediction(program: &Arc<Program>) -> String {
        let candidates = match devices::candidates() {
            Ok(candidates) => candidates,
            Err(error) => return format!("device auto: {error}\n"),
        };
        let [device] = &candidates[..] else {
            let auto = AutoDevice::new(candidates, Settings::default());
            return match auto.predict(program, &LoadOptions::default()) {
                Ok(explanation) => explanation.to_string(),
                Err(error) => format!("device auto: ignoring the cached calibration: {error}\n"),
            };
        };
        only_choice(device.info())
    }

    /// Describes why the device was chosen. Valid once the filter is loaded.
    pub fn explain(&self) -> String {
        match self.auto.as_ref().and_then(|auto| auto.explain()) {
            Some(explanation) => explanation.to_string(),
            None => only_choice(self.device.info()),
        }
    }
}

fn only_choice(info: &DeviceInfo) -> String {
    format!(
        "device {} ({}): the only device, so there is nothing to choose from\n",
        info.id,
        out::printable(&info.name)
    )
}
