//! Watches a file whose rows a map follows.
//!
//! A thread polls the file a few times per second and parses it when it has changed. The result is
//! kept until the caller takes it between two batches, so packets wait for neither disk nor parser.
//! Of several changes only the latest counts.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, Metadata};
use std::hash::Hasher;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, SystemTime};

use portcullis_core::map::{Declaration, Format};
use portcullis_core::reason;

use super::text::{self, ParsedRows, RowErrors};

/// Interval of polling.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Number of polls after which a file that keeps changing is read anyway. Until then, its writer
/// may not have finished.
const MAX_UNSETTLED_POLLS: u32 = 4;

/// Assumed granularity of file times: within this, a file may change again without a new time.
const TIME_GRANULARITY: Duration = Duration::from_secs(2);

/// Watches a file until dropped.
#[derive(Debug)]
pub struct FileWatcher {
    changes: Arc<Mutex<PendingChanges>>,
}

/// The rows of a changed file, or the reason why it has none.
pub type Change = Result<ParsedRows, WatchError>;

/// Why a watched file has no rows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The file cannot be read.
    #[error("{}: {}", .file.display(), reason(.error))]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file is empty: it is about to be rewritten, or was lost.
    #[error("{}: the file is empty; for a map without entries, write a header line or `#`", .file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// Rows of the file are wrong.
    #[error("{}", .errors.with_file_name(&.file.display().to_string()))]
    Rows {
        /// The file.
        file: PathBuf,
        /// The errors, by line.
        errors: RowErrors,
    },
    /// The thread that watches the file cannot be started.
    #[error("{}: cannot watch it: {}", .file.display(), reason(.error))]
    Thread {
        /// The file.
        file: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// Results that have not been taken. An error does not replace earlier rows, which the map gets
/// meanwhile.
#[derive(Debug, Default)]
struct PendingChanges {
    rows: Option<ParsedRows>,
    error: Option<WatchError>,
}

impl PendingChanges {
    fn put(&mut self, change: Change) {
        match change {
            Ok(rows) => *self = PendingChanges { rows: Some(rows), error: None },
            Err(error) => self.error = Some(error),
        }
    }

    /// Takes the rows first, as they are older than the error.
    fn take(&mut self) -> Option<Change> {
        self.rows.take().map(Ok).or_else(|| self.error.take().map(Err))
    }
}

impl FileWatcher {
    /// Reads the file, and starts to watch it.
    ///
    /// # Errors
    /// [`WatchError`]: the file cannot be read, or its rows are wrong.
    pub fn start(path: &Path, map: &Declaration, format: Format) -> Result<(ParsedRows, FileWatcher), WatchError> {
        let mut file = WatchedFile::new(path, map, format);
        let rows = match file.read_if_changed() {
            Some(change) => change?,
            // The file was written while it was read. If the rows are wrong, a later poll corrects
            // that.
            None => file.read()?,
        };
        let changes = Arc::default();
        let of_thread = Arc::downgrade(&changes);
        thread::Builder::new()
            .name("watch".into())
            .spawn(move || file.watch(&of_thread))
            .map_err(|error| WatchError::Thread { file: path.to_owned(), error })?;
        Ok((rows, FileWatcher { changes }))
    }

    /// Takes the result of the latest change, or first the latest valid rows if an error followed.
    pub fn take_change(&mut self) -> Option<Change> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Metadata that shows whether a file has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    length: u64,
    modified: Option<SystemTime>,
    /// Time of the last change of content or metadata on Unix. Unlike the modification time, no
    /// program can set it back (`rsync --inplace --times`).
    changed: Option<SystemTime>,
    /// Device and inode on Unix, which change if another file is renamed over this one.
    file_id: (u64, u64),
}

impl Stamp {
    #[cfg(unix)]
    fn new(metadata: &Metadata) -> Stamp {
        use std::os::unix::fs::MetadataExt;
        // Times before 1970 do not occur here.
        let since_1970 = u64::try_from(metadata.ctime()).ok().map(|s| Duration::new(s, metadata.ctime_nsec() as u32));
        Stamp {
            length: metadata.len(),
            modified: metadata.modified().ok(),
            changed: since_1970.map(|since| SystemTime::UNIX_EPOCH + since),
            file_id: (metadata.dev(), metadata.ino()),
        }
    }

    #[cfg(not(unix))]
    fn new(metadata: &Metadata) -> Stamp {
        Stamp { length: metadata.len(), modified: metadata.modified().ok(), changed: None, file_id: (0, 0) }
    }

    /// Whether the file may have changed again without a new time.
    fn is_recent(&self) -> bool {
        let times = [self.modified, self.changed].into_iter().flatten();
        times.filter_map(|time| time.elapsed().ok()).any(|age| age < TIME_GRANULARITY)
    }
}

/// The result that was reported last.
#[derive(Debug, PartialEq, Eq)]
enum Report {
    Content { stamp: Stamp, hash: u64 },
    Error(String),
}

struct WatchedFile {
    path: PathBuf,
    map: Declaration,
    format: Format,
    /// The last reported result, to report each only once.
    last_report: Option<Report>,
}

impl WatchedFile {
    fn new(path: &Path, map: &Declaration, format: Format) -> WatchedFile {
        WatchedFile { path: path.to_owned(), map: map.clone(), format, last_report: None }
    }

    fn stamp(&self) -> io::Result<Stamp> {
        let metadata = fs::metadata(&self.path)?;
        // Pipes and devices return something else each time.
        if metadata.is_dir() || metadata.is_file() {
            Ok(Stamp::new(&metadata))
        } else {
            Err(io::Error::other("not a regular file; only regular files can be watched"))
        }
    }

    /// Polls the file until the [`FileWatcher`] is dropped.
    fn watch(mut self, changes: &Weak<Mutex<PendingChanges>>) {
        let (mut before, mut unsettled_polls) = (None, 0);
        loop {
            thread::sleep(POLL_INTERVAL);
            let now = self.stamp().ok();
            // Writers may write in several steps, and may remove a file before replacing it.
            let settled = before.as_ref() == Some(&now);
            before = Some(now);
            unsettled_polls = if settled { 0 } else { unsettled_polls + 1 };
            if !settled && unsettled_polls < MAX_UNSETTLED_POLLS {
                if changes.strong_count() == 0 {
                    return;
                }
                continue;
            }
            let change = self.read_if_changed();
            let Some(changes) = changes.upgrade() else { return };
            if let Some(change) = change {
                changes.lock().unwrap_or_else(PoisonError::into_inner).put(change);
            }
        }
    }

    /// Reads the file. Returns its rows if they have changed since the last report.
    fn read_if_changed(&mut self) -> Option<Change> {
        let stamp = match self.stamp() {
            Ok(stamp) => stamp,
            Err(error) => return self.report_error(error),
        };
        if let Some(Report::Content { stamp: before, .. }) = &self.last_report
            && *before == stamp
            && !stamp.is_recent()
        {
            return None;
        }
        let bytes = match text::read_file(&self.path, &self.map) {
            Ok(bytes) => bytes,
            Err(error) => return self.report_error(error),
        };
        if self.stamp().ok().as_ref() != Some(&stamp) {
            // The file is being written; read it at a later poll.
            return None;
        }
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        let hash = hasher.finish();
        let same = matches!(&self.last_report, Some(Report::Content { hash: before, .. }) if *before == hash);
        self.last_report = Some(Report::Content { stamp, hash });
        (!same).then(|| self.parse(&bytes))
    }

    /// Reports once that the file cannot be read.
    fn report_error(&mut self, error: io::Error) -> Option<Change> {
        let error = WatchError::Read { file: self.path.clone(), error };
        let report = Report::Error(error.to_string());
        if self.last_report.as_ref() == Some(&report) {
            return None;
        }
        self.last_report = Some(report);
        Some(Err(error))
    }

    fn read(&self) -> Change {
        let bytes = text::read_file(&self.path, &self.map)
            .map_err(|error| WatchError::Read { file: self.path.clone(), error })?;
        self.parse(&bytes)
    }

    fn parse(&self, bytes: &[u8]) -> Change {
        // A file truncated to nothing is about to be rewritten, or was lost.
        if bytes.is_empty() && self.format == Format::Csv {
            return Err(WatchError::Empty { file: self.path.clone() });
        }
        text::parse(&self.map, self.format, bytes)
            .map_err(|errors| WatchError::Rows { file: self.path.clone(), errors })
    }
}

#[cfg(test)]
mod tests {
    use portcullis_core::map::MapKind;

    use super::*;

    fn file(path: &Path) -> WatchedFile {
        let map = Declaration::new("m", MapKind::Hash, 1, 0, 9);
        WatchedFile::new(path, &map, Format::Csv)
    }

    /// The keys of the rows, or the error.
    fn keys(change: Option<Change>) -> Option<Result<Vec<u32>, String>> {
        let keys = |rows: ParsedRows| rows.entries.iter().map(|(key, _)| key[0]).collect();
        change.map(|change| change.map(keys).map_err(|error| error.to_string()))
    }

    /// Writes a file with a modification time `age` seconds ago.
    fn write(path: &Path, text: &str, age: u64) {
        fs::write(path, text).unwrap();
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
    }

    #[test]
    fn invalid_rows_do_not_replace_earlier_valid_ones() {
        let dir = tempfile::tempdir().unwrap();
        let file = file(&dir.path().join("m.csv"));
        let mut changes = PendingChanges::default();
        assert_eq!(keys(changes.take()), None);
        // Two valid files, an invalid one, and another.
        for text in ["1\n", "2\n", "x\ny\n", "z\nz\n"] {
            changes.put(file.parse(text.as_bytes()));
        }
        assert_eq!(keys(changes.take()), Some(Ok(vec![2])));
        assert!(matches!(keys(changes.take()), Some(Err(error)) if error.contains('z')));
        assert_eq!(keys(changes.take()), None);
        // Valid again before anyone took the error, which is then obsolete.
        for text in ["x\ny\n", "3\n"] {
            changes.put(file.parse(text.as_bytes()));
        }
        assert_eq!(keys(changes.take()), Some(Ok(vec![3])));
        assert_eq!(keys(changes.take()), None);
    }

    #[test]
    fn each_change_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.csv");
        let name = path.display();
        let mut file = file(&path);
        let missing = format!("{name}: No such file or directory (os error 2)");
        assert_eq!(keys(file.read_if_changed()), Some(Err(missing.clone())));
        assert_eq!(keys(file.read_if_changed()), None);
        write(&path, "1\n2\n", 100);
        assert_eq!(keys(file.read_if_changed()), Some(Ok(vec![1, 2])));
        assert_eq!(keys(file.read_if_changed()), None);
        // Another time with the same content.
        write(&path, "1\n2\n", 90);
        assert_eq!(keys(file.read_if_changed()), None);
        // Other content of the same length and time: another file renamed to this name.
        let other = dir.path().join("other");
        fs::write(&other, "1\n3\n").unwrap();
        let time = path.metadata().unwrap().modified().unwrap();
        fs::File::options().write(true).open(&other).unwrap().set_modified(time).unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(keys(file.read_if_changed()), if cfg!(unix) { Some(Ok(vec![1, 3])) } else { None });
        write(&path, "1\n3\nx y\n", 80);
        let error = keys(file.read_if_changed()).unwrap().unwrap_err();
        assert!(error.starts_with(&format!("{name}:3: column 1: `x y` is neither a number")), "{error}");
        assert_eq!(keys(file.read_if_changed()), None);
        write(&path, "", 70);
        let empty = keys(file.read_if_changed()).unwrap().unwrap_err();
        assert!(empty.starts_with(&format!("{name}: the file is empty; ")), "{empty}");
        write(&path, "key0\n", 60);
        assert_eq!(keys(file.read_if_changed()), Some(Ok(vec![])));
        fs::remove_file(&path).unwrap();
        assert_eq!(keys(file.read_if_changed()), Some(Err(missing)));
        fs::create_dir(&path).unwrap();
        assert_eq!(keys(file.read_if_changed()), Some(Err(format!("{name}: Is a directory (os error 21)"))));
        assert_eq!(keys(file.read_if_changed()), None);
    }

    /// As `rsync --inplace --times` does it, with a new file of the old one's length and time.
    #[cfg(unix)]
    #[test]
    fn a_change_in_place_that_keeps_length_and_time_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.csv");
        write(&path, "1\n2\n", 100);
        let time = path.metadata().unwrap().modified().unwrap();
        let mut file = file(&path);
        assert_eq!(keys(file.read_if_changed()), Some(Ok(vec![1, 2])));
        // Wait until only the recorded change time can show a difference.
        while file.stamp().unwrap().is_recent() {
            thread::sleep(POLL_INTERVAL);
        }
        assert_eq!(keys(file.read_if_changed()), None);
        fs::write(&path, "1\n3\n").unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        assert_eq!(path.metadata().unwrap().modified().unwrap(), time);
        // Nor is it only the first moments that it is seen in.
        while file.stamp().unwrap().is_recent() {
            thread::sleep(POLL_INTERVAL);
        }
        assert_eq!(keys(file.read_if_changed()), Some(Ok(vec![1, 3])));
    }

    /// Within the clock granularity, neither time nor length need reveal a change.
    #[test]
    fn a_file_written_twice_at_the_same_time_is_read_twice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.csv");
        let mut file = file(&path);
        fs::write(&path, "1\n").unwrap();
        let time = path.metadata().unwrap().modified().unwrap();
        assert_eq!(keys(file.read_if_changed()), Some(Ok(vec![1])));
        fs::write(&path, "2\n").unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        // Unless this test was slower than that.
        if time.elapsed().unwrap() < TIME_GRANULARITY / 2 {
            assert_eq!(keys(file.read_if_changed()), Some(Ok(vec![2])));
        }
    }
}
