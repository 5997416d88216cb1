//! Access to map memory on the device, for compacting maps between batches.

use super::{Launcher, OffloadSession};
use crate::device::{DeviceError, map_layout};
use crate::map::compactor::MapMemory;
use crate::map::layout::HEADER_WORDS;

/// The maps of a session that has nothing queued on its device.
pub(super) struct DeviceMapMemory<'a, L: Launcher> {
    pub session: &'a mut OffloadSession<L>,
}

impl<L: Launcher> MapMemory for DeviceMapMemory<'_, L> {
    type Error = DeviceError;

    fn read_header(&mut self, map: usize) -> Result<[u32; HEADER_WORDS as usize], DeviceError> {
        let words = self.session.launcher.read_map(map, 0, HEADER_WORDS as usize)?;
        let count = words.len();
        let too_short = || DeviceError::Failed {
            device: self.session.launcher.id().into(),
            reason: format!("reading a map header returned {count} words instead of {HEADER_WORDS}"),
        };
        words.try_into().map_err(|_| too_short())
    }

    fn write_header_word(&mut self, map: usize, at: u32, word: u32) -> Result<(), DeviceError> {
        self.session.launcher.write_map(map, at as usize, &[word])
    }

    fn rewrite(&mut self, map: usize, change: &mut dyn FnMut(&[u32]) -> Option<Vec<u32>>) -> Result<(), DeviceError> {
        let words = map_layout(&self.session.program, map)?.words();
        let words = self.session.launcher.read_map(map, 0, words)?;
        match change(&words) {
            Some(words) => self.session.launcher.write_map(map, 0, &words),
            None => Ok(()),
        }
    }
}
