//! `--state`: all maps of a filter, from one run to the next.

use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use portcullis::device::Session;
use portcullis::io::{SinkError, resolved_path};
use portcullis::map::{Declaration, Table};
use portcullis::map_file::{self, state};
use portcullis::program::Program;
use portcullis::reason;

use super::replace::Replacement;
use crate::failure::Failure;

/// The file, from before a run to behind it.
pub struct State {
    name: String,
    /// The existing state file, locked against other writers.
    now: Option<File>,
    next: Replacement,
    /// When it is to be written while packets flow.
    due: Option<StateTimer>,
}

struct StateTimer {
    every: Duration,
    last: Instant,
    /// Whether the last time it could not be done.
    failing: bool,
}

impl State {
    /// Sees whether the file can be read, if it is there, and written. Nobody else may have it
    /// meanwhile.
    pub fn open(name: &str, every: Option<Duration>) -> Result<State, Failure> {
        let path = resolved_path(Path::new(name));
        if path.metadata().is_ok_and(|it| !it.is_file() && !it.is_dir()) {
            return Err(wrong(name, "this is no file, and state is carried in one"));
        }
        let now = loop {
            let Some(file) = open(&path).map_err(|error| wrong(name, &reason(&error)))? else { break None };
            // Where a file system has no locks, nobody is kept out.
            if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
                return Err(wrong(
                    name,
                    "another run carries its state in it; wait for its end, or choose another file",
                ));
            }
            // Before it was locked, it may have been replaced.
            if is_at(&file, &path) {
                break Some(file);
            }
        };
        let due = every.map(|every| StateTimer { every, last: Instant::now(), failing: false });
        Ok(State { name: name.into(), now, next: Replacement::new(name)?, due })
    }

    /// Brings what is in the file to the session's maps.
    pub fn load(&mut self, program: &Program, session: &mut dyn Session) -> Result<(), Failure> {
        let Some(mut file) = self.now.as_ref() else { return Ok(()) };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|error| wrong(&self.name, &reason(&error)))?;
        let (numbers, maps): (Vec<usize>, Vec<Declaration>) =
            lasting(program).map(|(number, map)| (number, map.clone())).unzip();
        let all = state::read(&maps, &bytes).map_err(|error| wrong(&self.name, &error.to_string()))?;
        for ((number, map), entries) in numbers.into_iter().zip(&maps).zip(&all) {
            let mut table = Table::new(map, session.map_words(number)?);
            map_file::restore_entries(&mut table, entries)
                .map_err(|entry| wrong(&self.name, &state::no_room_error(map, entries, entry).to_string()))?;
            let (at, words) = table.changes();
            session.set_map_words(number, at, words)?;
        }
        Ok(())
    }

    /// Writes what is in the session's maps now.
    pub fn save(&mut self, program: &Program, session: &mut dyn Session) -> Result<(), SinkError> {
        let written = self.next.write(|out| {
            let mut writer = state::Writer::new(out, lasting(program).count())?;
            for (number, map) in lasting(program) {
                let words = session.map_words(number).map_err(io::Error::other)?;
                writer.write_map(map, &words)?;
            }
            writer.finish()
        });
        // The lock of what was there before goes with it.
        self.now = Some(written?);
        Ok(())
    }

    /// Between two batches: writes what is in the maps now, where that is due. That it cannot be
    /// done is told once, until it can.
    pub fn save_if_due(&mut self, program: &Program, session: &mut dyn Session) -> Result<(), SinkError> {
        if self.due.as_ref().is_none_or(|due| due.last.elapsed() < due.every) {
            return Ok(());
        }
        let saved = self.save(program, session);
        let Some(due) = &mut self.due else { return saved };
        // However long it took, packets are filtered for as long as was asked for.
        due.last = Instant::now();
        let told = std::mem::replace(&mut due.failing, saved.is_err());
        if told { Ok(()) } else { saved }
    }
}

/// The maps that are carried over, with their numbers.
fn lasting(program: &Program) -> impl Iterator<Item = (usize, &Declaration)> {
    program.maps().iter().enumerate().filter(|(_, map)| map.is_persistent())
}

/// The file, if it is there.
fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        file => file.map(Some),
    }
}

/// Whether an open file is the one that is at a path.
fn is_at(file: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        matches!((file.metadata(), path.metadata()), (Ok(a), Ok(b)) if (a.dev(), a.ino()) == (b.dev(), b.ino()))
    }
    #[cfg(not(unix))]
    {
        let _ = (file, path);
        true
    }
}

fn wrong(name: &str, what: &str) -> Failure {
    Failure::Wrong(format!("{name}: {what}"))
}
