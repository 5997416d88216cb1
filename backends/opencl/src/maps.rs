//! Device memory of a filter's maps, and the host's reads and writes of it.

use std::ptr;

use ocl_core::{Event, Mem, MemFlags};
use portcullis_core::device::DeviceError;
use portcullis_core::map::Declaration;
use portcullis_core::map::layout::Layout;

use crate::driver::gpu::Gpu;

/// The maps of a session, a buffer each.
pub(crate) struct Maps(Vec<Mem>);

impl Maps {
    /// Creates the maps, cleared.
    pub fn new(gpu: &Gpu, maps: &[Declaration]) -> Result<Maps, DeviceError> {
        maps.iter().map(|map| create_cleared(gpu, map)).collect::<Result<_, _>>().map(Maps)
    }

    /// The buffer of map `number`.
    pub fn memory(&self, number: usize) -> &Mem {
        &self.0[number]
    }

    /// Reads `words` words of a map from word `at` on. The range is in bounds.
    pub fn read(&self, gpu: &Gpu, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        let mut copy = vec![0_u32; words];
        // SAFETY: the range is in bounds, and the call blocks until the copy is complete.
        let read = unsafe {
            let (queue, memory) = (&gpu.kernels, &self.0[map]);
            ocl_core::enqueue_read_buffer(queue, memory, true, at, &mut copy, None::<&Event>, None::<&mut Event>)
        };
        read.map_err(|error| gpu.error("reading a map failed", &error))?;
        Ok(copy)
    }

    /// Writes words of a map from word `at` on. The range is in bounds.
    pub fn write(&self, gpu: &Gpu, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        // SAFETY: the range is in bounds, and the call blocks until the words were copied.
        let written = unsafe {
            let (queue, memory) = (&gpu.kernels, &self.0[map]);
            ocl_core::enqueue_write_buffer(queue, memory, true, at, words, None::<&Event>, None::<&mut Event>)
        };
        written.map_err(|error| gpu.error("writing a map failed", &error))
    }
}

/// Creates a map's buffer and queues clearing it.
fn create_cleared(gpu: &Gpu, map: &Declaration) -> Result<Mem, DeviceError> {
    let bytes = Layout::of(map).words() * 4;
    if bytes as u64 > gpu.max_buffer_size {
        let reason =
            format!("its map `{}` takes {bytes} bytes, and a buffer has at most {}", map.name, gpu.max_buffer_size);
        return Err(DeviceError::Unsupported { device: gpu.id.clone(), reason });
    }
    // SAFETY: there is no host memory.
    let memory = unsafe { gpu.buffer(MemFlags::READ_WRITE, bytes as u64, ptr::null_mut())? };
    // In the queue of kernels, so that it precedes them.
    let filled = ocl_core::enqueue_fill_buffer(
        &gpu.kernels,
        &memory,
        0_u32,
        0,
        bytes / 4,
        None::<&Event>,
        None::<&mut Event>,
        None,
    );
    filled.map_err(|error| gpu.error(format_args!("has no memory for the map `{}`", map.name), &error))?;
    Ok(memory)
}
