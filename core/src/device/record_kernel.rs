//! Hand-written kernels over records that the host has parsed, as other packet engines on GPUs use
//! them. Benchmarks compare this project with that approach.

use super::DeviceError;

/// Kind of host memory that holds the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HostMemory {
    /// Ordinary memory.
    Pageable,
    /// Page-locked memory, which the device copies from and to by DMA.
    Pinned,
    /// Memory mapped into the device's address space: kernels access it without copies.
    Imported,
}

impl HostMemory {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            HostMemory::Pageable => "pageable",
            HostMemory::Pinned => "pinned",
            HostMemory::Imported => "imported",
        }
    }
}

/// A device with a hand-written kernel, and host memory for records.
pub trait RecordKernel {
    /// All records in host memory.
    fn host(&mut self) -> &mut [u8];

    /// Runs the kernel over the first `count` records, `chunk` at a time, and waits until all of
    /// them are back in host memory.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] if `count` or `chunk` exceeds the capacity; [`DeviceError::Failed`]
    /// if the driver fails.
    fn run(&mut self, count: usize, chunk: usize) -> Result<(), DeviceError>;
}

/// Checks `requested` (records, records per chunk) against `capacity` (the same).
///
/// # Errors
/// [`DeviceError::Refused`] if either exceeds it.
pub fn check_capacity(device: &str, capacity: (usize, usize), requested: (usize, usize)) -> Result<(), DeviceError> {
    let (count, chunk) = requested;
    if count <= capacity.0 && chunk.min(count) <= capacity.1.min(capacity.0) && u32::try_from(count).is_ok() {
        return Ok(());
    }
    let reason = format!(
        "{device} holds {} records, {} per chunk; {count}, {chunk} per chunk, were requested",
        capacity.0, capacity.1
    );
    Err(DeviceError::Refused(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_beyond_the_capacity_are_refused() {
        let fits = |capacity, requested| check_capacity("a device", capacity, requested).is_ok();
        for requested in [(0, 0), (10, 4), (10, 1), (3, 4), (3, 100)] {
            assert!(fits((10, 4), requested), "{requested:?}");
        }
        // A chunk is at most as long as all records.
        assert!(fits((10, 50), (10, 70)));
        for requested in [(11, 4), (10, 5), (11, 1), (5, 5)] {
            assert!(!fits((10, 4), requested), "{requested:?}");
        }
        assert!(!fits((1 << 33, 4), (1 << 32, 4)));
        let refused = check_capacity("a device", (10, 4), (11, 2)).unwrap_err().to_string();
        assert!(refused.contains("a device holds 10 records, 4 per chunk"), "{refused}");
    }
}
