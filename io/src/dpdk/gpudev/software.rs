//! A GPU that there is not: all of gpudev, in the host's memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use super::driver::{Block, DriverError, GpuDriver, GpuProperties};

/// As GPUs of NVIDIA's have it.
const PAGE: usize = 64 << 10;

/// What is in its memory before anybody has written to it: nobody may rely on zeros.
const GARBAGE: u8 = 0xa5;

/// A GPU's driver without a GPU: it gives memory of the host's.
#[derive(Debug)]
pub struct SoftwareGpu {
    /// Bytes that there are in all.
    memory: usize,
    is_apart: bool,
    maps: bool,
    /// Pieces of the host's memory that it is shown at most.
    most_registered: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    registered: usize,
    /// What is in memory that is apart, by its address.
    files: BTreeMap<u64, File>,
}

impl SoftwareGpu {
    /// With so many bytes, which the host reaches where the GPU has them.
    pub fn new(memory: usize) -> SoftwareGpu {
        SoftwareGpu { memory, is_apart: false, maps: true, most_registered: usize::MAX, state: Mutex::default() }
    }

    /// Like a GPU of its own: where the GPU has memory, the host finds nothing that it could read or write, and reaches it by mappings
    /// alone ([`CpuMapping`](super::CpuMapping)), at other addresses.
    pub fn with_separate_memory(self) -> SoftwareGpu {
        SoftwareGpu { is_apart: true, ..self }
    }

    /// Like a GPU whose memory the host cannot be made to reach.
    pub fn without_mappings(self) -> SoftwareGpu {
        SoftwareGpu { maps: false, ..self }
    }

    /// Like a GPU that refuses to be shown memory of the host's, beyond so many pieces.
    pub fn with_registration_limit(self, most: usize) -> SoftwareGpu {
        SoftwareGpu { most_registered: most, ..self }
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl GpuDriver for SoftwareGpu {
    fn properties(&self) -> GpuProperties {
        let device = self.is_apart.then(|| "software".to_owned());
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
            let protection = if self.is_apart { libc::PROT_NONE } else { libc::PROT_READ | libc::PROT_WRITE };
            let start = reserve(size, align.max(PAGE), protection)?;
            if self.is_apart {
                let file = file(size).inspect_err(|_| {
                    // SAFETY: it was just mapped, so long.
                    unsafe { libc::munmap(start.as_ptr().cast(), size) };
                })?;
                state.files.insert(start.as_ptr() as u64, file);
            } else {
                // SAFETY: the bytes are there, and nobody else's.
                unsafe { start.as_ptr().write_bytes(GARBAGE, size) };
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
        // SAFETY: it was mapped so long, and nobody has it any more.
        match unsafe { libc::munmap(address as *mut _, size) } {
            0 => Ok(()),
            _ => Err(system("unmapping memory")),
        }
    }

    unsafe fn register(&self, start: NonNull<u8>, size: usize) -> Result<u64, DriverError> {
        self.with(|state| {
            if state.registered >= self.most_registered {
                return Err(DriverError::Other(format!(
                    "it is shown no more memory, as these {size} bytes at {start:p}"
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
        if !self.maps {
            return Err(DriverError::Unsupported("the processor cannot be made to reach its memory".into()));
        }
        if !self.is_apart {
            return NonNull::new(address as *mut u8).ok_or(DriverError::Unknown { what: "mapping memory", address });
        }
        self.with(|state| {
            let block = state.files.range(..=address).next_back();
            let (start, file) = block.ok_or(DriverError::Unknown { what: "mapping memory", address })?;
            let (at, access) = (address - start, libc::PROT_READ | libc::PROT_WRITE);
            // SAFETY: a new view, wherever there is room, of a file that has so many bytes.
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
        if self.is_apart {
            // SAFETY: it was mapped so long, and nobody looks by it any more.
            unsafe { libc::munmap(view.as_ptr().cast(), size) };
        }
        Ok(())
    }

    fn barrier(&self) -> Result<(), DriverError> {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }
}

/// New pages at a multiple of `align`.
fn reserve(size: usize, align: usize, protection: i32) -> Result<NonNull<u8>, DriverError> {
    let out = DriverError::OutOfMemory { size };
    let whole = size.checked_add(align).ok_or(out.clone())?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new pages, wherever there is room.
    let start = unsafe { libc::mmap(ptr::null_mut(), whole, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(out);
    }
    let end = start as usize + whole;
    let aligned = (start as usize).next_multiple_of(align);
    // What is mapped ends with a page.
    let behind = (aligned + size).next_multiple_of(4096);
    // SAFETY: both are ends of what was just mapped.
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

/// Memory with a descriptor, so that there may be views of it.
fn file(size: usize) -> Result<File, DriverError> {
    // SAFETY: the name ends with a zero byte.
    let fd = unsafe { libc::memfd_create(c"software gpu".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(system("making memory"));
    }
    // SAFETY: it was just made, and is nobody else's.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(size as u64).map_err(|_| DriverError::OutOfMemory { size })?;
    Ok(file)
}

fn system(what: &str) -> DriverError {
    DriverError::Other(format!("{what}: {}", std::io::Error::last_os_error()))
}
