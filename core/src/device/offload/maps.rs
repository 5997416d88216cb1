//! Seeing to a session's maps where they are.

use super::{Launcher, Offload};
use crate::device::{DeviceError, check_map};
use crate::map::compactor::MapMemory;
use crate::map::layout::HEADER_WORDS;

/// The maps of a session at whose device nothing is queued.
pub(super) struct Words<'a, L: Launcher> {
    pub session: &'a mut Offload<L>,
}

impl<L: Launcher> MapMemory for Words<'_, L> {
    type Error = DeviceError;

    fn read_header(&mut self, map: usize) -> Result<[u32; HEADER_WORDS as usize], DeviceError> {
        let words = self.session.launcher.read_map(map, 0, HEADER_WORDS as usize)?;
        let found = words.len();
        let short = || DeviceError::Failed {
            device: self.session.launcher.id().into(),
            reason: format!("{found} words came back of the {HEADER_WORDS} before a map's entries"),
        };
        words.try_into().map_err(|_| short())
    }

    fn write_header_word(&mut self, map: usize, at: u32, word: u32) -> Result<(), DeviceError> {
        self.session.launcher.write_map(map, at as usize, &[word])
    }

    fn rewrite(&mut self, map: usize, change: &mut dyn FnMut(&[u32]) -> Option<Vec<u32>>) -> Result<(), DeviceError> {
        let words = check_map(&self.session.program, map)?.words();
        let words = self.session.launcher.read_map(map, 0, words)?;
        match change(&words) {
            Some(words) => self.session.launcher.write_map(map, 0, &words),
            None => Ok(()),
        }
    }
}
