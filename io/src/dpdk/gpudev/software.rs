//! A software GPU: all of gpudev in host memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use super::driver::{DriverError, GpuDriver, GpuProperties};
use super::ledger::Block;

/// Allocation granularity of NVIDIA GPUs, in bytes.
const PAGE: usize = 64 << 10;

/// Initial contents of memory, so that tests do not rely on zeros.
const INITIAL_BYTE: u8 = 0xa5;

/// A GPU driver without a GPU, which allocates host memory.
#[derive(Debug)]
pub struct SoftwareGpu {
    /// Size of its memory in bytes.
    memory: usize,
    is_separate: bool,
    can_map: bool,
    /// Maximum number of host memory ranges that can be registered.
    max_registered: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    registered: usize,
    /// Contents of separate memory, by address.
    files: BTreeMap<u64, File>,
}

impl SoftwareGpu {
    /// Creates a GPU with `memory` bytes, which the CPU accesses at the same addresses.
    pub fn new(memory: usize) -> SoftwareGpu {
        SoftwareGpu { memory, is_separate: false, can_map: true, max_registered: usize::MAX, state: Mutex::default() }
    }

    /// Makes the memory separate, as of a discrete GPU: the CPU cannot access it at the GPU's
    /// addresses, but only through mappings ([`CpuMapping`](super::CpuMapping)) at others.
    pub fn with_separate_memory(self) -> SoftwareGpu {
        SoftwareGpu { is_separate: true, ..self }
    }

    /// Makes CPU mappings fail.
    pub fn without_mappings(self) -> SoftwareGpu {
        SoftwareGpu { can_map: false, ..self }
    }

    /// Limits the number of registered host memory ranges.
    pub fn with_registration_limit(self, max: usize) -> SoftwareGpu {
        SoftwareGpu { max_registered: max, ..self }
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl GpuDriver for SoftwareGpu {
    fn properties(&self) -> GpuProperties {
        let device = self.is_separate.then(|| "software".to_owned());
        GpuProperties {
            device,
            title: Some("software".to_owned()),
            memory: self.memory,
            page: PAGE,
            ..GpuProperties::default()
        }
    }

    fn allocate(&self, size: usize, align: usize) -> Result<u64, DriverError> {
        let out = DriverError::OutOfMemory { size };
        self.with(|state| {
            let used = state.used.checked_add(size).filter(|used| *used <= self.memory).ok_or(out)?;
            let protection = if self.is_separate { libc::PROT_NONE } else { libc::PROT_READ | libc::PROT_WRITE };
            let start = reserve(size, align.max(PAGE), protection)?;
            if self.is_separate {
                let file = file(size).inspect_err(|_| {
                    // SAFETY: the range was just mapped.
                    unsafe { libc::munmap(start.as_ptr().cast(), size) };
                })?;
                state.files.insert(start.as_ptr() as u64, file);
            } else {
                // SAFETY: the range was just mapped, and nothing else uses it.
                unsafe { start.as_ptr().write_bytes(INITIAL_BYTE, size) };
            }
            state.used = used;
            Ok(start.as_ptr() as u64)
        })
    }

    unsafe fn free(&self, block: Block) -> Result<(), DriverError> {
        let Block { address, size, .. } = block;
        self.with(|state| {
            state.used -= size;
            state.files.remove(&address);
        });
        // SAFETY: the range was mapped, and nothing uses it any more.
        match unsafe { libc::munmap(address as *mut _, size) } {
            0 => Ok(()),
            _ => Err(system("unmapping memory")),
        }
    }

    unsafe fn register(&self, start: NonNull<u8>, size: usize) -> Result<u64, DriverError> {
        self.with(|state| {
            if state.registered >= self.max_registered {
                return Err(DriverError::Other(format!(
                    "it cannot register more memory, such as these {size} bytes at {start:p}"
                )));
            }
            state.registered += 1;
            Ok(start.as_ptr() as u64)
        })
    }

    unsafe fn unregister(&self, _start: NonNull<u8>, _size: usize) -> Result<(), DriverError> {
        self.with(|state| state.registered -= 1);
        Ok(())
    }

    fn cpu_map(&self, address: u64, size: usize) -> Result<NonNull<u8>, DriverError> {
        if !self.can_map {
            return Err(DriverError::Unsupported("the CPU cannot access its memory".into()));
        }
        if !self.is_separate {
            return NonNull::new(address as *mut u8).ok_or(DriverError::Unknown { what: "mapping memory", address });
        }
        self.with(|state| {
            let block = state.files.range(..=address).next_back();
            let (start, file) = block.ok_or(DriverError::Unknown { what: "mapping memory", address })?;
            let (at, access) = (address - start, libc::PROT_READ | libc::PROT_WRITE);
            // SAFETY: a new mapping at an address of the kernel's choice, within the file's size.
            let view = unsafe {
                libc::mmap(ptr::null_mut(), size, access, libc::MAP_SHARED, file.as_raw_fd(), at as libc::off_t)
            };
            if view == libc::MAP_FAILED {
                return Err(system("mapping memory"));
            }
            NonNull::new(view.cast()).ok_or(DriverError::OutOfMemory { size })
        })
    }

    unsafe fn cpu_unmap(&self, _address: u64, size: usize, view: NonNull<u8>) -> Result<(), DriverError> {
        if self.is_separate {
            // SAFETY: the range was mapped, and nothing uses it any more.
            unsafe { libc::munmap(view.as_ptr().cast(), size) };
        }
        Ok(())
    }

    fn barrier(&self) -> Result<(), DriverError> {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }
}

/// Maps new pages at a multiple of `align`.
fn reserve(size: usize, align: usize, protection: i32) -> Result<NonNull<u8>, DriverError> {
    let out = DriverError::OutOfMemory { size };
    let whole = size.checked_add(align).ok_or(out.clone())?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(ptr::null_mut(), whole, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(out);
    }
    let end = start as usize + whole;
    let aligned = (start as usize).next_multiple_of(align);
    // Mappings end at page boundaries.
    let behind = (aligned + size).next_multiple_of(4096);
    // SAFETY: both ranges are ends of the new mapping.
    unsafe {
        if aligned > start as usize {
            libc::munmap(start, aligned - start as usize);
        }
        if end.next_multiple_of(4096) > behind {
            libc::munmap(behind as *mut _, end.next_multiple_of(4096) - behind);
        }
    }
    NonNull::new(aligned as *mut u8).ok_or(out)
}

/// Creates an in-memory file, so that the memory can be mapped several times.
fn file(size: usize) -> Result<File, DriverError> {
    // SAFETY: the name is zero-terminated.
    let fd = unsafe { libc::memfd_create(c"software gpu".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(system("making memory"));
    }
    // SAFETY: the descriptor was just created; nothing else owns it.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(size as u64).map_err(|_| DriverError::OutOfMemory { size })?;
    Ok(file)
}

fn system(what: &str) -> DriverError {
    DriverError::Other(format!("{what}: {}", std::io::Error::last_os_error()))
}
