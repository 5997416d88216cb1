//! GPU drivers in this process, registered with DPDK's gpudev.

use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use portcullis_dpdk_sys as sys;

use super::ledger::{Block, GpuMemoryUsage, Ledger};

/// Properties of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuProperties {
    /// The device that can access its memory directly, as in
    /// [`DeviceInfo::id`](portcullis_core::device::DeviceInfo) (`cuda:0`). `None`: the memory is
    /// host memory, which any device can import.
    pub device: Option<String>,
    /// The user's name for it, if that is not the device (`software`).
    pub title: Option<String>,
    /// The device that can access host memory once that is registered with the GPU, likewise.
    /// `None`: whoever has packets there has to import the memory.
    pub shown: Option<String>,
    /// Number of multiprocessors; 0 if unknown.
    pub processors: u32,
    /// Size of its memory in bytes.
    pub memory: usize,
    /// Allocation granularity in bytes, a power of two.
    pub page: usize,
    /// NUMA node; `None` if unknown.
    pub node: Option<u16>,
    /// PCI address (`0000:3b:00.0`), by which DPDK's own driver names it, if it has one.
    pub pci: Option<String>,
}

/// Why a driver failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The GPU or host has not enough memory.
    #[error("no memory for {size} bytes")]
    OutOfMemory {
        /// Requested size in bytes.
        size: usize,
    },
    /// The driver does not support the operation.
    #[error("{0}")]
    Unsupported(String),
    /// An address that the driver did not return.
    #[error("{what} at {address:#x}, which is unknown")]
    Unknown {
        /// The operation.
        what: &'static str,
        /// The address.
        address: u64,
    },
    /// Any other error.
    #[error("{0}")]
    Other(String),
}

impl DriverError {
    /// Converts to a negative errno value. DPDK turns most of them into EPERM, so the error itself
    /// is kept too ([`Registration::take_failure`]).
    fn number(&self) -> c_int {
        match self {
            DriverError::OutOfMemory { .. } => -libc::ENOMEM,
            DriverError::Unsupported(_) => -libc::ENOTSUP,
            DriverError::Unknown { .. } => -libc::EINVAL,
            DriverError::Other(_) => -libc::EPERM,
        }
    }
}

/// A GPU driver in this process. Whatever it is asked to free, unregister or unmap is its own and
/// was not released before.
pub trait GpuDriver: fmt::Debug + Send + Sync {
    /// Properties of the GPU.
    fn properties(&self) -> GpuProperties;

    /// Allocates `size` bytes (never 0), aligned to `align`, a power of two.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`] or others.
    fn allocate(&self, size: usize, align: usize) -> Result<u64, DriverError>;

    /// Frees memory.
    ///
    /// # Errors
    /// On an error the memory is leaked.
    ///
    /// # Safety
    /// The block must come from [`GpuDriver::allocate`], not be freed, and not be in use.
    unsafe fn free(&self, block: Block) -> Result<(), DriverError>;

    /// Registers host memory with the GPU; returns its address for the GPU.
    ///
    /// # Errors
    /// On an error the GPU cannot access the memory.
    ///
    /// # Safety
    /// `size` bytes from `start` on must exist until they are unregistered.
    unsafe fn register(&self, start: NonNull<u8>, size: usize) -> Result<u64, DriverError>;

    /// Unregisters host memory.
    ///
    /// # Errors
    /// On an error the memory may still be registered.
    ///
    /// # Safety
    /// The memory must be registered.
    unsafe fn unregister(&self, start: NonNull<u8>, size: usize) -> Result<(), DriverError>;

    /// Maps a range of allocated GPU memory for the CPU.
    ///
    /// # Errors
    /// [`DriverError::Unsupported`] names what is missing.
    fn cpu_map(&self, address: u64, size: usize) -> Result<NonNull<u8>, DriverError>;

    /// Unmaps GPU memory from the CPU.
    ///
    /// # Errors
    /// On an error the mapping may still exist.
    ///
    /// # Safety
    /// The range must be mapped at `view`, and the mapping not be in use.
    unsafe fn cpu_unmap(&self, address: u64, size: usize, view: NonNull<u8>) -> Result<(), DriverError>;

    /// Checks that network cards can access the GPU's memory (GPUDirect RDMA).
    ///
    /// # Errors
    /// Names what is missing.
    fn check_nic_access(&self) -> Result<(), DriverError> {
        Ok(())
    }

    /// Waits until writes to GPU memory by the CPU or network cards are visible to the GPU.
    ///
    /// # Errors
    /// On an error the writes may not be visible.
    fn barrier(&self) -> Result<(), DriverError>;
}

/// A driver as registered with DPDK, with the resources it has handed out.
#[derive(Debug)]
pub(super) struct Registration {
    driver: Arc<dyn GpuDriver>,
    page: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ledger: Ledger,
    /// The last error, until taken.
    failure: Option<DriverError>,
}

impl Registration {
    pub fn new(driver: Arc<dyn GpuDriver>) -> Registration {
        let page = driver.properties().page.max(1);
        Registration { driver, page, state: Mutex::default() }
    }

    pub fn check_nic_access(&self) -> Result<(), DriverError> {
        self.driver.check_nic_access()
    }

    pub fn memory_usage(&self) -> GpuMemoryUsage {
        self.with(|state| state.ledger.memory_usage())
    }

    /// A copy of the ledger, to roll back to later ([`Registration::roll_back`]).
    pub fn ledger(&self) -> Ledger {
        self.with(|state| state.ledger.clone())
    }

    /// Address for the GPU of registered host memory.
    pub fn gpu_address(&self, address: u64) -> Option<u64> {
        self.with(|state| state.ledger.gpu_address(address))
    }

    /// Takes the last error.
    pub fn take_failure(&self) -> Option<DriverError> {
        self.with(|state| state.failure.take())
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        // Driver calls run outside of this lock, so its contents are consistent even after a panic.
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn allocate(&self, size: usize, align: usize) -> Result<u64, DriverError> {
        let align = if align == 0 { self.page } else { align };
        let address = self.driver.allocate(size, align)?;
        self.with(|state| state.ledger.record_block(Block { address, size, align }));
        Ok(address)
    }

    fn free(&self, address: u64) -> Result<(), DriverError> {
        let known = self.with(|state| state.ledger.free(address));
        let block = known.ok_or(DriverError::Unknown { what: "freeing memory", address })?;
        // SAFETY: removing it from the ledger proves that it was allocated and not freed.
        unsafe { self.driver.free(block) }
    }

    /// Registers host memory.
    ///
    /// # Safety
    /// As for [`GpuDriver::register`].
    unsafe fn register(&self, start: NonNull<u8>, size: usize) -> Result<(), DriverError> {
        if self.with(|state| state.ledger.is_registered(start.as_ptr() as u64)) {
            return Err(DriverError::Other(format!("memory at {start:p} is registered already")));
        }
        // SAFETY: by the caller's promise.
        let found = unsafe { self.driver.register(start, size) }?;
        self.with(|state| state.ledger.record_registration(start.as_ptr() as u64, size, found));
        Ok(())
    }

    fn unregister(&self, start: NonNull<u8>) -> Result<(), DriverError> {
        let address = start.as_ptr() as u64;
        let known = self.with(|state| state.ledger.unregister(address));
        let size = known.ok_or(DriverError::Unknown { what: "unregistering memory", address })?;
        // SAFETY: removing it from the ledger proves that it was registered.
        unsafe { self.driver.unregister(start, size) }
    }

    fn cpu_map(&self, address: u64, size: usize) -> Result<NonNull<u8>, DriverError> {
        let unknown = DriverError::Unknown { what: "mapping memory", address };
        if !self.with(|state| state.ledger.contains(address, size)) {
            return Err(unknown);
        }
        if self.with(|state| state.ledger.is_mapped(address)) {
            return Err(DriverError::Other(format!("memory at {address:#x} is mapped already")));
        }
        let view = self.driver.cpu_map(address, size)?;
        self.with(|state| state.ledger.record_mapping(address, size, view.as_ptr() as u64));
        Ok(view)
    }

    fn cpu_unmap(&self, address: u64) -> Result<(), DriverError> {
        let known = self.with(|state| state.ledger.unmap(address));
        let (size, view) = known.ok_or(DriverError::Unknown { what: "unmapping memory", address })?;
        let view = NonNull::new(view as *mut u8).expect("a view is somewhere");
        // SAFETY: removing it from the ledger proves that it was mapped.
        unsafe { self.driver.cpu_unmap(address, size, view) }
    }

    /// Releases, in reverse order, what was acquired since `before` and is not in `kept`. With
    /// `heap`, the host memory among it is freed to DPDK's heap: DPDK has lost track of it.
    pub fn roll_back(&self, before: &Ledger, kept: &[u64], heap: bool) {
        let now = self.ledger();
        for address in now.mappings_since(before).filter(|it| !kept.contains(it)) {
            let _ = self.cpu_unmap(address);
        }
        for address in now.registrations_since(before).filter(|it| !kept.contains(it)) {
            let start = NonNull::new(address as *mut u8).expect("registered memory is somewhere");
            let _ = self.unregister(start);
            if heap {
                // SAFETY: DPDK allocated and registered this memory in a call that failed, and does
                // not refer to it any more.
                unsafe { sys::rte_free(start.as_ptr().cast()) };
            }
        }
        for address in now.blocks_since(before).filter(|it| !kept.contains(it)) {
            let _ = self.free(address);
        }
    }

    /// Registers the driver with DPDK under this name; returns the device number or a negative
    /// error.
    ///
    /// # Safety
    /// `self` must not move until the device is closed, and no other thread may use gpudev
    /// meanwhile.
    pub unsafe fn register_as(&self, name: &std::ffi::CStr) -> i32 {
        let GpuProperties { processors, memory, page, node, .. } = self.driver.properties();
        let numa_node = node.and_then(|node| i16::try_from(node).ok()).unwrap_or(-1);
        let properties = sys::pc_gpu_properties { processors, numa_node, memory, page };
        // SAFETY: the name is zero-terminated, `CALLS` is static, and `self` lives as promised by
        // the caller.
        unsafe {
            sys::pc_gpu_new(name.as_ptr(), &raw const CALLS, std::ptr::from_ref(self).cast_mut().cast(), properties)
        }
    }
}

static CALLS: sys::pc_gpu_calls = sys::pc_gpu_calls {
    close: Some(close),
    allocate: Some(allocate),
    free: Some(free),
    register_host: Some(register_host),
    unregister_host: Some(unregister_host),
    cpu_map: Some(cpu_map),
    cpu_unmap: Some(cpu_unmap),
    barrier: Some(barrier),
};

/// Calls a driver from C: catches panics, and keeps errors.
///
/// # Safety
/// `driver` must point to a live [`Registration`].
unsafe fn call<T>(
    driver: *mut c_void,
    act: impl FnOnce(&Registration) -> Result<T, DriverError>,
    give: impl FnOnce(T),
) -> c_int {
    // SAFETY: by the caller's promise.
    let driver = unsafe { &*driver.cast::<Registration>() };
    let result = catch_unwind(AssertUnwindSafe(|| act(driver)));
    match result.unwrap_or_else(|_| Err(DriverError::Other("its driver has panicked".into()))) {
        Ok(made) => {
            give(made);
            0
        }
        Err(error) => {
            let number = error.number();
            driver.with(|state| state.failure = Some(error));
            number
        }
    }
}

/// Converts a host pointer from C.
fn host(address: *mut c_void) -> Result<NonNull<u8>, DriverError> {
    NonNull::new(address.cast()).ok_or(DriverError::Unknown { what: "memory of the host", address: 0 })
}

unsafe extern "C" fn close(driver: *mut c_void) -> c_int {
    let undo = |driver: &Registration| {
        // Release everything that was not released.
        driver.roll_back(&Ledger::default(), &[], false);
        Ok(())
    };
    // SAFETY: DPDK passes the registered pointer.
    unsafe { call(driver, undo, drop) }
}

unsafe extern "C" fn allocate(driver: *mut c_void, size: usize, align: c_uint, address: *mut *mut c_void) -> c_int {
    // SAFETY: DPDK passes the registered pointer, and a pointer to store the address.
    unsafe { call(driver, |driver| driver.allocate(size, align as usize), |made| *address = made as *mut c_void) }
}

unsafe extern "C" fn free(driver: *mut c_void, address: *mut c_void) -> c_int {
    // SAFETY: DPDK passes the registered pointer.
    unsafe { call(driver, |driver| driver.free(address as u64), drop) }
}

unsafe extern "C" fn register_host(driver: *mut c_void, size: usize, address: *mut c_void) -> c_int {
    // SAFETY: DPDK passes the registered pointer, and memory that exists by the promise of DPDK's
    // caller.
    unsafe { call(driver, |driver| driver.register(host(address)?, size), drop) }
}

unsafe extern "C" fn unregister_host(driver: *mut c_void, address: *mut c_void) -> c_int {
    // SAFETY: DPDK passes the registered pointer.
    unsafe { call(driver, |driver| driver.unregister(host(address)?), drop) }
}

unsafe extern "C" fn cpu_map(driver: *mut c_void, size: usize, address: *mut c_void, view: *mut *mut c_void) -> c_int {
    // SAFETY: DPDK passes the registered pointer, and a pointer to store the view.
    unsafe { call(driver, |driver| driver.cpu_map(address as u64, size), |made| *view = made.as_ptr().cast()) }
}

unsafe extern "C" fn cpu_unmap(driver: *mut c_void, address: *mut c_void) -> c_int {
    // SAFETY: DPDK passes the registered pointer.
    unsafe { call(driver, |driver| driver.cpu_unmap(address as u64), drop) }
}

unsafe extern "C" fn barrier(driver: *mut c_void) -> c_int {
    // SAFETY: DPDK passes the registered pointer.
    unsafe { call(driver, |driver| driver.driver.barrier(), drop) }
}
