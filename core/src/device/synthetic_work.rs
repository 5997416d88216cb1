//! Work that is made up: packets keep their lane or thread for a time beside what the filter does, so that benches can
//! tell what becomes of a run whose filter takes so long.

use std::num::NonZeroU64;
use std::time::Duration;

use super::{DeviceError, LoadOptions};

/// The longest time that a packet can be made to keep its lane or thread.
pub const MAX_SYNTHETIC_WORK: Duration = Duration::from_millis(20);

impl LoadOptions {
    /// The work for each packet that was asked for, in nanoseconds: for devices that have it.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] for more than [`MAX_SYNTHETIC_WORK`].
    pub fn synthetic_work_ns(&self, device: &str) -> Result<Option<NonZeroU64>, DeviceError> {
        let Some(work) = self.synthetic_work else { return Ok(None) };
        if work > MAX_SYNTHETIC_WORK {
            return Err(DeviceError::Unsupported {
                device: device.into(),
                reason: format!(
                    "work of {work:?} was asked for each packet, and there is none above {MAX_SYNTHETIC_WORK:?}"
                ),
            });
        }
        Ok(NonZeroU64::new(work.as_nanos() as u64))
    }

    /// Refuses to do any: for devices that have none.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where it was asked for.
    pub fn refuse_synthetic_work(&self, device: &str) -> Result<(), DeviceError> {
        let Some(work) = self.synthetic_work_ns(device)? else { return Ok(()) };
        let work = Duration::from_nanos(work.get());
        Err(DeviceError::Unsupported {
            device: device.into(),
            reason: format!("work of {work:?} was asked for each packet, which the CPU and CUDA devices do alone"),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::device::Device;
    use crate::device::noop::NoopDevice;
    use crate::diagnostics::Source;
    use crate::interp::InterpDevice;
    use crate::program::ProgramOptions;
    use crate::testing as wgsl;

    #[test]
    fn work_has_a_bound_and_is_refused_where_there_is_none() {
        let options = |work| LoadOptions { synthetic_work: work, ..LoadOptions::default() };
        let of = |nanos| options(Some(Duration::from_nanos(nanos))).synthetic_work_ns("cpu");
        assert_eq!((options(None).synthetic_work_ns("cpu"), of(0)), (Ok(None), Ok(None)));
        assert_eq!((of(7), of(20_000_000)), (Ok(NonZeroU64::new(7)), Ok(NonZeroU64::new(20_000_000))));
        let text = of(20_000_001).unwrap_err().to_string();
        assert!(
            text.starts_with("cpu cannot run this filter: work of 20.000001ms") && text.ends_with("above 20ms"),
            "{text}"
        );

        let text = "fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }";
        let program = wgsl::compile(&Source::new("f.wgsl", text), &ProgramOptions::default());
        let program = Arc::new(program.unwrap_or_else(|e| panic!("{}", e.render())));
        for device in [&InterpDevice::new() as &dyn Device, &NoopDevice::new()] {
            assert!(device.load(&program, &options(Some(Duration::ZERO))).is_ok());
            let text = device.load(&program, &options(Some(Duration::from_micros(3)))).err().unwrap().to_string();
            assert!(
                text.contains("work of 3µs was asked for each packet, which the CPU and CUDA devices do alone"),
                "{text}"
            );
        }
    }
}
