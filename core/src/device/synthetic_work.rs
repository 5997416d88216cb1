//! Synthetic work for benchmarks: each packet occupies its lane or thread for a fixed time beyond
//! the filter's own, which shows how a run behaves with filters that slow.

use std::num::NonZeroU64;
use std::time::Duration;

use super::{DeviceError, LoadOptions};

/// Maximum synthetic work per packet.
pub const MAX_SYNTHETIC_WORK: Duration = Duration::from_millis(20);

impl LoadOptions {
    /// The requested synthetic work per packet in nanoseconds, for devices that support it.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] for more than [`MAX_SYNTHETIC_WORK`].
    pub fn synthetic_work_ns(&self, device: &str) -> Result<Option<NonZeroU64>, DeviceError> {
        let Some(work) = self.measure.synthetic_work else { return Ok(None) };
        if work > MAX_SYNTHETIC_WORK {
            return Err(DeviceError::Unsupported {
                device: device.into(),
                reason: format!("synthetic work of {work:?} per packet exceeds the maximum of {MAX_SYNTHETIC_WORK:?}"),
            });
        }
        Ok(NonZeroU64::new(work.as_nanos() as u64))
    }

    /// Refuses synthetic work, for devices that do not support it.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] if any was requested.
    pub fn refuse_synthetic_work(&self, device: &str) -> Result<(), DeviceError> {
        let Some(work) = self.synthetic_work_ns(device)? else { return Ok(()) };
        let work = Duration::from_nanos(work.get());
        Err(DeviceError::Unsupported {
            device: device.into(),
            reason: format!(
                "synthetic work of {work:?} per packet was requested; only the CPU and CUDA devices support it"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::noop::NoopDevice;
    use crate::device::{Device, MeasureOptions};
    use crate::interp::InterpDevice;
    use crate::testing::program;

    #[test]
    fn synthetic_work_is_bounded_and_refused_by_other_devices() {
        let options = |work| LoadOptions {
            measure: MeasureOptions { synthetic_work: work, ..MeasureOptions::default() },
            ..LoadOptions::default()
        };
        let of = |nanos| options(Some(Duration::from_nanos(nanos))).synthetic_work_ns("cpu");
        assert_eq!((options(None).synthetic_work_ns("cpu"), of(0)), (Ok(None), Ok(None)));
        assert_eq!((of(7), of(20_000_000)), (Ok(NonZeroU64::new(7)), Ok(NonZeroU64::new(20_000_000))));
        let text = of(20_000_001).unwrap_err().to_string();
        assert!(
            text.starts_with("cpu cannot run this filter: synthetic work of 20.000001ms")
                && text.ends_with("maximum of 20ms"),
            "{text}"
        );

        let program = program("fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }");
        for device in [&InterpDevice::new() as &dyn Device, &NoopDevice::new()] {
            assert!(device.load(&program, &options(Some(Duration::ZERO))).is_ok());
            let text = device.load(&program, &options(Some(Duration::from_micros(3)))).err().unwrap().to_string();
            assert!(
                text.contains(
                    "synthetic work of 3µs per packet was requested; only the CPU and CUDA devices support it"
                ),
                "{text}"
            );
        }
    }
}
