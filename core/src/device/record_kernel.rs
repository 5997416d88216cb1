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
pub trait RecordKernel {
    /// The host's records, all of them.
    fn host(&mut self) -> &mut [u8];

    /// Sends the first `count` records to the device, `chunk` at a time, has each looked at, and waits until all are back.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] where there is no room for so many; [`DeviceError::Failed`] where the device gives up.
    fn run(&mut self, count: usize, chunk: usize) -> Result<(), DeviceError>;
}

/// Whether there is room for so many records, and for chunks of so many: both on either side.
///
/// # Errors
/// [`DeviceError::Refused`] where there is not.
pub fn check_capacity(device: &str, room: (usize, usize), asked: (usize, usize)) -> Result<(), DeviceError> {
    let (count, chunk) = asked;
    if count <= room.0 && chunk.min(count) <= room.1.min(room.0) && u32::try_from(count).is_ok() {
        return Ok(());
    }
    let reason =
        format!("{device} has room for {} records, {} at a time, not for {count}, {chunk} at a time", room.0, room.1);
    Err(DeviceError::Refused(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_asks_for_more_than_there_is_room_for() {
        let fits = |room, asked| check_capacity("a device", room, asked).is_ok();
        for asked in [(0, 0), (10, 4), (10, 1), (3, 4), (3, 100)] {
            assert!(fits((10, 4), asked), "{asked:?}");
        }
        // A chunk of all there are is a chunk of no more.
        assert!(fits((10, 50), (10, 70)));
        for asked in [(11, 4), (10, 5), (11, 1), (5, 5)] {
            assert!(!fits((10, 4), asked), "{asked:?}");
        }
        assert!(!fits((1 << 33, 4), (1 << 32, 4)));
        let refused = check_capacity("a device", (10, 4), (11, 2)).unwrap_err().to_string();
        assert!(refused.contains("a device has room for 10 records, 4 at a time"), "{refused}");
    }
}
