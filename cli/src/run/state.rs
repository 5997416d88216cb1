//! `--state`: all maps of a filter, kept from one run to the next.

mod lock_file;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use portcullis::device::Session;
use portcullis::map::{Declaration, Table};
use portcullis::map_file::{self, state};
use portcullis::packet_io::{SinkError, resolved_path};
use portcullis::program::Program;
use portcullis::reason;

use lock_file::LockFile;

use super::replace::Replacement;
use crate::failure::Failure;

/// The state file of a run.
pub struct State {
    name: String,
    /// Where the file is, or will be.
    path: PathBuf,
    next: Replacement,
    timer: Option<StateTimer>,
    /// Keeps other runs from the file until this run ends.
    _lock: LockFile,
}

/// Schedule of the writes during a run, for `--state-every`.
struct StateTimer {
    every: Duration,
    last: Instant,
    /// Set if the previous write failed; suppresses repeated warnings.
    failing: bool,
}

impl State {
    /// Checks that the file can be written, and locks it. The file need not exist.
    ///
    /// # Errors
    /// The file cannot be written, or another run has locked it.
    pub fn open(name: &Path, every: Option<Duration>) -> Result<State, Failure> {
        let path = resolved_path(name);
        let file = name;
        let name = &name.display().to_string();
        if path.metadata().is_ok_and(|it| !it.is_file() && !it.is_dir()) {
            return Err(state_file_error(name, "not a regular file, which --state needs"));
        }
        let next = Replacement::new(file)?;
        let companion = lock_file::companion(&path);
        let cannot_lock =
            |error| state_file_error(name, &format!("cannot lock it with {}: {}", companion.display(), reason(&error)));
        let lock = LockFile::acquire(companion.clone()).map_err(cannot_lock)?;
        let lock = lock.ok_or_else(|| {
            state_file_error(name, "another run is using this state file; wait until it ends, or choose another file")
        })?;
        let timer = every.map(|every| StateTimer { every, last: Instant::now(), failing: false });
        Ok(State { name: name.clone(), path, next, timer, _lock: lock })
    }

    /// Loads the file's entries, if there is a file, into the session's maps.
    ///
    /// # Errors
    /// The file cannot be read or is no state of this filter, or the session fails.
    pub fn load(&self, program: &Program, session: &mut dyn Session) -> Result<(), Failure> {
        let bytes = match fs::read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            read => read.map_err(|error| state_file_error(&self.name, &reason(&error)))?,
        };
        let (numbers, maps): (Vec<usize>, Vec<Declaration>) =
            persistent_maps(program).map(|(number, map)| (number, map.clone())).unzip();
        let all = state::read(&maps, &bytes).map_err(|error| state_file_error(&self.name, &error.to_string()))?;
        for ((number, map), entries) in numbers.into_iter().zip(&maps).zip(&all) {
            let mut table = Table::new(map, session.map_words(number)?);
            map_file::restore_entries(&mut table, entries).map_err(|entry| {
                state_file_error(&self.name, &state::no_room_error(map, entries, entry).to_string())
            })?;
            let (at, words) = table.changes();
            session.set_map_words(number, at, words)?;
        }
        Ok(())
    }

    /// Writes the entries of the session's maps, replacing the file.
    ///
    /// # Errors
    /// See [`SinkError`]; the file is as it was before.
    pub fn save(&self, program: &Program, session: &mut dyn Session) -> Result<(), SinkError> {
        self.next.write(|out| {
            let mut writer = state::Writer::new(out, persistent_maps(program).count())?;
            for (number, map) in persistent_maps(program) {
                let words = session.map_words(number).map_err(io::Error::other)?;
                writer.write_map(map, &words)?;
            }
            writer.finish()
        })
    }

    /// Saves if `--state-every` has elapsed. To be called between two batches.
    ///
    /// # Errors
    /// Errors of [`State::save`], but only the first of consecutive failures.
    pub fn save_if_due(&mut self, program: &Program, session: &mut dyn Session) -> Result<(), SinkError> {
        if self.timer.as_ref().is_none_or(|timer| timer.last.elapsed() < timer.every) {
            return Ok(());
        }
        let saved = self.save(program, session);
        let Some(timer) = &mut self.timer else { return saved };
        // From the end of the write, so that a slow disk does not take all the time.
        timer.last = Instant::now();
        let was_failing = std::mem::replace(&mut timer.failing, saved.is_err());
        if was_failing { Ok(()) } else { saved }
    }
}

/// The maps that a state file contains, with their numbers.
fn persistent_maps(program: &Program) -> impl Iterator<Item = (usize, &Declaration)> {
    program.maps().iter().enumerate().filter(|(_, map)| map.is_persistent())
}

fn state_file_error(name: &str, what: &str) -> Failure {
    Failure::Error(format!("{name}: {what}"))
}
