//! Buffers between host and device, reused from batch to batch.
//!
//! If the device's memory is the host's ([`Gpu::shares_memory`]), the host maps the buffer that
//! kernels use; else there are two, and the device copies between them.

use portcullis_core::device::DeviceError;
use wgpu::{BufferUsages, CommandEncoder, MapMode, WriteOnly};

use crate::driver::gpu::Gpu;

/// Least capacity of a buffer. Capacities are powers of two, so that batches of varying sizes soon
/// find a buffer that is large enough.
pub(crate) const MIN_CAPACITY: u64 = 64 << 10;

/// Data for kernels to read. Between batches the buffer is mapped, ready to be written.
pub(crate) struct Upload {
    label: &'static str,
    usage: BufferUsages,
    /// Whether the host also reads back what kernels have written, if both use the same buffer.
    read_back: bool,
    /// The host's buffer, and the kernels' unless it is the same.
    buffers: Option<(wgpu::Buffer, Option<wgpu::Buffer>)>,
}

impl Upload {
    /// Creates an upload for a binding of this usage, `STORAGE` or `UNIFORM`.
    pub fn new(label: &'static str, usage: BufferUsages) -> Upload {
        Upload::with_read_back(label, usage, false)
    }

    /// Creates an upload that the host may also read back, if the device shares memory.
    pub fn with_read_back(label: &'static str, usage: BufferUsages, read_back: bool) -> Upload {
        Upload { label, usage, read_back, buffers: None }
    }

    /// Fills the first `bytes` bytes through `fill`: a multiple of 4, and not 0. `limit` bounds the
    /// buffer's growth.
    pub fn write(
        &mut self,
        gpu: &Gpu,
        bytes: u64,
        limit: u64,
        fill: impl FnOnce(WriteOnly<'_, [u8]>),
    ) -> Result<(), DeviceError> {
        if self.buffers.as_ref().is_none_or(|(host, _)| host.size() < bytes) {
            let size = bytes.next_power_of_two().clamp(MIN_CAPACITY, limit.max(MIN_CAPACITY));
            self.buffers = Some(if gpu.shares_memory {
                let read = if self.read_back { BufferUsages::MAP_READ } else { BufferUsages::empty() };
                let usage = self.usage | BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC | read;
                (gpu.buffer(self.label, size, usage, true), None)
            } else {
                let staging = gpu.buffer(self.label, size, BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC, true);
                let usage = self.usage | BufferUsages::COPY_DST | BufferUsages::COPY_SRC;
                (staging, Some(gpu.buffer(self.label, size, usage, false)))
            });
            // Without memory the new buffer is invalid, and mapping it would fail below.
            gpu.check()?;
        }
        let (host, _) = self.buffers.as_ref().expect("created above");
        let mut view = host.get_mapped_range_mut(..bytes).map_err(|error| gpu.failure(error.to_string()))?;
        fill(view.slice(..));
        drop(view);
        host.unmap();
        Ok(())
    }

    /// Encodes the copy of the first `bytes` bytes to the device, if one is needed.
    pub fn encode_copy(&self, encoder: &mut CommandEncoder, bytes: u64) {
        if let Some((host, Some(device))) = self.buffers.as_ref().filter(|_| bytes > 0) {
            encoder.copy_buffer_to_buffer(host, 0, device, 0, bytes);
        }
    }

    /// Encodes a copy of `bytes` bytes from byte `at` on, as the host wrote them, to the start of
    /// another buffer.
    pub fn encode_copy_to(&self, encoder: &mut CommandEncoder, at: u64, to: &wgpu::Buffer, bytes: u64) {
        let (host, _) = self.buffers.as_ref().expect("written before it is used");
        encoder.copy_buffer_to_buffer(host, at, to, 0, bytes);
    }

    /// The buffer that kernels read.
    pub fn buffer(&self) -> &wgpu::Buffer {
        let (host, device) = self.buffers.as_ref().expect("written before it is used");
        device.as_ref().unwrap_or(host)
    }

    /// Requests a read mapping of the first `bytes` bytes, after the last submission that uses the
    /// buffer.
    pub fn request_read(&self, bytes: u64) {
        if let Some((host, _)) = &self.buffers {
            Gpu::request_mapping(host, MapMode::Read, bytes);
        }
    }

    /// Reads the first `bytes` bytes once the device is done, and requests the buffer for the next
    /// batch.
    pub fn read<T>(&self, gpu: &Gpu, bytes: u64, read: impl FnOnce(&[u8]) -> T) -> Result<T, DeviceError> {
        let (host, _) = self.buffers.as_ref().expect("written before it is read");
        let view = host.get_mapped_range(..bytes).map_err(|error| gpu.failure(error.to_string()))?;
        let result = read(&view);
        drop(view);
        host.unmap();
        self.request_write();
        // No queued command uses the buffer, so polling once completes the mapping.
        gpu.complete_mappings()?;
        Ok(result)
    }

    /// Requests a write mapping for the next batch, after the last submission that uses the buffer.
    pub fn request_write(&self) {
        if let Some((host, _)) = &self.buffers {
            Gpu::request_mapping(host, MapMode::Write, host.size());
        }
    }
}

/// Data that kernels have written, for the host to read.
pub(crate) struct Download {
    label: &'static str,
    usage: BufferUsages,
    /// The host's buffer, and the kernels' unless it is the same.
    buffers: Option<(wgpu::Buffer, Option<wgpu::Buffer>)>,
}

impl Download {
    /// Creates a download of what a kernel writes to a binding.
    pub fn for_kernel(label: &'static str) -> Download {
        Download { label, usage: BufferUsages::STORAGE, buffers: None }
    }

    /// Creates a download of copies of other buffers.
    pub fn for_copies(label: &'static str) -> Download {
        Download { label, usage: BufferUsages::COPY_DST, buffers: None }
    }

    /// Ensures a capacity of `bytes` bytes; `limit` bounds the growth.
    pub fn ensure_capacity(&mut self, gpu: &Gpu, bytes: u64, limit: u64) -> Result<(), DeviceError> {
        if self.buffers.as_ref().is_none_or(|(host, _)| host.size() < bytes) {
            let size = bytes.next_power_of_two().clamp(MIN_CAPACITY, limit.max(MIN_CAPACITY));
            let kernel = self.usage == BufferUsages::STORAGE;
            let read = BufferUsages::MAP_READ;
            self.buffers = Some(if kernel && !gpu.shares_memory {
                let device = gpu.buffer(self.label, size, self.usage | BufferUsages::COPY_SRC, false);
                (gpu.buffer(self.label, size, read | BufferUsages::COPY_DST, false), Some(device))
            } else {
                (gpu.buffer(self.label, size, read | self.usage, false), None)
            });
        }
        gpu.check()
    }

    /// The buffer that the kernel or the copy writes.
    pub fn buffer(&self) -> &wgpu::Buffer {
        let (host, device) = self.buffers.as_ref().expect("reserved before it is used");
        device.as_ref().unwrap_or(host)
    }

    /// Encodes the copy of the first `bytes` bytes to the host, if one is needed.
    pub fn encode_copy(&self, encoder: &mut CommandEncoder, bytes: u64) {
        if let Some((host, Some(device))) = &self.buffers {
            encoder.copy_buffer_to_buffer(device, 0, host, 0, bytes);
        }
    }

    /// Requests a mapping of the first `bytes` bytes, after the last submission that writes them.
    pub fn request_read(&self, bytes: u64) {
        if let Some((host, _)) = &self.buffers {
            Gpu::request_mapping(host, MapMode::Read, bytes);
        }
    }

    /// Reads the first `bytes` bytes once the device is done, and unmaps the buffer.
    pub fn read<T>(&self, gpu: &Gpu, bytes: u64, read: impl FnOnce(&[u8]) -> T) -> Result<T, DeviceError> {
        let (host, _) = self.buffers.as_ref().expect("reserved before it is used");
        let view = host.get_mapped_range(..bytes).map_err(|error| gpu.failure(error.to_string()))?;
        let result = read(&view);
        drop(view);
        host.unmap();
        Ok(result)
    }
}
