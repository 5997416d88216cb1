//! `--watch-map`: a map that follows a file.

use std::path::Path;

use portcullis::device::{DeviceError, Session};
use portcullis::map::{Declaration, Table};
use portcullis::map_file::text::Rows;
use portcullis::map_file::watch::Watch;
use portcullis::map_file::{self, Entries};

use super::maps::MapFile;
use super::rows::no_room;
use crate::cli::failure::Failure;

/// A map and the file that it follows.
pub struct Follower<'a> {
    from: &'a MapFile,
    number: usize,
    map: &'a Declaration,
    watch: Watch,
    /// What was in the file when the map was last made to follow it.
    followed: Entries,
}

impl<'a> Follower<'a> {
    /// Reads the file, and watches it from now on. The rows are for [`Follower::begin`].
    pub fn new(from: &'a MapFile, (number, map): (usize, &'a Declaration)) -> Result<(Follower<'a>, Rows), Failure> {
        let (rows, watch) = Watch::start(Path::new(&from.file), map, from.format).map_err(Failure::Wrong)?;
        Ok((Follower { from, number, map, watch, followed: Entries::new(map) }, rows))
    }

    /// Makes the map follow the file for the first time.
    pub fn begin(&mut self, rows: Rows, session: &mut dyn Session) -> Result<(), Failure> {
        self.follow(rows, session)?.map_err(Failure::Wrong)
    }

    /// Between two batches: makes the map follow the file where that has changed. Where it cannot, the map stays as it is,
    /// and a warning is given.
    pub fn boundary(&mut self, session: &mut dyn Session) -> Result<Option<String>, DeviceError> {
        let wrong = match self.watch.take() {
            None => return Ok(None),
            Some(Ok(rows)) => match self.follow(rows, session)? {
                Ok(()) => return Ok(None),
                Err(wrong) => wrong,
            },
            Some(Err(wrong)) => wrong,
        };
        Ok(Some(format!("{wrong}\nthe map `{}` stays as it is until {} is right again", self.map.name, self.from.file)))
    }

    fn follow(&mut self, rows: Rows, session: &mut dyn Session) -> Result<Result<(), String>, DeviceError> {
        let mut table = Table::new(self.map, session.map_words(self.number)?);
        if let Err(row) = map_file::follow(self.map, &mut table, &self.followed, &rows.entries) {
            return Ok(Err(no_room(&rows, row, self.map).of(&self.from.file)));
        }
        let (at, words) = table.changes();
        session.set_map_words(self.number, at, words)?;
        self.followed = rows.entries;
        Ok(Ok(()))
    }
}
