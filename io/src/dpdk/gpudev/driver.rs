//! Drivers of GPUs that are of this process.

use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use portcullis_dpdk_sys as sys;

use super::ledger::{GpuMemoryUsage, Ledger};

/// What there is of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuProperties {
    /// The device that reaches its memory without being shown it, as [`DeviceInfo::id`](portcullis_core::device::DeviceInfo) has it
    /// (`cuda:0`). `None`: the memory is the host's, and any device may be shown it.
    pub device: Option<String>,
    /// What users call it, if that is not its device (`software`).
    pub title: Option<String>,
    /// The device that reaches memory of the host's once it is registered, in the same way. `None`: it has to be shown that again by
    /// whoever has packets there.
    pub shown: Option<String>,
    /// Processors on it; 0 where nobody knows.
    pub processors: u32,
    /// Bytes of its memory.
    pub memory: usize,
    /// Bytes that pieces of its memory are multiples of: a power of two.
    pub page: usize,
    /// The NUMA node that it is at; none where nobody knows.
    pub node: Option<u16>,
    /// Its place at the PCI bus (`0000:3b:00.0`), by which DPDK's own driver calls it, where it has one.
    pub pci: Option<String>,
}

/// Memory that a driver has allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Where it begins, for the GPU.
    pub address: u64,
    /// Bytes.
    pub size: usize,
    /// What the address is a multiple of.
    pub align: usize,
}

/// Why a driver does not do something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// There is not so much memory.
    #[error("no memory for {size} bytes")]
    OutOfMemory {
        /// Bytes that were asked for.
        size: usize,
    },
    /// It cannot do that at all.
    #[error("{0}")]
    Unsupported(String),
    /// What it was given is none of its own, or not as it has to be.
    #[error("{what} at {address:#x}, which is not there")]
    Unknown {
        /// What was to be done.
        what: &'static str,
        /// With what.
        address: u64,
    },
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl DriverError {
    /// As C has it. DPDK makes EPERM of most of them, so the text is kept beside ([`Registration::failure`]).
    fn number(&self) -> c_int {
        match self {
            DriverError::OutOfMemory { .. } => -libc::ENOMEM,
            DriverError::Unsupported(_) => -libc::ENOTSUP,
            DriverError::Unknown { .. } => -libc::EINVAL,
            DriverError::Other(_) => -libc::EPERM,
        }
    }
}

/// A GPU's driver in this process. What it is given to free, to unregister or to unmap is always its own, and not given back before.
pub trait GpuDriver: fmt::Debug + Send + Sync {
    /// What there is of the GPU.
    fn properties(&self) -> GpuProperties;

    /// Allocates `size` bytes (never 0) at an address that is a multiple of `align`, a power of two.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`], or another.
    fn allocate(&self, size: usize, align: usize) -> Result<u64, DriverError>;

    /// Gives memory back.
    ///
    /// # Errors
    /// The memory is lost then.
    ///
    /// # Safety
    /// It came from [`GpuDriver::allocate`], has not been given back, and nobody has it any more.
    unsafe fn free(&self, block: Block) -> Result<(), DriverError>;

    /// Shows the GPU memory of the host's; gives where it finds that.
    ///
    /// # Errors
    /// The GPU does not reach the memory then.
    ///
    /// # Safety
    /// From `start` on there are `size` bytes, until they are unregistered.
    unsafe fn register(&self, start: NonNull<u8>, size: usize) -> Result<u64, DriverError>;

    /// Undoes that.
    ///
    /// # Errors
    /// The memory may be shown to the GPU yet.
    ///
    /// # Safety
    /// Such memory is registered.
    unsafe fn unregister(&self, start: NonNull<u8>, size: usize) -> Result<(), DriverError>;

    /// Makes the host reach so many bytes of the GPU's memory. `address` lies in what was allocated, and so do the bytes.
    ///
    /// # Errors
    /// [`DriverError::Unsupported`] says what is missing for it.
    fn cpu_map(&self, address: u64, size: usize) -> Result<NonNull<u8>, DriverError>;

    /// Undoes that.
    ///
    /// # Errors
    /// The mapping may be there yet.
    ///
    /// # Safety
    /// It was mapped there, and nobody reads or writes by that any more.
    unsafe fn cpu_unmap(&self, address: u64, size: usize, view: NonNull<u8>) -> Result<(), DriverError>;

    /// Whether network cards reach its memory.
    ///
    /// # Errors
    /// What is missing for it.
    fn check_nic_access(&self) -> Result<(), DriverError> {
        Ok(())
    }

    /// Waits until what others than the GPU's own processors have written to its memory is there for them.
    ///
    /// # Errors
    /// It may not be there.
    fn barrier(&self) -> Result<(), DriverError>;
}

/// A driver as DPDK calls it, with what it holds at the moment.
#[derive(Debug)]
pub(super) struct Registration {
    driver: Arc<dyn GpuDriver>,
    page: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ledger: Ledger,
    /// Why a call has failed last, since somebody asked.
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

    /// What the ledger has now, to compare with later ([`Registration::undo`]).
    pub fn ledger(&self) -> Ledger {
        self.with(|state| state.ledger.clone())
    }

    /// Where the GPU finds memory of the host's that was registered.
    pub fn found(&self, address: u64) -> Option<u64> {
        self.with(|state| state.ledger.found(address))
    }

    /// Why a call has failed last; it is asked once.
    pub fn failure(&self) -> Option<DriverError> {
        self.with(|state| state.failure.take())
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        // No call of a driver's is under this lock: what it guards is whole.
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn allocate(&self, size: usize, align: usize) -> Result<u64, DriverError> {
        let align = if align == 0 { self.page } else { align };
        let address = self.driver.allocate(size, align)?;
        self.with(|state| state.ledger.allocated(Block { address, size, align }));
        Ok(address)
    }

    fn free(&self, address: u64) -> Result<(), DriverError> {
        let known = self.with(|state| state.ledger.free(address));
        let block = known.ok_or(DriverError::Unknown { what: "freeing memory", address })?;
        // SAFETY: the ledger had it, and has it no longer.
        unsafe { self.driver.free(block) }
    }

    /// # Safety
    /// As [`GpuDriver::register`].
    unsafe fn register(&self, start: NonNull<u8>, size: usize) -> Result<(), DriverError> {
        if self.with(|state| state.ledger.is_registered(start.as_ptr() as u64)) {
            return Err(DriverError::Other(format!("memory at {start:p} is registered already")));
        }
        // SAFETY: by the caller's promise.
        let found = unsafe { self.driver.register(start, size) }?;
        self.with(|state| state.ledger.registered(start.as_ptr() as u64, size, found));
        Ok(())
    }

    fn unregister(&self, start: NonNull<u8>) -> Result<(), DriverError> {
        let address = start.as_ptr() as u64;
        let known = self.with(|state| state.ledger.unregister(address));
        let size = known.ok_or(DriverError::Unknown { what: "unregistering memory", address })?;
        // SAFETY: the ledger had it, and has it no longer.
        unsafe { self.driver.unregister(start, size) }
    }

    fn cpu_map(&self, address: u64, size: usize) -> Result<NonNull<u8>, DriverError> {
        let unknown = DriverError::Unknown { what: "mapping memory", address };
        if !self.with(|state| state.ledger.has(address, size)) {
            return Err(unknown);
        }
        if self.with(|state| state.ledger.is_mapped(address)) {
            return Err(DriverError::Other(format!("memory at {address:#x} is mapped already")));
        }
        let view = self.driver.cpu_map(address, size)?;
        self.with(|state| state.ledger.mapped(address, size, view.as_ptr() as u64));
        Ok(view)
    }

    fn cpu_unmap(&self, address: u64) -> Result<(), DriverError> {
        let known = self.with(|state| state.ledger.unmap(address));
        let (size, view) = known.ok_or(DriverError::Unknown { what: "unmapping memory", address })?;
        let view = NonNull::new(view as *mut u8).expect("a view is somewhere");
        // SAFETY: the ledger had it, and has it no longer.
        unsafe { self.driver.cpu_unmap(address, size, view) }
    }

    /// Gives back what was not there `before` and is not in `kept`, in reverse; and the host's memory of it, which DPDK has forgotten,
    /// to DPDK's heap, where `heap` says so.
    pub fn undo(&self, before: &Ledger, kept: &[u64], heap: bool) {
        let now = self.ledger();
        for address in now.views_beside(before).filter(|it| !kept.contains(it)) {
            let _ = self.cpu_unmap(address);
        }
        for address in now.registrations_beside(before).filter(|it| !kept.contains(it)) {
            let start = NonNull::new(address as *mut u8).expect("registered memory is somewhere");
            let _ = self.unregister(start);
            if heap {
                // SAFETY: DPDK took it from its heap and registered it, in a call that has failed and knows of it no more.
                unsafe { sys::rte_free(start.as_ptr().cast()) };
            }
        }
        for address in now.blocks_beside(before).filter(|it| !kept.contains(it)) {
            let _ = self.free(address);
        }
    }

    /// Registers it with DPDK by this name: gives its number, or DPDK's negative error.
    ///
    /// # Safety
    /// It stays where it is until the device is closed; and nobody else does anything to DPDK's GPUs meanwhile.
    pub unsafe fn register_as(&self, name: &std::ffi::CStr) -> i32 {
        let GpuProperties { processors, memory, page, node, .. } = self.driver.properties();
        let numa_node = node.and_then(|node| i16::try_from(node).ok()).unwrap_or(-1);
        let properties = sys::pc_gpu_properties { processors, numa_node, memory, page };
        // SAFETY: the name ends with a zero byte, the calls are there always, and the driver for as long as the caller says.
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

/// Calls a driver for C: nothing unwinds from here, and what fails is kept.
///
/// # Safety
/// `driver` is a [`Registration`] that is there.
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

/// Host memory as C gives it.
fn host(address: *mut c_void) -> Result<NonNull<u8>, DriverError> {
    NonNull::new(address.cast()).ok_or(DriverError::Unknown { what: "memory of the host", address: 0 })
}

unsafe extern "C" fn close(driver: *mut c_void) -> c_int {
    let undo = |driver: &Registration| {
        // What anybody has forgotten.
        driver.undo(&Ledger::default(), &[], false);
        Ok(())
    };
    // SAFETY: C gives what it was registered with.
    unsafe { call(driver, undo, drop) }
}

unsafe extern "C" fn allocate(driver: *mut c_void, size: usize, align: c_uint, address: *mut *mut c_void) -> c_int {
    // SAFETY: C gives what it was registered with, and a place for the address.
    unsafe { call(driver, |driver| driver.allocate(size, align as usize), |made| *address = made as *mut c_void) }
}

unsafe extern "C" fn free(driver: *mut c_void, address: *mut c_void) -> c_int {
    // SAFETY: C gives what it was registered with.
    unsafe { call(driver, |driver| driver.free(address as u64), drop) }
}

unsafe extern "C" fn register_host(driver: *mut c_void, size: usize, address: *mut c_void) -> c_int {
    // SAFETY: C gives what it was registered with, and memory that is there by the promise of who calls DPDK.
    unsafe { call(driver, |driver| driver.register(host(address)?, size), drop) }
}

unsafe extern "C" fn unregister_host(driver: *mut c_void, address: *mut c_void) -> c_int {
    // SAFETY: C gives what it was registered with.
    unsafe { call(driver, |driver| driver.unregister(host(address)?), drop) }
}

unsafe extern "C" fn cpu_map(driver: *mut c_void, size: usize, address: *mut c_void, view: *mut *mut c_void) -> c_int {
    // SAFETY: C gives what it was registered with, and a place for the view.
    unsafe { call(driver, |driver| driver.cpu_map(address as u64, size), |made| *view = made.as_ptr().cast()) }
}

unsafe extern "C" fn cpu_unmap(driver: *mut c_void, address: *mut c_void) -> c_int {
    // SAFETY: C gives what it was registered with.
    unsafe { call(driver, |driver| driver.cpu_unmap(address as u64), drop) }
}

unsafe extern "C" fn barrier(driver: *mut c_void) -> c_int {
    // SAFETY: C gives what it was registered with.
    unsafe { call(driver, |driver| driver.driver.barrier(), drop) }
}
