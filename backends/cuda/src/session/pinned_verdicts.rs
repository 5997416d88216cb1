//! Pinned memory into which kernels write verdicts, and which is handed out with them.

use std::ptr::NonNull;
use std::sync::Arc;

use portcullis_core::device::offload::VerdictMemory;

use super::slots::aligned;
use crate::driver::ErrorCode;
use crate::driver::context::Context;
use crate::memory::{Buffer, HostMemory};

/// Columns of action bytes and of redirect targets in pinned memory.
#[derive(Debug)]
pub(crate) struct PinnedVerdicts {
    memory: HostMemory,
    packets: usize,
    /// Offset of the targets in bytes, if there are any.
    targets: Option<usize>,
}

impl PinnedVerdicts {
    /// Allocates columns for `packets` packets.
    ///
    /// # Errors
    /// If the driver fails, or the memory cannot be pinned.
    pub fn new(context: &Arc<Context>, packets: usize, redirects: bool) -> Result<PinnedVerdicts, ErrorCode> {
        let actions = aligned(packets);
        let memory = HostMemory::new(context, actions + if redirects { packets * 4 } else { 0 })?;
        Ok(PinnedVerdicts { memory, packets, targets: redirects.then_some(actions) })
    }

    /// Capacity in packets.
    pub fn packets(&self) -> usize {
        self.packets
    }

    /// Addresses for kernels of the verdict and of the target of packet `first`.
    pub fn addresses(&self, first: usize) -> (u64, u64) {
        let at = self.memory.address();
        (at + first as u64, at + self.targets.unwrap_or(0) as u64 + 4 * first as u64)
    }
}

impl VerdictMemory for PinnedVerdicts {
    fn actions(&self) -> NonNull<u8> {
        self.memory.start()
    }

    fn targets(&self) -> Option<NonNull<u32>> {
        // SAFETY: the offset is within the memory, and a multiple of 16 bytes from its start.
        self.targets.map(|at| unsafe { self.memory.start().add(at) }.cast())
    }
}
