//! GPUs known to DPDK.

use std::ffi::{CStr, CString};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portcullis_dpdk_sys as sys;

use super::driver::{GpuDriver, GpuProperties, Registration};
use super::ledger::{GpuMemoryUsage, Ledger};
use crate::dpdk::eal::Eal;
use crate::dpdk::error::{DpdkError, last, negative};
use crate::dpdk::spec;
use crate::dpdk::version::{release, version};

/// The oldest and the newest release (year, month) whose device layout (`c/gpudev.c`) is supported.
const SUPPORTED_RELEASES: [(u32, u32); 2] = [(22, 11), (26, 7)];

/// Default allocation granularity in bytes: that of the windows through which other devices access
/// the memory of NVIDIA GPUs.
const PAGE: usize = 64 << 10;

/// gpudev is not thread-safe (`rte_gpudev.h`).
static GPUDEV: Mutex<()> = Mutex::new(());

/// Location of packet buffers.
#[derive(Debug, Clone, Default)]
pub enum Mempool {
    /// Host memory.
    #[default]
    Host,
    /// Host memory, registered with this GPU.
    Pinned(GpuSpec),
    /// GPU memory.
    Gpu(GpuSpec),
}

impl Mempool {
    /// The GPU, if any.
    pub fn gpu(&self) -> Option<&GpuSpec> {
        match self {
            Mempool::Host => None,
            Mempool::Pinned(gpu) | Mempool::Gpu(gpu) => Some(gpu),
        }
    }
}

/// Which GPU to use.
#[derive(Debug, Clone)]
pub enum GpuSpec {
    /// The GPU of an in-process driver; through DPDK's own driver if that has found it.
    Driver(Arc<dyn GpuDriver>),
    /// The GPU with this number, found by DPDK's own driver.
    Detected {
        /// DPDK's number.
        number: i16,
        /// Returns what sessions know about the GPU with this PCI address, DPDK's name for it.
        properties: fn(&str) -> Option<GpuProperties>,
    },
}

/// Properties of a GPU known to DPDK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInfo {
    /// DPDK's name.
    pub name: String,
    /// DPDK's number.
    pub number: i16,
    /// Properties according to its driver, with the names that sessions use.
    pub properties: GpuProperties,
}

impl GpuInfo {
    /// Replaces the names by those that sessions and users know; DPDK's driver is authoritative for
    /// the rest.
    fn with_session_names(self, GpuProperties { device, title, shown, pci, .. }: GpuProperties) -> GpuInfo {
        GpuInfo { properties: GpuProperties { device, title, shown, pci, ..self.properties }, ..self }
    }

    /// The user's name for it, or DPDK's if there is none.
    pub fn title(&self) -> &str {
        let GpuProperties { title, device, .. } = &self.properties;
        title.as_ref().or(device.as_ref()).unwrap_or(&self.name)
    }
}

/// An open GPU. An in-process driver stays registered while this, or any of its memory, exists.
#[derive(Debug)]
pub struct Gpu {
    eal: &'static Eal,
    info: GpuInfo,
    /// Boxed because DPDK keeps its address.
    registration: Option<Box<Registration>>,
}

impl Gpu {
    /// Finds a GPU, or registers its driver.
    ///
    /// # Errors
    /// [`DpdkError`] names the next step.
    pub fn open(eal: &'static Eal, spec: &GpuSpec) -> Result<Arc<Gpu>, DpdkError> {
        let _lock = lock();
        // Discard messages about earlier operations.
        eal.log_lines();
        let found = all();
        let gpu = match spec {
            GpuSpec::Detected { number, properties } => {
                let it = found.iter().find(|it| it.number == *number);
                let it = it.ok_or_else(|| DpdkError::NoGpu { number: *number, found: names(&found) })?;
                let known = properties(&it.name).unwrap_or_default();
                // A GPU that no session knows is accessed by none: its memory is not host memory in
                // any case.
                let device = Some(known.device.clone().unwrap_or_else(|| it.name.clone()));
                Gpu { eal, info: it.clone().with_session_names(GpuProperties { device, ..known }), registration: None }
            }
            GpuSpec::Driver(driver) => {
                let properties = driver.properties();
                match found.into_iter().find(|it| properties.pci.as_deref().is_some_and(|pci| is_at(&it.name, pci))) {
                    Some(it) => Gpu { eal, info: it.with_session_names(properties), registration: None },
                    None => Gpu::register(eal, driver.clone(), properties)?,
                }
            }
        };
        Ok(Arc::new(gpu))
    }

    fn register(eal: &'static Eal, driver: Arc<dyn GpuDriver>, properties: GpuProperties) -> Result<Gpu, DpdkError> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let version = version();
        if !is_supported_release(&version) {
            return Err(DpdkError::GpuRelease { version });
        }
        let name = format!("portcullis_gpu_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let registration = Box::new(Registration::new(driver));
        let text = CString::new(name.as_str()).expect("no zero byte");
        // SAFETY: the registration stays in its box until the GPU is closed (`Drop`), and the lock
        // is held.
        let number = unsafe { registration.register_as(&text) };
        let Ok(id) = i16::try_from(number) else { return Err(wrong_number(&name, number)) };
        if number == -libc::ENOEXEC {
            return Err(DpdkError::GpuRelease { version });
        }
        if number < 0 {
            let error = negative(number);
            let what = "registering its driver".to_owned();
            return Err(DpdkError::Gpu { gpu: name, what, error, why: None, log_lines: eal.log_lines() });
        }
        let properties = GpuProperties { page: properties.page.max(1), ..properties };
        Ok(Gpu { eal, info: GpuInfo { name, number: id, properties }, registration: Some(registration) })
    }

    /// Lists the GPUs that DPDK knows at present, those of in-process drivers included.
    pub fn all(_eal: &'static Eal) -> Vec<GpuInfo> {
        let _lock = lock();
        all()
    }

    /// Properties of the GPU.
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }

    /// Memory in use by this process; `None` with DPDK's own driver, which does not report it.
    pub fn memory_usage(&self) -> Option<GpuMemoryUsage> {
        self.registration.as_ref().map(|registration| registration.memory_usage())
    }

    /// Waits until writes of network cards to its memory are visible to it.
    ///
    /// # Errors
    /// [`DpdkError::Gpu`].
    pub fn barrier(&self) -> Result<(), DpdkError> {
        // SAFETY: the GPU exists.
        self.check("waiting for writes to its memory", unsafe { sys::rte_gpu_wmb(self.info.number) })
    }

    /// Refuses a GPU whose memory network cards cannot access, if its driver knows.
    pub(super) fn check_cards(&self) -> Result<(), DpdkError> {
        let known = self.registration.as_ref().map_or(Ok(()), |it| it.check_nic_access());
        known.map_err(|missing| DpdkError::NoGpuDirect { missing: missing.to_string() })
    }

    /// Address for the GPU of registered host memory. DPDK's own driver only registers memory with
    /// identical addresses.
    pub(super) fn gpu_address(&self, address: u64) -> u64 {
        self.registration.as_ref().and_then(|it| it.gpu_address(address)).unwrap_or(address)
    }

    pub(super) fn number(&self) -> i16 {
        self.info.number
    }

    /// Runs `act` while no other thread uses gpudev.
    pub(super) fn locked<T>(&self, act: impl FnOnce() -> T) -> T {
        let _lock = lock();
        act()
    }

    /// Runs a DPDK operation that leaks when it fails, and releases what it leaked. On success,
    /// `kept` returns the addresses that the result needs; everything else acquired meanwhile is
    /// released too.
    pub(super) fn with_rollback<T>(
        &self,
        act: impl FnOnce() -> Result<T, DpdkError>,
        kept: impl FnOnce(&T) -> Option<Vec<u64>>,
    ) -> Result<T, DpdkError> {
        self.locked(|| {
            let before: Option<Ledger> = self.registration.as_ref().map(|it| it.ledger());
            let made = act();
            if let (Some(registration), Some(before)) = (&self.registration, before) {
                match &made {
                    Ok(made) => {
                        if let Some(kept) = kept(made) {
                            registration.roll_back(&before, &kept, false);
                        }
                    }
                    Err(_) => registration.roll_back(&before, &[], true),
                }
            }
            made
        })
    }

    /// Converts a DPDK result: nonnegative, or a negative error.
    pub(super) fn check(&self, what: &str, result: i32) -> Result<(), DpdkError> {
        if result >= 0 { Ok(()) } else { Err(self.failed(what, negative(result))) }
    }

    /// Converts a pointer returned by DPDK, null on failure.
    pub(super) fn pointer<T>(&self, what: &str, result: *mut T) -> Result<std::ptr::NonNull<T>, DpdkError> {
        std::ptr::NonNull::new(result).ok_or_else(|| self.failed(what, last()))
    }

    fn failed(&self, what: &str, error: io::Error) -> DpdkError {
        let why = self.registration.as_ref().and_then(|it| it.take_failure()).map(|failure| failure.to_string());
        DpdkError::Gpu { gpu: self.title(), what: what.to_owned(), error, why, log_lines: self.eal.log_lines() }
    }

    /// The user's name for it.
    pub fn title(&self) -> String {
        self.info.title().to_owned()
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.registration.is_some() {
            let _lock = lock();
            // SAFETY: the device is ours, and nothing uses it any more.
            unsafe { sys::rte_gpu_close(self.info.number) };
        }
    }
}

fn lock() -> MutexGuard<'static, ()> {
    GPUDEV.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wrong_number(name: &str, number: i32) -> DpdkError {
    let error = io::Error::other(format!("its number {number} is out of range"));
    DpdkError::Gpu { gpu: name.to_owned(), what: "registering its driver".into(), error, why: None, log_lines: vec![] }
}

/// Lists all GPUs known to DPDK.
fn all() -> Vec<GpuInfo> {
    let mut found = Vec::new();
    let mut from = 0;
    loop {
        // SAFETY: the EAL is initialised, and the lock is held.
        let number = unsafe { sys::rte_gpu_find_next(from, i16::MIN) };
        if number < 0 {
            return found;
        }
        let mut info = sys::rte_gpu_info::default();
        // SAFETY: the GPU exists, and the call only writes the structure.
        if unsafe { sys::rte_gpu_info_get(number, &raw mut info) } == 0 && !info.name.is_null() {
            // SAFETY: the name is zero-terminated, and stays valid while the lock is held.
            let name = unsafe { CStr::from_ptr(info.name) }.to_string_lossy().into_owned();
            found.push(GpuInfo {
                name,
                number,
                properties: GpuProperties {
                    processors: info.processor_count,
                    memory: info.total_memory,
                    page: if info.page_size == 0 { PAGE } else { info.page_size },
                    node: u16::try_from(info.numa_node).ok(),
                    ..GpuProperties::default()
                },
            });
        }
        let Some(next) = number.checked_add(1) else { return found };
        from = next;
    }
}

fn names(found: &[GpuInfo]) -> Vec<String> {
    found.iter().map(|it| format!("{} ({})", it.number, it.name)).collect()
}

/// Whether DPDK's name of a device is this PCI address, with or without domain.
fn is_at(name: &str, pci: &str) -> bool {
    spec::pci(name).is_some_and(|place| spec::pci(pci) == Some(place))
}

/// Whether the device layout of a release such as `DPDK 22.11.11` is supported.
fn is_supported_release(version: &str) -> bool {
    release(version).is_some_and(|release| (SUPPORTED_RELEASES[0]..=SUPPORTED_RELEASES[1]).contains(&release))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_releases_range_from_the_oldest_to_the_newest() {
        for (version, known) in [
            ("DPDK 22.11.11", true),
            ("DPDK 23.07.0", true),
            ("DPDK 26.07.0-rc1", true),
            ("DPDK 26.11.0", false),
            ("DPDK 22.07.0", false),
            ("DPDK 21.11.1", false),
            ("DPDK", false),
            ("", false),
        ] {
            assert_eq!(is_supported_release(version), known, "{version}");
        }
    }

    #[test]
    fn pci_addresses_match_with_and_without_domain() {
        assert!(is_at("0000:3B:00.0", "3b:00.0") && is_at("3b:00.0", "0000:3b:00.0"));
        assert!(!is_at("0001:3b:00.0", "3b:00.0") && !is_at("portcullis_gpu_0", "3b:00.0"));
    }
}
