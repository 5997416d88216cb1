//! On-disk cache of compiled kernels and of measurements, in a folder of the user's.
//!
//! A cache is optional: if the folder or an entry is unusable, it counts as empty, and only callers
//! that ask learn the reason ([`Cache::try_open`], [`Cache::try_get`]). Entries are run on a device
//! with the user's rights, so:
//! - the folder belongs to the user and nobody else may enter it (mode 0700), or it is not used;
//! - a file is written under a temporary name and renamed, so it is either complete or absent;
//! - an entry contains its whole key and a checksum: a truncated file, or one with another key, is
//!   not an entry;
//! - the files of a folder take at most [`MAX_FOLDER_BYTES`] bytes; the least recently used are
//!   deleted first.
//!
//! [`costs`] measures what moving bytes costs, and caches that too.
#![deny(unsafe_code)]

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

pub mod costs;

/// Maximum total size of a folder's files, in bytes.
pub const MAX_FOLDER_BYTES: u64 = 64 << 20;

/// Environment variable that names the folder of all caches instead of the system's. If it is
/// empty, nothing is cached.
pub const FOLDER_ENV: &str = "PORTCULLIS_CACHE";

const MAGIC: &[u8; 16] = b"portcullis cache";
const ENTRY_EXTENSION: &str = "bin";

/// Why a cache, or an entry of it, is unusable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheError {
    /// The folder or file; empty if the system names none.
    pub path: PathBuf,
    /// The problem with it.
    pub reason: String,
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_os_str().is_empty() {
            true => f.write_str(&self.reason),
            false => write!(f, "{}: {}", self.path.display(), self.reason),
        }
    }
}

impl std::error::Error for CacheError {}

/// A folder of entries.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
    limit: u64,
}

impl Cache {
    /// Opens the user's cache for one kind of entries, such as `opencl`, creating it if necessary.
    /// `None` if it is unusable.
    pub fn open(kind: &str) -> Option<Cache> {
        Cache::try_open(kind).ok()
    }

    /// Opens the user's cache for one kind of entries, creating it if necessary.
    ///
    /// # Errors
    /// [`CacheError`] if it is unusable.
    pub fn try_open(kind: &str) -> Result<Cache, CacheError> {
        let unusable = |path: PathBuf, reason: &str| CacheError { path, reason: reason.into() };
        let base = match std::env::var_os(FOLDER_ENV) {
            Some(folder) if folder.is_empty() => {
                return Err(unusable(PathBuf::new(), "PORTCULLIS_CACHE is empty, which disables the cache"));
            }
            Some(folder) => PathBuf::from(folder),
            None => match system_folder() {
                Some(folder) => folder.join("portcullis"),
                None => {
                    return Err(unusable(PathBuf::new(), "no cache folder: set HOME or PORTCULLIS_CACHE"));
                }
            },
        };
        // A relative path would depend on the working directory (XDG Base Directory Specification,
        // "Basics").
        if !base.is_absolute() {
            return Err(unusable(base, "PORTCULLIS_CACHE must be an absolute path"));
        }
        Cache::at(&base.join(kind), MAX_FOLDER_BYTES)
    }

    /// Opens a cache in this folder, of at most `limit` bytes, creating it if necessary.
    ///
    /// # Errors
    /// [`CacheError`] if it cannot be created, or others may access it.
    pub fn at(folder: &Path, limit: u64) -> Result<Cache, CacheError> {
        let unusable = |path: &Path, reason: &str| CacheError { path: path.to_path_buf(), reason: reason.into() };
        let existing = folder.ancestors().find(|folder| folder.symlink_metadata().is_ok());
        let existing = existing.ok_or_else(|| unusable(folder, "none of its parent folders exists"))?;
        if existing != folder {
            // Create nothing in another user's folder: with that user's HOME it would be in the way
            // there.
            if !fs::metadata(existing).is_ok_and(|metadata| is_owned_by_user(&metadata)) {
                return Err(unusable(existing, "belongs to another user; no cache is created in it"));
            }
            create_private_folder(folder).map_err(|error| unusable(folder, &format!("cannot be created: {error}")))?;
        }
        let metadata = folder.symlink_metadata();
        let metadata = metadata.map_err(|error| unusable(folder, &format!("cannot be examined: {error}")))?;
        match () {
            () if !metadata.is_dir() => Err(unusable(folder, "is not a folder")),
            () if !is_owned_by_user(&metadata) => Err(unusable(folder, "belongs to another user")),
            () if !is_private(&metadata) => Err(unusable(folder, "others may enter it (mode 0700 is needed)")),
            () => Ok(Cache { folder: folder.to_path_buf(), limit }),
        }
    }

    /// Returns the entry of this key; `None` if there is none, or it is unusable.
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.try_get(key).ok().flatten()
    }

    /// Returns the entry of this key, if there is one.
    ///
    /// # Errors
    /// [`CacheError`] if there is a file but it is unusable.
    pub fn try_get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, CacheError> {
        let path = self.path(key);
        let unusable = |reason: &str| CacheError { path: path.clone(), reason: reason.into() };
        // Links and pipes are not entries, and opening a pipe may block.
        match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Ok(metadata) if metadata.is_file() => {}
            Ok(_) => return Err(unusable("is not a regular file")),
            Err(error) => return Err(unusable(&format!("cannot be examined: {error}"))),
        }
        let read = || -> io::Result<(File, Vec<u8>)> {
            let mut file = File::open(&path)?;
            let mut bytes = Vec::new();
            (&mut file).take(self.limit).read_to_end(&mut bytes)?;
            Ok((file, bytes))
        };
        let (file, bytes) = read().map_err(|error| unusable(&format!("cannot be read: {error}")))?;
        let entry = decode(&bytes, key).ok_or_else(|| unusable("is damaged, or its key differs"))?.to_vec();
        // Marks the entry as recently used.
        let _ = file.set_modified(SystemTime::now());
        Ok(Some(entry))
    }

    /// Stores an entry; returns whether it is stored.
    pub fn put(&self, key: &[u8], value: &[u8]) -> bool {
        let bytes = encode(key, value);
        bytes.len() as u64 <= self.limit && self.write(key, &bytes).is_ok()
    }

    fn write(&self, key: &[u8], bytes: &[u8]) -> io::Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("{}-{}.tmp", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let temporary = self.folder.join(name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let written = options.open(&temporary).and_then(|mut file| file.write_all(bytes));
        let placed = written.and_then(|()| {
            self.make_room(bytes.len() as u64, &temporary);
            fs::rename(&temporary, self.path(key))
        });
        if placed.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        placed
    }

    /// Deletes the least recently used files until `wanted` bytes of a new one fit, which already
    /// exists.
    fn make_room(&self, wanted: u64, new: &Path) {
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten().filter_map(|entry| {
            // Other files in the folder belong to somebody else.
            let metadata = entry.metadata().ok().filter(|it| it.is_file() && is_cache_file_name(&entry.file_name()))?;
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            (entry.path() != new).then(|| (used, metadata.len(), entry.path()))
        });
        let mut files: Vec<_> = files.collect();
        files.sort();
        let mut total: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, bytes, path) in &files {
            if total + wanted <= self.limit {
                break;
            }
            if fs::remove_file(path).is_ok() {
                total -= bytes;
            }
        }
    }

    fn path(&self, key: &[u8]) -> PathBuf {
        self.folder.join(format!("{:016x}.{ENTRY_EXTENSION}", fnv(key)))
    }
}

/// Whether this crate gives files such names: `HASH.bin`, `PROCESS-NUMBER.tmp`.
fn is_cache_file_name(name: &OsStr) -> bool {
    let Some((stem, suffix)) = name.to_str().and_then(|name| name.split_once('.')) else { return false };
    let all = |text: &str, is: fn(&u8) -> bool| !text.is_empty() && text.as_bytes().iter().all(is);
    match (suffix, stem.split_once('-')) {
        (ENTRY_EXTENSION, None) => stem.len() == 16 && all(stem, |c| c.is_ascii_digit() || (b'a'..=b'f').contains(c)),
        ("tmp", Some((process, number))) => all(process, u8::is_ascii_digit) && all(number, u8::is_ascii_digit),
        _ => false,
    }
}

/// The system's folder for caches of the user.
fn system_folder() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if cfg!(windows) {
        absolute("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        Some(absolute("HOME")?.join("Library/Caches"))
    } else {
        absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))
    }
}

fn create_private_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

#[cfg(unix)]
fn is_owned_by_user(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    metadata.uid() == rustix::process::geteuid().as_raw()
}

#[cfg(unix)]
fn is_private(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    metadata.mode() & 0o077 == 0
}

/// On other systems the user's folder is private by its place.
#[cfg(not(unix))]
fn is_owned_by_user(_: &fs::Metadata) -> bool {
    true
}

#[cfg(not(unix))]
fn is_private(_: &fs::Metadata) -> bool {
    true
}

/// Format: magic, lengths of key and value as little-endian 64-bit words, key, value, and a
/// checksum of all these.
fn encode(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend((key.len() as u64).to_le_bytes());
    bytes.extend((value.len() as u64).to_le_bytes());
    bytes.extend(key);
    bytes.extend(value);
    bytes.extend(fnv(&bytes).to_le_bytes());
    bytes
}

fn decode<'a>(bytes: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let (content, sum) = bytes.split_last_chunk::<8>()?;
    if fnv(content) != u64::from_le_bytes(*sum) {
        return None;
    }
    let rest = content.strip_prefix(MAGIC)?;
    let (key_length, rest) = rest.split_first_chunk::<8>()?;
    let (value_length, rest) = rest.split_first_chunk::<8>()?;
    let value = rest.strip_prefix(key)?;
    let lengths = (u64::from_le_bytes(*key_length), u64::from_le_bytes(*value_length));
    (lengths == (key.len() as u64, value.len() as u64)).then_some(value)
}

/// 64-bit FNV-1a (RFC 9923). Guards against accidents, not attacks: the folder is private.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn fresh() -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(&folder.path().join("a/b"), 1 << 16).unwrap();
        (folder, cache)
    }

    #[test]
    fn the_checksum_is_fnv_1a() {
        // RFC 9923, appendix C: the empty string, "a" and "foobar".
        assert_eq!(fnv(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn entries_are_returned_as_stored() {
        let (_folder, cache) = fresh();
        assert_eq!((cache.get(b"key"), cache.try_get(b"key")), (None, Ok(None)));
        assert!(cache.put(b"key", b"value") && cache.put(b"other", b""));
        assert_eq!(cache.get(b"key").unwrap(), b"value");
        assert_eq!(cache.get(b"other").unwrap(), b"");
        assert!(cache.put(b"key", b"another"));
        assert_eq!(cache.get(b"key").unwrap(), b"another");
        let names = fs::read_dir(&cache.folder).unwrap().map(|entry| entry.unwrap().path());
        assert!(names.into_iter().all(|path| path.extension().unwrap() == ENTRY_EXTENSION));
    }

    #[test]
    fn damaged_files_are_rejected() {
        let (_folder, cache) = fresh();
        assert!(cache.put(b"key", b"some value"));
        let whole = fs::read(cache.path(b"key")).unwrap();
        for length in 0..whole.len() {
            fs::write(cache.path(b"key"), &whole[..length]).unwrap();
            assert_eq!(cache.get(b"key"), None, "cut off at {length}");
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            fs::write(cache.path(b"key"), &bytes).unwrap();
            assert_eq!(cache.get(b"key"), None, "byte {at}");
            let said = cache.try_get(b"key").unwrap_err().to_string();
            assert_eq!(said, format!("{}: is damaged, or its key differs", cache.path(b"key").display()));
        }
        // An entry with another key under this name, as after a hash collision.
        fs::write(cache.path(b"key"), encode(b"yek", b"some value")).unwrap();
        assert_eq!(cache.get(b"key"), None);
        fs::write(cache.path(b"key"), &whole).unwrap();
        assert!(cache.get(b"key").is_some());
    }

    #[test]
    fn least_recently_used_entries_are_evicted() {
        let (_folder, cache) = fresh();
        let value = vec![7; 20_000];
        for key in [b"1", b"2", b"3"] {
            assert!(cache.put(key, &value));
        }
        let age = |key: &[u8], seconds| {
            let file = File::open(cache.path(key)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
        };
        age(b"1", 300);
        age(b"2", 200);
        age(b"3", 100);
        assert!(cache.get(b"1").is_some());
        assert!(cache.put(b"4", &value));
        assert_eq!([b"1", b"2", b"3", b"4"].map(|key| cache.get(key).is_some()), [true, false, true, true]);
        assert!(!cache.put(b"5", &vec![0; 1 << 16]), "larger than all of the cache");
        assert!(cache.get(b"4").is_some());
    }

    #[test]
    fn files_of_others_stay_and_are_not_counted() {
        let (_folder, cache) = fresh();
        let others =
            ["photo.jpg", "0123456789abcdef.txt", "0123456789abcde.bin", "0123456789ABCDEF.bin", "a-1.tmp", "1.tmp"];
        for name in others {
            fs::write(cache.folder.join(name), vec![1; 1 << 15]).unwrap();
        }
        let value = vec![7; 20_000];
        for key in [b"1", b"2", b"3", b"4", b"5"] {
            assert!(cache.put(key, &value));
        }
        assert!(others.iter().all(|name| cache.folder.join(name).is_file()));
        assert_eq!([b"1", b"2", b"3", b"4", b"5"].iter().filter(|key| cache.get(**key).is_some()).count(), 3);
        // A temporary file of an interrupted run may be deleted.
        fs::write(cache.folder.join("123-0.tmp"), vec![1; 1 << 16]).unwrap();
        assert!(cache.put(b"6", &value) && cache.put(b"7", &value));
        assert!(!cache.folder.join("123-0.tmp").exists());
    }

    #[test]
    #[cfg(unix)]
    fn links_and_pipes_are_rejected() {
        let (folder, cache) = fresh();
        assert!(cache.put(b"key", b"value"));
        let elsewhere = folder.path().join("elsewhere");
        fs::rename(cache.path(b"key"), &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, cache.path(b"key")).unwrap();
        assert_eq!(cache.get(b"key"), None, "a link");
        fs::remove_file(cache.path(b"key")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(cache.path(b"key")).status();
        if made.is_ok_and(|status| status.success()) {
            assert_eq!(cache.get(b"key"), None, "a pipe that nobody writes to");
            // It is replaced, as a damaged entry would be.
            assert!(cache.put(b"key", b"value"));
            assert_eq!(cache.get(b"key").unwrap(), b"value");
        } else {
            println!("skipped: no mkfifo");
        }
    }

    #[test]
    #[cfg(unix)]
    fn a_folder_that_others_may_enter_is_not_used() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let (folder, cache) = fresh();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&cache.folder), 0o700);
        assert_eq!(mode(cache.folder.parent().unwrap()), 0o700);
        assert!(cache.put(b"key", b"value"));
        assert_eq!(mode(&cache.path(b"key")), 0o600);
        let link = folder.path().join("link");
        symlink(&cache.folder, &link).unwrap();
        assert!(Cache::at(&link, MAX_FOLDER_BYTES).is_err(), "a link");
        for open in [0o750, 0o701, 0o777] {
            fs::set_permissions(&cache.folder, fs::Permissions::from_mode(open)).unwrap();
            assert!(Cache::at(&cache.folder, MAX_FOLDER_BYTES).is_err(), "{open:o}");
        }
        fs::set_permissions(&cache.folder, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(Cache::at(&cache.folder, MAX_FOLDER_BYTES).is_ok());
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(
            Cache::at(&file, MAX_FOLDER_BYTES).is_err() && Cache::at(&file.join("below"), MAX_FOLDER_BYTES).is_err()
        );
        let error = Cache::at(&file.join("below"), MAX_FOLDER_BYTES).unwrap_err().to_string();
        assert!(error.ends_with("below: cannot be created: Not a directory (os error 20)"), "{error}");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&cache.folder, Some(65_534), None).unwrap();
            assert!(Cache::at(&cache.folder, MAX_FOLDER_BYTES).is_err(), "another's");
            assert!(Cache::at(&cache.folder.join("below"), MAX_FOLDER_BYTES).is_err(), "in another's");
        }
    }
}
