//! Slots: the memory that one chunk of a batch travels in, and its layout, which `slot.cu` mirrors.
//!
//! The host writes metadata, descriptor tables and, unless the device reaches them, packets; the
//! kernel writes results. Both are in host memory: small batches are read and written over the bus
//! faster than copies are queued. Kernels copy the packets that they filter to memory of their own,
//! all at once, since a filter's reads depend on each other, and each would take a round trip over
//! the bus.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use portcullis_core::device::chunk::{ChunkLimits, OVERREAD_BYTES, PacketLayout};
use portcullis_core::device::descriptor_format::{DescriptorFormat, DescriptorRule};
use portcullis_core::device::offload::{ChunkView, KernelEffects, TransferBytes, VerdictColumns, le_words};
use portcullis_core::device::transfer_planner::{BatchMemory, MemoryReach};
use portcullis_core::packet::gather::StorePolicy;
use portcullis_core::packet::{Batch, Metadata, RESIZE_ROOM, Span};

use super::request::{PacketCopy, Request};
use crate::compile::SHARED_BYTES;
use crate::driver::ErrorCode;
use crate::driver::context::Context;
use crate::memory::{Buffer, DeviceMemory, HostMemory, PinnedSpan, PinnedSpanCache, SpanAddress, ensure_capacity};

/// Bytes that 16-byte parts of packets move for the same alignment on both sides of a copy.
const ALIGNMENT_BYTES: usize = 16;

/// Rounds up to the alignment of each section of a slot.
pub(super) fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(16)
}

/// Byte offsets of the sections that the host writes; metadata comes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct InputLayout {
    pub tables: usize,
    pub packets: usize,
    pub end: usize,
}

impl InputLayout {
    /// Lays out a chunk whose descriptor tables, and whose packets in the slot, have these sizes.
    pub fn new(effects: KernelEffects, packets: usize, tables: usize, bytes: usize) -> InputLayout {
        let at = if effects.metadata { aligned(packets * size_of::<Metadata>()) } else { 0 };
        let end_of_tables = at + aligned(tables);
        InputLayout { tables: at, packets: end_of_tables, end: end_of_tables + bytes }
    }
}

/// Byte offsets of the sections of a response. Verdicts, a byte each, come first.
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
}

/// Offset of the targets, and the end, of tagged results: double words with four verdicts, or with
/// a target, each.
fn tagged_layout(effects: KernelEffects, packets: usize) -> (usize, usize) {
    let targets = aligned(packets.div_ceil(4) * 8);
    (targets, targets + if effects.redirects { packets * 8 } else { 0 })
}

/// Memory of a batch that the device reaches.
#[derive(Debug)]
pub(crate) struct SlotArena {
    address: u64,
    is_on_device: bool,
    /// Keeps the memory pinned, if the session has pinned it.
    _registration: Option<Arc<PinnedSpan>>,
}

impl SlotArena {
    /// Finds a batch's packets: in place if they are in device memory, or if they are in pinned
    /// host memory, from which kernels copy them on their own; else in the slot. With `requested`,
    /// pins them.
    pub fn batch_memory(
        pinned: &mut PinnedSpanCache,
        context: &Arc<Context>,
        batch: &Batch,
        device: &str,
        effects: KernelEffects,
        requested: bool,
    ) -> BatchMemory<SlotArena> {
        let arena = match SpanAddress::of_span(batch.span(), device) {
            Some(SpanAddress { address, is_on_device }) => {
                Some(SlotArena { address, is_on_device, _registration: None })
            }
            None if effects.resizes_packets => None,
            None => pinned.get_or_pin(context, batch.span(), requested).map(|registration| SlotArena {
                address: registration.address(),
                is_on_device: false,
                _registration: Some(registration),
            }),
        };
        // Kernels would have to copy resized packets with their rooms.
        let arena = arena.filter(|arena| arena.is_on_device || !effects.resizes_packets);
        let reach = match &arena {
            None => MemoryReach::Unreachable,
            Some(SlotArena { is_on_device: true, .. }) => MemoryReach::DeviceLocal,
            // Reported as shared, so that the planner prefers it to a gather by the host.
            Some(_) => MemoryReach::Shared,
        };
        BatchMemory { reach, import: arena, word_aligned_only: true, gather_only: true }
    }

    /// Whether kernels reach a span's packets.
    pub fn is_reachable(span: &Span, device: &str) -> bool {
        span.is_on_host() || SpanAddress::of_span(span, device).is_some()
    }

    /// Limits of a chunk: the number of its packets, the longest of which has `longest` bytes, and
    /// the size of those that are copied.
    pub fn chunk_limits(layout: PacketLayout, packets: usize, bytes: u64, longest: u32) -> ChunkLimits {
        match layout {
            // Kernels address packets in place from the arena's start, so the chunk's extent has no
            // limit. They may copy each packet to a row of the same size.
            PacketLayout::InPlace => {
                let rows = usize::try_from(bytes / u64::from(longest.max(1))).unwrap_or(usize::MAX);
                ChunkLimits { binding: u64::MAX, alignment: 1 << 32, packets: packets.min(rows).max(1) }
            }
            _ => ChunkLimits { binding: bytes, alignment: 4, packets },
        }
    }
}

/// The space that a chunk takes in a slot, and how its kernel finds the packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SlotShape {
    input: InputLayout,
    results: usize,
    staging: usize,
    response: ResponseLayout,
    packets: usize,
    copy: PacketCopy,
    /// Address of offset 0; for packets in the slot, known once it has memory.
    arena: Option<u64>,
    /// The range's first byte, and its words; or the words of each row.
    start: u64,
    words: usize,
}

impl SlotShape {
    /// The shape of a chunk.
    pub fn of(chunk: &ChunkView<'_, SlotArena>, effects: KernelEffects) -> SlotShape {
        let packets = chunk.packets();
        let arena = chunk.import().filter(|_| chunk.layout() == PacketLayout::InPlace);
        let row_words = chunk.max_copied_len().div_ceil(4) as usize;
        let (copy, start, words) = match arena {
            Some(SlotArena { is_on_device: true, .. }) => (PacketCopy::InPlace, 0, 0),
            Some(_) => match chunk.ascending_extent().filter(|_| !effects.writes_packets) {
                // One range, unless most of it lies between the packets.
                Some(extent) if extent.end - extent.start <= 8 * (row_words * packets) as u64 => {
                    (PacketCopy::Range, extent.start, ((extent.end - extent.start) / 4) as usize)
                }
                _ => (PacketCopy::Rows, 0, row_words),
            },
            None if chunk.is_copied() => {
                (PacketCopy::Range, 0, ((chunk.bytes().end - chunk.bytes().start) / 4) as usize)
            }
            None => (PacketCopy::InPlace, 0, 0),
        };
        let copied = match copy {
            PacketCopy::InPlace => 0,
            PacketCopy::Range => words * 4,
            PacketCopy::Rows => words * 4 * packets,
        };
        let in_slot = if chunk.is_copied() { words * 4 } else { 0 };
        let response = ResponseLayout::new(effects, packets, in_slot, true);
        let staging = if copied > SHARED_BYTES { copied + ALIGNMENT_BYTES + OVERREAD_BYTES as usize } else { 0 };
        SlotShape {
            input: InputLayout::new(effects, packets, chunk.descriptor_capacity(effects), in_slot),
            results: response.end.max(tagged_layout(effects, packets).1),
            staging,
            response,
            packets,
            copy,
            arena: arena.map(|arena| arena.address),
            start,
            words,
        }
    }
}

/// Memory for one chunk of a batch, reused for chunk after chunk. It grows on demand.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// Results, then what the host writes.
    memory: Option<HostMemory>,
    /// Offset of what the host writes.
    input: usize,
    staging: Option<DeviceMemory>,
    shape: SlotShape,
    rule: DescriptorRule,
    /// Size in bytes of what the host has written.
    written: usize,
    tags: ResultTags,
}

/// Tags of a slot's launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ResultTags {
    /// Tag of the last launch that had one; 0 at first.
    last: u32,
    /// Whether the last launch had none, so that its results may look like tagged ones.
    is_untagged: bool,
}

impl ResultTags {
    /// Returns the tag of the next launch, and whether the results must be cleared before, lest
    /// earlier ones look like those of this launch.
    fn next(&mut self) -> (u32, bool) {
        let wraps = self.last == u32::MAX;
        let clears = wraps || self.is_untagged;
        *self = ResultTags { last: if wraps { 1 } else { self.last + 1 }, is_untagged: false };
        (self.last, clears)
    }

    /// Tag of the last launch; 0 if it had none.
    fn current(&self) -> u32 {
        if self.is_untagged { 0 } else { self.last }
    }
}

impl Slot {
    /// Whether [`Slot::ensure_capacity`] needs to allocate nothing.
    pub fn has_capacity(&self, shape: &SlotShape) -> bool {
        let memory = self.memory.as_ref().is_some_and(|memory| {
            shape.results <= self.input && shape.input.end <= memory.size().saturating_sub(self.input)
        });
        memory && (shape.staging == 0 || self.staging.as_ref().is_some_and(|staging| staging.size() >= shape.staging))
    }

    /// Grows the memory to what the shape needs, and takes the shape on.
    pub fn ensure_capacity(&mut self, context: &Arc<Context>, shape: &SlotShape) -> Result<(), ErrorCode> {
        if !self.has_capacity(shape) {
            let _quiescent = context.quiesce()?;
            ensure_capacity(&mut self.staging, shape.staging, context)?;
            let input = shape.input.end.max(self.memory.as_ref().map_or(0, |memory| memory.size() - self.input));
            let results = shape.results.max(self.input).next_power_of_two().max(MIN_RESULTS);
            // Results get new memory, since those of other sizes may hold any bytes.
            self.memory = None;
            ensure_capacity(&mut self.memory, results + input, context)?;
            (self.input, self.tags) = (results, ResultTags::default());
        }
        self.shape = *shape;
        Ok(())
    }

    /// Writes what the host contributes to a chunk, for which the slot has capacity.
    ///
    /// # Safety
    /// All queued commands that use this slot have completed.
    pub unsafe fn write(&mut self, chunk: &ChunkView<'_, SlotArena>, effects: KernelEffects) {
        let at = self.shape.input;
        // SAFETY: no queued command uses it, by the caller's promise; the borrow ends in this
        // function.
        let to = unsafe { self.memory().slice_mut(self.input, at.end) };
        if effects.metadata {
            chunk.write_metadata_table(to);
        }
        let written = chunk.write_descriptors(effects, &mut to[at.tables..]);
        if chunk.is_copied() {
            chunk.copy_into(&mut to[at.packets..], StorePolicy::Cached);
        }
        debug_assert_eq!(written.origin, 0, "gathered and in place, offsets count from where the packets start");
        self.rule = written.rule;
        let metadata = if effects.metadata { self.shape.packets * size_of::<Metadata>() } else { 0 };
        self.written = metadata + written.size + at.end - at.packets;
    }

    /// Bytes that the host and the kernel write for the chunk, if one launch covers it.
    pub fn traffic(&self, chunk: &ChunkView<'_, SlotArena>, effects: KernelEffects) -> TransferBytes {
        let packets = self.shape.packets;
        let to_host = match effects.writes_packets || effects.resizes_packets {
            true => TransferBytes::of(chunk, effects).to_host,
            false => (packets.div_ceil(4) * 8 + if effects.redirects { packets * 8 } else { 0 }) as u64,
        };
        TransferBytes { to_device: self.written as u64, to_host }
    }

    /// Whether packets are filtered in place in device memory.
    pub fn is_in_place(&self) -> bool {
        self.shape.copy == PacketCopy::InPlace && self.shape.arena.is_some()
    }

    /// Prepares a launch of `count` packets from `first` on. Its results are tagged if they are all
    /// of the chunk's, and only verdicts and targets.
    ///
    /// # Safety
    /// If the launch covers the chunk, all queued commands that use this slot have completed.
    pub unsafe fn begin_launch(&mut self, effects: KernelEffects, first: usize, count: usize) -> Option<TaggedResults> {
        let covers_chunk = first == 0 && count == self.shape.packets;
        if !covers_chunk || effects.writes_packets || effects.resizes_packets {
            self.tags.is_untagged = true;
            return None;
        }
        let (tag, clears) = self.tags.next();
        if clears {
            // SAFETY: no queued command uses it, by the caller's promise.
            unsafe { self.memory().slice_mut(0, self.input) }.fill(0);
        }
        let (targets, end) = tagged_layout(effects, count);
        Some(TaggedResults {
            start: self.memory().start().cast(),
            verdicts: count.div_ceil(4),
            targets: (end - targets) / 8,
            first_target: targets / 8,
            tag,
        })
    }

    /// The request for packets `first` to `first + count`, of the launch that was prepared last.
    pub fn request(&self, effects: KernelEffects, first: usize, count: usize) -> Request {
        let (shape, rule) = (&self.shape, self.rule);
        let input = self.memory().address() + self.input as u64;
        let source = match shape.arena {
            Some(address) => address,
            None => input + shape.input.packets as u64,
        };
        let (start, words, skipped) = match shape.copy {
            PacketCopy::InPlace => (0, 0, 0),
            PacketCopy::Range => {
                let end = shape.start + 4 * shape.words as u64;
                let start_of = |index| match index {
                    0 => shape.start,
                    index if index == shape.packets => end,
                    index => self.packet_start(effects, index),
                };
                let (start, end) = (start_of(first), start_of(first + count));
                (start, (end - start) / 4, (start - shape.start) as usize)
            }
            PacketCopy::Rows => (0, shape.words as u64, first * shape.words * 4),
        };
        // Ranges keep their alignment in device memory.
        let shift = if shape.copy == PacketCopy::Range { (source + shape.start) % ALIGNMENT_BYTES as u64 } else { 0 };
        let staging = self.staging.as_ref().map_or(0, |staging| staging.address() + shift + skipped as u64);
        Request {
            slot: self.memory().address(),
            staging,
            source,
            input: self.input as u32,
            first: first as u32,
            packets: shape.packets as u32,
            tag: self.tags.current(),
            first_offset: rule.first,
            stride: rule.stride,
            length: rule.length,
            start: start as u32,
            words: words as u32,
            kind: Request::kind(rule.format, shape.copy, count),
        }
    }

    /// Offset at which packet `index` of a range starts, with its headroom.
    fn packet_start(&self, effects: KernelEffects, index: usize) -> u64 {
        let rule = self.rule;
        let read = |at: usize| {
            let at = self.input + self.shape.input.tables + at;
            // SAFETY: the device only reads the tables.
            let word = unsafe { self.memory().slice(at, 4) };
            u32::from_le_bytes([word[0], word[1], word[2], word[3]])
        };
        let offset = match rule.format {
            format if format == DescriptorFormat::Table as u32 => read(index * 8),
            format if format == DescriptorFormat::Grouped as u32 => {
                let word = read((rule.stride as usize + index) * 4);
                (read(index / 32 * 4) + (word & 0xffff)) * 4
            }
            _ => rule.first.wrapping_add(rule.stride.wrapping_mul(index as u32)),
        };
        u64::from((offset - if effects.resizes_packets { RESIZE_ROOM } else { 0 }) & !3)
    }

    /// Appends the verdicts and targets of the chunk's last launch to `columns`.
    ///
    /// # Safety
    /// All queued commands that write them have completed.
    pub unsafe fn append_verdicts(&self, effects: KernelEffects, columns: &mut VerdictColumns) {
        let packets = self.shape.packets;
        // SAFETY: by the caller's promise; the same below.
        let results = unsafe { self.memory().slice(0, self.shape.results) };
        if self.tags.current() > 0 {
            let (targets, _) = tagged_layout(effects, packets);
            let words = results[..targets].as_chunks::<8>().0;
            columns.append(words.iter().flat_map(|word| word[..4].iter().copied()).take(packets));
            if effects.redirects {
                let words = results[targets..][..packets * 8].as_chunks::<8>().0;
                columns
                    .append_targets(words.iter().map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])));
            }
            return;
        }
        columns.append(results[..packets].iter().copied());
        if effects.redirects {
            columns.append_targets(le_words(&results[self.shape.response.targets..][..packets * 4]));
        }
    }

    /// Returns the descriptors as the kernel left them.
    ///
    /// # Safety
    /// All queued commands that write them have completed.
    pub unsafe fn descriptors(&self) -> &[u8] {
        // SAFETY: by the caller's promise.
        unsafe { self.memory().slice(self.shape.response.descriptors, self.shape.packets * 8) }
    }

    /// Returns the packets' bytes as the kernel left them.
    ///
    /// # Safety
    /// All queued commands that write them have completed.
    pub unsafe fn packet_bytes(&self) -> &[u8] {
        let at = self.shape.response;
        // SAFETY: by the caller's promise.
        unsafe { self.memory().slice(at.packets, at.end - at.packets) }
    }

    fn memory(&self) -> &HostMemory {
        self.memory.as_ref().expect("reserved before it is used")
    }
}

/// Least space for results.
const MIN_RESULTS: usize = 4 << 10;

/// Results that tell by themselves when they are complete: each double word has the launch's tag in
/// its high half.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaggedResults {
    start: NonNull<u64>,
    /// Number of double words with verdicts, from the start on.
    verdicts: usize,
    targets: usize,
    /// Number of the first double word with a target.
    first_target: usize,
    tag: u32,
}

// SAFETY: a pointer to memory that outlives the launch ([`Slot`]), on which the host only uses
// atomic operations.
unsafe impl Send for TaggedResults {}

impl TaggedResults {
    /// Whether all results are there, and visible. `seen` is the number of double words that were
    /// found before.
    ///
    /// # Safety
    /// The slot still exists, and no other launch of it was prepared.
    pub unsafe fn are_complete(&self, seen: &mut usize) -> bool {
        while *seen < self.verdicts + self.targets {
            let index = if *seen < self.verdicts { *seen } else { self.first_target + *seen - self.verdicts };
            // SAFETY: within the slot's memory, by the caller's promise, and 8-byte aligned.
            let word = unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(index)) }.load(Ordering::Acquire);
            if (word >> 32) as u32 != self.tag {
                return false;
            }
            *seen += 1;
        }
        true
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
    fn the_layout_is_that_of_slot_cu() {
        // Computed by hand from the comment at the head of slot.cu.
        assert_eq!(InputLayout::new(ALL, 3, 24, 100), InputLayout { tables: 64, packets: 64 + 32, end: 96 + 100 });
        assert_eq!(InputLayout::new(NONE, 3, 0, 0), InputLayout::default());
        assert_eq!(
            ResponseLayout::new(ALL, 3, 100, true),
            ResponseLayout { targets: 16, descriptors: 32, packets: 64, end: 164 }
        );
        assert_eq!(
            ResponseLayout::new(NONE, 17, 0, true),
            ResponseLayout { targets: 32, descriptors: 32, packets: 32, end: 32 }
        );
        assert_eq!([tagged_layout(ALL, 3), tagged_layout(ALL, 13)], [(16, 40), (32, 136)]);
        assert_eq!(tagged_layout(NONE, 64), (128, 128));
    }

    #[test]
    fn results_are_cleared_where_earlier_ones_may_have_the_same_tag() {
        let mut tags = ResultTags::default();
        assert_eq!([tags.next(), tags.next()], [(1, false), (2, false)]);
        tags.is_untagged = true;
        assert_eq!((tags.current(), tags.next(), tags.current()), (0, (3, true), 3));
        tags.last = u32::MAX - 1;
        assert_eq!([tags.next(), tags.next(), tags.next()], [(u32::MAX, false), (1, true), (2, false)]);
    }

    #[test]
    fn tagged_results_are_complete_once_every_word_has_the_tag() {
        let mut words = vec![7_u64 << 32; 8];
        let start = NonNull::new(words.as_mut_ptr()).unwrap();
        let results = TaggedResults { start, verdicts: 2, targets: 3, first_target: 4, tag: 8 };
        let mut seen = 0;
        let mut set = |index: usize, tag: u64| {
            // SAFETY: within the vector, which nobody borrows.
            unsafe { start.as_ptr().add(index).write(tag << 32 | 99) };
            // SAFETY: the vector exists.
            (unsafe { results.are_complete(&mut seen) }, seen)
        };
        assert_eq!([set(1, 8), set(0, 8), set(5, 8), set(6, 8)], [(false, 0), (false, 2), (false, 2), (false, 2)]);
        // The words between verdicts and targets do not count, and a lap later is another launch.
        assert_eq!([set(4, 9), set(4, 8)], [(false, 2), (true, 5)]);
    }
}
