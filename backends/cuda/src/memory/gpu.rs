//! What a source needs whose packets are in a GPU's memory, or in memory that a GPU is to reach.

use std::ffi::{c_char, c_int};
use std::fmt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
use portcullis_core::device::{CancelToken, Device, DeviceError, Dispatch};
use portcullis_core::packet::{DeviceView, READABLE_PAST_END};

use super::gdrcopy::Mapping;
use super::{Buffer, DeviceMemory, HostMemory, PINNED};
use crate::api::{Code, check};
use crate::device;
use crate::probe::{CudaDevice, attribute_of, probe};

/// What a [`DeviceView`] names in a device's place where every CUDA device of the process finds the memory at that address.
pub const EVERY_DEVICE: &str = "cuda";

/// A GPU's page: what is mapped for others, network cards and the processor, is mapped by these.
const PAGE: usize = 64 << 10;

/// Bytes that a copy takes at a time.
const STAGE: usize = 1 << 20;

/// A GPU, for its memory: cheap to clone, for any thread. Its context stays open as long as this does or anything that came
/// of it.
#[derive(Clone)]
pub struct Gpu(Arc<Opened>);

struct Opened {
    device: CudaDevice,
    pci_address: Option<String>,
    total: usize,
    /// What copies go through.
    stage: Mutex<Option<HostMemory>>,
    gpu: Arc<device::Gpu>,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gpu").field(&self.id()).finish()
    }
}

/// How a network card reaches a GPU's memory (GPUDirect RDMA); at least one of them is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuDirect {
    /// The module nvidia-peermem is loaded: drivers of InfiniBand's kind, mlx5 among them, register the memory as any other.
    pub peermem: bool,
    /// The driver gives the memory as a dma-buf.
    pub dma_buf: bool,
}

impl Gpu {
    /// The GPU of this number: 0 for `cuda:0`.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] where there is none, with what to do; [`DeviceError::Failed`] where it cannot be opened.
    pub fn open(number: usize) -> Result<Gpu, DeviceError> {
        let devices = probe()?;
        let count = devices.len();
        let device = devices.into_iter().nth(number);
        let device = device.ok_or_else(|| {
            DeviceError::Missing(format!("there is no cuda:{number}: the CUDA driver gives {count}, counted from 0"))
        })?;
        Gpu::of(device)
    }

    /// The same of a device that was found.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    pub fn of(device: CudaDevice) -> Result<Gpu, DeviceError> {
        let gpu = Arc::new(device.open(Dispatch::Inline, &CancelToken::new())?);
        let (driver, mut total) = (gpu.context.driver, 0);
        // SAFETY: room for a number.
        let known = unsafe { (driver.cuDeviceTotalMem_v2)(&mut total, device.handle()) };
        check(known).map_err(|code| gpu.failed("cannot be used", code))?;
        let mut text = [0_u8; 32];
        // SAFETY: room for as many bytes as are said; the address ends in a zero within them.
        let known = unsafe {
            (driver.cuDeviceGetPCIBusId)(text.as_mut_ptr().cast::<c_char>(), text.len() as c_int, device.handle())
        };
        let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
        let pci_address = (known == 0).then(|| String::from_utf8_lossy(text).to_lowercase());
        Ok(Gpu(Arc::new(Opened { device, pci_address, total, stage: Mutex::new(None), gpu })))
    }

    /// `cuda:0`: what [`DeviceInfo::id`](portcullis_core::device::DeviceInfo) is of the device that filters packets in this
    /// memory.
    pub fn id(&self) -> &str {
        &self.0.gpu.id
    }

    /// As the driver has it.
    pub fn name(&self) -> &str {
        &self.0.device.info().name
    }

    /// Bytes of its memory, free or not.
    pub fn total_memory(&self) -> usize {
        self.0.total
    }

    /// Number of multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.0.gpu.processors
    }

    /// `0000:3b:00.0`, where the driver tells.
    pub fn pci_address(&self) -> Option<&str> {
        self.0.pci_address.as_deref()
    }

    /// The NUMA node that it is nearest to, where the machine has several and says so.
    pub fn numa_node(&self) -> Option<u32> {
        let path = Path::new("/sys/bus/pci/devices").join(self.pci_address()?).join("numa_node");
        // −1 where there is none.
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// Whether network cards write into its memory, and how.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] where none does, with what to do.
    pub fn gpudirect(&self) -> Result<GpuDirect, DeviceError> {
        let (driver, device) = (self.0.gpu.context.driver, self.0.device.handle());
        let number = |attribute| attribute_of(driver, device, attribute) != 0;
        let loaded = |module: &str| Path::new("/sys/module").join(module).exists();
        // The second is what the module was called before it was a part of the driver.
        let peermem = loaded("nvidia_peermem") || loaded("nv_peer_mem");
        // `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`, of CUDA 11.7.
        let dma_buf = number(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
        let supported = number(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
        direct(self.id(), supported, GpuDirect { peermem, dma_buf })
    }

    /// Memory of the GPU's, of `bytes` bytes, zeros at first. It begins at a multiple of `alignment`, a power of two, and of
    /// the GPU's page of 64 KiB, and network cards may write into it (GPUDirect RDMA). Behind it is room for
    /// [`READABLE_PAST_END`] bytes.
    ///
    /// Where kernels stay at the device this waits until they have left,
    /// [`LAUNCH_TIMEOUT`](portcullis_core::device::offload::SILENCE) at most.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] for no bytes, and for an alignment that is none; [`DeviceError::Failed`] where there is no
    /// memory, or the driver gives up.
    pub fn allocate(&self, bytes: usize, alignment: usize) -> Result<Arc<DeviceBuffer>, DeviceError> {
        let gpu = &self.0.gpu;
        let alignment = alignment.max(PAGE);
        let all = bytes.checked_add(READABLE_PAST_END).and_then(|bytes| bytes.checked_next_multiple_of(PAGE));
        let asked = all.and_then(|all| all.checked_add(alignment));
        let (Some(all), Some(asked), true, true) = (all, asked, bytes > 0, alignment.is_power_of_two()) else {
            return Err(DeviceError::Refused(format!(
                "{bytes} bytes at a multiple of {alignment} are nothing to allocate"
            )));
        };
        let failed = |code| gpu.no_room(format_args!("{bytes} bytes"), code);
        let quiet = gpu.context.quiet().map_err(failed)?;
        let memory = DeviceMemory::new(&gpu.context, asked).map_err(failed)?;
        let driver = gpu.context.driver;
        let yes: u32 = 1;
        // SAFETY: a word is what the attribute takes, and the address is one that was allocated. Without it, what others
        // write is not in order with the driver's own copies (CUDA's "GPUDirect RDMA", section "Synchronization and memory
        // ordering").
        let set = unsafe {
            (driver.cuPointerSetAttribute)((&raw const yes).cast(), CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory.address())
        };
        // Devices without GPUDirect may not know it.
        match check(set) {
            Ok(()) | Err(Code::INVALID_VALUE | Code::NOT_SUPPORTED) => {}
            Err(code) => return Err(failed(code)),
        }
        memory.clear(&gpu.kernels, asked).map_err(failed)?;
        drop(quiet);
        let memory = gpu.finish(&gpu.kernels, memory, failed)?;
        let address = memory.address().next_multiple_of(alignment as u64);
        Ok(Arc::new(DeviceBuffer { address, bytes, allocated: all, memory, gpu: self.clone() }))
    }

    /// Has GPUs reach `bytes` bytes of the host's memory from `start` on, which stay where they are: all CUDA devices of the
    /// process. It is pinned as long as what comes back is there.
    ///
    /// Where kernels stay at the device this waits until they have left,
    /// [`LAUNCH_TIMEOUT`](portcullis_core::device::offload::SILENCE) at most.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] where the driver refuses: a part of it is registered already, or there is more than may be.
    ///
    /// # Safety
    /// The memory is there, readable and writable, until it was let go of ([`HostRegistration::unregister`]), and no session
    /// has a batch in it then.
    pub unsafe fn register(&self, start: NonNull<u8>, bytes: usize) -> Result<HostRegistration, DeviceError> {
        let gpu = &self.0.gpu;
        let failed = |code| {
            match code {
            Code::ALREADY_REGISTERED => gpu.gave_up(format!(
                "a part of the {bytes} bytes of the host's memory at {start:p} is registered already: have it registered \
                 once, by the program or by a library"
            )),
            Code::OUT_OF_MEMORY => gpu.gave_up(format!(
                "{bytes} bytes of the host's memory cannot be pinned: raise what this user may lock (`ulimit -l`), or take \
                 fewer ({code})"
            )),
            Code(..0) => gpu.failed("cannot be used", code),
            _ => gpu.gave_up(format!("{bytes} bytes of the host's memory at {start:p} cannot be registered: {code}")),
        }
        };
        let _quiet = gpu.context.quiet().map_err(failed)?;
        let driver = gpu.context.driver;
        // SAFETY: the memory is there, by the caller's promise.
        check(unsafe { (driver.cuMemHostRegister_v2)(start.as_ptr().cast(), bytes, PINNED) }).map_err(failed)?;
        let mut registration = HostRegistration { start, bytes, address: 0, is_registered: true, gpu: self.clone() };
        // SAFETY: room for an address; the memory was registered above as memory that is mapped.
        let asked =
            unsafe { (driver.cuMemHostGetDevicePointer_v2)(&mut registration.address, start.as_ptr().cast(), 0) };
        check(asked).map_err(failed)?;
        Ok(registration)
    }

    /// What the processor, or a network card, has written into the GPU's memory before is seen by what the GPU does from now
    /// on, by kernels too that run already.
    ///
    /// # Errors
    /// Where the driver gives up.
    pub fn barrier(&self) -> Result<(), DeviceError> {
        let gpu = &self.0.gpu;
        // Mappings are of memory that combines writes, which no other barrier waits for.
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every processor of this kind has it.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
        fence(Ordering::SeqCst);
        gpu.flush_remote_writes().map_err(|code| gpu.failed("does not flush what was written to it", code))
    }
}

/// What there is to say of GPUDirect RDMA.
fn direct(id: &str, supported: bool, ways: GpuDirect) -> Result<GpuDirect, DeviceError> {
    let missing =
        |what: &str| Err(DeviceError::Missing(format!("network cards do not reach the memory of {id}: {what}")));
    match (supported, ways) {
        (false, _) => missing("this GPU has no GPUDirect RDMA; have packets in the host's memory"),
        (true, GpuDirect { peermem: false, dma_buf: false }) => {
            missing("nvidia-peermem is not loaded: `modprobe nvidia-peermem`, as root, loads it")
        }
        _ => Ok(ways),
    }
}

/// Memory of a GPU's. It is freed when this is dropped, and nothing of it is mapped any more: soon, where kernels stay at
/// the device.
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
    /// The GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The first byte's address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes that were asked for.
    pub fn size(&self) -> usize {
        self.bytes
    }

    /// Bytes from the first on that may be read: at least [`READABLE_PAST_END`] more, and a multiple of 64 KiB.
    pub fn allocated(&self) -> usize {
        self.allocated
    }

    /// Where sessions on the GPU find it, for [`Span::from_views`](portcullis_core::packet::Span::from_views).
    pub fn view(&self) -> DeviceView {
        DeviceView { device: self.gpu.id().into(), address: self.address }
    }

    /// The processor's view of all of it (GDRCopy). Writes are combined and quick, reads take about a microsecond each.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] without GDRCopy; [`DeviceError::Failed`] where there is more than can be mapped.
    pub fn map(self: &Arc<Self>) -> Result<CpuMapping, DeviceError> {
        // SAFETY: in one allocation, which the mapping keeps.
        let mapping = unsafe { Mapping::new(self.gpu.id(), self.address, self.allocated)? };
        Ok(CpuMapping { mapping, buffer: self.clone() })
    }

    /// Copies bytes into the memory, from byte `at` on, and waits for that.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] where they do not lie in it; [`DeviceError::Failed`] where the driver gives up.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.copy(
            at,
            bytes.len(),
            |gpu, stage, done, to, count| {
                // SAFETY: nothing is queued with the memory, which the caller alone has; the copy is waited for.
                unsafe {
                    stage.bytes_mut(0, count).copy_from_slice(&bytes[done..done + count]);
                    self.memory.bring_in(to, stage.host(), count, &gpu.kernels)
                }
            },
            |_, _, _| (),
        )
    }

    /// Copies bytes out of the memory, from byte `at` on.
    ///
    /// # Errors
    /// As [`DeviceBuffer::write`].
    pub fn read(&self, at: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.copy(
            at,
            bytes.len(),
            |gpu, stage, _, from, count| {
                // SAFETY: the copy is waited for, and nobody looks before.
                unsafe { self.memory.bring_back(from, stage, 0, count, &gpu.kernels) }
            },
            |stage, done, count| {
                // SAFETY: the copy has ended.
                bytes[done..done + count].copy_from_slice(unsafe { stage.bytes(0, count) });
            },
        )
    }

    /// Copies piece by piece by way of pinned memory: what is queued is told the piece's place among the bytes and in the
    /// memory, and its size; `after` sees it when it has come.
    fn copy(
        &self,
        at: usize,
        bytes: usize,
        queue: impl Fn(&device::Gpu, &HostMemory, usize, usize, usize) -> Result<(), Code>,
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
        let failed = |code| gpu.failed("does not copy", code);
        let first = (self.address - self.memory.address()) as usize + at;
        let mut kept = self.gpu.0.stage.lock().unwrap_or_else(PoisonError::into_inner);
        for done in (0..bytes).step_by(STAGE) {
            let count = STAGE.min(bytes - done);
            let stage = match kept.take() {
                Some(stage) => stage,
                None => HostMemory::new(&gpu.context, STAGE).map_err(|code| gpu.no_room("a copy", code))?,
            };
            queue(gpu, &stage, done, first + done, count).map_err(failed)?;
            let stage = gpu.finish(&gpu.kernels, stage, failed)?;
            after(&stage, done, count);
            *kept = Some(stage);
        }
        Ok(())
    }
}

/// The host's memory, reached by GPUs for as long as this is there.
pub struct HostRegistration {
    start: NonNull<u8>,
    bytes: usize,
    address: u64,
    is_registered: bool,
    gpu: Gpu,
}

// SAFETY: an address of memory that is its owner's.
unsafe impl Send for HostRegistration {}
// SAFETY: as above; shared, it gives addresses only.
unsafe impl Sync for HostRegistration {}

impl fmt::Debug for HostRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostRegistration({} bytes at {:p})", self.bytes, self.start)
    }
}

impl HostRegistration {
    /// Where the host finds it.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes of it.
    pub fn size(&self) -> usize {
        self.bytes
    }

    /// Where devices find the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Where sessions on CUDA devices find it, for [`Span::from_views`](portcullis_core::packet::Span::from_views), beside
    /// the host's view: packets there are filtered where they are, over the bus.
    pub fn view(&self) -> DeviceView {
        DeviceView { device: EVERY_DEVICE.into(), address: self.address }
    }

    /// Lets go of the memory now. Dropping it does so too, soon, where kernels stay at the device: for memory that is freed
    /// next this is the way.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] where kernels do not leave the device within
    /// [`LAUNCH_TIMEOUT`](portcullis_core::device::offload::SILENCE), or the driver gives up: the memory has to stay then.
    pub fn unregister(mut self) -> Result<(), DeviceError> {
        let gpu = self.gpu.0.gpu.clone();
        let failed = |code| gpu.failed("does not let go of the host's memory", code);
        let _quiet = gpu.context.quiet().map_err(failed)?;
        self.is_registered = false;
        // SAFETY: it was registered in `register`, and no session has a batch in it by its caller's promise.
        check(unsafe { (gpu.context.driver.cuMemHostUnregister)(self.start.as_ptr().cast()) }).map_err(failed)
    }
}

impl Drop for HostRegistration {
    fn drop(&mut self) {
        if !self.is_registered {
            return;
        }
        let start = self.start.as_ptr() as usize;
        self.gpu.0.gpu.context.release(move |driver| {
            // SAFETY: it was registered in `register`, and no session has a batch in it by its caller's promise.
            unsafe { (driver.cuMemHostUnregister)(start as *mut _) };
        });
    }
}

/// A GPU's memory as the processor sees it.
pub struct CpuMapping {
    // First: it goes before the memory is freed.
    mapping: Mapping,
    buffer: Arc<DeviceBuffer>,
}

impl fmt::Debug for CpuMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuMapping({:?} at {:p})", self.buffer, self.start())
    }
}

impl CpuMapping {
    /// Where the processor finds the memory's first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.mapping.first()
    }

    /// The memory.
    pub fn buffer(&self) -> &Arc<DeviceBuffer> {
        &self.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_gpudirect_there_is_a_sentence() {
        let ways = |peermem, dma_buf| GpuDirect { peermem, dma_buf };
        assert_eq!(direct("cuda:0", true, ways(true, false)), Ok(ways(true, false)));
        assert_eq!(direct("cuda:0", true, ways(false, true)), Ok(ways(false, true)));
        let text = direct("cuda:0", true, ways(false, false)).unwrap_err().to_string();
        assert!(text.contains("`modprobe nvidia-peermem`"), "{text}");
        let text = direct("cuda:0", false, ways(true, true)).unwrap_err().to_string();
        assert!(text.contains("no GPUDirect RDMA"), "{text}");
    }
}
