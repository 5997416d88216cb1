//! Pinned memory into which kernels write verdicts, and which is handed out with them.

use std::ptr::NonNull;
use std::sync::Arc;

use portcullis_core::device::offload::{KernelEffects, VerdictMemory, find_unused};

use super::slots::aligned;
use crate::driver::ErrorCode;
use crate::driver::context::Context;
use crate::memory::{Buffer, HostMemory};

/// Maximum number of columns of a session that callers hold at a time. With more, verdicts are
/// copied to ordinary memory: pinned memory is scarce.
const MAX_COLUMNS: usize = 32;

/// Least capacity of new memory, in packets.
const MIN_PACKETS: usize = 4096;

/// Columns of action bytes and of redirect targets in pinned memory.
#[derive(Debug)]
pub(crate) struct PinnedVerdicts {
    memory: HostMemory,
    packets: usize,
    /// Offset of the targets in bytes, if there are any.
    targets: Option<usize>,
}

impl PinnedVerdicts {
    fn new(context: &Arc<Context>, packets: usize, redirects: bool) -> Result<PinnedVerdicts, ErrorCode> {
        let actions = aligned(packets);
        let memory = HostMemory::new(context, actions + if redirects { packets * 4 } else { 0 })?;
        Ok(PinnedVerdicts { memory, packets, targets: redirects.then_some(actions) })
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

/// Batches after which pinned memory is asked for again if the driver had none.
const RETRY_BATCHES: u32 = 256;

/// A session's columns, in use by callers or free.
#[derive(Debug, Default)]
pub(crate) struct VerdictPool {
    columns: Vec<Arc<PinnedVerdicts>>,
    /// Batches that go without because the driver had no memory: asking may wait for the device.
    refused: u32,
}

impl VerdictPool {
    /// Returns columns for `packets` packets that nobody uses; `None` if there are none and there
    /// is no memory for more.
    ///
    /// # Errors
    /// If the driver fails otherwise.
    pub fn lend(
        &mut self,
        context: &Arc<Context>,
        packets: usize,
        effects: KernelEffects,
    ) -> Result<Option<Arc<PinnedVerdicts>>, ErrorCode> {
        if let Some(columns) = find_unused(&mut self.columns, |columns| columns.packets >= packets) {
            return Ok(Some(columns));
        }
        self.refused = self.refused.saturating_sub(1);
        if self.refused > 0 {
            return Ok(None);
        }
        // The unused ones are too small.
        self.columns.retain(|columns| Arc::strong_count(columns) > 1);
        if self.columns.len() >= MAX_COLUMNS {
            return Ok(None);
        }
        let capacity = packets.next_power_of_two().max(MIN_PACKETS);
        match PinnedVerdicts::new(context, capacity, effects.redirects) {
            Ok(columns) => self.columns.push(Arc::new(columns)),
            Err(ErrorCode::OUT_OF_MEMORY | ErrorCode::DEVICE_BUSY | ErrorCode::ABANDONED_WORK) => {
                self.refused = RETRY_BATCHES;
                return Ok(None);
            }
            Err(code) => return Err(code),
        }
        Ok(self.columns.last().cloned())
    }
}
