//! One batch on its way: shared by the threads that filter it, and sent home by the one that ends
//! the last piece of it.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use portcullis_core::device::{Completion, DeviceError, StageTimes};
use portcullis_core::packet::{Batch, Descriptor, Metadata, Verdicts};
use portcullis_core::program::FLOW_BITS;

use super::gate::Gate;
use super::{Shared, WORTH_A_THREAD};
use crate::maps::Maps;
use crate::memory::{Code, Context};

/// The fewest packets that a thread takes at once, where the filter may be given as many.
pub(super) const MIN_PIECE: usize = 64;

/// Pieces for each thread: so that all end at about the same time, and more threads can be called
/// where a piece took unexpectedly long.
const PIECES: usize = 8;

/// Packets that are gone through at a time for those of a shard.
const LIST: usize = 4096;

/// A flow's shard is `(number >> 8) * shards >> 16`, in 32 bits.
const MAX_SHARDS: usize = 1 << 16;
const _: () = assert!(FLOW_BITS == 24);

/// How the batch's packets are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Whoever is free takes the next piece.
    Any,
    /// One thread takes all of them, in order.
    Alone,
    /// First the numbers of a tile's packets' flows are found, in any order. Then each thread has the flows of a shard,
    /// and goes through all packets of the tile for those. Then the next tile.
    Shards(u32),
}

/// Packets of a tile: few enough to be in the cache when they are looked at again, enough for waking threads.
const TILE: usize = 1 << 15;

/// Packets that are shared out together.
struct Tile {
    packets: Range<usize>,
    /// The first packet that nobody has taken.
    next: AtomicUsize,
    /// Packets whose piece has not ended.
    left: AtomicUsize,
    /// The first shard that nobody has taken, and how many have not ended.
    next_shard: AtomicU32,
    left_shards: AtomicU32,
}

impl Tile {
    fn new(packets: Range<usize>, shards: u32) -> Tile {
        Tile {
            next: AtomicUsize::new(packets.start),
            left: AtomicUsize::new(packets.len()),
            next_shard: AtomicU32::new(0),
            left_shards: AtomicU32::new(shards),
            packets,
        }
    }
}

pub(super) struct Job {
    shared: Arc<Shared>,
    /// Packets in all.
    packets: usize,
    order: Order,
    /// What the code reads and writes, all of it owned by the load.
    context: Context,
    /// The same for the code that gives the numbers of flows.
    numbering: Context,
    /// One where there are no shards.
    tiles: Vec<Tile>,
    /// Taken out by whoever ends the last piece.
    load: Mutex<Option<Load>>,
    /// Packets that a thread takes at once, at most.
    piece: usize,
    /// Threads that were called.
    threads: AtomicUsize,
    /// Threads that had a piece.
    took_part: AtomicUsize,
    /// Time spent filtering, all threads together, in nanoseconds.
    busy: AtomicU64,
    cancelled: AtomicBool,
    /// What came of it, once it is done.
    answer: Mutex<Option<Result<Completion, DeviceError>>>,
    answered: Condvar,
}

/// The batch, and the columns that the code fills.
struct Load {
    batch: Batch,
    verdicts: Vec<u8>,
    targets: Vec<u32>,
    resized: Vec<Descriptor>,
    /// Of a batch that has none, where the filter asks for it.
    _metadata: Vec<Metadata>,
    /// One flow's number a packet, where there are shards, and what comes with it.
    _flows: (Vec<u32>, Vec<u8>),
}

impl Load {
    /// With columns for the batch's verdicts, and those that the code reads and writes: the packets, and the columns.
    fn new(shared: &Shared, batch: Batch) -> (Load, Context) {
        let (facts, packets) = (shared.program.facts(), batch.len());
        // Written once, by the code: clearing them before would be a pass over them for nothing.
        let mut verdicts = Vec::<u8>::with_capacity(packets);
        let mut targets = Vec::<u32>::with_capacity(if facts.redirects { packets } else { 0 });
        let mut resized = Vec::<Descriptor>::with_capacity(if facts.changes_length { packets } else { 0 });
        let made_up: Vec<Metadata> = if facts.uses_metadata && batch.metadata().is_empty() {
            (0..packets).map(|i| batch.metadata_of(i)).collect()
        } else {
            Vec::new()
        };
        let context = Context {
            arena: batch.span().as_ptr(),
            descriptors: batch.descriptors().as_ptr(),
            verdicts: verdicts.as_mut_ptr(),
            targets: targets.as_mut_ptr(),
            metadata: if made_up.is_empty() { batch.metadata().as_ptr() } else { made_up.as_ptr() },
            tables: std::ptr::null(),
            resized: resized.as_mut_ptr(),
            runtime: shared.code.runtime(),
            maps: shared.maps.addresses(),
            list: std::ptr::null(),
        };
        (Load { batch, verdicts, targets, resized, _metadata: made_up, _flows: (Vec::new(), Vec::new()) }, context)
    }

    /// The batch with its verdicts, for which so many threads took so long, all together.
    ///
    /// # Safety
    /// The code has run for each packet, with the context that came with this.
    unsafe fn done(self, shared: &Shared, busy: u64, threads: usize) -> Result<Completion, DeviceError> {
        let Load { mut batch, mut verdicts, mut targets, mut resized, .. } = self;
        let (facts, packets) = (shared.program.facts(), batch.len());
        shared.note_pace(busy, packets);
        // SAFETY: each has room for as many, and the code has written one for each packet, where the
        // facts say that it writes such a column.
        unsafe {
            verdicts.set_len(packets);
            targets.set_len(if facts.redirects { packets } else { 0 });
            resized.set_len(if facts.changes_length { packets } else { 0 });
        }
        if facts.changes_length {
            batch.resize(resized).map_err(|error| DeviceError::InvalidResult { device: "cpu".into(), error })?;
        }
        let kernel = Duration::from_nanos(busy) / threads.max(1) as u32;
        let verdicts = Verdicts::from_columns(verdicts, targets);
        Ok(Completion { batch, verdicts, times: StageTimes { kernel, ..StageTimes::default() } })
    }
}

/// Filters a batch on the calling thread, which nobody helps: of a filter whose packets share nothing.
pub(super) fn alone(shared: &Shared, batch: Batch) -> Result<Completion, DeviceError> {
    let packets = batch.len();
    let (load, context) = Load::new(shared, batch);
    let (mut start, mut busy) = (0, 0);
    while start < packets {
        if shared.cancel.is_cancelled() {
            return Err(DeviceError::Cancelled);
        }
        let turn = shared.next_turn();
        let end = start.saturating_add(turn.most.min(shared.piece)).min(packets);
        let begun = Instant::now();
        // SAFETY: as in `Job::run`, with one thread for all pieces.
        unsafe { shared.run(turn.code, &context, start, end) };
        let took = begun.elapsed();
        shared.took(turn, end - start, took);
        busy += nanoseconds(took);
        start = end;
    }
    // SAFETY: all pieces have been run.
    unsafe { load.done(shared, busy, 1) }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

// SAFETY: threads share a job to call `work`, which touches nothing but atomics, the shared session,
// the load's lock, and, through the context, packets and columns of which each thread has its own
// part. All that the context points to is owned by the load, which stays until every piece has
// ended, and may be sent to another thread.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Job {
    /// A batch that nobody has begun with, for so many threads: at least one.
    pub fn new(shared: Arc<Shared>, batch: Batch, threads: usize) -> Job {
        let packets = batch.len();
        let (mut load, context) = Load::new(&shared, batch);
        let order = match (&shared.flows, threads) {
            (None, _) => Order::Any,
            (Some(_), 0 | 1) => Order::Alone,
            (Some(_), threads) => Order::Shards(threads.min(MAX_SHARDS) as u32),
        };
        let numbered = if matches!(order, Order::Shards(_)) { packets } else { 0 };
        let (mut flows, mut scrap) = (Vec::<u32>::with_capacity(numbered), Vec::<u8>::with_capacity(numbered));
        let numbering = Context {
            verdicts: scrap.as_mut_ptr(),
            targets: flows.as_mut_ptr(),
            runtime: shared.flows.as_ref().map_or(std::ptr::null(), Code::runtime),
            ..context
        };
        let (shards, tile) = if let Order::Shards(shards) = order { (shards, TILE) } else { (0, packets.max(1)) };
        let starts = (0..packets.max(1)).step_by(tile);
        let tiles = starts.map(|start| Tile::new(start..(start + tile).min(packets), shards)).collect();
        load._flows = (flows, scrap);
        Job {
            packets,
            order,
            context,
            numbering,
            tiles,
            load: Mutex::new(Some(load)),
            piece: (packets.min(tile) / (threads * PIECES)).max(MIN_PIECE).min(shared.piece),
            threads: AtomicUsize::new(threads),
            took_part: AtomicUsize::new(0),
            busy: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            answer: Mutex::new(None),
            answered: Condvar::new(),
            shared,
        }
    }

    /// Has so many threads of the pool work at the job, as soon as they have ended those before it.
    pub fn call(self: &Arc<Job>, threads: usize) {
        for _ in 0..threads {
            let job = self.clone();
            self.shared.pool.spawn(move || job.work());
        }
    }

    /// Where batches wait for each other.
    pub fn gate(&self) -> Option<&Gate> {
        self.shared.gate.as_ref()
    }

    /// What the gate sees to.
    pub fn maps(&self) -> &Maps {
        &self.shared.maps
    }

    /// Packets in all.
    pub fn packets(&self) -> usize {
        self.packets
    }

    /// Takes part in the batch.
    pub fn work(self: &Arc<Job>) {
        if self.packets == 0 {
            return self.end();
        }
        self.pieces(0);
    }

    /// Takes pieces of a tile until none is left.
    fn pieces(self: &Arc<Job>, number: usize) {
        let tile = &self.tiles[number];
        let begun = Instant::now();
        for piece in 0.. {
            let turn = match self.order {
                Order::Shards(_) => None,
                Order::Any | Order::Alone => Some(self.shared.next_turn()),
            };
            let most = turn.map_or(usize::MAX, |turn| turn.most).min(self.piece);
            let start = tile.next.fetch_add(most, Ordering::Relaxed);
            if start >= tile.packets.end {
                if let Some(turn) = turn {
                    self.shared.took(turn, 0, Duration::ZERO);
                }
                return;
            }
            if piece == 0 && number == 0 {
                self.took_part.fetch_add(1, Ordering::Relaxed);
            }
            let end = (start + most).min(tile.packets.end);
            if self.is_cancelled() {
                // What is left is gone through without being run.
            } else if let Some(turn) = turn {
                let took = self.timed(|| self.run(turn.code, &self.context, start, end));
                self.shared.took(turn, end - start, took);
            } else if let Some(flows) = &self.shared.flows {
                self.timed(|| {
                    // SAFETY: as in `run`; the columns for numbers have room for the whole batch too.
                    unsafe { flows.run(0, &self.numbering, start, end) };
                });
            }
            // Releases what this thread has written, and acquires what the others have.
            if tile.left.fetch_sub(end - start, Ordering::AcqRel) == end - start {
                return self.pieces_ended(number);
            }
            if self.order == Order::Any && begun.elapsed().as_nanos() > u128::from(WORTH_A_THREAD) {
                self.call_the_others();
            }
        }
    }

    /// All packets of a tile have been gone through once.
    fn pieces_ended(self: &Arc<Job>, tile: usize) {
        let Order::Shards(shards) = self.order else { return self.end() };
        self.took_part.fetch_max(shards as usize, Ordering::Relaxed);
        // Spawning releases, and acquires in the threads that are called.
        for _ in 1..shards {
            let job = self.clone();
            self.shared.pool.spawn(move || job.shard(tile));
        }
        self.shard(tile);
    }

    /// Takes a shard of a tile that nobody has taken: there is one for each thread that is called.
    fn shard(self: &Arc<Job>, number: usize) {
        let tile = &self.tiles[number];
        let shard = tile.next_shard.fetch_add(1, Ordering::Relaxed);
        let Order::Shards(shards) = self.order else { unreachable!("there are shards") };
        let (mut list, mut start) = ([0_u32; LIST], tile.packets.start);
        while start < tile.packets.end && !self.is_cancelled() {
            let turn = self.shared.next_turn();
            let end = start.saturating_add(turn.most.min(self.shared.piece).min(LIST)).min(tile.packets.end);
            let took = self.timed(|| {
                // SAFETY: the numbers of the tile's packets were written before its first shard began, and stay until the
                // last has ended.
                let numbers = unsafe { std::slice::from_raw_parts(self.numbering.targets.add(start), end - start) };
                let mut own = 0;
                // Without branches, of which nobody could foresee half.
                for (index, number) in (start as u32..).zip(numbers) {
                    list[own] = index;
                    own += usize::from(((number >> 8) * shards) >> 16 == shard);
                }
                let context = Context { list: list.as_ptr(), ..self.context };
                self.run(turn.code, &context, 0, own);
            });
            self.shared.took(turn, end - start, took);
            start = end;
        }
        if tile.left_shards.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        if number + 1 == self.tiles.len() {
            return self.end();
        }
        for _ in 0..shards {
            let job = self.clone();
            self.shared.pool.spawn(move || job.pieces(number + 1));
        }
    }

    fn is_cancelled(&self) -> bool {
        let cancelled = self.shared.cancel.is_cancelled();
        if cancelled {
            self.cancelled.store(true, Ordering::Relaxed);
        }
        cancelled
    }

    fn timed(&self, work: impl FnOnce()) -> Duration {
        let begun = Instant::now();
        work();
        let took = begun.elapsed();
        self.busy.fetch_add(nanoseconds(took), Ordering::Relaxed);
        took
    }

    fn run(&self, code: usize, context: &Context, start: usize, end: usize) {
        // SAFETY: the load is there until this piece has ended, and its batch is ours, so its packets
        // (and their rooms, which `check_submission` made sure of) are; a batch's descriptors lie in
        // its arena, which is readable past its end; the columns have room for the whole batch where
        // the program uses them; no two pieces have a packet in common, nor have two shards, and packets share no
        // word. Where there are shards, the numbers of a tile's packets are written before the first of them begins.
        unsafe { self.shared.run(code, context, start, end) };
    }

    /// The batch takes longer than was thought: now all threads are worth waking.
    fn call_the_others(self: &Arc<Job>) {
        let all = self.shared.pool.current_num_threads();
        let called = self.threads.swap(all, Ordering::Relaxed);
        if self.tiles[0].next.load(Ordering::Relaxed) < self.packets {
            self.call(all.saturating_sub(called));
        }
    }

    /// Sends the batch home; every piece has ended.
    fn end(&self) {
        let load = self.load.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(_), Some(gate)) = (&load, self.gate()) {
            // Before anybody can know that this batch is done, who might ask for the next.
            gate.leave();
        }
        if let Some(load) = load {
            let done = match self.cancelled.load(Ordering::Relaxed) {
                true => Err(DeviceError::Cancelled),
                // SAFETY: every piece has ended, and none was left out.
                false => unsafe {
                    let (busy, threads) = (self.busy.load(Ordering::Relaxed), self.took_part.load(Ordering::Relaxed));
                    load.done(&self.shared, busy, threads)
                },
            };
            *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            self.answered.notify_one();
        }
    }

    /// Waits until every piece has ended, and gives what came of the batch. Once.
    pub fn answer(&self) -> Result<Completion, DeviceError> {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = self.answered.wait_while(answer, |answer| answer.is_none());
        answered.unwrap_or_else(PoisonError::into_inner).take().expect("it was waited for")
    }
}
