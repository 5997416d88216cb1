//! Building batches in arenas: recycling arenas, collecting descriptors, laying out packet slots.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};

use portcullis_core::packet::{
    Arena, ArenaError, Batch, BatchCutter, Descriptor, Metadata, MetadataAccumulator, RESIZE_ROOM, ResizeRoom,
};

/// Pool of arenas. An arena returns when the last batch in it is dropped; a new one is allocated
/// only if none is free.
#[derive(Debug)]
pub(crate) struct ArenaPool {
    returns: Sender<Arena>,
    free: Receiver<Arena>,
}

impl ArenaPool {
    pub fn new() -> ArenaPool {
        let (returns, free) = channel();
        ArenaPool { returns, free }
    }

    /// Takes an arena of at least `len` bytes with unspecified contents.
    pub fn take(&mut self, len: usize) -> Result<Arena, ArenaError> {
        // A shorter arena belongs to an earlier, smaller block size: drop it.
        match self.free.try_iter().find(|arena| arena.len() >= len) {
            Some(arena) => Ok(arena),
            None => Arena::new(len),
        }
    }

    /// Returns an unused arena.
    pub fn release(&mut self, arena: Arena) {
        // Cannot fail: this pool owns the receiver.
        let _ = self.returns.send(arena);
    }

    fn cutter(&self, arena: Arena) -> BatchCutter {
        BatchCutter::new(arena, Some(self.returns.clone()))
    }
}

/// Collects descriptors and metadata of one arena, split into batches of at most `max` packets.
#[derive(Debug)]
pub(crate) struct BatchCollector {
    max: usize,
    metadata: bool,
    descriptors: Vec<Descriptor>,
    metadata_column: Vec<Metadata>,
    metadata_summary: MetadataAccumulator,
    finished: VecDeque<FinishedBatch>,
    /// Packets expected in the next arena, from the count of the last: the capacity to reserve.
    expected: usize,
    count: usize,
}

impl BatchCollector {
    pub fn new(max: usize, metadata: bool) -> BatchCollector {
        BatchCollector {
            max: max.max(1),
            metadata,
            descriptors: Vec::new(),
            metadata_column: Vec::new(),
            metadata_summary: MetadataAccumulator::default(),
            finished: VecDeque::new(),
            expected: 64,
            count: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    pub fn push(&mut self, offset: usize, length: usize, metadata: Metadata) {
        if self.descriptors.len() == self.descriptors.capacity() {
            self.grow();
        }
        self.descriptors.push(Descriptor { offset: offset as u32, length: length as u32 });
        if self.metadata {
            self.metadata_column.push(metadata);
            self.metadata_summary.add(&metadata, length as u32);
        }
        self.count += 1;
        if self.descriptors.len() == self.max {
            self.close_batch();
        }
    }

    #[cold]
    fn grow(&mut self) {
        let more = if self.descriptors.is_empty() { self.expected } else { self.descriptors.len() };
        let more = more.min(self.max - self.descriptors.len()).max(1);
        self.descriptors.reserve_exact(more);
        if self.metadata {
            self.metadata_column.reserve_exact(more);
        }
    }

    fn close_batch(&mut self) {
        if !self.descriptors.is_empty() {
            self.finished.push_back(FinishedBatch {
                descriptors: std::mem::take(&mut self.descriptors),
                metadata: std::mem::take(&mut self.metadata_column),
                metadata_summary: std::mem::take(&mut self.metadata_summary),
            });
        }
    }

    /// Turns the collected packets and their arena into batches.
    pub fn finish_arena(&mut self, arena: Arena, pool: &ArenaPool, room: ResizeRoom, into: &mut ReadyBatches) {
        self.close_batch();
        self.expected = self.count + self.count / 8 + 64;
        self.count = 0;
        *into = ReadyBatches { cutter: Some(pool.cutter(arena)), batches: std::mem::take(&mut self.finished), room };
    }
}

/// The packets of a batch.
#[derive(Debug)]
struct FinishedBatch {
    descriptors: Vec<Descriptor>,
    metadata: Vec<Metadata>,
    metadata_summary: MetadataAccumulator,
}

/// Finished batches of one arena, in order.
#[derive(Debug)]
pub(crate) struct ReadyBatches {
    cutter: Option<BatchCutter>,
    batches: VecDeque<FinishedBatch>,
    room: ResizeRoom,
}

impl ReadyBatches {
    pub fn empty() -> ReadyBatches {
        ReadyBatches { cutter: None, batches: VecDeque::new(), room: ResizeRoom::None }
    }

    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Returns the next batch.
    pub fn next(&mut self) -> Option<Batch> {
        let FinishedBatch { descriptors, metadata, metadata_summary } = self.batches.pop_front()?;
        let cutter = self.cutter.as_mut()?;
        let batch = cutter
            .cut_batch(descriptors, metadata, self.room)
            .expect("a source lays packets out in order, within the arena, without overlap");
        if self.batches.is_empty() {
            // Drop the cutter with the last batch, so that the arena returns to the pool before the
            // next block is read.
            self.cutter = None;
        }
        Some(batch.with_metadata_summary(metadata_summary.summary()))
    }
}

/// Allocates slots for packets in an arena with [`ResizeRoom::Both`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SlotAllocator {
    next: usize,
}

impl SlotAllocator {
    /// Bytes that a packet takes, room included: an odd number of cache lines, because strides
    /// divisible by a large power of two use only a fraction of the cache's sets.
    pub fn stride(length: usize) -> usize {
        let lines = (length + 2 * RESIZE_ROOM as usize).div_ceil(64);
        (lines | 1) * 64
    }

    /// Returns the offset for a packet of `length` bytes, or `None` if it no longer fits in `arena`
    /// bytes.
    pub fn allocate(&mut self, length: usize, arena: usize) -> Option<usize> {
        let end = self.next + Self::stride(length);
        if end > arena {
            return None;
        }
        let at = self.next + RESIZE_ROOM as usize;
        self.next = end;
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_hold_the_packet_and_are_odd_numbers_of_cache_lines() {
        for length in 0..10_000 {
            let stride = SlotAllocator::stride(length);
            assert!(stride >= length + 256, "{length}");
            assert!(!stride.is_power_of_two(), "{length}");
            assert_eq!(stride % 128, 64);
        }
    }

    #[test]
    fn an_arena_is_recycled_when_its_last_batch_is_dropped() {
        let mut pool = ArenaPool::new();
        let mut collector = BatchCollector::new(2, false);
        let mut ready = ReadyBatches::empty();
        let arena = pool.take(4096).unwrap();
        let id = arena.span().id();
        for i in 0..5 {
            collector.push(i * 64, 60, Metadata::default());
        }
        collector.finish_arena(arena, &pool, ResizeRoom::None, &mut ready);
        let sizes: Vec<usize> = std::iter::from_fn(|| ready.next()).map(|batch| batch.len()).collect();
        assert_eq!(sizes, [2, 2, 1]);
        assert_eq!(pool.take(4096).unwrap().span().id(), id);
        assert_ne!(pool.take(4096).unwrap().span().id(), id);
    }
}
