//! GPUs that DPDK has.

use std::ffi::{CStr, CString};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portcullis_dpdk_sys as sys;

use super::driver::{GpuDriver, GpuProperties, Registration};
use super::ledger::{GpuMemoryUsage, Ledger};
use crate::dpdk::eal::{Eal, release, version};
use crate::dpdk::error::{DpdkError, last, negative};
use crate::dpdk::spec;

/// Releases (year, month) for which the form of a driver is known (`c/gpudev.c`): the oldest and the newest.
const KNOWN: [(u32, u32); 2] = [(22, 11), (26, 7)];

/// Bytes that pieces of GPU memory are multiples of, where nobody says otherwise: those of the windows through which others reach the
/// memory of NVIDIA's GPUs.
const PAGE: usize = 64 << 10;

/// gpudev is made for one thread (`rte_gpudev.h`: "not thread-safe").
static GPUDEV: Mutex<()> = Mutex::new(());

/// Where packets' buffers are.
#[derive(Debug, Clone, Default)]
pub enum Mempool {
    /// In the host's memory.
    #[default]
    Host,
    /// In the host's memory, which this GPU is shown.
    Pinned(GpuSpec),
    /// In a GPU's memory.
    Gpu(GpuSpec),
}

impl Mempool {
    /// The GPU, if there is one.
    pub fn gpu(&self) -> Option<&GpuSpec> {
        match self {
            Mempool::Host => None,
            Mempool::Pinned(gpu) | Mempool::Gpu(gpu) => Some(gpu),
        }
    }
}

/// Which GPU is meant.
#[derive(Debug, Clone)]
pub enum GpuSpec {
    /// That of a driver of this process; by DPDK's own driver, if that has found it.
    Driver(Arc<dyn GpuDriver>),
    /// The one that DPDK's own driver has found with this number.
    Found {
        /// Its number there.
        number: i16,
        /// What sessions call the GPU that DPDK calls so, by its place at the PCI bus.
        properties: fn(&str) -> Option<GpuProperties>,
    },
}

/// What there is of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInfo {
    /// What DPDK calls it.
    pub name: String,
    /// Its number there.
    pub number: i16,
    /// What its driver says of it, and what sessions call it.
    pub properties: GpuProperties,
}

impl GpuInfo {
    /// The same, as sessions and users know it; of the rest DPDK's own driver knows best.
    fn known_as(self, GpuProperties { device, title, shown, pci, .. }: GpuProperties) -> GpuInfo {
        GpuInfo { properties: GpuProperties { device, title, shown, pci, ..self.properties }, ..self }
    }

    /// How users know it: DPDK's name where there is no other.
    pub fn title(&self) -> &str {
        let GpuProperties { title, device, .. } = &self.properties;
        title.as_ref().or(device.as_ref()).unwrap_or(&self.name)
    }
}

/// A GPU. One with a driver of this process is there for as long as somebody has this, or anything of its memory.
#[derive(Debug)]
pub struct Gpu {
    eal: &'static Eal,
    info: GpuInfo,
    /// At an address that never changes, which DPDK has.
    registration: Option<Box<Registration>>,
}

impl Gpu {
    /// Finds a GPU, or registers its driver.
    ///
    /// # Errors
    /// [`DpdkError`] tells what to do.
    pub fn open(eal: &'static Eal, spec: &GpuSpec) -> Result<Arc<Gpu>, DpdkError> {
        let _lock = lock();
        // Of what was said before, nothing is about this GPU.
        eal.said();
        let found = all();
        let gpu = match spec {
            GpuSpec::Found { number, properties } => {
                let it = found.iter().find(|it| it.number == *number);
                let it = it.ok_or_else(|| DpdkError::NoGpu { number: *number, found: names(&found) })?;
                let known = properties(&it.name).unwrap_or_default();
                // One that no session knows is nobody's: its memory is no host's in any case.
                let device = Some(known.device.clone().unwrap_or_else(|| it.name.clone()));
                Gpu { eal, info: it.clone().known_as(GpuProperties { device, ..known }), registration: None }
            }
            GpuSpec::Driver(driver) => {
                let properties = driver.properties();
                match found.into_iter().find(|it| properties.pci.as_deref().is_some_and(|pci| is_at(&it.name, pci))) {
                    Some(it) => Gpu { eal, info: it.known_as(properties), registration: None },
                    None => Gpu::register(eal, driver.clone(), properties)?,
                }
            }
        };
        Ok(Arc::new(gpu))
    }

    fn register(eal: &'static Eal, driver: Arc<dyn GpuDriver>, properties: GpuProperties) -> Result<Gpu, DpdkError> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let version = version();
        if !is_known(&version) {
            return Err(DpdkError::GpuRelease { version });
        }
        let name = format!("portcullis_gpu_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let registration = Box::new(Registration::new(driver));
        let text = CString::new(name.as_str()).expect("no zero byte");
        // SAFETY: the registration stays in its box until the GPU is closed (`Drop`), and the lock is held.
        let number = unsafe { registration.register_as(&text) };
        let Ok(id) = i16::try_from(number) else { return Err(wrong_number(&name, number)) };
        if number == -libc::ENOEXEC {
            return Err(DpdkError::GpuRelease { version });
        }
        if number < 0 {
            let error = negative(number);
            let what = "registering its driver".to_owned();
            return Err(DpdkError::Gpu { gpu: name, what, error, why: None, said: eal.said() });
        }
        let properties = GpuProperties { page: properties.page.max(1), ..properties };
        Ok(Gpu { eal, info: GpuInfo { name, number: id, properties }, registration: Some(registration) })
    }

    /// Those that DPDK has at the moment, drivers of this process included.
    pub fn all(_eal: &'static Eal) -> Vec<GpuInfo> {
        let _lock = lock();
        all()
    }

    /// What there is of it.
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }

    /// What this process has of it; `None` for DPDK's own driver, which does not tell.
    pub fn memory_usage(&self) -> Option<GpuMemoryUsage> {
        self.registration.as_ref().map(|registration| registration.memory_usage())
    }

    /// Waits until what network cards have written to its memory is there for it.
    ///
    /// # Errors
    /// [`DpdkError::Gpu`].
    pub fn barrier(&self) -> Result<(), DpdkError> {
        // SAFETY: the GPU is there.
        self.check("waiting for what was written to it", unsafe { sys::rte_gpu_wmb(self.info.number) })
    }

    /// Refuses a GPU whose memory network cards do not reach, as far as its driver knows.
    pub(super) fn check_cards(&self) -> Result<(), DpdkError> {
        let known = self.registration.as_ref().map_or(Ok(()), |it| it.check_nic_access());
        known.map_err(|missing| DpdkError::NoGpuDirect { missing: missing.to_string() })
    }

    /// Where it finds memory of the host's that it was shown. DPDK's own driver takes such memory alone as is at the same address for both.
    pub(super) fn found(&self, address: u64) -> u64 {
        self.registration.as_ref().and_then(|it| it.found(address)).unwrap_or(address)
    }

    pub(super) fn number(&self) -> i16 {
        self.info.number
    }

    /// Does something that no other thread may do meanwhile.
    pub(super) fn alone<T>(&self, act: impl FnOnce() -> T) -> T {
        let _lock = lock();
        act()
    }

    /// Does something that DPDK leaves half of behind where it fails: then that is undone. `kept` gives of what was made what it needs
    /// itself; what is beside that is undone, too.
    pub(super) fn whole<T>(
        &self,
        act: impl FnOnce() -> Result<T, DpdkError>,
        kept: impl FnOnce(&T) -> Option<Vec<u64>>,
    ) -> Result<T, DpdkError> {
        self.alone(|| {
            let before: Option<Ledger> = self.registration.as_ref().map(|it| it.ledger());
            let made = act();
            if let (Some(registration), Some(before)) = (&self.registration, before) {
                match &made {
                    Ok(made) => {
                        if let Some(kept) = kept(made) {
                            registration.undo(&before, &kept, false);
                        }
                    }
                    Err(_) => registration.undo(&before, &[], true),
                }
            }
            made
        })
    }

    /// DPDK's result of a function: 0 or a negative error.
    pub(super) fn check(&self, what: &str, result: i32) -> Result<(), DpdkError> {
        if result >= 0 { Ok(()) } else { Err(self.failed(what, negative(result))) }
    }

    /// What DPDK's function gave that gives NULL where it fails.
    pub(super) fn pointer<T>(&self, what: &str, result: *mut T) -> Result<std::ptr::NonNull<T>, DpdkError> {
        std::ptr::NonNull::new(result).ok_or_else(|| self.failed(what, last()))
    }

    fn failed(&self, what: &str, error: io::Error) -> DpdkError {
        let why = self.registration.as_ref().and_then(|it| it.failure()).map(|failure| failure.to_string());
        DpdkError::Gpu { gpu: self.title(), what: what.to_owned(), error, why, said: self.eal.said() }
    }

    /// How users know it.
    pub fn title(&self) -> String {
        self.info.title().to_owned()
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.registration.is_some() {
            let _lock = lock();
            // SAFETY: it is ours, and nobody has anything of it.
            unsafe { sys::rte_gpu_close(self.info.number) };
        }
    }
}

fn lock() -> MutexGuard<'static, ()> {
    GPUDEV.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wrong_number(name: &str, number: i32) -> DpdkError {
    let error = io::Error::other(format!("its number is {number}"));
    DpdkError::Gpu { gpu: name.to_owned(), what: "registering its driver".into(), error, why: None, said: vec![] }
}

/// All GPUs of DPDK's.
fn all() -> Vec<GpuInfo> {
    let mut found = Vec::new();
    let mut from = 0;
    loop {
        // SAFETY: DPDK has begun, and the lock is held.
        let number = unsafe { sys::rte_gpu_find_next(from, i16::MIN) };
        if number < 0 {
            return found;
        }
        let mut info = sys::rte_gpu_info::default();
        // SAFETY: the GPU is there, and its description is written.
        if unsafe { sys::rte_gpu_info_get(number, &raw mut info) } == 0 && !info.name.is_null() {
            // SAFETY: a name ends with a zero byte, and stays while the lock is held.
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

/// Whether DPDK's name of a device at the PCI bus is this place: it may be without the domain.
fn is_at(name: &str, pci: &str) -> bool {
    spec::pci(name).is_some_and(|place| spec::pci(pci) == Some(place))
}

/// Whether the form of a driver is known of a release: `DPDK 22.11.11`.
fn is_known(version: &str) -> bool {
    release(version).is_some_and(|release| (KNOWN[0]..=KNOWN[1]).contains(&release))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_known_from_the_oldest_to_the_newest() {
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
            assert_eq!(is_known(version), known, "{version}");
        }
    }

    #[test]
    fn a_place_at_the_bus_is_known_with_and_without_its_domain() {
        assert!(is_at("0000:3B:00.0", "3b:00.0") && is_at("3b:00.0", "0000:3b:00.0"));
        assert!(!is_at("0001:3b:00.0", "3b:00.0") && !is_at("portcullis_gpu_0", "3b:00.0"));
    }
}
