//! What `waitvalue` and `graph` share: their kernel, `pc_queued`, begins after its request was
//! posted, and its last block answers.

use std::sync::Arc;

use crate::driver::ErrorCode;
use crate::driver::gpu::Gpu;
use crate::memory::{Buffer, DeviceMemory};

/// For each request of a ring, the number of blocks that are done with it.
#[derive(Debug)]
pub(crate) struct BlockCounters(DeviceMemory);

impl BlockCounters {
    /// Allocates counters, which are zero before the next kernel of the session begins.
    pub fn new(gpu: &Arc<Gpu>, count: u64) -> Result<BlockCounters, ErrorCode> {
        let bytes = count as usize * 4;
        // Clear them within the period too: that may wait for the device.
        let _quiescent = gpu.context.quiesce()?;
        let memory = DeviceMemory::new(&gpu.context, bytes)?;
        memory.clear(&gpu.kernels, bytes)?;
        Ok(BlockCounters(memory))
    }

    /// Device address of the counter of a request by its index in the ring.
    pub fn address(&self, index: usize) -> u64 {
        self.0.address() + index as u64 * 4
    }
}
