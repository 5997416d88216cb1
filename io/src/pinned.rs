//! Maps of the Linux kernel's that are pinned in a BPF file system: what is in them, by `bpf(2)`.
//!
//! Sources: `union bpf_attr`, `struct bpf_map_info` in linux/bpf.h; Documentation/bpf/maps.rst. Nothing is written to a map.
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

/// `BPF_F_RDONLY`: it is only read, which is all that whoever may only read it is allowed.
const RDONLY: u32 = 1 << 3;

/// Bytes of `struct bpf_map_info` that are looked at: type, id, sizes, entries.
const INFO: usize = 20;

/// Bytes of a key or value at most: beyond it the kernel has no maps (`KMALLOC_MAX_SIZE`).
const MAX_SIZE: u32 = 1 << 26;

/// Why a pinned map cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PinnedError {
    /// It cannot be opened.
    #[error("{}: {}", path.display(), opening(error))]
    Open {
        /// The path.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// What is there is no map, or cannot be looked at.
    #[error("{}: {what}: {}", path.display(), reason(error))]
    Read {
        /// The path.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the system says.
        error: io::Error,
    },
    /// It changes faster than it is read.
    #[error("{}: keys come and go faster than they are read; try again, or stop who changes the map", path.display())]
    Unstable {
        /// The path.
        path: PathBuf,
    },
}

fn opening(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EINVAL) => "nothing of BPF is pinned there (is it in a file system of type bpf?)".into(),
        Some(libc::EPERM | libc::EACCES) => {
            "no permission, or nothing of BPF is there; it takes CAP_BPF, and a path in a file system of type bpf"
                .into()
        }
        Some(libc::ENOSYS) => "this kernel has no BPF".into(),
        _ => reason(error),
    }
}

/// What is in a map: keys, and of each its value, one for each processor where the map has those.
pub type Entries = BTreeMap<Vec<u8>, Vec<Vec<u8>>>;

/// A map that is pinned.
#[derive(Debug)]
pub struct PinnedMap {
    path: PathBuf,
    map: OwnedFd,
    /// `enum bpf_map_type`, linux/bpf.h.
    pub ty: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// How many entries there may be.
    max_entries: u32,
}

impl PinnedMap {
    /// Opens what is pinned at a path.
    ///
    /// # Errors
    /// [`PinnedError`].
    pub fn open(path: &Path) -> Result<PinnedMap, PinnedError> {
        let open = |error| PinnedError::Open { path: path.to_owned(), error };
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| open(io::ErrorKind::InvalidInput.into()))?;
        let get = |flags| {
            // SAFETY: the path ends with a zero, and lives.
            unsafe { Attributes::new().pointer(0, name.as_ptr()).u32(12, flags).ask(OBJ_GET) }
        };
        // Programs take no flags: what is there is told once it is open.
        let descriptor = get(RDONLY).or_else(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => get(0),
            _ => Err(error),
        });
        // SAFETY: the kernel has just given it to us, and to nobody else.
        let map = unsafe { OwnedFd::from_raw_fd(descriptor.map_err(open)?) };
        let read = |what| move |error| PinnedError::Read { path: path.to_owned(), what, error };
        let link = std::fs::read_link(format!("/proc/self/fd/{}", map.as_raw_fd()));
        if let Some(kind) = link.ok().and_then(|link| Some(link.to_str()?.strip_prefix("anon_inode:")?.to_owned()))
            && kind != "bpf-map"
        {
            let kind = kind.strip_prefix("bpf").map_or(kind.as_str(), |kind| kind.trim_start_matches(['-', '_']));
            let kind = if kind == "prog" { "program" } else { kind };
            let error = io::Error::other(format!("it is a BPF {kind}"));
            return Err(read("what is pinned there is no map")(error));
        }
        let mut info = [0_u8; INFO];
        let mut attributes = Attributes::new().u32(0, map.as_raw_fd() as u32).u32(4, INFO as u32);
        attributes = attributes.pointer(8, info.as_mut_ptr());
        // SAFETY: the information has room for as many bytes as is said.
        unsafe { attributes.ask(OBJ_GET_INFO_BY_FD) }.map_err(read("asking what it is"))?;
        let word = |at: usize| info[at..].first_chunk().copied().map_or(0, u32::from_ne_bytes);
        let (ty, key_size, value_size, max_entries) = (word(0), word(8), word(12), word(16));
        if key_size > MAX_SIZE || value_size > MAX_SIZE {
            return Err(read("its entries are too large")(io::ErrorKind::Unsupported.into()));
        }
        Ok(PinnedMap { path: path.to_owned(), map, ty, key_size, value_size, max_entries })
    }

    /// Whether each processor has a value of its own.
    pub fn is_per_cpu(&self) -> bool {
        matches!(self.ty, 5 | 6 | 10 | 21)
    }

    /// What is in it now. Of keys that come or go meanwhile any may be there.
    ///
    /// # Errors
    /// [`PinnedError`].
    pub fn entries(&self) -> Result<Entries, PinnedError> {
        let failed = |what| move |error| PinnedError::Read { path: self.path.clone(), what, error };
        let size = self.value_size as usize;
        // Values of processors lie at multiples of eight bytes, one for each that there may ever be.
        let (each, count) = match self.is_per_cpu() {
            true => (size.next_multiple_of(8), possible_processors().map_err(failed("counting processors"))?),
            false => (size, 1),
        };
        let mut room = vec![0_u8; each * count];
        let mut entries = Entries::new();
        let mut key: Option<Vec<u8>> = None;
        // Where a key goes, the kernel begins again with the first.
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

    /// The key behind a key, or the first.
    fn next_key(&self, key: Option<&[u8]>) -> io::Result<Option<Vec<u8>>> {
        let mut next = vec![0_u8; self.key_size as usize];
        let at = key.map_or(std::ptr::null(), <[u8]>::as_ptr);
        let attributes = Attributes::new().u32(0, self.map.as_raw_fd() as u32).pointer(8, at);
        let mut attributes = attributes.pointer(16, next.as_mut_ptr());
        // SAFETY: both keys are as long as the map's.
        match unsafe { attributes.ask(MAP_GET_NEXT_KEY) } {
            Ok(_) => Ok(Some(next)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A key's value, for which there is room for all processors; whether the key is there.
    fn lookup(&self, key: &[u8], value: &mut [u8]) -> io::Result<bool> {
        let attributes = Attributes::new().u32(0, self.map.as_raw_fd() as u32).pointer(8, key.as_ptr());
        let mut attributes = attributes.pointer(16, value.as_mut_ptr());
        // SAFETY: the key is as long as the map's, and the value has room for as many as the kernel writes.
        match unsafe { attributes.ask(MAP_LOOKUP_ELEM) } {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Processors that there may ever be: as many values has a map of the kernel's that has one for each.
fn possible_processors() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count(&text).ok_or_else(|| io::Error::other("/sys/devices/system/cpu/possible is no list of processors"))
}

fn count(list: &str) -> Option<usize> {
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
    fn processors_are_counted() {
        for (list, wanted) in [("0\n", Some(1)), ("0-7\n", Some(8)), ("0-3,8", Some(5)), ("", None), ("a", None)] {
            assert_eq!(count(list), wanted, "{list:?}");
        }
    }

    #[test]
    fn what_is_not_pinned_is_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "text").unwrap();
        let said = PinnedMap::open(&file).unwrap_err().to_string();
        assert!(said.contains("pinned") || said.contains("CAP_BPF") || said.contains("no BPF"), "{said}");
        let said = PinnedMap::open(&folder.path().join("none")).unwrap_err().to_string();
        assert!(said.contains("none: "), "{said}");
    }
}
