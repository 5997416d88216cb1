//! A launcher's view of a chunk of a batch.

use std::cell::Cell;
use std::ops::Range;
use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::flow_order::FlowOrder;
use super::{KernelEffects, NoVerdictMemory};
use crate::device::chunk::{self, AccessNeeds, Chunk, OVERREAD_BYTES, PacketLayout};
use crate::device::descriptor_format::{
    self, DescriptorFormat, DescriptorRule, GROUP_PACKETS, PacketOrder, write_grouped, write_lengths,
};
use crate::device::host_threads::{HostThreads, PART_BYTES, PART_PACKETS};
use crate::device::metadata_format::{self, WrittenMetadata};
use crate::packet::gather::{StorePolicy, WindowRows};
use crate::packet::{Batch, Descriptor, Metadata, MetadataFields};

/// Size in bytes from which a copy is written with non-temporal stores: it would evict too much of
/// the caches.
const MIN_STREAMED_BYTES: usize = 1 << 20;

/// A chunk of a batch, and where the kernel finds its packets.
pub struct ChunkView<'a, I, M = NoVerdictMemory> {
    pub(super) batch: &'a Batch,
    pub(super) chunk: &'a Chunk,
    pub(super) layout: PacketLayout,
    pub(super) needs: AccessNeeds,
    pub(super) import: Option<&'a I>,
    pub(super) verdict_memory: Option<&'a M>,
    pub(super) flow_order: Option<&'a FlowOrder>,
    pub(super) threads: &'a HostThreads,
    /// Host time spent copying packets.
    pub(super) gather_time: Cell<Duration>,
}

/// Descriptors that were written for a kernel ([`ChunkView::write_descriptors`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WrittenDescriptors {
    /// How the kernel finds them.
    pub rule: DescriptorRule,
    /// Offset of the kernel's arena from which offsets count, relative to that of the batch: the
    /// chunk's first byte has the offset `origin`.
    pub origin: u64,
    /// Size of the tables in bytes; 0 if there are none.
    pub size: usize,
}

impl<'a, I, M> ChunkView<'a, I, M> {
    /// Index of the first packet in its batch.
    pub fn first_packet(&self) -> usize {
        self.chunk.packets.start
    }

    /// Number of packets of the whole batch.
    pub fn batch_packets(&self) -> usize {
        self.batch.len()
    }

    /// Number of packets; at least one.
    pub fn packets(&self) -> usize {
        self.chunk.packets.len()
    }

    /// Where the kernel finds the packets.
    pub fn layout(&self) -> PacketLayout {
        self.layout
    }

    /// The handle that [`Launcher::batch_memory`](super::Launcher::batch_memory) returned for the
    /// batch's memory.
    pub fn import(&self) -> Option<&'a I> {
        self.import
    }

    /// The batch's lent memory for verdicts, in which those of this chunk begin at
    /// [`ChunkView::first_packet`].
    pub fn verdict_memory(&self) -> Option<&'a M> {
        self.verdict_memory
    }

    /// The byte range that holds the packets: in the batch's memory, or in the buffer of a packed
    /// or row layout.
    pub fn bytes(&self) -> Range<u64> {
        self.chunk.bytes.clone()
    }

    /// Whether the kernel works on a copy of the packets.
    pub fn is_copied(&self) -> bool {
        self.layout.is_copy()
    }

    /// Size in bytes of a buffer for the copy, including the bytes behind it that kernels may read.
    pub fn copy_size(&self) -> u64 {
        self.chunk.bytes.end - self.chunk.bytes.start + OVERREAD_BYTES
    }

    /// Writes the copy to the start of a buffer of [`ChunkView::copy_size`] bytes, with all threads
    /// of the session if it is large, and adds the time to `gather_time`. Large copies are stored
    /// by `store`.
    ///
    /// # Panics
    /// If `to` is too short.
    pub fn copy_into(&self, to: &mut [u8], store: StorePolicy) {
        let start = Instant::now();
        match self.layout {
            PacketLayout::Rows => self.gather_rows(to, store),
            PacketLayout::Copied => self.copy_range(to),
            PacketLayout::Packed => self.copy_packets(to),
            PacketLayout::NoAccess | PacketLayout::InPlace => {}
        }
        self.gather_time.set(self.gather_time.get() + start.elapsed());
    }

    fn gather_rows(&self, to: &mut [u8], store: StorePolicy) {
        let (batch, packets, window) = (self.batch, self.chunk.packets.clone(), self.needs.window);
        let rows = WindowRows::new(batch, packets.clone(), window);
        let store = if rows.size() >= MIN_STREAMED_BYTES { store } else { StorePolicy::Cached };
        let to = &mut to[..rows.size()];
        self.threads.run(packets.len() / PART_PACKETS, |has_threads| {
            if !has_threads {
                return rows.write(to, store);
            }
            let parts = to.par_chunks_mut(PART_PACKETS * rows.stride()).enumerate();
            parts.for_each(|(number, to)| {
                let first = packets.start + number * PART_PACKETS;
                let part = first..packets.end.min(first + PART_PACKETS);
                WindowRows::new(batch, part, window).write(to, store);
            });
        });
    }

    fn copy_packets(&self, to: &mut [u8]) {
        let (batch, packets, needs) = (self.batch, self.chunk.packets.clone(), self.needs);
        let descriptors = self.descriptors();
        // Copies the packets from index `first` of the chunk on.
        let copy = |first: usize, part: &[Descriptor], to: &mut [u8]| {
            let in_part = chunk::packed_descriptors(part, needs, 0);
            for (index, d) in (packets.start + first..).zip(in_part) {
                let bytes = &batch.packet(index)[..needs.copied_len(d.length) as usize];
                to[d.offset as usize..][..bytes.len()].copy_from_slice(bytes);
            }
        };
        self.threads.run(descriptors.len() / PART_PACKETS, |has_threads| match has_threads {
            true => PackedParts::new(descriptors, needs).for_each(descriptors, to, &copy),
            false => copy(0, descriptors, to),
        });
    }

    fn copy_range(&self, to: &mut [u8]) {
        let from = self.batch.bytes(self.chunk.bytes.clone());
        let to = &mut to[..from.len()];
        self.threads.run(from.len() / PART_BYTES, |has_threads| {
            if !has_threads {
                return to.copy_from_slice(from);
            }
            let parts = to.par_chunks_mut(PART_BYTES).zip(from.par_chunks(PART_BYTES));
            parts.for_each(|(to, from)| to.copy_from_slice(from));
        });
    }

    /// The byte range of the batch's memory from the first packet to the last, rooms included if
    /// the filter may use them; `None` if all packets are empty.
    pub fn extent(&self) -> Option<Range<u64>> {
        chunk::extent(self.batch, self.chunk.packets.clone(), self.needs)
    }

    /// [`ChunkView::extent`] if all packets lie in it one after the other; `None` if some may not,
    /// as empty packets, whose offsets are arbitrary.
    pub fn ascending_extent(&self) -> Option<Range<u64>> {
        let ascends = !self.batch.is_scattered() && self.batch.summary().min_length > 0;
        if ascends { self.extent() } else { None }
    }

    /// The most bytes that are copied of a packet.
    pub fn max_copied_len(&self) -> u32 {
        self.needs.copied_len(self.batch.summary().max_length)
    }

    /// The packets in the batch's memory.
    pub fn descriptors(&self) -> &'a [Descriptor] {
        &self.batch.descriptors()[self.chunk.packets.clone()]
    }

    /// The packets in the arena that the kernel sees.
    pub fn kernel_descriptors(&self) -> impl Iterator<Item = Descriptor> + 'a {
        chunk::kernel_descriptors(self.batch, self.chunk, self.layout, self.needs)
    }

    /// The flow order, for filters with flows.
    pub(super) fn flow_order(&self) -> Option<&'a FlowOrder> {
        self.flow_order
    }

    /// Whether the kernel takes the packets in flow order, which follows their descriptors.
    pub fn is_ordered(&self) -> bool {
        self.flow_order.is_some()
    }

    /// Returns the number of kernel invocations: one per packet, or one per run of packets of a
    /// flow.
    pub fn invocations(&self) -> usize {
        self.flow_order.map_or(self.packets(), FlowOrder::runs)
    }

    /// Index of the descriptor, of a packet or of a run, that tells `invocation` what to filter: a
    /// kernel's `base`.
    pub fn base(&self, invocation: usize) -> usize {
        if self.is_ordered() { self.packets() + invocation } else { invocation }
    }

    /// Number of descriptors that the kernel reads: those of the packets and, if it takes them in
    /// flow order, of the runs and of the packets' numbers.
    pub fn descriptor_count(&self) -> usize {
        self.packets() + self.flow_order.map_or(0, FlowOrder::descriptor_count)
    }

    /// Size in bytes of the buffer for [`ChunkView::write_descriptors`].
    pub fn descriptor_capacity(&self, effects: KernelEffects) -> usize {
        let table = self.descriptor_count() * size_of::<Descriptor>();
        match self.descriptor_rule(effects) {
            // If the packets turn out to be too far apart for groups, they need a table.
            rule if rule.format == DescriptorFormat::Grouped as u32 => table,
            DescriptorRule::TABLE => table,
            rule => rule.table_size(self.packets()),
        }
    }

    fn descriptor_rule(&self, effects: KernelEffects) -> DescriptorRule {
        // Runs follow the packets, and resized packets are written back, in a table.
        if self.is_ordered() || effects.resizes_packets {
            return DescriptorRule::TABLE;
        }
        DescriptorRule::of_chunk(self.batch, self.chunk, self.layout, self.needs)
    }

    /// Writes the descriptors in the most compact format, with all threads of the session if there
    /// are many, to a buffer of [`ChunkView::descriptor_capacity`] bytes.
    ///
    /// # Panics
    /// If `to` is too short.
    pub fn write_descriptors(&self, effects: KernelEffects, to: &mut [u8]) -> WrittenDescriptors {
        self.write_descriptors_from(0, effects, to)
    }

    /// Variant of [`ChunkView::write_descriptors`] with offsets that count from the chunk's first
    /// byte, for kernels whose arena starts there: the returned `origin` is 0.
    ///
    /// # Panics
    /// If `to` is too short.
    pub fn write_rebased_descriptors(&self, effects: KernelEffects, to: &mut [u8]) -> WrittenDescriptors {
        let is_verbatim = matches!(self.layout, PacketLayout::Copied | PacketLayout::InPlace);
        let first = if is_verbatim { self.chunk.bytes.start as u32 } else { 0 };
        WrittenDescriptors { origin: 0, ..self.write_descriptors_from(first, effects, to) }
    }

    /// Writes the descriptors with offsets that count from byte `first` of the batch, a multiple of
    /// 4, if the layout keeps offsets.
    fn write_descriptors_from(&self, first: u32, effects: KernelEffects, to: &mut [u8]) -> WrittenDescriptors {
        let mut rule = self.descriptor_rule(effects);
        let is_verbatim = matches!(self.layout, PacketLayout::Copied | PacketLayout::InPlace);
        // Offsets count from where those of the batch do, which saves a pass over them.
        let origin = if is_verbatim { self.chunk.bytes.start } else { 0 };
        let done = |rule: DescriptorRule| WrittenDescriptors { rule, origin, size: rule.table_size(self.packets()) };
        if rule.format >= DescriptorFormat::Lengths as u32 {
            rule.first = rule.first.wrapping_sub(first);
        }
        let descriptors = self.descriptors();
        let parts = descriptors.len() / PART_PACKETS;
        match rule.format {
            format if format == DescriptorFormat::Uniform as u32 => return done(rule),
            format if format == DescriptorFormat::Lengths as u32 => {
                let to = &mut to[..rule.table_size(descriptors.len())];
                self.threads.run(parts, |has_threads| {
                    if !has_threads {
                        return write_lengths(descriptors, to);
                    }
                    let parts = descriptors.par_chunks(PART_PACKETS).zip(to.par_chunks_mut(PART_PACKETS * 2));
                    parts.for_each(|(descriptors, to)| write_lengths(descriptors, to));
                });
                return done(rule);
            }
            format if format == DescriptorFormat::Grouped as u32 => {
                let (bases, words) = to[..rule.table_size(descriptors.len())].split_at_mut(rule.stride as usize * 4);
                let order = PacketOrder::of_batch(self.batch, self.chunk.bytes.start as u32);
                let fits = self.threads.run(parts, |has_threads| {
                    if !has_threads {
                        return write_grouped(descriptors, order, first, bases, words);
                    }
                    let descriptors = descriptors.par_chunks(PART_PACKETS);
                    let bases = bases.par_chunks_mut(PART_PACKETS / GROUP_PACKETS * 4);
                    let parts = descriptors.zip(bases).zip(words.par_chunks_mut(PART_PACKETS * 4));
                    parts.all(|((descriptors, bases), words)| write_grouped(descriptors, order, first, bases, words))
                });
                if fits {
                    return done(rule);
                }
            }
            _ => {}
        }
        if is_verbatim && !effects.resizes_packets {
            let size = self.descriptor_count() * size_of::<Descriptor>();
            let (packets, order) = to[..size].split_at_mut(size_of_val(descriptors));
            let empty = self.chunk.bytes.start as u32;
            self.threads.run(parts, |has_threads| {
                if !has_threads {
                    return descriptor_format::write_table(descriptors, empty, first, packets);
                }
                let tables = packets.par_chunks_mut(PART_PACKETS * size_of::<Descriptor>());
                let parts = descriptors.par_chunks(PART_PACKETS).zip(tables);
                parts.for_each(|(part, to)| descriptor_format::write_table(part, empty, first, to));
            });
            write_each(self.order_bytes(), order);
            return WrittenDescriptors { rule: DescriptorRule::TABLE, origin, size };
        }
        self.write_descriptor_table(to)
    }

    /// Writes the descriptors as a table for kernels that take no other format, with offsets that
    /// count from the chunk's first byte, to a buffer of 8 bytes for each of
    /// [`ChunkView::descriptor_count`]: those of packets, then their flow order if there is one.
    pub fn write_descriptor_table(&self, to: &mut [u8]) -> WrittenDescriptors {
        let size = self.descriptor_count() * size_of::<Descriptor>();
        if self.layout == PacketLayout::Packed {
            let (packets, order) = to[..size].split_at_mut(size_of_val(self.descriptors()));
            self.write_packed_table(packets);
            write_each(self.order_bytes(), order);
        } else {
            write_each(self.descriptor_bytes(), to);
        }
        WrittenDescriptors { rule: DescriptorRule::TABLE, origin: 0, size }
    }

    fn write_packed_table(&self, to: &mut [u8]) {
        let (descriptors, needs) = (self.descriptors(), self.needs);
        let write = |start: u32, part: &[Descriptor], to: &mut [u8]| {
            write_each(chunk::packed_descriptors(part, needs, start).map(descriptor_bytes), to);
        };
        self.threads.run(descriptors.len() / PART_PACKETS, |has_threads| {
            if !has_threads {
                return write(0, descriptors, to);
            }
            let parts = PackedParts::new(descriptors, needs);
            let tables = to.par_chunks_mut(parts.packets * size_of::<Descriptor>());
            let descriptors = descriptors.par_chunks(parts.packets);
            let all = tables.zip(descriptors).zip(&parts.starts[..parts.count]);
            all.for_each(|((to, part), start)| write(*start, part, to));
        });
    }

    /// The descriptors as the kernel reads them (`docs/reference/abi.md`): packets, then their flow
    /// order if there is one.
    pub fn descriptor_bytes(&self) -> impl Iterator<Item = [u8; size_of::<Descriptor>()]> + 'a {
        self.kernel_descriptors().map(descriptor_bytes).chain(self.order_bytes())
    }

    fn order_bytes(&self) -> impl Iterator<Item = [u8; size_of::<Descriptor>()]> + 'a {
        self.flow_order.into_iter().flat_map(FlowOrder::descriptors).map(descriptor_bytes)
    }

    /// The packets' metadata as a slice of the batch's, if the batch has any.
    pub fn metadata(&self) -> Option<&'a [Metadata]> {
        let all = self.batch.metadata();
        (!all.is_empty()).then(|| &all[self.chunk.packets.clone()])
    }

    /// Writes the packets' metadata as a table (`docs/reference/abi.md`), derived from the
    /// descriptors if the batch has none, with all threads of the session if there are many.
    ///
    /// # Panics
    /// If `to` has no room for each packet's metadata.
    pub fn write_metadata_table(&self, to: &mut [u8]) {
        let (batch, packets) = (self.batch, self.chunk.packets.clone());
        let to = &mut to[..packets.len() * size_of::<Metadata>()];
        let write = |first: usize, to: &mut [u8]| {
            write_each((first..packets.end).map(|index| batch.metadata_of(index).to_bytes()), to);
        };
        self.threads.run(packets.len() / PART_PACKETS, |has_threads| match has_threads {
            true => {
                let parts = to.par_chunks_mut(PART_PACKETS * size_of::<Metadata>()).enumerate();
                parts.for_each(|(number, to)| write(packets.start + number * PART_PACKETS, to));
            }
            false => write(packets.start, to),
        });
    }

    /// Size in bytes of the buffer for [`ChunkView::write_metadata`].
    pub fn metadata_capacity(&self, fields: MetadataFields) -> usize {
        if fields.is_empty() {
            return 0;
        }
        metadata_format::capacity(fields, self.batch.metadata_summary(), self.packets())
    }

    /// Writes these fields of the packets' metadata in the most compact format, with all threads of
    /// the session if there are many, to a buffer of [`ChunkView::metadata_capacity`] bytes.
    ///
    /// # Panics
    /// If `to` is too short.
    pub fn write_metadata(&self, fields: MetadataFields, to: &mut [u8]) -> WrittenMetadata {
        if fields.is_empty() {
            return WrittenMetadata::default();
        }
        let (batch, first, packets) = (self.batch, self.first_packet(), self.packets());
        let (summary, threads) = (batch.metadata_summary(), self.threads);
        match self.metadata() {
            Some(all) => metadata_format::write(fields, summary, packets, |packet| all[packet], threads, to),
            None => {
                let metadata = |packet| batch.metadata_of(first + packet);
                metadata_format::write(fields, summary, packets, metadata, threads, to)
            }
        }
    }
}

/// Writes items one after the other.
fn write_each<const N: usize>(items: impl Iterator<Item = [u8; N]>, to: &mut [u8]) {
    to.as_chunks_mut().0.iter_mut().zip(items).for_each(|(to, item)| *to = item);
}

/// Maximum number of parts of a packed chunk: their starts are on the stack, since no memory is
/// allocated per batch.
const MAX_PACKED_PARTS: usize = 256;

/// Parts of a packed chunk with equally many packets, the last one maybe fewer.
struct PackedParts {
    /// Number of packets in a part.
    packets: usize,
    count: usize,
    /// Where each part starts in the kernel's arena, in bytes.
    starts: [u32; MAX_PACKED_PARTS],
}

impl PackedParts {
    /// Splits at least one packet. Uses the threads of the pool that it runs in.
    fn new(descriptors: &[Descriptor], needs: AccessNeeds) -> PackedParts {
        let packets = descriptors.len().div_ceil(MAX_PACKED_PARTS).max(PART_PACKETS);
        let (count, mut starts) = (descriptors.len().div_ceil(packets), [0; MAX_PACKED_PARTS]);
        let parts = starts[..count].par_iter_mut().zip(descriptors.par_chunks(packets));
        parts.for_each(|(size, part)| *size = part.iter().map(|d| needs.packed_size(d.length) as u32).sum());
        let mut start = 0;
        for size in &mut starts[..count] {
            start += std::mem::replace(size, start);
        }
        PackedParts { packets, count, starts }
    }

    /// Calls `write` for each part, in parallel, with the index of its first packet, its packets,
    /// and its bytes of the arena, `to`.
    fn for_each(
        &self,
        descriptors: &[Descriptor],
        to: &mut [u8],
        write: &(impl Fn(usize, &[Descriptor], &mut [u8]) + Sync),
    ) {
        self.for_range(0..self.count, descriptors, to, write);
    }

    fn for_range(
        &self,
        parts: Range<usize>,
        descriptors: &[Descriptor],
        to: &mut [u8],
        write: &(impl Fn(usize, &[Descriptor], &mut [u8]) + Sync),
    ) {
        if parts.len() == 1 {
            return write(parts.start * self.packets, descriptors, to);
        }
        let middle = parts.start + parts.len() / 2;
        let (before, after) = descriptors.split_at((middle - parts.start) * self.packets);
        let (left, right) = to.split_at_mut((self.starts[middle] - self.starts[parts.start]) as usize);
        rayon::join(
            || self.for_range(parts.start..middle, before, left, write),
            || self.for_range(middle..parts.end, after, right, write),
        );
    }
}

/// A descriptor as kernels read it.
fn descriptor_bytes(d: Descriptor) -> [u8; size_of::<Descriptor>()] {
    (u64::from(d.offset) | u64::from(d.length) << 32).to_le_bytes()
}
