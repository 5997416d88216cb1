//! Maps of a session that has them in the host's memory.

use std::sync::Arc;

use super::{DeviceError, check_map_range, map_layout};
use crate::map::layout::zeros;
use crate::program::Program;

/// The words of a filter's maps, as [`Session`](super::Session) has them given and set.
#[derive(Debug)]
pub struct HostMaps {
    program: Arc<Program>,
    /// Of each map.
    pub words: Vec<Vec<u32>>,
}

impl HostMaps {
    /// With nothing in them.
    pub fn new(program: &Arc<Program>) -> HostMaps {
        HostMaps { program: program.clone(), words: zeros(program.maps()) }
    }

    /// All words of a map: [`Session::map_words`](super::Session::map_words).
    ///
    /// # Errors
    /// Where there is no such map.
    pub fn get(&self, map: usize) -> Result<Vec<u32>, DeviceError> {
        map_layout(&self.program, map)?;
        Ok(self.words[map].clone())
    }

    /// Some of a map's words: [`Session::map_words_at`](super::Session::map_words_at).
    ///
    /// # Errors
    /// Where there are no such words.
    pub fn get_at(&self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        check_map_range(&self.program, map, at, words)?;
        Ok(self.words[map][at..at + words].to_vec())
    }

    /// Sets some of a map's words: [`Session::set_map_words`](super::Session::set_map_words).
    ///
    /// # Errors
    /// Where there are no such words.
    pub fn set(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        check_map_range(&self.program, map, at, words.len())?;
        self.words[map][at..at + words.len()].copy_from_slice(words);
        Ok(())
    }
}
