//! GPU memory for packet sources, and host memory that GPUs access.

use std::ffi::{c_char, c_int};
use std::fmt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
use portcullis_core::device::DeviceError;
use portcullis_core::packet::{DeviceView, READABLE_PAST_END};

use super::buffers::{Buffer, DeviceMemory, HostMemory, PINNED};
use super::gdrcopy::Mapping;
use super::registration::EVERY_DEVICE;
use crate::driver::gpu::Gpu as OpenGpu;
use crate::driver::{ErrorCode, check};

/// GPU page size: the unit in which memory is mapped for network cards and the CPU.
const GPU_PAGE_SIZE: usize = 64 << 10;

/// Size in bytes of the staging buffer, through which copies go piece by piece.
const STAGING_SIZE: usize = 1 << 20;

/// A GPU whose memory a source allocates; cheap to clone, usable from any thread. Its context stays
/// open while this or anything made from it exists.
#[derive(Clone)]
pub struct Gpu(Arc<GpuInner>);

struct GpuInner {
    pci_address: Option<String>,
    total: usize,
    /// Staging buffer of copies, allocated at the first.
    staging: Mutex<Option<HostMemory>>,
    gpu: Arc<OpenGpu>,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gpu").field(&self.id()).finish()
    }
}

/// How network cards can access a GPU's memory (GPUDirect RDMA); at least one of the fields is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuDirect {
    /// The module nvidia-peermem is loaded: RDMA drivers such as mlx5's can register GPU memory
    /// like host memory.
    pub peermem: bool,
    /// The driver exports the memory as a dma-buf.
    pub dma_buf: bool,
}

impl Gpu {
    /// Wraps an opened device.
    pub(crate) fn from_open_gpu(gpu: Arc<OpenGpu>) -> Result<Gpu, DeviceError> {
        let (driver, mut total) = (gpu.context.driver, 0);
        // SAFETY: the pointer is to a number that outlives the call.
        let known = unsafe { (driver.cuDeviceTotalMem_v2)(&mut total, gpu.handle) };
        check(known).map_err(|code| gpu.error("cannot be used", code))?;
        let mut text = [0_u8; 32];
        // SAFETY: the buffer has the size that is passed; the driver ends the address with a zero
        // within it.
        let known = unsafe {
            (driver.cuDeviceGetPCIBusId)(text.as_mut_ptr().cast::<c_char>(), text.len() as c_int, gpu.handle)
        };
        let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
        let pci_address = (known == 0).then(|| String::from_utf8_lossy(text).to_lowercase());
        Ok(Gpu(Arc::new(GpuInner { pci_address, total, staging: Mutex::new(None), gpu })))
    }

    /// Id of the device that filters packets in this memory, as in
    /// [`DeviceInfo::id`](portcullis_core::device::DeviceInfo): `cuda:0`.
    pub fn id(&self) -> &str {
        &self.0.gpu.id
    }

    /// The driver's name for the GPU.
    pub fn name(&self) -> &str {
        &self.0.gpu.name
    }

    /// Total memory in bytes, free or not.
    pub fn total_memory(&self) -> usize {
        self.0.total
    }

    /// Number of multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.0.gpu.multiprocessors
    }

    /// PCI address, such as `0000:3b:00.0`, if the driver reports it.
    pub fn pci_address(&self) -> Option<&str> {
        self.0.pci_address.as_deref()
    }

    /// The nearest NUMA node, if the machine has several and reports it.
    pub fn numa_node(&self) -> Option<u32> {
        let path = Path::new("/sys/bus/pci/devices").join(self.pci_address()?).join("numa_node");
        // The file has −1 if there is no node, which does not parse as `u32`.
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// Returns how network cards can access the GPU's memory.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] if they cannot, with what to do.
    pub fn gpudirect(&self) -> Result<GpuDirect, DeviceError> {
        let (driver, device) = (self.0.gpu.context.driver, self.0.gpu.handle);
        let number = |attribute| driver.attribute(device, attribute) != 0;
        let loaded = |module: &str| Path::new("/sys/module").join(module).exists();
        // The second name is that of the module before it became part of the driver.
        let peermem = loaded("nvidia_peermem") || loaded("nv_peer_mem");
        // Known to drivers since CUDA 11.7; 0 for older ones.
        let dma_buf = number(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
        let supported = number(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
        check_gpudirect(self.id(), supported, GpuDirect { peermem, dma_buf })
    }

    /// Allocates `bytes` bytes of zeroed GPU memory, which network cards may write into (GPUDirect
    /// RDMA). The start is a multiple of `alignment`, a power of two, and of the GPU page size, 64
    /// KiB; [`READABLE_PAST_END`] bytes past the end are readable.
    ///
    /// If kernels are resident on the device, waits until they have left, at most
    /// [`LAUNCH_TIMEOUT`](portcullis_core::device::offload::LAUNCH_TIMEOUT).
    ///
    /// # Errors
    /// [`DeviceError::Refused`] if `bytes` is 0 or `alignment` is not a power of two;
    /// [`DeviceError::Failed`] if there is no memory, or the driver fails.
    pub fn allocate(&self, bytes: usize, alignment: usize) -> Result<Arc<DeviceBuffer>, DeviceError> {
        let gpu = &self.0.gpu;
        let alignment = alignment.max(GPU_PAGE_SIZE);
        let all = bytes.checked_add(READABLE_PAST_END).and_then(|bytes| bytes.checked_next_multiple_of(GPU_PAGE_SIZE));
        let asked = all.and_then(|all| all.checked_add(alignment));
        let (Some(all), Some(asked), true, true) = (all, asked, bytes > 0, alignment.is_power_of_two()) else {
            return Err(DeviceError::Refused(format!(
                "{bytes} bytes at a multiple of {alignment} are nothing to allocate"
            )));
        };
        let failed = |code| gpu.allocation_error(format_args!("{bytes} bytes"), code);
        let quiescent = gpu.context.quiesce().map_err(failed)?;
        let memory = DeviceMemory::new(&gpu.context, asked).map_err(failed)?;
        let driver = gpu.context.driver;
        let yes: u32 = 1;
        // SAFETY: the attribute takes a word, and the address was allocated above. Without it, RDMA
        // writes are not ordered with the driver's own copies (CUDA's "GPUDirect RDMA", section
        // "Synchronization and memory ordering").
        let set = unsafe {
            (driver.cuPointerSetAttribute)((&raw const yes).cast(), CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory.address())
        };
        // Devices without GPUDirect may not know the attribute.
        match check(set) {
            Ok(()) | Err(ErrorCode::INVALID_VALUE | ErrorCode::NOT_SUPPORTED) => {}
            Err(code) => return Err(failed(code)),
        }
        memory.clear(&gpu.kernels, asked).map_err(failed)?;
        drop(quiescent);
        let memory = gpu.wait_for_stream(&gpu.kernels, memory, failed)?;
        let address = memory.address().next_multiple_of(alignment as u64);
        Ok(Arc::new(DeviceBuffer { address, bytes, allocated: all, memory, gpu: self.clone() }))
    }

    /// Pins `bytes` bytes of host memory from `start` on, for access by all CUDA devices of the
    /// process, for as long as the returned value exists.
    ///
    /// If kernels are resident on the device, waits until they have left, at most
    /// [`LAUNCH_TIMEOUT`](portcullis_core::device::offload::LAUNCH_TIMEOUT).
    ///
    /// # Errors
    /// [`DeviceError::Failed`] if the driver refuses: a part is registered already, or the system's
    /// limit for pinned memory is reached.
    ///
    /// # Safety
    /// The memory is readable and writable until it is unregistered
    /// ([`HostRegistration::unregister`]), and no session has a batch in it then.
    pub unsafe fn register(&self, start: NonNull<u8>, bytes: usize) -> Result<HostRegistration, DeviceError> {
        let gpu = &self.0.gpu;
        let failed = |code| {
            match code {
            ErrorCode::ALREADY_REGISTERED => gpu.failure(format!(
                "a part of the {bytes} bytes of the host's memory at {start:p} is registered already: have it registered \
                 once, by the program or by a library"
            )),
            ErrorCode::OUT_OF_MEMORY => gpu.failure(format!(
                "{bytes} bytes of the host's memory cannot be pinned: raise what this user may lock (`ulimit -l`), or take \
                 fewer ({code})"
            )),
            ErrorCode(..0) => gpu.error("cannot be used", code),
            _ => gpu.failure(format!("{bytes} bytes of the host's memory at {start:p} cannot be registered: {code}")),
        }
        };
        let _quiescent = gpu.context.quiesce().map_err(failed)?;
        let driver = gpu.context.driver;
        // SAFETY: the memory is accessible, by the caller's promise.
        check(unsafe { (driver.cuMemHostRegister_v2)(start.as_ptr().cast(), bytes, PINNED) }).map_err(failed)?;
        let mut registration = HostRegistration { start, bytes, address: 0, is_registered: true, gpu: self.clone() };
        // SAFETY: the pointer outlives the call; the memory was registered as mapped above.
        let asked =
            unsafe { (driver.cuMemHostGetDevicePointer_v2)(&mut registration.address, start.as_ptr().cast(), 0) };
        check(asked).map_err(failed)?;
        Ok(registration)
    }

    /// Makes everything that the CPU or a network card has written into the GPU's memory visible to
    /// what the GPU does next, also to running kernels.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] if the driver fails.
    pub fn barrier(&self) -> Result<(), DeviceError> {
        let gpu = &self.0.gpu;
        // Mappings are write-combining memory, whose stores only this fence orders.
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 processor has the instruction.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
        fence(Ordering::SeqCst);
        gpu.flush_remote_writes().map_err(|code| gpu.error("flushing remote writes failed", code))
    }
}

/// Turns what was found out about GPUDirect RDMA into a result.
fn check_gpudirect(id: &str, supported: bool, paths: GpuDirect) -> Result<GpuDirect, DeviceError> {
    let missing =
        |what: &str| Err(DeviceError::Missing(format!("network cards do not reach the memory of {id}: {what}")));
    match (supported, paths) {
        (false, _) => missing("this GPU has no GPUDirect RDMA; have packets in the host's memory"),
        (true, GpuDirect { peermem: false, dma_buf: false }) => {
            missing("nvidia-peermem is not loaded: `modprobe nvidia-peermem`, as root, loads it")
        }
        _ => Ok(paths),
    }
}

/// Memory of a GPU. Freed once this value and all mappings of it are dropped: with resident kernels
/// on the device, soon after.
pub struct DeviceBuffer {
    address: u64,
    bytes: usize,
    allocated: usize,
    memory: DeviceMemory,
    gpu: Gpu,
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({} bytes at {:#x} of {})", self.bytes, self.address, self.gpu.id())
    }
}

impl DeviceBuffer {
    /// The GPU that has the memory.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Device address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes, as it was asked for.
    pub fn size(&self) -> usize {
        self.bytes
    }

    /// Number of readable bytes from the first on: at least [`READABLE_PAST_END`] more than the
    /// size, and a multiple of 64 KiB.
    pub fn allocated(&self) -> usize {
        self.allocated
    }

    /// The address for sessions on this GPU, for
    /// [`Span::from_views`](portcullis_core::packet::Span::from_views).
    pub fn view(&self) -> DeviceView {
        DeviceView { device: self.gpu.id().into(), address: self.address }
    }

    /// Maps all of it for the CPU (GDRCopy). Writes are combined and fast; a read takes about a
    /// microsecond.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] without GDRCopy; [`DeviceError::Failed`] if the GPU's PCI window
    /// (BAR1) has no room for it.
    pub fn map(self: &Arc<Self>) -> Result<CpuMapping, DeviceError> {
        // SAFETY: the bytes lie in one allocation, which the mapping keeps.
        let mapping = unsafe { Mapping::new(self.gpu.id(), self.address, self.allocated)? };
        Ok(CpuMapping { mapping, buffer: self.clone() })
    }

    /// Copies bytes to byte `at` of the memory, and waits for completion.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] if they are out of bounds; [`DeviceError::Failed`] if the driver
    /// fails.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.copy(
            at,
            bytes.len(),
            |gpu, staging, done, to, count| {
                // SAFETY: no other command is queued that uses the staging buffer, which the lock
                // guards; the copy is waited for.
                unsafe {
                    staging.slice_mut(0, count).copy_from_slice(&bytes[done..done + count]);
                    self.memory.upload(to, staging.as_ptr(), count, &gpu.kernels)
                }
            },
            |_, _, _| (),
        )
    }

    /// Copies bytes from byte `at` of the memory on.
    ///
    /// # Errors
    /// As [`DeviceBuffer::write`].
    pub fn read(&self, at: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.copy(
            at,
            bytes.len(),
            |gpu, staging, _, from, count| {
                // SAFETY: the copy is waited for before the staging buffer is read.
                unsafe { self.memory.download(from, staging, 0, count, &gpu.kernels) }
            },
            |staging, done, count| {
                // SAFETY: the copy has completed.
                bytes[done..done + count].copy_from_slice(unsafe { staging.slice(0, count) });
            },
        )
    }

    /// Copies piece by piece through the staging buffer. `queue` queues the copy of a piece, given
    /// its offset among the bytes, its offset in the memory and its size; `after` runs once that
    /// has completed.
    fn copy(
        &self,
        at: usize,
        bytes: usize,
        queue: impl Fn(&OpenGpu, &HostMemory, usize, usize, usize) -> Result<(), ErrorCode>,
        mut after: impl FnMut(&HostMemory, usize, usize),
    ) -> Result<(), DeviceError> {
        if at > self.bytes || bytes > self.bytes - at {
            return Err(DeviceError::Refused(format!(
                "{bytes} bytes from byte {at} on of {} bytes of {}",
                self.bytes,
                self.gpu.id()
            )));
        }
        let gpu = &self.gpu.0.gpu;
        let failed = |code| gpu.error("copying failed", code);
        let first = (self.address - self.memory.address()) as usize + at;
        let mut slot = self.gpu.0.staging.lock().unwrap_or_else(PoisonError::into_inner);
        for done in (0..bytes).step_by(STAGING_SIZE) {
            let count = STAGING_SIZE.min(bytes - done);
            let staging = match slot.take() {
                Some(staging) => staging,
                None => HostMemory::for_copies(&gpu.context, STAGING_SIZE)
                    .map_err(|code| gpu.allocation_error("a copy", code))?,
            };
            queue(gpu, &staging, done, first + done, count).map_err(failed)?;
            let staging = gpu.wait_for_stream(&gpu.kernels, staging, failed)?;
            after(&staging, done, count);
            *slot = Some(staging);
        }
        Ok(())
    }
}

/// Host memory that GPUs can access, until this value is dropped.
pub struct HostRegistration {
    start: NonNull<u8>,
    bytes: usize,
    address: u64,
    is_registered: bool,
    gpu: Gpu,
}

// SAFETY: an address of memory that belongs to the caller of `register`.
unsafe impl Send for HostRegistration {}
// SAFETY: as above; shared references give addresses only.
unsafe impl Sync for HostRegistration {}

impl fmt::Debug for HostRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostRegistration({} bytes at {:p})", self.bytes, self.start)
    }
}

impl HostRegistration {
    /// Address of the first byte for the host.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Size in bytes.
    pub fn size(&self) -> usize {
        self.bytes
    }

    /// Address of the first byte for devices.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The address for sessions on any CUDA device, for
    /// [`Span::from_views`](portcullis_core::packet::Span::from_views), beside the host's view:
    /// packets there are filtered in place, over the bus.
    pub fn view(&self) -> DeviceView {
        DeviceView { device: EVERY_DEVICE.into(), address: self.address }
    }

    /// Unregisters the memory now. Dropping does so too, but only soon if kernels are resident on
    /// the device: call this if the memory is about to be freed.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] if the device does not become quiescent within
    /// [`LAUNCH_TIMEOUT`](portcullis_core::device::offload::LAUNCH_TIMEOUT), or the driver fails:
    /// then the memory must stay allocated.
    pub fn unregister(mut self) -> Result<(), DeviceError> {
        let gpu = self.gpu.0.gpu.clone();
        let failed = |code| gpu.error("unregistering host memory failed", code);
        let _quiescent = gpu.context.quiesce().map_err(failed)?;
        self.is_registered = false;
        // SAFETY: it was registered in `register`, whose caller promises that no session has a
        // batch in it.
        check(unsafe { (gpu.context.driver.cuMemHostUnregister)(self.start.as_ptr().cast()) }).map_err(failed)
    }
}

impl Drop for HostRegistration {
    fn drop(&mut self) {
        if !self.is_registered {
            return;
        }
        let start = self.start.as_ptr() as usize;
        self.gpu.0.gpu.context.release_when_quiescent(move |driver| {
            // SAFETY: it was registered in `register`, whose caller promises that no session has a
            // batch in it.
            unsafe { (driver.cuMemHostUnregister)(start as *mut _) };
        });
    }
}

/// A CPU mapping of a GPU's memory.
pub struct CpuMapping {
    // First: the memory must be unmapped before it is freed.
    mapping: Mapping,
    buffer: Arc<DeviceBuffer>,
}

impl fmt::Debug for CpuMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuMapping({:?} at {:p})", self.buffer, self.start())
    }
}

impl CpuMapping {
    /// CPU address of the first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.mapping.first()
    }

    /// The mapped memory.
    pub fn buffer(&self) -> &Arc<DeviceBuffer> {
        &self.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_gpudirect_the_error_says_what_to_do() {
        let ways = |peermem, dma_buf| GpuDirect { peermem, dma_buf };
        assert_eq!(check_gpudirect("cuda:0", true, ways(true, false)), Ok(ways(true, false)));
        assert_eq!(check_gpudirect("cuda:0", true, ways(false, true)), Ok(ways(false, true)));
        let text = check_gpudirect("cuda:0", true, ways(false, false)).unwrap_err().to_string();
        assert!(text.contains("`modprobe nvidia-peermem`"), "{text}");
        let text = check_gpudirect("cuda:0", false, ways(true, true)).unwrap_err().to_string();
        assert!(text.contains("no GPUDirect RDMA"), "{text}");
    }
}
