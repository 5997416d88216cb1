//! The memory of a filter's maps.

use std::sync::Arc;

use portcullis_core::device::{CancelToken, DeviceError, offload};
use portcullis_core::map::Declaration;
use portcullis_core::map::declaration::MAX_MAPS;
use portcullis_core::map::layout::Layout;

use crate::api::Code;
use crate::device::Gpu;
use crate::memory::{Buffer, DeviceMemory, HostMemory};
use crate::wait;

/// The words of all maps of a session.
#[derive(Debug)]
pub(crate) struct Maps(Vec<DeviceMemory>);

impl Maps {
    /// With nothing in them.
    pub fn new(gpu: &Arc<Gpu>, maps: &[Declaration], cancel: &CancelToken) -> Result<Maps, DeviceError> {
        let maps = maps.iter().map(|map| zeros(gpu, map)).collect::<Result<Vec<_>, _>>()?;
        if maps.is_empty() {
            return Ok(Maps(maps));
        }
        let failed = |code: Code| gpu.failed("does not clear maps", code);
        let end = gpu.kernels.record().map_err(failed)?;
        if let Err(error) = wait::until(&gpu.id, cancel, || end.has_come().map_err(failed)) {
            gpu.abandon(maps, || ());
            return Err(error);
        }
        Ok(Maps(maps))
    }

    /// Where each is, for kernels.
    pub fn addresses(&self) -> [u64; MAX_MAPS] {
        std::array::from_fn(|number| self.0.get(number).map_or(0, DeviceMemory::address))
    }

    /// A copy of some of a map's words, which lie in it. No batch is in flight.
    pub fn read(&self, gpu: &Arc<Gpu>, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        let bytes = words * 4;
        let copy = HostMemory::new(&gpu.context, bytes).map_err(|code| gpu.no_room("a copy of a map", code))?;
        let failed = |code| gpu.failed("does not give a map's words", code);
        // Not in the stream of kernels, in which one may stay.
        let stream = &gpu.downloads;
        // SAFETY: both stay until the copy was waited for.
        unsafe { self.0[map].bring_back(at * 4, &copy, 0, bytes, stream) }.map_err(failed)?;
        let copy = gpu.finish(stream, copy, failed)?;
        // SAFETY: the copy has ended.
        Ok(offload::le_words(unsafe { copy.bytes(0, bytes) }).collect())
    }

    /// Writes some of a map's words, which lie in it. No batch is in flight.
    pub fn write(&self, gpu: &Arc<Gpu>, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        let bytes = words.len() * 4;
        let copy = HostMemory::new(&gpu.context, bytes).map_err(|code| gpu.no_room("a copy of a map", code))?;
        let failed = |code| gpu.failed("does not take a map's words", code);
        // SAFETY: nobody else knows of it.
        let to = unsafe { copy.bytes_mut(0, bytes) };
        to.chunks_exact_mut(4).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        // SAFETY: both stay until the copy was waited for, and nobody writes to it.
        unsafe { self.0[map].bring_in(at * 4, copy.host(), bytes, &gpu.uploads) }.map_err(failed)?;
        gpu.finish(&gpu.uploads, copy, failed).map(drop)
    }
}

/// A map's memory, which is being cleared.
fn zeros(gpu: &Gpu, map: &Declaration) -> Result<DeviceMemory, DeviceError> {
    let failed = |code| gpu.no_room(format_args!("the map `{}`", map.name), code);
    let bytes = Layout::of(map).words() * 4;
    let _quiet = gpu.context.quiet().map_err(failed)?;
    let memory = DeviceMemory::new(&gpu.context, bytes).map_err(failed)?;
    memory.clear(&gpu.kernels, bytes).map_err(failed)?;
    Ok(memory)
}
