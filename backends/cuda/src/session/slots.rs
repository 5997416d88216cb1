//! Slots: the memory that one chunk of a batch travels in, and its layout, which `slots.cu`
//! mirrors.
//!
//! The host writes a *request* (header, descriptors, metadata, packets) and reads a *response*
//! (verdicts, redirect targets, moved descriptors, changed packets). In the kernels' text they are
//! called `given`, `inside` (the request's copy on the device) and `returned`.

use std::iter;
use std::ops::Range;
use std::sync::Arc;

use portcullis_core::device::chunk::{ChunkLimits, OVERREAD_BYTES, PacketLayout};
use portcullis_core::device::offload::{ChunkView, KernelEffects, VerdictColumns, le_words};
use portcullis_core::device::transfer_planner::{BatchMemory, MemoryReach};
use portcullis_core::device::{DeviceError, Imported};
use portcullis_core::packet::gather::StorePolicy;
use portcullis_core::packet::{Batch, Metadata, RESIZE_ROOM, Span};

use crate::driver::ErrorCode;
use crate::driver::context::Context;
use crate::driver::gpu::Gpu;
use crate::memory::{Buffer, DeviceMemory, HostMemory, SpanAddress, ensure_capacity};

/// Size of a request's header: the address of the arena if the packets are in device memory, else 0
/// (a little-endian double word), then the number of packets, the launch's first packet and its
/// number of packets (words), then three unused words.
pub(crate) const HEADER_SIZE: usize = 32;

/// Rounds up to the alignment of each section of a request or response.
pub(super) fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(16)
}

/// Byte offsets of a request's sections. Header and descriptors come before these.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RequestLayout {
    pub metadata: usize,
    pub packets: usize,
    pub end: usize,
}

impl RequestLayout {
    /// Lays out a chunk with these numbers of descriptors and packets, whose packets take `bytes`
    /// bytes in the slot.
    pub fn new(effects: KernelEffects, descriptors: usize, packets: usize, bytes: usize) -> RequestLayout {
        let metadata = HEADER_SIZE + aligned(descriptors * 8);
        let at = metadata + if effects.metadata { aligned(packets * size_of::<Metadata>()) } else { 0 };
        RequestLayout { metadata, packets: at, end: at + bytes }
    }
}

/// Byte offsets of a response's sections. Verdicts, a byte each, come first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ResponseLayout {
    pub targets: usize,
    pub descriptors: usize,
    pub packets: usize,
    pub end: usize,
}

impl ResponseLayout {
    /// Lays out a response, with or without verdicts and targets.
    pub fn new(effects: KernelEffects, packets: usize, bytes: usize, has_verdicts: bool) -> ResponseLayout {
        let targets = if has_verdicts { aligned(packets) } else { 0 };
        let descriptors = targets + if has_verdicts && effects.redirects { aligned(packets * 4) } else { 0 };
        let at = descriptors + if effects.resizes_packets { aligned(packets * 8) } else { 0 };
        ResponseLayout { targets, descriptors, packets: at, end: at + if effects.writes_packets { bytes } else { 0 } }
    }

    /// Size in bytes of verdicts and targets together.
    pub fn verdicts_and_targets_size(&self) -> usize {
        self.descriptors
    }
}

/// Which device buffers a slot has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceBuffers {
    /// The request only: kernels write their response to host memory.
    Request,
    /// The request, and verdicts and targets, which are copied to the host.
    RequestAndVerdicts,
}

/// Memory for one chunk of a batch, reused for chunk after chunk. Buffers grow on demand.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    request: Option<HostMemory>,
    device_request: Option<DeviceMemory>,
    device_verdicts: Option<DeviceMemory>,
    response: Option<HostMemory>,
    /// Layouts of the chunk that the slot holds.
    pub request_layout: RequestLayout,
    pub response_layout: ResponseLayout,
    pub packets: usize,
    /// Size of the packets that are in the slot.
    pub bytes: usize,
    /// Device address of the arena if the packets are in device memory; 0 if they are in the slot.
    pub arena_address: u64,
}

/// The space that a chunk takes in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotShape {
    request_layout: RequestLayout,
    response_layout: ResponseLayout,
    packets: usize,
    bytes: usize,
    arena_address: u64,
}

impl SlotShape {
    /// The shape for a chunk whose packets are in the slot or in device memory.
    pub fn of(chunk: &ChunkView<'_, DeviceArena>, effects: KernelEffects) -> SlotShape {
        let arena = chunk.import().filter(|_| chunk.layout() == PacketLayout::InPlace);
        let bytes = if chunk.is_copied() { (chunk.bytes().end - chunk.bytes().start) as usize } else { 0 };
        let request_layout = RequestLayout::new(effects, chunk.descriptor_count(), chunk.packets(), bytes);
        SlotShape {
            request_layout,
            response_layout: ResponseLayout::new(effects, chunk.packets(), bytes, true),
            packets: chunk.packets(),
            bytes,
            arena_address: arena.map_or(0, |arena| arena.0),
        }
    }
}

/// Device address of the arena that a batch's packets are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceArena(u64);

impl DeviceArena {
    /// Decides where kernels that read slots find a batch's packets: in place if they are in device
    /// memory, else in the slot.
    ///
    /// Packets in host memory go through the slot even if the device can access them: a kernel's
    /// reads of a packet depend on each other, and each is a round trip over the bus, which takes
    /// longer than the host needs to gather a small batch (about 10 ns a packet). A gathered batch
    /// is read all at once.
    pub fn batch_memory(batch: &Batch, device: &str) -> BatchMemory<DeviceArena> {
        // Kernels use word loads, except for filters that move packets.
        let own = SpanAddress::of_span(batch.span(), device).filter(|view| view.is_on_device);
        let reach = if own.is_some() { MemoryReach::DeviceLocal } else { MemoryReach::Unreachable };
        BatchMemory {
            reach,
            import: own.map(|view| DeviceArena(view.address)),
            word_aligned_only: true,
            gather_only: true,
        }
    }

    /// Returns what importing a span achieves.
    pub fn import_result(span: &Span, device: &str) -> Imported {
        let own = SpanAddress::of_span(span, device).is_some_and(|view| view.is_on_device);
        if own { Imported::InPlace } else { Imported::Copied }
    }

    /// Limits of a chunk: the number of its packets, and the size of those that are in the slot.
    pub fn chunk_limits(layout: PacketLayout, packets: usize, bytes: u64) -> ChunkLimits {
        match layout {
            // Kernels address packets in place from the arena's start, so one chunk has no limit of
            // bytes.
            PacketLayout::InPlace => ChunkLimits { binding: u64::MAX, alignment: 1 << 32, packets },
            _ => ChunkLimits { binding: bytes, alignment: 4, packets },
        }
    }
}

impl SlotShape {
    /// Size of the request's copy on the device. Word loads may reach past the last packet, and
    /// ignore what they read there.
    fn device_request_size(&self) -> usize {
        self.request_layout.end + OVERREAD_BYTES as usize
    }
}

impl Slot {
    /// Whether [`Slot::ensure_capacity`] needs to allocate nothing.
    pub fn has_capacity(&self, shape: &SlotShape, device_buffers: DeviceBuffers) -> bool {
        fn fits<T: Buffer>(buffer: &Option<T>, wanted: usize) -> bool {
            buffer.as_ref().is_some_and(|buffer| buffer.size() >= wanted)
        }
        fits(&self.request, shape.request_layout.end)
            && fits(&self.device_request, shape.device_request_size())
            && (device_buffers == DeviceBuffers::Request
                || fits(&self.device_verdicts, shape.response_layout.verdicts_and_targets_size()))
            && fits(&self.response, shape.response_layout.end)
    }

    /// Grows the buffers to what the shape needs, and sets the slot's layouts.
    pub fn ensure_capacity(
        &mut self,
        context: &Arc<Context>,
        shape: &SlotShape,
        device_buffers: DeviceBuffers,
    ) -> Result<(), ErrorCode> {
        if !self.has_capacity(shape, device_buffers) {
            // One quiescent period for all four.
            let _quiescent = context.quiesce()?;
            ensure_capacity(&mut self.device_request, shape.device_request_size(), context)?;
            if device_buffers == DeviceBuffers::RequestAndVerdicts {
                ensure_capacity(&mut self.device_verdicts, shape.response_layout.verdicts_and_targets_size(), context)?;
            }
            ensure_capacity(&mut self.request, shape.request_layout.end, context)?;
            ensure_capacity(&mut self.response, shape.response_layout.end, context)?;
        }
        (self.request_layout, self.response_layout) = (shape.request_layout, shape.response_layout);
        (self.packets, self.bytes, self.arena_address) = (shape.packets, shape.bytes, shape.arena_address);
        Ok(())
    }

    /// Writes the request of a chunk, for which the slot has capacity.
    ///
    /// # Safety
    /// All queued commands that use this slot have completed.
    pub unsafe fn write(&mut self, chunk: &ChunkView<'_, DeviceArena>, effects: KernelEffects) {
        let at = self.request_layout;
        // SAFETY: no queued command uses it, by the caller's promise; the borrow ends in this
        // function.
        let to = unsafe { self.request().slice_mut(0, at.end) };
        copy_each(chunk.descriptor_bytes(), &mut to[HEADER_SIZE..]);
        if effects.metadata {
            copy_each(chunk.metadata_bytes(), &mut to[at.metadata..]);
        }
        if chunk.is_copied() {
            chunk.copy_into(&mut to[at.packets..], StorePolicy::Streamed);
        }
        let packets = self.packets;
        // SAFETY: as above.
        unsafe { self.write_header(0, packets) };
    }

    /// Makes packets in device memory visible to running kernels, whoever has written them.
    pub fn flush_remote_writes(&self, gpu: &Gpu) -> Result<(), DeviceError> {
        let failed = |code| gpu.error("flushing remote writes failed", code);
        if self.arena_address == 0 { Ok(()) } else { gpu.flush_remote_writes().map_err(failed) }
    }

    /// The range of these packets within the slot's packet section, head- and tailrooms included.
    /// Packets lie one after the other.
    pub fn byte_range(&self, effects: KernelEffects, packets: Range<usize>) -> Range<usize> {
        if self.arena_address != 0 {
            return 0..0;
        }
        let start = |index: usize| {
            if !effects.accesses_packets || index >= self.packets {
                return self.bytes;
            }
            // SAFETY: the device only reads the request.
            let offset = unsafe { self.request().slice(HEADER_SIZE + index * 8, 4) };
            let offset = u32::from_le_bytes([offset[0], offset[1], offset[2], offset[3]]) as usize;
            (offset - if effects.resizes_packets { RESIZE_ROOM as usize } else { 0 }) & !3
        };
        start(packets.start)..start(packets.end)
    }

    /// Writes the header: a launch of `count` packets from `first` on.
    ///
    /// # Safety
    /// All queued commands that use this slot have completed.
    pub unsafe fn write_header(&mut self, first: usize, count: usize) {
        let words = [self.packets, first, count].map(|word| (word as u32).to_le_bytes());
        // SAFETY: no queued command uses it, by the caller's promise; the borrow ends in this
        // function.
        let to = unsafe { self.request().slice_mut(0, HEADER_SIZE) };
        copy_each(iter::once(self.arena_address.to_le_bytes()), to);
        copy_each(words.into_iter(), &mut to[8..]);
    }

    /// Appends the response's verdicts and targets to `columns`.
    ///
    /// # Safety
    /// All queued commands that write them have completed.
    pub unsafe fn append_verdicts(&self, effects: KernelEffects, columns: &mut VerdictColumns) {
        // SAFETY: by the caller's promise.
        unsafe {
            columns.append(self.response().slice(0, self.packets).iter().copied());
            if effects.redirects {
                columns.append_targets(le_words(self.response().slice(self.response_layout.targets, self.packets * 4)));
            }
        }
    }

    /// Returns the descriptors as the kernel left them.
    ///
    /// # Safety
    /// All queued commands that write them have completed.
    pub unsafe fn descriptors(&self) -> &[u8] {
        // SAFETY: by the caller's promise.
        unsafe { self.response().slice(self.response_layout.descriptors, self.packets * 8) }
    }

    /// Returns the packets' bytes as the kernel left them.
    ///
    /// # Safety
    /// All queued commands that write them have completed.
    pub unsafe fn packet_bytes(&self) -> &[u8] {
        // SAFETY: by the caller's promise.
        unsafe { self.response().slice(self.response_layout.packets, self.bytes) }
    }

    pub fn request(&self) -> &HostMemory {
        self.request.as_ref().expect("reserved before it is used")
    }

    pub fn device_request(&self) -> &DeviceMemory {
        self.device_request.as_ref().expect("reserved before it is used")
    }

    pub fn device_verdicts(&self) -> &DeviceMemory {
        self.device_verdicts.as_ref().expect("reserved before it is used")
    }

    pub fn response(&self) -> &HostMemory {
        self.response.as_ref().expect("reserved before it is used")
    }
}

/// Writes items one after the other.
fn copy_each<const N: usize>(items: impl Iterator<Item = [u8; N]>, to: &mut [u8]) {
    for (to, item) in to.chunks_exact_mut(N).zip(items) {
        to.copy_from_slice(&item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: KernelEffects = KernelEffects {
        accesses_packets: true,
        writes_packets: true,
        resizes_packets: true,
        metadata: true,
        redirects: true,
        size: 1,
    };
    const NONE: KernelEffects = KernelEffects {
        accesses_packets: false,
        writes_packets: false,
        resizes_packets: false,
        metadata: false,
        redirects: false,
        size: 1,
    };

    #[test]
    fn the_layout_is_that_of_slots_cu() {
        // Computed by hand from the comment at the head of slots.cu.
        assert_eq!(
            RequestLayout::new(ALL, 3, 3, 100),
            RequestLayout { metadata: 32 + 32, packets: 64 + 64, end: 128 + 100 }
        );
        assert_eq!(
            RequestLayout::new(ALL, 5, 3, 100),
            RequestLayout { metadata: 32 + 48, packets: 80 + 64, end: 144 + 100 }
        );
        assert_eq!(RequestLayout::new(NONE, 3, 3, 0), RequestLayout { metadata: 64, packets: 64, end: 64 });
        assert_eq!(
            ResponseLayout::new(ALL, 3, 100, true),
            ResponseLayout { targets: 16, descriptors: 32, packets: 64, end: 164 }
        );
        assert_eq!(
            ResponseLayout::new(NONE, 17, 0, true),
            ResponseLayout { targets: 32, descriptors: 32, packets: 32, end: 32 }
        );
    }
}
