//! Host memory of packet sources that the device reads in place.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use portcullis_core::packet::Span;

use crate::driver::gpu::Gpu;

/// A session's imported spans, least recently used first.
#[derive(Default)]
pub(crate) struct ImportCache {
    known: VecDeque<CacheEntry>,
}

struct CacheEntry {
    id: u64,
    span: Weak<Span>,
    /// `None` if the driver refused, which it would do again.
    buffer: Option<wgpu::Buffer>,
}

impl ImportCache {
    /// Maximum number of spans of a session: pinned memory is scarce, and drivers limit the number
    /// of allocations to a few thousand.
    const CAPACITY: usize = 64;

    /// Spans of fewer bytes are copied unless the caller imports them: pinning costs as much.
    pub const MIN_BYTES: usize = 256 << 10;

    /// Returns the buffer over a span, importing it if it is new and `import` is set.
    pub fn get_or_import(&mut self, gpu: &Gpu, span: &Arc<Span>, import: bool) -> Option<wgpu::Buffer> {
        let host = gpu.host_memory.as_ref()?;
        if let Some(at) = self.known.iter().position(|known| known.id == span.id()) {
            let known = self.known.remove(at).expect("found there");
            let buffer = known.buffer.clone();
            self.known.push_back(known);
            return buffer;
        }
        if !import {
            return None;
        }
        // Drop spans that only their import keeps alive: they will not be seen again.
        self.known.retain(|known| known.span.strong_count() > usize::from(known.buffer.is_some()));
        if self.known.len() >= Self::CAPACITY {
            self.known.pop_front();
        }
        let buffer = host.import(&gpu.device, span);
        self.known.push_back(CacheEntry { id: span.id(), span: Arc::downgrade(span), buffer: buffer.clone() });
        buffer
    }
}
