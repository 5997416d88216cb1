//! Memory for a batch's verdicts, which is handed out with them.

use std::ptr::NonNull;
use std::sync::Arc;

use portcullis_core::device::offload::{HostVerdicts, VerdictMemory};
use portcullis_core::device::{DeviceError, DeviceKind};

use super::buffers::PinnedBuffer;
use crate::driver::gpu::Gpu;

/// Columns of action bytes and of redirect targets.
pub(crate) enum LentVerdicts {
    /// Columns that a CPU's kernels write.
    Host(HostVerdicts),
    /// Columns that the device copies verdicts to.
    Pinned(PinnedVerdicts),
}

/// Columns in pinned memory.
pub(crate) struct PinnedVerdicts {
    memory: PinnedBuffer,
    packets: usize,
    /// Offset of the targets in bytes, if there are any.
    targets: Option<usize>,
    // Last: callers may keep verdicts longer than the session.
    _gpu: Arc<Gpu>,
}

impl LentVerdicts {
    /// Allocates columns for `packets` packets; `None` if the device cannot use any.
    ///
    /// # Errors
    /// If the driver has no memory.
    pub fn new(gpu: &Arc<Gpu>, packets: usize, redirects: bool) -> Result<Option<LentVerdicts>, DeviceError> {
        if gpu.shares_memory {
            // A GPU's driver would copy host memory that is not aligned as the GPU requires.
            let writes_directly = gpu.kind == DeviceKind::Cpu;
            return Ok(writes_directly.then(|| LentVerdicts::Host(HostVerdicts::new(packets, redirects))));
        }
        let targets = packets.next_multiple_of(align_of::<u32>());
        let memory = PinnedBuffer::new(gpu, (targets + if redirects { packets * 4 } else { 0 }) as u64)?;
        let targets = redirects.then_some(targets);
        Ok(Some(LentVerdicts::Pinned(PinnedVerdicts { memory, packets, targets, _gpu: gpu.clone() })))
    }

    /// Capacity in packets.
    pub fn packets(&self) -> usize {
        match self {
            LentVerdicts::Host(columns) => columns.packets(),
            LentVerdicts::Pinned(columns) => columns.packets,
        }
    }
}

impl VerdictMemory for LentVerdicts {
    fn actions(&self) -> NonNull<u8> {
        match self {
            LentVerdicts::Host(columns) => columns.actions(),
            LentVerdicts::Pinned(columns) => columns.memory.start(),
        }
    }

    fn targets(&self) -> Option<NonNull<u32>> {
        match self {
            LentVerdicts::Host(columns) => columns.targets(),
            // SAFETY: the offset is within the memory, and a multiple of a word, as is the start of
            // a map.
            LentVerdicts::Pinned(columns) => columns.targets.map(|at| unsafe { columns.memory.start().add(at) }.cast()),
        }
    }
}
