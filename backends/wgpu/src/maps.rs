//! Device memory of a filter's maps, and the host's reads and writes of it.

use portcullis_core::device::{CancelToken, DeviceError, offload};
use portcullis_core::map::Declaration;
use portcullis_core::map::layout::Layout;
use wgpu::BufferUsages;

use crate::driver::gpu::Gpu;
use crate::memory::Download;

/// The maps of a session, a buffer each.
pub(crate) struct Maps(Vec<wgpu::Buffer>);

impl Maps {
    /// Creates the maps, which wgpu clears; errors show at the next [`Gpu::check`].
    pub fn new(gpu: &Gpu, maps: &[Declaration]) -> Result<Maps, DeviceError> {
        maps.iter().map(|map| create(gpu, map)).collect::<Result<_, _>>().map(Maps)
    }

    /// The maps' buffers, by their numbers.
    pub fn buffers(&self) -> &[wgpu::Buffer] {
        &self.0
    }

    /// Reads `words` words of a map from word `at` on. The range is in bounds.
    pub fn read(&self, gpu: &Gpu, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        let bytes = words as u64 * 4;
        let mut copy = Download::for_copies("a map's words");
        copy.ensure_capacity(gpu, bytes, gpu.binding_limit())?;
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(&self.0[map], at as u64 * 4, copy.buffer(), 0, bytes);
        let submission = gpu.submit(encoder);
        copy.request_read(bytes);
        gpu.wait(Some(&submission), &CancelToken::new())?;
        copy.read(gpu, bytes, |bytes| offload::le_words(bytes).collect())
    }

    /// Writes words of a map from word `at` on, before the next submission. The range is in bounds.
    pub fn write(&self, gpu: &Gpu, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        gpu.write_buffer(&self.0[map], at as u64 * 4, &bytes);
        gpu.check()
    }
}

/// Creates a map's buffer.
fn create(gpu: &Gpu, map: &Declaration) -> Result<wgpu::Buffer, DeviceError> {
    let (bytes, limit) = (Layout::of(map).words() as u64 * 4, gpu.binding_limit());
    if bytes > limit {
        return Err(DeviceError::Unsupported {
            device: gpu.id.clone(),
            reason: format!("its map `{}` takes {bytes} bytes, and a binding has at most {limit}", map.name),
        });
    }
    let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
    Ok(gpu.buffer("map", bytes, usage, false))
}
