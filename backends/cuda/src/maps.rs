//! Device memory of a filter's maps, and the host's reads and writes of it.

use std::sync::Arc;

use portcullis_core::device::{CancelToken, DeviceError, offload};
use portcullis_core::map::Declaration;
use portcullis_core::map::declaration::MAX_MAPS;
use portcullis_core::map::layout::Layout;

use crate::driver::ErrorCode;
use crate::driver::gpu::Gpu;
use crate::driver::poll;
use crate::memory::{Buffer, DeviceMemory, HostMemory};

/// The maps of a session, each in device memory of its own.
#[derive(Debug)]
pub(crate) struct Maps(Vec<DeviceMemory>);

impl Maps {
    /// Allocates the maps, cleared.
    pub fn new(gpu: &Arc<Gpu>, maps: &[Declaration], cancel: &CancelToken) -> Result<Maps, DeviceError> {
        let maps = maps.iter().map(|map| allocate_cleared(gpu, map)).collect::<Result<Vec<_>, _>>()?;
        if maps.is_empty() {
            return Ok(Maps(maps));
        }
        let failed = |code: ErrorCode| gpu.error("clearing maps failed", code);
        let end = gpu.kernels.record_event().map_err(failed)?;
        if let Err(error) = poll::until(&gpu.id, cancel, || end.is_complete().map_err(failed)) {
            gpu.abandon(maps, || ());
            return Err(error);
        }
        Ok(Maps(maps))
    }

    /// Device addresses of the maps, by their numbers; 0 for numbers without a map.
    pub fn addresses(&self) -> [u64; MAX_MAPS] {
        std::array::from_fn(|number| self.address(number))
    }

    /// Device address of a map; 0 if there is none of this number.
    pub fn address(&self, number: usize) -> u64 {
        self.0.get(number).map_or(0, DeviceMemory::address)
    }

    /// Reads words of a map. The range is in bounds, and no batch is in flight.
    pub fn read(&self, gpu: &Arc<Gpu>, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        let bytes = words * 4;
        let copy = HostMemory::for_copies(&gpu.context, bytes)
            .map_err(|code| gpu.allocation_error("a copy of a map", code))?;
        let failed = |code| gpu.error("reading a map failed", code);
        // Not the stream of kernels, where a persistent kernel may block the copy.
        let stream = &gpu.downloads;
        // SAFETY: both exist until the copy was waited for.
        unsafe { self.0[map].download(at * 4, &copy, 0, bytes, stream) }.map_err(failed)?;
        let copy = gpu.wait_for_stream(stream, copy, failed)?;
        // SAFETY: the copy has completed.
        Ok(offload::le_words(unsafe { copy.slice(0, bytes) }).collect())
    }

    /// Writes words of a map. The range is in bounds, and no batch is in flight.
    pub fn write(&self, gpu: &Arc<Gpu>, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        let bytes = words.len() * 4;
        let copy = HostMemory::for_copies(&gpu.context, bytes)
            .map_err(|code| gpu.allocation_error("a copy of a map", code))?;
        let failed = |code| gpu.error("writing a map failed", code);
        // SAFETY: the buffer is new, and nobody else uses it.
        let to = unsafe { copy.slice_mut(0, bytes) };
        to.chunks_exact_mut(4).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        // SAFETY: both exist until the copy was waited for, and nobody writes to the buffer.
        unsafe { self.0[map].upload(at * 4, copy.as_ptr(), bytes, &gpu.uploads) }.map_err(failed)?;
        gpu.wait_for_stream(&gpu.uploads, copy, failed).map(drop)
    }
}

/// Allocates a map's memory and queues clearing it.
fn allocate_cleared(gpu: &Gpu, map: &Declaration) -> Result<DeviceMemory, DeviceError> {
    let failed = |code| gpu.allocation_error(format_args!("the map `{}`", map.name), code);
    let bytes = Layout::of(map).words() * 4;
    let _quiescent = gpu.context.quiesce().map_err(failed)?;
    let memory = DeviceMemory::new(&gpu.context, bytes).map_err(failed)?;
    memory.clear(&gpu.kernels, bytes).map_err(failed)?;
    Ok(memory)
}
