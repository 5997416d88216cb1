//! GPU memory, its CPU mappings, and registered host memory.

use std::any::Any;
use std::ffi::{c_uint, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use portcullis_dpdk_sys as sys;

use super::gpu::Gpu;
use crate::dpdk::error::DpdkError;

/// GPU memory, freed on drop.
#[derive(Debug)]
pub struct GpuMemory {
    gpu: Arc<Gpu>,
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: the type owns memory that the CPU does not access through it.
unsafe impl Send for GpuMemory {}
// SAFETY: as above.
unsafe impl Sync for GpuMemory {}

impl GpuMemory {
    /// Allocates at least `bytes` bytes, rounded up to the GPU's pages.
    ///
    /// # Errors
    /// [`DpdkError::Gpu`], for example if there is not enough memory.
    pub fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<GpuMemory, DpdkError> {
        let page = gpu.info().properties.page;
        let len = bytes.max(1).next_multiple_of(page);
        let what = format!("allocating {len} bytes of its memory");
        let start = gpu.locked(|| {
            // SAFETY: the GPU exists.
            let start = unsafe { sys::rte_gpu_mem_alloc(gpu.number(), len, page as c_uint) };
            gpu.pointer(&what, start)
        })?;
        Ok(GpuMemory { gpu: gpu.clone(), start, len })
    }

    /// The GPU that owns the memory.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Address for the GPU, and for peers with access to its memory.
    pub fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: memory has at least one page.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The GPU's address as a pointer, which the CPU must not dereference.
    pub(in crate::dpdk) fn start(&self) -> NonNull<u8> {
        self.start.cast()
    }
}

impl Drop for GpuMemory {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated by this GPU, and nothing uses it any more.
        self.gpu.locked(|| unsafe { sys::rte_gpu_mem_free(self.gpu.number(), self.start.as_ptr()) });
    }
}

/// A CPU mapping of GPU memory, unmapped on drop.
#[derive(Debug)]
pub struct CpuMapping {
    memory: Arc<GpuMemory>,
    view: NonNull<u8>,
}

// SAFETY: the type owns a mapping that is not accessed through it.
unsafe impl Send for CpuMapping {}
// SAFETY: as above.
unsafe impl Sync for CpuMapping {}

impl CpuMapping {
    /// Maps all of `memory`.
    ///
    /// # Errors
    /// [`DpdkError::Gpu`], with what its driver lacks.
    pub fn new(memory: &Arc<GpuMemory>) -> Result<CpuMapping, DpdkError> {
        let gpu = &memory.gpu;
        let view = gpu.locked(|| {
            // SAFETY: the memory exists.
            let view = unsafe { sys::rte_gpu_mem_cpu_map(gpu.number(), memory.len, memory.start.as_ptr()) };
            gpu.pointer("mapping its memory for the CPU", view)
        })?;
        Ok(CpuMapping { memory: memory.clone(), view: view.cast() })
    }

    /// CPU address of the first of [`GpuMemory::len`] bytes, valid as long as `self`.
    pub fn view(&self) -> NonNull<u8> {
        self.view
    }

    /// The mapped memory.
    pub fn memory(&self) -> &Arc<GpuMemory> {
        &self.memory
    }
}

impl Drop for CpuMapping {
    fn drop(&mut self) {
        let gpu = &self.memory.gpu;
        // SAFETY: the memory was mapped, and nothing uses the mapping any more.
        gpu.locked(|| unsafe { sys::rte_gpu_mem_cpu_unmap(gpu.number(), self.memory.start.as_ptr()) });
    }
}

/// Host memory that is registered with a GPU, unregistered on drop.
pub struct RegisteredMemory {
    gpu: Arc<Gpu>,
    start: NonNull<u8>,
    /// Owner of the memory.
    #[expect(dead_code, reason = "kept for its drop")]
    owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the type does not access the memory.
unsafe impl Send for RegisteredMemory {}
// SAFETY: as above.
unsafe impl Sync for RegisteredMemory {}

impl std::fmt::Debug for RegisteredMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registered").field("gpu", &self.gpu).field("start", &self.start).finish()
    }
}

impl RegisteredMemory {
    /// Registers `bytes` bytes from `start` on.
    ///
    /// # Errors
    /// [`DpdkError::Gpu`].
    ///
    /// # Safety
    /// The bytes must exist as long as `owner`.
    pub unsafe fn new(
        gpu: &Arc<Gpu>,
        start: NonNull<u8>,
        bytes: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<RegisteredMemory, DpdkError> {
        let what = format!("registering {bytes} bytes of host memory with it");
        gpu.locked(|| {
            // SAFETY: by the caller's promise.
            let result = unsafe { sys::rte_gpu_mem_register(gpu.number(), bytes, start.as_ptr().cast()) };
            gpu.check(&what, result)
        })?;
        Ok(RegisteredMemory { gpu: gpu.clone(), start, owner })
    }

    /// Address of the first byte for the GPU.
    pub fn address(&self) -> u64 {
        self.gpu.gpu_address(self.start.as_ptr() as u64)
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        // SAFETY: the memory is registered, and its owner exists.
        self.gpu.locked(|| unsafe { sys::rte_gpu_mem_unregister(self.gpu.number(), self.start.as_ptr().cast()) });
    }
}
