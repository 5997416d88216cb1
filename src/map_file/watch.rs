//! A file that a map follows.
//!
//! A thread of its own looks at the file a few times a second, and reads it when it has changed. What came of that waits
//! until it is asked for, between two batches, so that packets wait neither for a disk nor for a parser. Of several
//! changes the last counts.

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

use super::text::{self, ParsedRows};

/// How often the file is looked at.
const PERIOD: Duration = Duration::from_millis(250);

/// Looks, one after the other, for which a file that changes all the time is waited for: whoever writes it may not have
/// come to the end.
const PATIENCE: u32 = 4;

/// How coarse the times of some file systems are: within this, a file may have changed again and have the same time.
const COARSE: Duration = Duration::from_secs(2);

/// A file that is being watched, until this is dropped.
#[derive(Debug)]
pub struct FileWatcher {
    changes: Arc<Mutex<Changes>>,
}

/// What came of a change, or why there is nothing in it to be had, as text.
pub type Change = Result<ParsedRows, String>;

/// What nobody has asked for yet. Rows that are no good do not take away those before them, which the map is to have
/// meanwhile.
#[derive(Debug, Default)]
struct Changes {
    rows: Option<ParsedRows>,
    wrong: Option<String>,
}

impl Changes {
    fn put(&mut self, change: Change) {
        match change {
            Ok(rows) => *self = Changes { rows: Some(rows), wrong: None },
            Err(wrong) => self.wrong = Some(wrong),
        }
    }

    /// The older one first.
    fn take(&mut self) -> Option<Change> {
        self.rows.take().map(Ok).or_else(|| self.wrong.take().map(Err))
    }
}

impl FileWatcher {
    /// Reads the file, and watches it from then on.
    ///
    /// # Errors
    /// Why the file cannot be read or what is wrong with its rows, as text.
    pub fn start(path: &Path, map: &Declaration, format: Format) -> Result<(ParsedRows, FileWatcher), String> {
        let mut file = File::new(path, map, format);
        let rows = match file.look() {
            Some(change) => change?,
            // It was written to while it was read. What is wrong then, a later look tells.
            None => file.read()?,
        };
        let changes = Arc::default();
        let of_thread = Arc::downgrade(&changes);
        thread::Builder::new()
            .name("watch".into())
            .spawn(move || file.watch(&of_thread))
            .map_err(|error| format!("{}: it cannot be watched: {}", path.display(), reason(&error)))?;
        Ok((rows, FileWatcher { changes }))
    }

    /// What came of changes since this was asked: of the last one, and of the last that was good, which comes first.
    pub fn take_change(&mut self) -> Option<Change> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// What tells a file from what it was before.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    /// On Unix, where a file lies that was renamed over another.
    place: (u64, u64),
}

impl Stamp {
    fn new(metadata: &Metadata) -> Stamp {
        #[cfg(unix)]
        let place = (std::os::unix::fs::MetadataExt::dev(metadata), std::os::unix::fs::MetadataExt::ino(metadata));
        #[cfg(not(unix))]
        let place = (0, 0);
        Stamp { modified: metadata.modified().ok(), length: metadata.len(), place }
    }

    /// Whether the file may change without this showing it.
    fn is_recent(&self) -> bool {
        let age = self.modified.and_then(|modified| modified.elapsed().ok());
        age.is_some_and(|age| age < COARSE)
    }
}

/// Why a file was not read, or when it was and what was in it.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Content { stamp: Stamp, hash: u64 },
    Nothing(String),
}

struct File {
    path: PathBuf,
    map: Declaration,
    format: Format,
    /// What was told of last.
    told: Option<Seen>,
}

impl File {
    fn new(path: &Path, map: &Declaration, format: Format) -> File {
        File { path: path.to_owned(), map: map.clone(), format, told: None }
    }

    fn stamp(&self) -> io::Result<Stamp> {
        let metadata = fs::metadata(&self.path)?;
        // A pipe or a device gives something else each time.
        if metadata.is_dir() || metadata.is_file() {
            Ok(Stamp::new(&metadata))
        } else {
            Err(io::Error::other("this is no file, and only files can be watched"))
        }
    }

    /// Looks at the file until nobody wants to know.
    fn watch(mut self, changes: &Weak<Mutex<Changes>>) {
        let (mut before, mut restless) = (None, 0);
        loop {
            thread::sleep(PERIOD);
            let now = self.stamp().ok();
            // Who writes a file does so in several goes, and who replaces it may remove it first.
            let settled = before.as_ref() == Some(&now);
            before = Some(now);
            restless = if settled { 0 } else { restless + 1 };
            if !settled && restless < PATIENCE {
                if changes.strong_count() == 0 {
                    return;
                }
                continue;
            }
            let change = self.look();
            let Some(changes) = changes.upgrade() else { return };
            if let Some(change) = change {
                changes.lock().unwrap_or_else(PoisonError::into_inner).put(change);
            }
        }
    }

    /// What is in the file, where that has changed since it was told of.
    fn look(&mut self) -> Option<Change> {
        let stamp = match self.stamp() {
            Ok(stamp) => stamp,
            Err(error) => return self.nothing(&error),
        };
        if let Some(Seen::Content { stamp: before, .. }) = &self.told
            && *before == stamp
            && !stamp.is_recent()
        {
            return None;
        }
        let bytes = match text::read_file(&self.path, &self.map) {
            Ok(bytes) => bytes,
            Err(error) => return self.nothing(&error),
        };
        if self.stamp().ok().as_ref() != Some(&stamp) {
            // Somebody writes to it: another look will tell.
            return None;
        }
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        let hash = hasher.finish();
        let same = matches!(&self.told, Some(Seen::Content { hash: before, .. }) if *before == hash);
        self.told = Some(Seen::Content { stamp, hash });
        (!same).then(|| self.parse(&bytes))
    }

    /// That there is nothing to read; once.
    fn nothing(&mut self, error: &io::Error) -> Option<Change> {
        let why = Seen::Nothing(format!("{}: {}", self.path.display(), reason(error)));
        if self.told.as_ref() == Some(&why) {
            return None;
        }
        let Seen::Nothing(text) = &why else { return None };
        let text = text.clone();
        self.told = Some(why);
        Some(Err(text))
    }

    fn read(&self) -> Change {
        let bytes = text::read_file(&self.path, &self.map)
            .map_err(|error| format!("{}: {}", self.path.display(), reason(&error)))?;
        self.parse(&bytes)
    }

    fn parse(&self, bytes: &[u8]) -> Change {
        let name = self.path.display().to_string();
        // What is cut down to nothing is about to be written anew, or was lost.
        if bytes.is_empty() && self.format == Format::Csv {
            return Err(format!(
                "{name}: it is empty; where a map is to have no entries, write a line of names or `#`"
            ));
        }
        text::parse(&self.map, self.format, bytes).map_err(|problems| problems.with_file_name(&name))
    }
}

#[cfg(test)]
mod tests {
    use portcullis_core::map::MapKind;

    use super::*;

    fn file(path: &Path) -> File {
        let map = Declaration::new("m", MapKind::Hash, 1, 0, 9);
        File::new(path, &map, Format::Csv)
    }

    /// The keys, or what is wrong.
    fn keys(change: Option<Change>) -> Option<Result<Vec<u32>, String>> {
        change.map(|change| change.map(|rows| rows.entries.iter().map(|(key, _)| key[0]).collect()))
    }

    /// A file that was last written some time ago.
    fn write(path: &Path, text: &str, age: u64) {
        fs::write(path, text).unwrap();
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
    }

    #[test]
    fn rows_that_are_no_good_do_not_take_those_before_away() {
        let dir = tempfile::tempdir().unwrap();
        let file = file(&dir.path().join("m.csv"));
        let mut changes = Changes::default();
        assert_eq!(keys(changes.take()), None);
        // Two that are good, one that is not, and another.
        for text in ["1\n", "2\n", "x\ny\n", "z\nz\n"] {
            changes.put(file.parse(text.as_bytes()));
        }
        assert_eq!(keys(changes.take()), Some(Ok(vec![2])));
        assert!(matches!(keys(changes.take()), Some(Err(wrong)) if wrong.contains('z')));
        assert_eq!(keys(changes.take()), None);
        // Right again before anybody has asked: nobody needs to know.
        for text in ["x\ny\n", "3\n"] {
            changes.put(file.parse(text.as_bytes()));
        }
        assert_eq!(keys(changes.take()), Some(Ok(vec![3])));
        assert_eq!(keys(changes.take()), None);
    }

    #[test]
    fn changes_are_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.csv");
        let name = path.display();
        let mut file = file(&path);
        let missing = format!("{name}: No such file or directory (os error 2)");
        assert_eq!(keys(file.look()), Some(Err(missing.clone())));
        assert_eq!(keys(file.look()), None);
        write(&path, "1\n2\n", 100);
        assert_eq!(keys(file.look()), Some(Ok(vec![1, 2])));
        assert_eq!(keys(file.look()), None);
        // Another time, the same content.
        write(&path, "1\n2\n", 90);
        assert_eq!(keys(file.look()), None);
        // Another content of the same length at the same time: another file by the same name.
        let other = dir.path().join("other");
        fs::write(&other, "1\n3\n").unwrap();
        let time = path.metadata().unwrap().modified().unwrap();
        fs::File::options().write(true).open(&other).unwrap().set_modified(time).unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(keys(file.look()), if cfg!(unix) { Some(Ok(vec![1, 3])) } else { None });
        write(&path, "1\n3\nx y\n", 80);
        let wrong = keys(file.look()).unwrap().unwrap_err();
        assert!(wrong.starts_with(&format!("{name}:3: column 1: `x y` is no number")), "{wrong}");
        assert_eq!(keys(file.look()), None);
        write(&path, "", 70);
        let empty = keys(file.look()).unwrap().unwrap_err();
        assert!(empty.starts_with(&format!("{name}: it is empty; ")), "{empty}");
        write(&path, "key0\n", 60);
        assert_eq!(keys(file.look()), Some(Ok(vec![])));
        fs::remove_file(&path).unwrap();
        assert_eq!(keys(file.look()), Some(Err(missing)));
        fs::create_dir(&path).unwrap();
        assert_eq!(keys(file.look()), Some(Err(format!("{name}: Is a directory (os error 21)"))));
        assert_eq!(keys(file.look()), None);
    }

    /// Within what the file system's clock can tell, neither time nor length need show a change.
    #[test]
    fn a_file_written_twice_at_once_is_read_twice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.csv");
        let mut file = file(&path);
        fs::write(&path, "1\n").unwrap();
        let time = path.metadata().unwrap().modified().unwrap();
        assert_eq!(keys(file.look()), Some(Ok(vec![1])));
        fs::write(&path, "2\n").unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        // Unless this takes longer than that.
        if time.elapsed().unwrap() < COARSE / 2 {
            assert_eq!(keys(file.look()), Some(Ok(vec![2])));
        }
    }
}
