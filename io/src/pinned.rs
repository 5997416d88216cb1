//! Reading kernel BPF maps that are pinned in a BPF file system, through bpf(2).
//!
//! Sources: `union bpf_attr` and `struct bpf_map_info` in linux/bpf.h; Documentation/bpf/maps.rst.
//! Maps are opened read-only.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use portcullis_core::reason;

use crate::bpf_call::Attributes;

const MAP_LOOKUP_ELEM: libc::c_int = 1;
const MAP_GET_NEXT_KEY: libc::c_int = 4;
const OBJ_GET: libc::c_int = 7;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;

/// `BPF_F_RDONLY`: opens the map read-only, which also works for users without write permission.
const RDONLY: u32 = 1 << 3;

/// Bytes of `struct bpf_map_info` that are read: type, id, key size, value size, maximum entries.
const INFO: usize = 20;

/// Maximum size of a key or value in bytes; the kernel creates no map beyond it
/// (`KMALLOC_MAX_SIZE`).
const MAX_SIZE: u32 = 1 << 26;

/// Why a pinned map cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinnedError {
    /// The pinned object cannot be opened.
    #[error("{}: {}", path.display(), open_error_reason(error))]
    Open {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The object is not a map, or querying it failed.
    #[error("{}: {what}: {}", path.display(), reason(error))]
    Read {
        /// The path.
        path: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// The map changes faster than it can be read.
    #[error("{}: keys are added and removed faster than they can be read; stop the programs that change the map, then try again", path.display())]
    Unstable {
        /// The path.
        path: PathBuf,
    },
}

fn open_error_reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EINVAL) => "no BPF object is pinned there; is the path in a file system of type bpf?".into(),
        Some(libc::EPERM | libc::EACCES) => {
            "permission denied, or no BPF object is there; reading a pinned map needs CAP_BPF and a path in a file system of type bpf"
                .into()
        }
        Some(libc::ENOSYS) => "this kernel has no BPF".into(),
        _ => reason(error),
    }
}

/// Keys of a map with their values: one value per key, or one per possible CPU for per-CPU maps.
pub type Entries = BTreeMap<Vec<u8>, Vec<Vec<u8>>>;

/// An open pinned map.
#[derive(Debug)]
pub struct PinnedMap {
    path: PathBuf,
    map: OwnedFd,
    /// Map type: `enum bpf_map_type`, linux/bpf.h.
    pub ty: u32,
    /// Size of a key in bytes.
    pub key_size: u32,
    /// Size of a value in bytes.
    pub value_size: u32,
    /// Capacity of the map in entries.
    max_entries: u32,
}

impl PinnedMap {
    /// Opens the map pinned at `path`.
    ///
    /// # Errors
    /// [`PinnedError`].
    pub fn open(path: &Path) -> Result<PinnedMap, PinnedError> {
        let open = |error| PinnedError::Open { path: path.to_owned(), error };
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| open(io::ErrorKind::InvalidInput.into()))?;
        let get = |flags| {
            // SAFETY: the path is zero-terminated and outlives the call.
            unsafe { Attributes::new().pointer(0, name.as_ptr()).u32(12, flags).execute(OBJ_GET) }
        };
        // Pinned programs refuse the flag; open them without it, to name the object's kind below.
        let descriptor = get(RDONLY).or_else(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => get(0),
            _ => Err(error),
        });
        // SAFETY: the kernel has just returned this descriptor; nothing else owns it.
        let map = unsafe { OwnedFd::from_raw_fd(descriptor.map_err(open)?) };
        let read = |what| move |error| PinnedError::Read { path: path.to_owned(), what, error };
        let link = std::fs::read_link(format!("/proc/self/fd/{}", map.as_raw_fd()));
        if let Some(kind) = link.ok().and_then(|link| Some(link.to_str()?.strip_prefix("anon_inode:")?.to_owned()))
            && kind != "bpf-map"
        {
            let kind = kind.strip_prefix("bpf").map_or(kind.as_str(), |kind| kind.trim_start_matches(['-', '_']));
            let kind = if kind == "prog" { "program" } else { kind };
            let error = io::Error::other(format!("it is a BPF {kind}"));
            return Err(read("the pinned object is not a map")(error));
        }
        let mut info = [0_u8; INFO];
        let mut attributes = Attributes::new().u32(0, map.as_raw_fd() as u32).u32(4, INFO as u32);
        attributes = attributes.pointer(8, info.as_mut_ptr());
        // SAFETY: `info` has as many bytes as the attributes say.
        unsafe { attributes.execute(OBJ_GET_INFO_BY_FD) }.map_err(read("querying its type"))?;
        let word = |at: usize| info[at..].first_chunk().copied().map_or(0, u32::from_ne_bytes);
        let (ty, key_size, value_size, max_entries) = (word(0), word(8), word(12), word(16));
        if key_size > MAX_SIZE || value_size > MAX_SIZE {
            return Err(read("its keys or values are too large")(io::ErrorKind::Unsupported.into()));
        }
        Ok(PinnedMap { path: path.to_owned(), map, ty, key_size, value_size, max_entries })
    }

    /// Whether each CPU has a value of its own.
    pub fn is_per_cpu(&self) -> bool {
        matches!(self.ty, 5 | 6 | 10 | 21)
    }

    /// Reads all entries. Keys that are added or removed meanwhile may or may not be included.
    ///
    /// # Errors
    /// [`PinnedError`].
    pub fn entries(&self) -> Result<Entries, PinnedError> {
        let failed = |what| move |error| PinnedError::Read { path: self.path.clone(), what, error };
        let size = self.value_size as usize;
        // Per-CPU values are padded to multiples of 8 bytes; there is one for each possible CPU.
        let (each, count) = match self.is_per_cpu() {
            true => (size.next_multiple_of(8), possible_processors().map_err(failed("counting processors"))?),
            false => (size, 1),
        };
        let mut room = vec![0_u8; each * count];
        let mut entries = Entries::new();
        let mut key: Option<Vec<u8>> = None;
        // If the current key is removed, the kernel restarts iteration at the first: bound the
        // lookups.
        let patience = 4 * u64::from(self.max_entries) + 64;
        for _ in 0..patience {
            let Some(next) = self.next_key(key.as_deref()).map_err(failed("reading its keys"))? else {
                return Ok(entries);
            };
            if self.lookup(&next, &mut room).map_err(failed("reading its values"))? {
                let values = if each == 0 {
                    vec![Vec::new()]
                } else {
                    room.chunks(each).map(|it| it[..size].to_vec()).collect()
                };
                entries.insert(next.clone(), values);
            }
            key = Some(next);
        }
        Err(PinnedError::Unstable { path: self.path.clone() })
    }

    /// Returns the key after `key`, or the first key.
    fn next_key(&self, key: Option<&[u8]>) -> io::Result<Option<Vec<u8>>> {
        let mut next = vec![0_u8; self.key_size as usize];
        let at = key.map_or(std::ptr::null(), <[u8]>::as_ptr);
        let attributes = Attributes::new().u32(0, self.map.as_raw_fd() as u32).pointer(8, at);
        let mut attributes = attributes.pointer(16, next.as_mut_ptr());
        // SAFETY: both keys have the map's key size.
        match unsafe { attributes.execute(MAP_GET_NEXT_KEY) } {
            Ok(_) => Ok(Some(next)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the value of `key` into `value`, which has room for all possible CPUs; returns whether
    /// the key exists.
    fn lookup(&self, key: &[u8], value: &mut [u8]) -> io::Result<bool> {
        let attributes = Attributes::new().u32(0, self.map.as_raw_fd() as u32).pointer(8, key.as_ptr());
        let mut attributes = attributes.pointer(16, value.as_mut_ptr());
        // SAFETY: the key has the map's key size, and `value` has room for all that the kernel
        // writes.
        match unsafe { attributes.execute(MAP_LOOKUP_ELEM) } {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Number of possible CPUs: the number of values that the kernel copies for a per-CPU map.
fn possible_processors() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count_cpus(&text).ok_or_else(|| io::Error::other("/sys/devices/system/cpu/possible does not hold a list of CPUs"))
}

fn count_cpus(list: &str) -> Option<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.trim().split(',').try_fold(0_usize, |all, part| all.checked_add(range(part)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_counted() {
        for (list, wanted) in [("0\n", Some(1)), ("0-7\n", Some(8)), ("0-3,8", Some(5)), ("", None), ("a", None)] {
            assert_eq!(count_cpus(list), wanted, "{list:?}");
        }
    }

    #[test]
    fn opening_what_is_not_a_pinned_map_names_path_and_cause() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "text").unwrap();
        let said = PinnedMap::open(&file).unwrap_err().to_string();
        assert!(said.contains("pinned") || said.contains("CAP_BPF") || said.contains("no BPF"), "{said}");
        let said = PinnedMap::open(&folder.path().join("none")).unwrap_err().to_string();
        assert!(said.contains("none: "), "{said}");
    }
}
