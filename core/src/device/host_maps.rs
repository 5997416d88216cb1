//! Maps of sessions that keep them in host memory.

use std::sync::Arc;

use super::{DeviceError, check_map_range, map_layout};
use crate::map::layout::zeros;
use crate::program::Program;

/// The words of a filter's maps.
#[derive(Debug)]
pub struct HostMaps {
    program: Arc<Program>,
    /// Words by map.
    pub words: Vec<Vec<u32>>,
}

impl HostMaps {
    /// Creates the program's maps, all words zero.
    pub fn new(program: &Arc<Program>) -> HostMaps {
        HostMaps { program: program.clone(), words: zeros(program.maps()) }
    }

    /// Implements [`Session::map_words`](super::Session::map_words).
    ///
    /// # Errors
    /// If there is no such map.
    pub fn get(&self, map: usize) -> Result<Vec<u32>, DeviceError> {
        map_layout(&self.program, map)?;
        Ok(self.words[map].clone())
    }

    /// Implements [`Session::map_words_at`](super::Session::map_words_at).
    ///
    /// # Errors
    /// If the range exceeds the map, or there is no such map.
    pub fn get_at(&self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        check_map_range(&self.program, map, at, words)?;
        Ok(self.words[map][at..at + words].to_vec())
    }

    /// Implements [`Session::set_map_words`](super::Session::set_map_words).
    ///
    /// # Errors
    /// If the range exceeds the map, or there is no such map.
    pub fn set(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        check_map_range(&self.program, map, at, words.len())?;
        self.words[map][at..at + words.len()].copy_from_slice(words);
        Ok(())
    }
}
