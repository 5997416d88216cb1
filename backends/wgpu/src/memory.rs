//! Buffers between host and device, made once and used for batch after batch.
//!
//! Where the device's memory is the host's ([`Gpu::direct`]), the buffer that a kernel uses is the
//! one that the host maps; else there are two, and the device copies between them.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use portcullis_core::device::DeviceError;
use portcullis_core::packet::Span;
use wgpu::{BufferUsages, CommandEncoder, MapMode, WriteOnly};

use crate::device::Gpu;

pub(crate) mod import;

/// Buffers grow to a power of two from this size on, so that batches of changing sizes soon find
/// one that is large enough.
const SMALLEST: u64 = 64 << 10;

/// Data on its way to kernels. Between batches it is mapped, and waits to be written.
pub(crate) struct Upload {
    label: &'static str,
    usage: BufferUsages,
    /// Whether the host also reads what kernels have made of it, where that is the same buffer.
    read_back: bool,
    /// What the host writes, and the kernel's buffer where that is another.
    buffers: Option<(wgpu::Buffer, Option<wgpu::Buffer>)>,
}

impl Upload {
    /// For a kernel's binding of this usage, `STORAGE` or `UNIFORM`.
    pub fn new(label: &'static str, usage: BufferUsages) -> Upload {
        Upload::read_back(label, usage, false)
    }

    /// The same, and the host may read what kernels have written there, where the device's memory is the host's.
    pub fn read_back(label: &'static str, usage: BufferUsages, read_back: bool) -> Upload {
        Upload { label, usage, read_back, buffers: None }
    }

    /// Fills the first `bytes` bytes, which are a multiple of 4 and not 0, through `fill`. `limit`
    /// is the most that the buffer may grow to.
    pub fn write(
        &mut self,
        gpu: &Gpu,
        bytes: u64,
        limit: u64,
        fill: impl FnOnce(WriteOnly<'_, [u8]>),
    ) -> Result<(), DeviceError> {
        if self.buffers.as_ref().is_none_or(|(host, _)| host.size() < bytes) {
            let size = bytes.next_power_of_two().clamp(SMALLEST, limit.max(SMALLEST));
            self.buffers = Some(if gpu.direct {
                let read = if self.read_back { BufferUsages::MAP_READ } else { BufferUsages::empty() };
                let usage = self.usage | BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC | read;
                (gpu.buffer(self.label, size, usage, true), None)
            } else {
                let staging = gpu.buffer(self.label, size, BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC, true);
                let usage = self.usage | BufferUsages::COPY_DST | BufferUsages::COPY_SRC;
                (staging, Some(gpu.buffer(self.label, size, usage, false)))
            });
            // Where there was no memory the buffer is of no use, and mapping it would fail below.
            gpu.check()?;
        }
        let (host, _) = self.buffers.as_ref().expect("made above");
        let mut view = host.get_mapped_range_mut(..bytes).map_err(|error| gpu.failed(error.to_string()))?;
        fill(view.slice(..));
        drop(view);
        host.unmap();
        Ok(())
    }

    /// The copy that brings the first `bytes` bytes to the device, where one is needed.
    pub fn encode(&self, encoder: &mut CommandEncoder, bytes: u64) {
        if let Some((host, Some(device))) = &self.buffers {
            encoder.copy_buffer_to_buffer(host, 0, device, 0, bytes);
        }
    }

    /// The buffer that kernels read.
    pub fn buffer(&self) -> &wgpu::Buffer {
        let (host, device) = self.buffers.as_ref().expect("written before it is used");
        device.as_ref().unwrap_or(host)
    }

    /// Asks for the first `bytes` bytes as kernels have left them, of a buffer that is read back: after the last submission that
    /// uses it.
    pub fn submitted_to_be_read(&self, bytes: u64) {
        if let Some((host, _)) = &self.buffers {
            // A failure shows when the bytes are read.
            host.map_async(MapMode::Read, ..bytes, |_| ());
        }
    }

    /// Reads the first `bytes` bytes, once the device is done, and asks for the buffer back for the next batch.
    pub fn read<T>(&self, gpu: &Gpu, bytes: u64, read: impl FnOnce(&[u8]) -> T) -> Result<T, DeviceError> {
        let (host, _) = self.buffers.as_ref().expect("written before it is read");
        let view = host.get_mapped_range(..bytes).map_err(|error| gpu.failed(error.to_string()))?;
        let result = read(&view);
        drop(view);
        host.unmap();
        self.submitted();
        // Nothing is queued that uses it, so that this is all it takes to have it mapped.
        gpu.device.poll(wgpu::PollType::Poll).map_err(|error| gpu.failed(error.to_string()))?;
        Ok(result)
    }

    /// Asks for the buffer back, for the next batch: after the last submission that uses it.
    pub fn submitted(&self) {
        if let Some((host, _)) = &self.buffers {
            // A failure shows when the next batch is written.
            host.map_async(MapMode::Write, .., |_| ());
        }
    }
}

/// Data on its way from kernels.
pub(crate) struct Download {
    label: &'static str,
    usage: BufferUsages,
    /// What the host reads, and the kernel's buffer where that is another.
    buffers: Option<(wgpu::Buffer, Option<wgpu::Buffer>)>,
}

impl Download {
    /// For a kernel's binding.
    pub fn of_kernel(label: &'static str) -> Download {
        Download { label, usage: BufferUsages::STORAGE, buffers: None }
    }

    /// For copies of buffers that belong to others.
    pub fn of_copies(label: &'static str) -> Download {
        Download { label, usage: BufferUsages::COPY_DST, buffers: None }
    }

    /// Sees to it that there is room for `bytes` bytes; `limit` is the most that it may grow to.
    pub fn reserve(&mut self, gpu: &Gpu, bytes: u64, limit: u64) -> Result<(), DeviceError> {
        if self.buffers.as_ref().is_none_or(|(host, _)| host.size() < bytes) {
            let size = bytes.next_power_of_two().clamp(SMALLEST, limit.max(SMALLEST));
            let kernel = self.usage == BufferUsages::STORAGE;
            let read = BufferUsages::MAP_READ;
            self.buffers = Some(if kernel && !gpu.direct {
                let device = gpu.buffer(self.label, size, self.usage | BufferUsages::COPY_SRC, false);
                (gpu.buffer(self.label, size, read | BufferUsages::COPY_DST, false), Some(device))
            } else {
                (gpu.buffer(self.label, size, read | self.usage, false), None)
            });
        }
        gpu.check()
    }

    /// The buffer that the kernel, or the copy, writes.
    pub fn buffer(&self) -> &wgpu::Buffer {
        let (host, device) = self.buffers.as_ref().expect("reserved before it is used");
        device.as_ref().unwrap_or(host)
    }

    /// The copy that brings the first `bytes` bytes to the host, where one is needed.
    pub fn encode(&self, encoder: &mut CommandEncoder, bytes: u64) {
        if let Some((host, Some(device))) = &self.buffers {
            encoder.copy_buffer_to_buffer(device, 0, host, 0, bytes);
        }
    }

    /// Asks for the first `bytes` bytes to be mapped: after the last submission that writes them.
    pub fn submitted(&self, bytes: u64) {
        if let Some((host, _)) = &self.buffers {
            // A failure shows when the bytes are read.
            host.map_async(MapMode::Read, ..bytes, |_| ());
        }
    }

    /// Reads the first `bytes` bytes, once the device is done, and gives the buffer back.
    pub fn read<T>(&self, gpu: &Gpu, bytes: u64, read: impl FnOnce(&[u8]) -> T) -> Result<T, DeviceError> {
        let (host, _) = self.buffers.as_ref().expect("reserved before it is used");
        let view = host.get_mapped_range(..bytes).map_err(|error| gpu.failed(error.to_string()))?;
        let result = read(&view);
        drop(view);
        host.unmap();
        Ok(result)
    }
}

/// The spans that the device reads in place, those used last at the back.
#[derive(Default)]
pub(crate) struct Imports {
    known: VecDeque<Import>,
}

struct Import {
    id: u64,
    span: Weak<Span>,
    /// `None` where the driver refused: asking again would be refused again.
    buffer: Option<wgpu::Buffer>,
}

impl Imports {
    /// Pinned memory is a scarce thing, and drivers allow a few thousand allocations in all.
    const MOST: usize = 64;

    /// Spans below this size are copied unless the caller announced them: pinning costs as much.
    pub const WORTH_IT: usize = 256 << 10;

    /// The buffer over a span's memory, imported now if it is new and `make` says so.
    pub fn get(&mut self, gpu: &Gpu, span: &Arc<Span>, make: bool) -> Option<wgpu::Buffer> {
        let host = gpu.host.as_ref()?;
        if let Some(at) = self.known.iter().position(|known| known.id == span.id()) {
            let known = self.known.remove(at).expect("found there");
            let buffer = known.buffer.clone();
            self.known.push_back(known);
            return buffer;
        }
        if !make {
            return None;
        }
        // A span that only its own import keeps alive will not be seen again.
        self.known.retain(|known| known.span.strong_count() > usize::from(known.buffer.is_some()));
        if self.known.len() >= Self::MOST {
            self.known.pop_front();
        }
        let buffer = host.import(&gpu.device, span);
        self.known.push_back(Import { id: span.id(), span: Arc::downgrade(span), buffer: buffer.clone() });
        buffer
    }
}
