//! Buffers over host memory of packet sources, which a device that shares the host's memory uses in
//! place.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use ocl_core::{Event, MapFlags, Mem, MemFlags};
use portcullis_core::device::DeviceError;
use portcullis_core::packet::Span;

use super::buffers::unmap;
use crate::driver::gpu::Gpu;

/// A buffer over a span's own memory.
pub(crate) struct ImportedSpan {
    // First: the memory must outlive the buffer.
    memory: Mem,
    span: Arc<Span>,
}

impl ImportedSpan {
    fn new(gpu: &Gpu, span: &Arc<Span>, writes: bool) -> Option<ImportedSpan> {
        let size = span.allocated() as u64;
        if size > gpu.max_buffer_size {
            return None;
        }
        let access = if writes { MemFlags::READ_WRITE } else { MemFlags::READ_ONLY };
        // SAFETY: the span is an allocation of this size, which this value keeps. The session
        // orders what kernels do with it, and holds the batches.
        let memory = unsafe { gpu.buffer(access | MemFlags::USE_HOST_PTR, size, span.as_ptr()) };
        memory.ok().map(|memory| ImportedSpan { memory, span: span.clone() })
    }

    pub fn memory(&self) -> &Mem {
        &self.memory
    }

    /// Tells the device, in the queue of kernels, that the host has written these bytes, so that a
    /// driver that caches host memory refreshes its copy.
    pub fn notify_host_write(&self, gpu: &Gpu, bytes: &Range<u64>) -> Result<(), DeviceError> {
        self.map_and_unmap(gpu, MapFlags::WRITE_INVALIDATE_REGION, bytes, None)
    }

    /// Makes what kernels have written to these bytes visible to the host, in the queue of kernels.
    pub fn make_visible_to_host(&self, gpu: &Gpu, bytes: &Range<u64>, event: &mut Event) -> Result<(), DeviceError> {
        self.map_and_unmap(gpu, MapFlags::READ, bytes, Some(event))
    }

    /// Maps a range and unmaps it again, which synchronises it.
    fn map_and_unmap(
        &self,
        gpu: &Gpu,
        flags: MapFlags,
        bytes: &Range<u64>,
        event: Option<&mut Event>,
    ) -> Result<(), DeviceError> {
        let (queue, memory) = (&gpu.kernels, &self.memory);
        let (at, size) = (bytes.start as usize, (bytes.end - bytes.start) as usize);
        // SAFETY: nobody uses the map. It is the memory that the buffer was created over (the
        // OpenCL specification, 5.2.4), and the range belongs to a batch that the session holds.
        let map =
            unsafe { ocl_core::enqueue_map_buffer::<u8, _, (), ()>(queue, memory, false, flags, at, size, None, None) };
        let map = map.map_err(|error| gpu.error("mapping host memory failed", &error))?;
        unmap(gpu, queue, memory, &map, event)
    }
}

/// A session's imported spans, least recently used first.
#[derive(Default)]
pub(crate) struct ImportCache {
    known: VecDeque<(u64, Option<Arc<ImportedSpan>>)>,
}

impl ImportCache {
    /// Maximum number of spans of a session; pinned memory is scarce.
    const CAPACITY: usize = 64;

    /// Returns the buffer over a span, importing it if it is new; `None` if the device does not
    /// share memory, or the driver refuses.
    pub fn get_or_import(&mut self, gpu: &Gpu, span: &Arc<Span>, writes: bool) -> Option<Arc<ImportedSpan>> {
        if !gpu.shares_memory {
            return None;
        }
        if let Some(at) = self.known.iter().position(|(id, _)| *id == span.id()) {
            let known = self.known.remove(at).expect("found there");
            let import = known.1.clone();
            self.known.push_back(known);
            return import;
        }
        // Drop spans that only their import keeps alive: they will not be seen again.
        self.known.retain(|(_, import)| {
            import.as_ref().is_none_or(|import| Arc::strong_count(import) > 1 || Arc::strong_count(&import.span) > 1)
        });
        if self.known.len() >= Self::CAPACITY {
            self.known.pop_front();
        }
        let import = ImportedSpan::new(gpu, span, writes).map(Arc::new);
        self.known.push_back((span.id(), import.clone()));
        import
    }
}
