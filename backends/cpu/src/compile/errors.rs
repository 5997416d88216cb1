//! Errors of the compiler, and their conversion to errors of the device.

use portcullis_core::device::DeviceError;

/// A construct that the code generator does not support, described in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unsupported(pub String);

pub(crate) type Result<T, E = Unsupported> = std::result::Result<T, E>;

/// Wraps a failure that is not the filter's doing.
pub(crate) fn failed(reason: String) -> DeviceError {
    DeviceError::Failed { device: "cpu".into(), reason }
}

/// Wraps a refusal of the filter.
pub(crate) fn unsupported(reason: Unsupported) -> DeviceError {
    DeviceError::Unsupported { device: "cpu".into(), reason: reason.0 }
}
