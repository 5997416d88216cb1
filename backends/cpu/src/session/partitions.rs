//! Radix partitioning of batches, so that packets of a flow are filtered by one thread, in order.
//!
//! A batch is cut into tiles, and a tile into chunks. For each tile,
//!
//! 1. threads partition chunks: they compute the packets' flow numbers and sort the chunk's packets
//!    by partition, a range of flow numbers (counting sort);
//! 2. threads filter partitions: they collect a partition's packets from all chunks, in order, and
//!    write results side by side, in cache lines that no other thread writes to;
//! 3. threads scatter the results of chunks to where the batch has its packets. This is one step
//!    with the partitioning of the next tile.
//!
//! There are several partitions per thread, and the large ones come first (longest processing time
//! first), so that threads end at about the same time. A flow is in one partition, however large: a
//! batch of a single flow is filtered by a single thread.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use portcullis_core::packet::{Descriptor, Metadata};
use portcullis_core::program::FLOW_BITS;

use super::column::Column;
use super::job::Job;
use super::shared::{Shared, VariantTimer};
use super::steps::{Steps, Unit};
use super::workers::spin;
use crate::compile::abi::BatchContext;
use crate::compile::filter_code::{FilterCode, prefetch_lines};

/// Partitions per thread.
const PARTITIONS_PER_THREAD: usize = 8;

/// Minimum number of packets for each partition on average, unless there are fewer partitions than
/// threads.
const MIN_PARTITION: usize = 128;

/// Maximum number of partitions. More would cost more per chunk than they gain.
const MAX_PARTITIONS: usize = 1024;

/// Packets per thread of a tile, and bounds on a tile's packets: few enough to stay in the cache
/// between the steps, many enough to be worth handing over.
const TILE_PACKETS_PER_THREAD: usize = 1 << 13;
const TILE_PACKETS: (usize, usize) = (1 << 15, 1 << 18);

/// Bounds on a chunk's packets. A position in a chunk has 16 bits.
const CHUNK_PACKETS: (usize, usize) = (256, 4096);

/// Chunks per thread of a tile, if that is within the bounds.
const CHUNKS_PER_THREAD: usize = 2;

/// Packets that are collected before they are filtered.
const BLOCK_PACKETS: usize = 256;

/// Elements that are as large as a cache line, or larger: threads write to different lines if they
/// write to elements at multiples of it.
const LINE_ELEMENTS: usize = 64;

/// A partition that is this many times as large as the average one is filtered first.
const LARGE_PARTITION: usize = 2;

/// The schedule of a batch in partitions.
pub(super) struct Partitions {
    shared: Arc<Shared>,
    steps: Steps,
    /// Threads that do units or wait for the next step.
    present: CachePadded<AtomicUsize>,
    geometry: Geometry,
    /// Returned to [`Shared::partition_buffers`] when dropped.
    buffers: PartitionBuffers,
    /// First element of the results that no partition has.
    next_result: CachePadded<AtomicUsize>,
    /// The batch's columns, in order of arrival.
    context: BatchContext,
}

/// How a batch is cut.
#[derive(Debug, Clone, Copy)]
struct Geometry {
    packets: usize,
    /// Packets of a tile, a multiple of those of a chunk.
    tile: usize,
    /// Packets of a chunk.
    chunk: usize,
    partitions: usize,
}

impl Geometry {
    fn new(packets: usize, threads: usize) -> Geometry {
        let (least, most) = TILE_PACKETS;
        let tile = (threads * TILE_PACKETS_PER_THREAD).clamp(least, most).min(packets);
        let (least, most) = CHUNK_PACKETS;
        let chunk = (tile / (threads * CHUNKS_PER_THREAD)).next_multiple_of(LINE_ELEMENTS).clamp(least, most);
        let partitions = (threads * PARTITIONS_PER_THREAD).min(tile / MIN_PARTITION).max(threads).min(MAX_PARTITIONS);
        Geometry { packets, tile: tile.next_multiple_of(chunk), chunk, partitions }
    }

    fn tiles(&self) -> usize {
        self.packets.div_ceil(self.tile)
    }

    fn chunks(&self) -> usize {
        self.packets.div_ceil(self.chunk)
    }

    /// The chunks of a tile; none for the tile behind the last one.
    fn chunks_of_tile(&self, tile: usize) -> Range<usize> {
        let chunks = self.tile / self.chunk;
        let of_tile = |tile: usize| (tile * chunks).min(self.chunks());
        of_tile(tile)..of_tile(tile + 1)
    }

    fn packets_of_chunk(&self, chunk: usize) -> Range<usize> {
        chunk * self.chunk..((chunk + 1) * self.chunk).min(self.packets)
    }

    /// Elements of a chunk's row of [`PartitionBuffers::ends`].
    fn ends_row(&self) -> usize {
        self.partitions.next_multiple_of(LINE_ELEMENTS)
    }

    /// Elements of a partition's row of [`PartitionBuffers::positions`].
    fn positions_row(&self) -> usize {
        (self.tile / self.chunk).next_multiple_of(LINE_ELEMENTS)
    }

    /// Maximum number of results, with the gaps between those of different partitions.
    fn results(&self) -> usize {
        self.packets + self.tiles() * self.partitions * LINE_ELEMENTS
    }

    /// Steps come in pairs, one pair for each tile and half a pair for the results of the last.
    fn step(&self, step: usize) -> Step {
        match step % 2 {
            0 => Step::Partition { tile: step / 2 },
            _ => Step::Filter { tile: step / 2 },
        }
    }

    /// Number of units of a step; 0 behind the last step.
    fn units(&self, step: usize) -> usize {
        match self.step(step) {
            Step::Partition { tile } => {
                let scattered = if tile > 0 { self.chunks_of_tile(tile - 1).len() } else { 0 };
                scattered + self.chunks_of_tile(tile).len()
            }
            Step::Filter { tile } if tile < self.tiles() => self.partitions,
            Step::Filter { .. } => 0,
        }
    }
}

/// What the units of a step do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Scatter the results of the tile before, a chunk per unit, and partition the chunks of this
    /// tile.
    Partition { tile: usize },
    /// Filter the tile's partitions.
    Filter { tile: usize },
}

/// Memory for partitioning chunks and filtering partitions.
pub(super) struct PartitionBuffers {
    /// For each chunk, positions in the chunk of its packets, sorted by partition and position.
    order: Column<u16>,
    /// For each chunk and partition, the end of its part of the chunk's `order`.
    ends: Column<u16>,
    /// The partitions of the current tile in the order in which they are filtered.
    queue: Column<u16>,
    /// For each partition and chunk of the current tile, where the results begin.
    positions: Column<u32>,
    /// Results of partitions, each partition's from a cache line on.
    verdicts: Column<u8>,
    targets: Column<u32>,
    resized: Column<Descriptor>,
}

impl PartitionBuffers {
    fn new() -> PartitionBuffers {
        PartitionBuffers {
            order: Column::new(),
            ends: Column::new(),
            queue: Column::new(),
            positions: Column::new(),
            verdicts: Column::new(),
            targets: Column::new(),
            resized: Column::new(),
        }
    }

    fn reserve(&mut self, geometry: &Geometry, redirects: bool, changes_length: bool) {
        self.order.reserve(geometry.packets);
        self.ends.reserve(geometry.chunks() * geometry.ends_row());
        self.queue.reserve(geometry.partitions);
        self.positions.reserve(geometry.partitions * geometry.positions_row());
        self.verdicts.reserve(geometry.results());
        self.targets.reserve(if redirects { geometry.results() } else { 0 });
        self.resized.reserve(if changes_length { geometry.results() } else { 0 });
    }
}

impl Partitions {
    /// Prepares a batch of at least one packet for at least two threads. The context has its
    /// columns.
    pub fn new(shared: &Arc<Shared>, context: BatchContext, packets: usize, threads: usize) -> Partitions {
        let geometry = Geometry::new(packets, threads);
        let buffers = shared.partition_buffers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut buffers = buffers.unwrap_or_else(PartitionBuffers::new);
        let facts = shared.program.facts();
        buffers.reserve(&geometry, facts.redirects, facts.changes_length);
        Partitions {
            shared: shared.clone(),
            steps: Steps::new(geometry.units(0)),
            present: CachePadded::new(AtomicUsize::new(0)),
            geometry,
            buffers,
            next_result: CachePadded::new(AtomicUsize::new(0)),
            context,
        }
    }

    /// Counts the calling thread as present, until [`next_unit`](Partitions::next_unit) returns
    /// none.
    pub fn enter(&self) {
        self.present.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of threads that are present.
    pub fn threads_present(&self) -> usize {
        self.present.load(Ordering::Relaxed)
    }

    /// Takes the next unit. If there is none, waits for the next step for `patience`.
    pub fn next_unit(&self, patience: Duration) -> Option<Unit> {
        loop {
            let step = self.steps.current();
            if let Some(unit) = self.steps.take(|step| self.geometry.units(step)) {
                return Some(unit);
            }
            let is_last = self.geometry.units(step + 1) == 0;
            let next = || (self.steps.current() != step).then_some(());
            if is_last || spin(patience, next).is_none() {
                self.present.fetch_sub(1, Ordering::Relaxed);
                return None;
            }
        }
    }

    /// Records that a unit is done; returns whether it was the last one of its step.
    pub fn finish_unit(&self) -> bool {
        self.steps.finish_unit()
    }

    /// Begins the step behind that of a unit, which was the step's last one. Returns its number of
    /// units, 0 if there is no further step.
    pub fn begin_next_step(&self, last: Unit) -> usize {
        let (next, units) = (last.step + 1, self.geometry.units(last.step + 1));
        if units > 0 {
            if let Step::Filter { tile } = self.geometry.step(next) {
                self.order_partitions(tile);
            }
            self.steps.begin(next, units);
        }
        units
    }

    /// Does a unit's work, unless the job is cancelled.
    pub fn run_unit(&self, unit: Unit, job: &Job) {
        match self.geometry.step(unit.step) {
            Step::Partition { tile } => {
                let before = if tile > 0 { self.geometry.chunks_of_tile(tile - 1) } else { 0..0 };
                match unit.number.checked_sub(before.len()) {
                    None => self.scatter_results(tile - 1, before.start + unit.number),
                    Some(number) => self.partition_chunk(self.geometry.chunks_of_tile(tile).start + number, job),
                }
            }
            Step::Filter { tile } => {
                // SAFETY: the queue was written before the step began.
                let partition = unsafe { self.buffers.queue.slice(unit.number..unit.number + 1) }[0];
                self.filter(tile, partition.into(), job);
            }
        }
    }

    /// Sorts a chunk's packets by partition.
    fn partition_chunk(&self, chunk: usize, job: &Job) {
        let packets = self.geometry.packets_of_chunk(chunk);
        let mut numbers = [0; CHUNK_PACKETS.1];
        for start in packets.clone().step_by(self.shared.max_chunk) {
            if job.check_cancelled() {
                return;
            }
            let part = start..packets.end.min(start + self.shared.max_chunk);
            job.write_default_metadata(part.clone());
            self.partition_numbers(part, &mut numbers[start - packets.start..]);
        }
        let numbers = &mut numbers[..packets.len()];
        // Each number is replaced by its partition. Remainders, which change nothing, spare bounds
        // checks.
        let mut ends = [0_u16; MAX_PARTITIONS];
        for number in numbers.iter_mut() {
            *number = ((u64::from(*number) * self.geometry.partitions as u64) >> FLOW_BITS) as u32;
            ends[*number as usize % MAX_PARTITIONS] += 1;
        }
        let mut start = 0;
        for end in &mut ends[..self.geometry.partitions] {
            // For now the start, which the loop below advances to the end.
            start += std::mem::replace(end, start);
        }
        // SAFETY: only the thread that partitions a chunk accesses its packets' positions and its
        // row until the step has ended.
        let order = unsafe { self.buffers.order.slice_mut(packets) };
        for (position, &partition) in (0..).zip(numbers.iter()) {
            let end = &mut ends[partition as usize % MAX_PARTITIONS];
            order[usize::from(*end)] = position;
            *end += 1;
        }
        let row = chunk * self.geometry.ends_row();
        // SAFETY: as above.
        let row = unsafe { self.buffers.ends.slice_mut(row..row + self.geometry.partitions) };
        row.copy_from_slice(&ends[..self.geometry.partitions]);
    }

    /// Computes the numbers by which a chunk's packets are partitioned, below 2^[`FLOW_BITS`].
    fn partition_numbers(&self, packets: Range<usize>, numbers: &mut [u32]) {
        assert!(packets.len() <= numbers.len());
        match &self.shared.flows {
            Some(flows) => self.flow_numbers(flows, packets, numbers),
            None => self.search_numbers(packets, numbers),
        }
    }

    fn flow_numbers(&self, flows: &FilterCode, packets: Range<usize>, numbers: &mut [u32]) {
        let mut verdicts = [0_u8; CHUNK_PACKETS.1];
        // The code writes from the chunk's first packet on.
        let context = BatchContext {
            verdicts: verdicts.as_mut_ptr().wrapping_sub(packets.start),
            targets: numbers.as_mut_ptr().wrapping_sub(packets.start),
            float_functions: flows.float_functions(),
            ..self.context
        };
        // Vector code, once it is compiled.
        let variant = flows.variant_count() - 1;
        let begin = Instant::now();
        // SAFETY: as in `Job::run`. There is a number and a verdict for each packet.
        unsafe { flows.run(variant, &context, packets.start, packets.end) };
        self.shared.record_use(flows, begin.elapsed());
    }

    /// Packets whose searches begin close to each other have close numbers. A packet without a
    /// search may be in any partition.
    fn search_numbers(&self, packets: Range<usize>, numbers: &mut [u32]) {
        let mut index = 0;
        let number = |address: *const u8| {
            let spread = (index as u32).wrapping_mul(0x9e37_79b1) >> (32 - FLOW_BITS);
            numbers[index] = self.shared.maps.offset_fraction(address).unwrap_or(spread);
            index += 1;
        };
        // SAFETY: as in `Job::run`.
        unsafe { self.shared.code.search_addresses(&self.context, packets, number) };
    }

    /// The part of a chunk's order that belongs to a partition.
    ///
    /// # Safety
    ///
    /// The chunk is partitioned.
    unsafe fn packets_of_partition(&self, chunk: usize, partition: usize) -> Range<usize> {
        let row = chunk * self.geometry.ends_row();
        // SAFETY: nothing writes to the row once the chunk is partitioned.
        let ends = unsafe { self.buffers.ends.slice(row..row + partition + 1) };
        let start = if partition > 0 { ends[partition - 1] } else { 0 };
        start.into()..ends[partition].into()
    }

    /// Orders the partitions of a tile, whose chunks are partitioned: large ones first, going by a
    /// few chunks. Called before the step begins. If the batch is cancelled the order is that of
    /// whatever the chunks' rows contain.
    fn order_partitions(&self, tile: usize) {
        let chunks = self.geometry.chunks_of_tile(tile);
        let sampled = chunks.clone().step_by(chunks.len().div_ceil(4));
        let average = sampled.clone().map(|chunk| self.geometry.packets_of_chunk(chunk).len()).sum::<usize>()
            / self.geometry.partitions;
        // SAFETY: nothing writes to the chunks' rows.
        let size = |partition| unsafe {
            sampled.clone().map(|chunk| self.packets_of_partition(chunk, partition).len()).sum::<usize>()
        };
        // SAFETY: no step is in progress.
        let queue = unsafe { self.buffers.queue.slice_mut(0..self.geometry.partitions) };
        let (mut large, mut small) = (0, self.geometry.partitions);
        for partition in 0..self.geometry.partitions {
            if size(partition) > LARGE_PARTITION * average {
                queue[large] = partition as u16;
                large += 1;
            } else {
                small -= 1;
                queue[small] = partition as u16;
            }
        }
        queue[..large].sort_by_key(|partition| std::cmp::Reverse(size(usize::from(*partition))));
    }

    /// Filters a partition of a tile.
    fn filter(&self, tile: usize, partition: usize, job: &Job) {
        let chunks = self.geometry.chunks_of_tile(tile);
        // SAFETY: all chunks of the tile are partitioned.
        let positions_in = |chunk| unsafe { self.packets_of_partition(chunk, partition) };
        let packets: usize = chunks.clone().map(|chunk| positions_in(chunk).len()).sum();
        if packets == 0 {
            return;
        }
        let mut result = self.next_result.fetch_add(packets.next_multiple_of(LINE_ELEMENTS), Ordering::Relaxed);
        let row = partition * self.geometry.positions_row();
        // SAFETY: only the thread that filters a partition accesses its row until the step ends.
        let positions = unsafe { self.buffers.positions.slice_mut(row..row + chunks.len()) };
        let mut block = Block::new(self.shared.program.facts().uses_metadata);
        let mut variants = VariantTimer::new(&self.shared);
        for (position, chunk) in positions.iter_mut().zip(chunks) {
            *position = (result + block.packets) as u32;
            let at = self.geometry.packets_of_chunk(chunk);
            // SAFETY: the chunk is partitioned.
            let order = unsafe { &self.buffers.order.slice(at.clone())[positions_in(chunk)] };
            for &within in order {
                // SAFETY: the batch has this packet.
                unsafe { block.push(&self.context, at.start + usize::from(within)) };
                if block.packets == BLOCK_PACKETS {
                    result += self.filter_block(&mut block, result, &mut variants, job);
                }
            }
        }
        self.filter_block(&mut block, result, &mut variants, job);
    }

    /// Filters a block's packets, whose results go to where `result` says, and empties it. Returns
    /// how many there were.
    fn filter_block(&self, block: &mut Block, result: usize, variants: &mut VariantTimer<'_>, job: &Job) -> usize {
        let facts = self.shared.program.facts();
        let context = BatchContext {
            descriptors: block.descriptors.as_ptr().cast(),
            metadata: block.metadata.as_ptr().cast(),
            verdicts: self.buffers.verdicts.as_mut_ptr(result),
            targets: self.buffers.targets.as_mut_ptr(if facts.redirects { result } else { 0 }),
            resized: self.buffers.resized.as_mut_ptr(if facts.changes_length { result } else { 0 }),
            ..self.context
        };
        let packets = std::mem::take(&mut block.packets);
        // SAFETY: as in `Job::run`. The block has the packets' descriptors, and metadata if the
        // filter uses any; the results have room for the partition, and no other thread has a
        // packet or a result of it.
        unsafe { self.shared.run_in_chunks(&context, 0..packets, variants, || job.check_cancelled()) };
        packets
    }

    /// Copies the results of a chunk of a tile to where the batch has its packets.
    fn scatter_results(&self, tile: usize, chunk: usize) {
        let number = chunk - self.geometry.chunks_of_tile(tile).start;
        let packets = self.geometry.packets_of_chunk(chunk);
        // SAFETY: the chunk is partitioned.
        let order = unsafe { self.buffers.order.slice(packets.clone()) };
        let facts = self.shared.program.facts();
        for partition in 0..self.geometry.partitions {
            // SAFETY: the chunk is partitioned.
            let order = &order[unsafe { self.packets_of_partition(chunk, partition) }];
            if order.is_empty() {
                continue;
            }
            let at = partition * self.geometry.positions_row() + number;
            // SAFETY: the tile is filtered, so that nothing writes to positions and results, and
            // only this thread writes to what the batch has of the chunk.
            unsafe {
                let first = self.buffers.positions.slice(at..at + 1)[0] as usize;
                let results = first..first + order.len();
                scatter(self.buffers.verdicts.slice(results.clone()), order, self.context.verdicts.add(packets.start));
                if facts.redirects {
                    scatter(
                        self.buffers.targets.slice(results.clone()),
                        order,
                        self.context.targets.add(packets.start),
                    );
                }
                if facts.changes_length {
                    scatter(self.buffers.resized.slice(results), order, self.context.resized.add(packets.start));
                }
            }
        }
    }
}

impl Drop for Partitions {
    fn drop(&mut self) {
        let buffers = std::mem::replace(&mut self.buffers, PartitionBuffers::new());
        self.shared.partition_buffers.lock().unwrap_or_else(PoisonError::into_inner).push(buffers);
    }
}

/// Writes each value to the place that `places` has for it.
///
/// # Safety
///
/// All places from `to` on are valid, and no other code accesses them.
unsafe fn scatter<T: Copy>(values: &[T], places: &[u16], to: *mut T) {
    for (value, &place) in values.iter().zip(places) {
        // SAFETY: by the caller's promise.
        unsafe { to.add(place.into()).write(*value) };
    }
}

/// Packets of a partition that are filtered together.
struct Block {
    packets: usize,
    descriptors: [MaybeUninit<Descriptor>; BLOCK_PACKETS],
    /// Not written if the filter uses none.
    metadata: [MaybeUninit<Metadata>; BLOCK_PACKETS],
    uses_metadata: bool,
}

impl Block {
    fn new(uses_metadata: bool) -> Block {
        Block {
            packets: 0,
            descriptors: [MaybeUninit::uninit(); BLOCK_PACKETS],
            metadata: [MaybeUninit::uninit(); BLOCK_PACKETS],
            uses_metadata,
        }
    }

    /// Adds a packet of a batch; the block must not be full.
    ///
    /// # Safety
    ///
    /// The context has a descriptor for the packet, and metadata if the filter uses any.
    unsafe fn push(&mut self, context: &BatchContext, packet: usize) {
        // SAFETY: by the caller's promise.
        let descriptor = unsafe { *context.descriptors.add(packet) };
        // Packets are scattered in memory, and are read once the block is full.
        prefetch_lines(context.arena.wrapping_add(descriptor.offset as usize), 1);
        self.descriptors[self.packets].write(descriptor);
        if self.uses_metadata {
            // SAFETY: by the caller's promise.
            self.metadata[self.packets].write(unsafe { *context.metadata.add(packet) });
        }
        self.packets += 1;
    }
}
