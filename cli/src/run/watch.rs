//! `--watch-map`: keeps a map equal to a file.

use portcullis::device::{DeviceError, Session};
use portcullis::map::{Declaration, Table};
use portcullis::map_file::text::ParsedRows;
use portcullis::map_file::watch::FileWatcher;
use portcullis::map_file::{self, Entries};

use super::map_args::{MapFile, MapNotice};
use super::rows::no_room;
use crate::failure::Failure;

/// A map and the file that it follows.
pub struct MapFollower {
    from: MapFile,
    number: usize,
    map: Declaration,
    watch: FileWatcher,
    /// Entries of the file when the map last followed it.
    followed: Entries,
    /// Set after warning that the map stays as it is; suppresses repeated warnings.
    failing: bool,
}

impl MapFollower {
    /// Reads the file and starts to watch it. The rows are for [`MapFollower::begin`].
    pub fn new(from: &MapFile, (number, map): (usize, &Declaration)) -> Result<(MapFollower, ParsedRows), Failure> {
        let (rows, watch) =
            FileWatcher::start(&from.file, map, from.format).map_err(|error| Failure::Error(error.to_string()))?;
        let followed = Entries::new(map);
        Ok((MapFollower { from: from.clone(), number, map: map.clone(), watch, followed, failing: false }, rows))
    }

    /// Sets the map to the rows that were read first.
    pub fn begin(&mut self, rows: ParsedRows, session: &mut dyn Session) -> Result<(), Failure> {
        self.follow(rows, session)?.map_err(Failure::Error)
    }

    /// Whether this is the follower of `map`.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn follows(&self, map: &str) -> bool {
        self.map.name == map
    }

    /// Takes over the state of the old filter's follower of the same map, so that values that
    /// filters have changed are kept.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn inherit(&mut self, others: &[MapFollower]) {
        if let Some(before) = others.iter().find(|other| other.follows(&self.map.name)) {
            self.followed = before.followed.clone();
        }
    }

    /// Updates the map if the file has changed. Must be called between two batches. If that fails,
    /// the map stays as it is; notices report the first failure and the recovery.
    pub fn on_batch_boundary(&mut self, session: &mut dyn Session) -> Result<Option<MapNotice>, DeviceError> {
        let mut last = None;
        while let Some(change) = self.watch.take_change() {
            last = Some(match change {
                Ok(rows) => self.follow(rows, session)?,
                Err(error) => Err(error.to_string()),
            });
        }
        let Some(last) = last else { return Ok(None) };
        let had_failed = std::mem::replace(&mut self.failing, last.is_err());
        let (map, file) = (&self.map.name, self.from.file.display());
        Ok(match last {
            Err(wrong) => Some(MapNotice::Warning(format!(
                "{wrong}\nthe map `{map}` stays unchanged until {file} is valid again"
            ))),
            Ok(()) if had_failed => Some(MapNotice::Note(format!("{file} is valid again; the map `{map}` follows it"))),
            Ok(()) => None,
        })
    }

    fn follow(&mut self, rows: ParsedRows, session: &mut dyn Session) -> Result<Result<(), String>, DeviceError> {
        let mut table = Table::new(&self.map, session.map_words(self.number)?);
        if let Err(row) = map_file::sync_table(&self.map, &mut table, &self.followed, &rows.entries) {
            return Ok(Err(no_room(&rows, row, &self.map).with_file_name(&self.from.file.display().to_string())));
        }
        let (at, words) = table.changes();
        session.set_map_words(self.number, at, words)?;
        self.followed = rows.entries;
        Ok(Ok(()))
    }
}
