//! Memory of a GPU's, and memory of the host's that it is shown.

use std::any::Any;
use std::ffi::{c_uint, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use portcullis_dpdk_sys as sys;

use super::gpu::Gpu;
use crate::dpdk::error::DpdkError;

/// Memory in a GPU. Dropped, it is given back.
#[derive(Debug)]
pub struct GpuMemory {
    gpu: Arc<Gpu>,
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: it owns memory that the host does not look at by this.
unsafe impl Send for GpuMemory {}
// SAFETY: as above.
unsafe impl Sync for GpuMemory {}

impl GpuMemory {
    /// So many bytes or a few more, to whole pages of the GPU's.
    ///
    /// # Errors
    /// [`DpdkError::Gpu`], for example because it has not so much.
    pub fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<GpuMemory, DpdkError> {
        let page = gpu.info().properties.page;
        let len = bytes.max(1).next_multiple_of(page);
        let what = format!("allocating {len} bytes of its memory");
        let start = gpu.alone(|| {
            // SAFETY: the GPU is there.
            let start = unsafe { sys::rte_gpu_mem_alloc(gpu.number(), len, page as c_uint) };
            gpu.pointer(&what, start)
        })?;
        Ok(GpuMemory { gpu: gpu.clone(), start, len })
    }

    /// Whose it is.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Where it begins, for the GPU and for others that reach its memory.
    pub fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a piece of memory has bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The same as a place, where nobody but the GPU may find anything.
    pub(in crate::dpdk) fn start(&self) -> NonNull<u8> {
        self.start.cast()
    }
}

impl Drop for GpuMemory {
    fn drop(&mut self) {
        // SAFETY: it was allocated there, and nobody has it any more.
        self.gpu.alone(|| unsafe { sys::rte_gpu_mem_free(self.gpu.number(), self.start.as_ptr()) });
    }
}

/// A view by which the host reaches memory of a GPU's. Dropped, it is gone.
#[derive(Debug)]
pub struct CpuMapping {
    memory: Arc<GpuMemory>,
    view: NonNull<u8>,
}

// SAFETY: it owns a view, by which nobody looks without saying why that is right.
unsafe impl Send for CpuMapping {}
// SAFETY: as above.
unsafe impl Sync for CpuMapping {}

impl CpuMapping {
    /// Of all of it.
    ///
    /// # Errors
    /// [`DpdkError::Gpu`]: its driver says what is missing for it.
    pub fn new(memory: &Arc<GpuMemory>) -> Result<CpuMapping, DpdkError> {
        let gpu = &memory.gpu;
        let view = gpu.alone(|| {
            // SAFETY: the memory is there.
            let view = unsafe { sys::rte_gpu_mem_cpu_map(gpu.number(), memory.len, memory.start.as_ptr()) };
            gpu.pointer("having the processor reach its memory", view)
        })?;
        Ok(CpuMapping { memory: memory.clone(), view: view.cast() })
    }

    /// Where the host finds the first byte. There are [`GpuMemory::len`] of them for as long as this is there.
    pub fn view(&self) -> NonNull<u8> {
        self.view
    }

    /// What it is a view of.
    pub fn memory(&self) -> &Arc<GpuMemory> {
        &self.memory
    }
}

impl Drop for CpuMapping {
    fn drop(&mut self) {
        let gpu = &self.memory.gpu;
        // SAFETY: it was mapped, and nobody looks by it any more.
        gpu.alone(|| unsafe { sys::rte_gpu_mem_cpu_unmap(gpu.number(), self.memory.start.as_ptr()) });
    }
}

/// Memory of the host's that a GPU is shown, for as long as this is there.
pub struct RegisteredMemory {
    gpu: Arc<Gpu>,
    start: NonNull<u8>,
    /// Whose memory it is.
    #[expect(dead_code, reason = "kept for its drop")]
    owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: it shows memory to a GPU; nobody looks at it by this.
unsafe impl Send for RegisteredMemory {}
// SAFETY: as above.
unsafe impl Sync for RegisteredMemory {}

impl std::fmt::Debug for RegisteredMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registered").field("gpu", &self.gpu).field("start", &self.start).finish()
    }
}

impl RegisteredMemory {
    /// Shows a GPU so many bytes.
    ///
    /// # Errors
    /// [`DpdkError::Gpu`].
    ///
    /// # Safety
    /// From `start` on there are so many bytes, for as long as `owner` is there.
    pub unsafe fn new(
        gpu: &Arc<Gpu>,
        start: NonNull<u8>,
        bytes: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<RegisteredMemory, DpdkError> {
        let what = format!("showing it {bytes} bytes of the host's memory");
        gpu.alone(|| {
            // SAFETY: by the caller's promise.
            let result = unsafe { sys::rte_gpu_mem_register(gpu.number(), bytes, start.as_ptr().cast()) };
            gpu.check(&what, result)
        })?;
        Ok(RegisteredMemory { gpu: gpu.clone(), start, owner })
    }

    /// Where the GPU finds the first byte.
    pub fn address(&self) -> u64 {
        self.gpu.found(self.start.as_ptr() as u64)
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        // SAFETY: it is registered, and its owner is there.
        self.gpu.alone(|| unsafe { sys::rte_gpu_mem_unregister(self.gpu.number(), self.start.as_ptr().cast()) });
    }
}
