//! Packets in arenas: recycling arenas, collecting descriptors, laying out slots.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};

use portcullis_core::packet::{Arena, ArenaError, Batch, BatchCutter, Descriptor, Metadata, RESIZE_ROOM, ResizeRoom};

/// Arenas that come back when their batches are gone. A new one is made only when none is free.
#[derive(Debug)]
pub(crate) struct Pool {
    home: Sender<Arena>,
    free: Receiver<Arena>,
}

impl Pool {
    pub fn new() -> Pool {
        let (home, free) = channel();
        Pool { home, free }
    }

    /// An arena of at least `len` bytes, with anything in it.
    pub fn take(&mut self, len: usize) -> Result<Arena, ArenaError> {
        // One that is too short was made for a block size of the past: let it go.
        match self.free.try_iter().find(|arena| arena.len() >= len) {
            Some(arena) => Ok(arena),
            None => Arena::new(len),
        }
    }

    /// Gives an arena back that was not used.
    pub fn put(&mut self, arena: Arena) {
        // The receiver is ours and alive.
        let _ = self.home.send(arena);
    }

    fn carver(&self, arena: Arena) -> BatchCutter {
        BatchCutter::new(arena, Some(self.home.clone()))
    }
}

/// Descriptors and metadata of one arena, cut into pieces of at most `max` packets.
#[derive(Debug)]
pub(crate) struct Collector {
    max: usize,
    metadata: bool,
    descriptors: Vec<Descriptor>,
    metadata_of: Vec<Metadata>,
    whole: VecDeque<(Vec<Descriptor>, Vec<Metadata>)>,
    /// How many packets the last arena held: how much to reserve for the next.
    expected: usize,
    count: usize,
}

impl Collector {
    pub fn new(max: usize, metadata: bool) -> Collector {
        Collector {
            max: max.max(1),
            metadata,
            descriptors: Vec::new(),
            metadata_of: Vec::new(),
            whole: VecDeque::new(),
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
            self.metadata_of.push(metadata);
        }
        self.count += 1;
        if self.descriptors.len() == self.max {
            self.cut();
        }
    }

    #[cold]
    fn grow(&mut self) {
        let more = if self.descriptors.is_empty() { self.expected } else { self.descriptors.len() };
        let more = more.min(self.max - self.descriptors.len()).max(1);
        self.descriptors.reserve_exact(more);
        if self.metadata {
            self.metadata_of.reserve_exact(more);
        }
    }

    fn cut(&mut self) {
        if !self.descriptors.is_empty() {
            self.whole.push_back((std::mem::take(&mut self.descriptors), std::mem::take(&mut self.metadata_of)));
        }
    }

    /// Gives up the arena that the collected packets lie in.
    pub fn carve(&mut self, arena: Arena, pool: &Pool, room: ResizeRoom, into: &mut Ready) {
        self.cut();
        self.expected = self.count + self.count / 8 + 64;
        self.count = 0;
        *into = Ready { carver: Some(pool.carver(arena)), pieces: std::mem::take(&mut self.whole), room };
    }
}

/// Batches of one arena that wait to be asked for.
#[derive(Debug)]
pub(crate) struct Ready {
    carver: Option<BatchCutter>,
    pieces: VecDeque<(Vec<Descriptor>, Vec<Metadata>)>,
    room: ResizeRoom,
}

impl Ready {
    pub fn none() -> Ready {
        Ready { carver: None, pieces: VecDeque::new(), room: ResizeRoom::None }
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The next batch, in order.
    pub fn next(&mut self) -> Option<Batch> {
        let (descriptors, metadata) = self.pieces.pop_front()?;
        let carver = self.carver.as_mut()?;
        let batch = carver
            .cut_batch(descriptors, metadata, self.room)
            .expect("a source lays packets out in order, inside the arena, and apart");
        if self.pieces.is_empty() {
            // So that the arena goes home with the last batch, not with the next block.
            self.carver = None;
        }
        Some(batch)
    }
}

/// Where the next packet's slot goes in an arena with [`ResizeRoom::Both`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Slots {
    next: usize,
}

impl Slots {
    /// Bytes that a packet takes with its room: an odd number of cache lines, since strides that
    /// are a multiple of a large power of two use a fraction of the cache's sets.
    pub fn stride(length: usize) -> usize {
        let lines = (length + 2 * RESIZE_ROOM as usize).div_ceil(64);
        (lines | 1) * 64
    }

    /// The offset for a packet of `length` bytes, or `None` where it no longer fits in `arena`
    /// bytes.
    pub fn place(&mut self, length: usize, arena: usize) -> Option<usize> {
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
    fn strides_hold_the_packet_and_are_no_power_of_two() {
        for length in 0..10_000 {
            let stride = Slots::stride(length);
            assert!(stride >= length + 256, "{length}");
            assert!(!stride.is_power_of_two(), "{length}");
            assert_eq!(stride % 128, 64);
        }
    }

    #[test]
    fn an_arena_is_used_again() {
        let mut pool = Pool::new();
        let mut collector = Collector::new(2, false);
        let mut ready = Ready::none();
        let arena = pool.take(4096).unwrap();
        let id = arena.span().id();
        for i in 0..5 {
            collector.push(i * 64, 60, Metadata::default());
        }
        collector.carve(arena, &pool, ResizeRoom::None, &mut ready);
        let sizes: Vec<usize> = std::iter::from_fn(|| ready.next()).map(|batch| batch.len()).collect();
        assert_eq!(sizes, [2, 2, 1]);
        assert_eq!(pool.take(4096).unwrap().span().id(), id);
        assert_ne!(pool.take(4096).unwrap().span().id(), id);
    }
}
