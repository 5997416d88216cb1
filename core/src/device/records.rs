//! Records that a host has parsed, filtered by kernels written by hand: how others drive a device, for benches that hold
//! this project to them.

use super::DeviceError;

/// Where the host has its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HostMemory {
    /// Anywhere.
    Pageable,
    /// Where the device copies from and to by itself.
    Pinned,
    /// Where kernels reach it: nothing is copied.
    Imported,
}

impl HostMemory {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            HostMemory::Pageable => "pageable",
            HostMemory::Pinned => "pinned",
            HostMemory::Imported => "imported",
        }
    }
}

/// A device with a kernel over records, and the host's memory for them.
pub trait Records {
    /// The host's records, all of them.
    fn host(&mut self) -> &mut [u8];

    /// Sends the first `count` records to the device, `chunk` at a time, has each looked at, and waits until all are back.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] where the device gives up.
    fn run(&mut self, count: usize, chunk: usize) -> Result<(), DeviceError>;
}
