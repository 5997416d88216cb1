//! Sessions that do without pinned memory.

use portcullis_core::device::offload;

use crate::driver::ErrorCode;

/// Whether a session does without pinned memory, and whether the user was told.
#[derive(Debug, Default)]
pub(crate) enum UnpinnedMemory {
    #[default]
    None,
    Refused(ErrorCode),
    Reported,
}

impl UnpinnedMemory {
    /// Records why memory could not be pinned, if it could not.
    pub fn record(&mut self, refusal: Option<ErrorCode>) {
        if let (UnpinnedMemory::None, Some(code)) = (&self, refusal) {
            *self = UnpinnedMemory::Refused(code);
        }
    }

    /// Takes the warning for the user, once.
    pub fn take_warning(&mut self, device: &str) -> Option<String> {
        let UnpinnedMemory::Refused(code) = *self else { return None };
        *self = UnpinnedMemory::Reported;
        Some(offload::unpinned_warning(device, &code.to_string()))
    }
}
