//! A batch as a job of the thread pool.
//!
//! Threads take chunks of the batch until none is left; the thread that finishes the last one
//! completes the batch. Batches of filters with flows are sharded instead, so that each flow's
//! packets stay in order; see [`Schedule::Sharded`].

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use portcullis_core::device::{Completion, DeviceError, StageTimes};
use portcullis_core::packet::{Batch, Descriptor, Metadata, Verdicts};
use portcullis_core::program::FLOW_BITS;

use super::sequencer::{BatchSequencer, SequencedBatch};
use super::shared::{Shared, THREAD_WAKE_NANOS};
use crate::compile::abi::BatchContext;
use crate::compile::filter_code::FilterCode;
use crate::maps::Maps;

/// Minimum number of packets in a chunk, unless [`Shared::max_chunk`] is smaller.
const MIN_CHUNK: usize = 64;

/// Chunks per thread: several, so that all threads finish at about the same time and more can be
/// woken if a chunk takes longer than expected.
const CHUNKS_PER_THREAD: usize = 8;

/// Packets scanned at a time for those of a shard.
const SHARD_SCAN: usize = 4096;

/// Maximum number of shards. A flow's shard is `(number >> 8) * shards >> 16`, which must not
/// overflow 32 bits.
const MAX_SHARDS: usize = 1 << 16;
const _: () = assert!(FLOW_BITS == 24);

/// Packets of a tile: few enough to stay in the cache between the two passes over them, enough to
/// be worth waking threads.
const TILE_PACKETS: usize = 1 << 15;

/// How a batch's packets are distributed among threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Schedule {
    /// Any thread takes the next chunk.
    AnyOrder,
    /// One thread takes all chunks in order.
    InOrder,
    /// The batch is cut into tiles. For each tile, threads first compute the packets' flow numbers
    /// in any order; then each thread takes a shard, a range of flow numbers, and filters the
    /// tile's packets of those flows in order. The value is the number of shards.
    Sharded(u32),
}

/// Packets that are scheduled together.
struct Tile {
    packets: Range<usize>,
    /// First packet that no thread has taken.
    next: AtomicUsize,
    /// Packets whose chunk is not finished.
    remaining: AtomicUsize,
    /// First shard that no thread has taken.
    next_shard: AtomicU32,
    /// Shards that are not finished.
    remaining_shards: AtomicU32,
}

impl Tile {
    fn new(packets: Range<usize>, shards: u32) -> Tile {
        Tile {
            next: AtomicUsize::new(packets.start),
            remaining: AtomicUsize::new(packets.len()),
            next_shard: AtomicU32::new(0),
            remaining_shards: AtomicU32::new(shards),
            packets,
        }
    }
}

/// A batch that threads of the pool filter.
pub(super) struct Job {
    shared: Arc<Shared>,
    /// Number of packets.
    packets: usize,
    schedule: Schedule,
    /// Pointers to the memory that the code reads and writes, which `buffers` owns.
    context: BatchContext,
    /// Context of the code that computes flow numbers.
    flow_context: BatchContext,
    /// A single tile unless the batch is sharded.
    tiles: Vec<Tile>,
    /// Taken by the thread that finishes the last chunk.
    buffers: Mutex<Option<BatchBuffers>>,
    /// Maximum number of packets in a chunk.
    max_chunk: usize,
    /// Threads that were asked to take part.
    threads: AtomicUsize,
    /// Threads that took at least one chunk.
    participants: AtomicUsize,
    /// Time spent filtering, summed over all threads, in nanoseconds.
    busy_nanos: AtomicU64,
    cancelled: AtomicBool,
    /// The job's result, set once by the thread that completes it.
    result: Mutex<Option<Result<Completion, DeviceError>>>,
    completed: Condvar,
}

/// A batch and the columns that the code fills.
struct BatchBuffers {
    batch: Batch,
    verdicts: Vec<u8>,
    targets: Vec<u32>,
    resized: Vec<Descriptor>,
    /// Default metadata, if the filter reads metadata and the batch has none.
    _default_metadata: Vec<Metadata>,
    /// Flow number per packet, and scratch space for verdicts of the code that computes it; empty
    /// unless the batch is sharded.
    _flow_columns: (Vec<u32>, Vec<u8>),
}

impl BatchBuffers {
    /// Allocates the columns, and points a context at them.
    fn new(shared: &Shared, batch: Batch) -> (BatchBuffers, BatchContext) {
        let (facts, packets) = (shared.program.facts(), batch.len());
        // Not zeroed: the code writes every element once.
        let mut verdicts = Vec::<u8>::with_capacity(packets);
        let mut targets = Vec::<u32>::with_capacity(if facts.redirects { packets } else { 0 });
        let mut resized = Vec::<Descriptor>::with_capacity(if facts.changes_length { packets } else { 0 });
        let default_metadata: Vec<Metadata> = if facts.uses_metadata && batch.metadata().is_empty() {
            (0..packets).map(|i| batch.metadata_of(i)).collect()
        } else {
            Vec::new()
        };
        let context = BatchContext {
            arena: batch.span().as_ptr(),
            descriptors: batch.descriptors().as_ptr(),
            verdicts: verdicts.as_mut_ptr(),
            targets: targets.as_mut_ptr(),
            metadata: if default_metadata.is_empty() { batch.metadata().as_ptr() } else { default_metadata.as_ptr() },
            tables: std::ptr::null(),
            resized: resized.as_mut_ptr(),
            float_functions: shared.code.float_functions(),
            maps: shared.maps.addresses(),
            indices: std::ptr::null(),
        };
        let flows = (Vec::new(), Vec::new());
        (
            BatchBuffers {
                batch,
                verdicts,
                targets,
                resized,
                _default_metadata: default_metadata,
                _flow_columns: flows,
            },
            context,
        )
    }

    /// Turns the filled columns into the batch's result. `threads` threads were busy for
    /// `busy_nanos` nanoseconds in total.
    ///
    /// # Safety
    ///
    /// The code has run for every packet, with the context that belongs to these buffers.
    unsafe fn into_completion(
        self,
        shared: &Shared,
        busy_nanos: u64,
        threads: usize,
    ) -> Result<Completion, DeviceError> {
        let BatchBuffers { mut batch, mut verdicts, mut targets, mut resized, .. } = self;
        let (facts, packets) = (shared.program.facts(), batch.len());
        shared.record_pace(busy_nanos, packets);
        // SAFETY: each column has capacity for all packets, and the code has written one element
        // per packet in those columns that the facts say it writes.
        unsafe {
            verdicts.set_len(packets);
            targets.set_len(if facts.redirects { packets } else { 0 });
            resized.set_len(if facts.changes_length { packets } else { 0 });
        }
        if facts.changes_length {
            batch.resize(resized).map_err(|error| DeviceError::InvalidResult { device: "cpu".into(), error })?;
        }
        let kernel = Duration::from_nanos(busy_nanos) / threads.max(1) as u32;
        let verdicts = Verdicts::from_columns(verdicts, targets);
        Ok(Completion { batch, verdicts, times: StageTimes { kernel, ..StageTimes::default() } })
    }
}

/// Whether a batch can be filtered by the thread that asks for its result: it is a single chunk,
/// so no other thread could help, and no other batch waits for it. `threads` is what
/// [`Shared::threads_worth_waking`] says.
pub(super) fn runs_inline(shared: &Shared, threads: usize, packets: usize) -> bool {
    threads == 0 && packets <= MIN_CHUNK && shared.sequencer.is_none()
}

/// Filters a batch on the calling thread alone. The filter's packets must not share state.
pub(super) fn run_inline(shared: &Shared, batch: Batch) -> Result<Completion, DeviceError> {
    let packets = batch.len();
    let (buffers, context) = BatchBuffers::new(shared, batch);
    let (mut start, mut busy_nanos) = (0, 0);
    while start < packets {
        if shared.cancel.is_cancelled() {
            return Err(DeviceError::Cancelled);
        }
        let assignment = shared.next_assignment();
        let end = start.saturating_add(assignment.max_packets.min(shared.max_chunk)).min(packets);
        let begin = Instant::now();
        // SAFETY: as in `Job::run`, with one thread for all chunks.
        unsafe { shared.run(assignment.variant, &context, start, end) };
        let elapsed = begin.elapsed();
        shared.record_time(assignment, end - start, elapsed);
        busy_nanos += nanoseconds(elapsed);
        start = end;
    }
    // SAFETY: all chunks have been run.
    unsafe { buffers.into_completion(shared, busy_nanos, 1) }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

// SAFETY: threads share a job to filter its packets, which touches nothing but atomics, the shared
// state, the buffers' lock, and, through the contexts, packets and columns of which each thread has
// a part to itself. All that the contexts point to is owned by the buffers, which live until every
// chunk has ended and may be sent to another thread.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl SequencedBatch for Job {
    fn spawn(self: Arc<Self>, threads: usize) {
        self.spawn_threads(threads);
    }

    fn maps(&self) -> &Maps {
        &self.shared.maps
    }

    fn packets(&self) -> usize {
        self.packets
    }
}

impl Job {
    /// Prepares a batch for `threads` threads, at least one.
    pub fn new(shared: Arc<Shared>, batch: Batch, threads: usize) -> Job {
        let packets = batch.len();
        let (mut buffers, context) = BatchBuffers::new(&shared, batch);
        let schedule = match (&shared.flows, threads) {
            (None, _) => Schedule::AnyOrder,
            (Some(_), 0 | 1) => Schedule::InOrder,
            (Some(_), threads) => Schedule::Sharded(threads.min(MAX_SHARDS) as u32),
        };
        let numbered = if matches!(schedule, Schedule::Sharded(_)) { packets } else { 0 };
        let (mut flows, mut scratch) = (Vec::<u32>::with_capacity(numbered), Vec::<u8>::with_capacity(numbered));
        let flow_context = BatchContext {
            verdicts: scratch.as_mut_ptr(),
            targets: flows.as_mut_ptr(),
            float_functions: shared.flows.as_ref().map_or(std::ptr::null(), FilterCode::float_functions),
            ..context
        };
        let (shards, tile) = match schedule {
            Schedule::Sharded(shards) => (shards, TILE_PACKETS),
            Schedule::AnyOrder | Schedule::InOrder => (0, packets.max(1)),
        };
        let starts = (0..packets.max(1)).step_by(tile);
        let tiles = starts.map(|start| Tile::new(start..(start + tile).min(packets), shards)).collect();
        buffers._flow_columns = (flows, scratch);
        Job {
            packets,
            schedule,
            context,
            flow_context,
            tiles,
            buffers: Mutex::new(Some(buffers)),
            max_chunk: (packets.min(tile) / (threads * CHUNKS_PER_THREAD)).max(MIN_CHUNK).min(shared.max_chunk),
            threads: AtomicUsize::new(threads),
            participants: AtomicUsize::new(0),
            busy_nanos: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            result: Mutex::new(None),
            completed: Condvar::new(),
            shared,
        }
    }

    /// Starts the job with `threads` threads of the pool: at once, or after the batches before it
    /// if the filter's packets share state.
    pub fn start(self: &Arc<Job>, threads: usize) {
        match self.sequencer() {
            Some(sequencer) => sequencer.admit(self.clone(), threads),
            None => self.spawn_threads(threads),
        }
    }

    fn spawn_threads(self: &Arc<Job>, threads: usize) {
        for _ in 0..threads {
            let job = self.clone();
            self.shared.pool.spawn(move || job.participate());
        }
    }

    fn sequencer(&self) -> Option<&BatchSequencer> {
        self.shared.sequencer.as_ref()
    }

    /// Filters chunks on the calling thread until none is left.
    pub fn participate(self: &Arc<Job>) {
        if self.packets == 0 {
            return self.complete();
        }
        self.run_chunks(0);
    }

    /// Takes chunks of a tile until none is left.
    fn run_chunks(self: &Arc<Job>, number: usize) {
        let tile = &self.tiles[number];
        let begin = Instant::now();
        for chunk in 0.. {
            let assignment = match self.schedule {
                Schedule::Sharded(_) => None,
                Schedule::AnyOrder | Schedule::InOrder => Some(self.shared.next_assignment()),
            };
            let size = assignment.map_or(usize::MAX, |assignment| assignment.max_packets).min(self.max_chunk);
            let start = tile.next.fetch_add(size, Ordering::Relaxed);
            if start >= tile.packets.end {
                if let Some(assignment) = assignment {
                    self.shared.record_time(assignment, 0, Duration::ZERO);
                }
                return;
            }
            if chunk == 0 && number == 0 {
                self.participants.fetch_add(1, Ordering::Relaxed);
            }
            let end = (start + size).min(tile.packets.end);
            if self.check_cancelled() {
                // Count the remaining chunks down without running them.
            } else if let Some(assignment) = assignment {
                let elapsed = self.timed(|| self.run(assignment.variant, &self.context, start, end));
                self.shared.record_time(assignment, end - start, elapsed);
            } else if let Some(flows) = &self.shared.flows {
                self.timed(|| {
                    // SAFETY: as in `run`; the columns for flow numbers have room for the whole
                    // batch too.
                    unsafe { flows.run(0, &self.flow_context, start, end) };
                });
            }
            // Release this thread's writes, and acquire those of the other threads.
            if tile.remaining.fetch_sub(end - start, Ordering::AcqRel) == end - start {
                return self.finish_chunks(number);
            }
            if self.schedule == Schedule::AnyOrder && begin.elapsed().as_nanos() > u128::from(THREAD_WAKE_NANOS) {
                self.wake_remaining_threads();
            }
        }
    }

    /// Continues after the last chunk of a tile: with its shards, or by completing the batch.
    fn finish_chunks(self: &Arc<Job>, tile: usize) {
        let Schedule::Sharded(shards) = self.schedule else { return self.complete() };
        self.participants.fetch_max(shards as usize, Ordering::Relaxed);
        // Spawning releases, and the spawned threads acquire.
        for _ in 1..shards {
            let job = self.clone();
            self.shared.pool.spawn(move || job.run_shard(tile));
        }
        self.run_shard(tile);
    }

    /// Filters one shard of a tile. This is called once per shard.
    fn run_shard(self: &Arc<Job>, number: usize) {
        let tile = &self.tiles[number];
        let shard = tile.next_shard.fetch_add(1, Ordering::Relaxed);
        let Schedule::Sharded(shards) = self.schedule else { unreachable!("the batch is sharded") };
        let (mut indices, mut start) = ([0_u32; SHARD_SCAN], tile.packets.start);
        while start < tile.packets.end && !self.check_cancelled() {
            let assignment = self.shared.next_assignment();
            let size = assignment.max_packets.min(self.shared.max_chunk).min(SHARD_SCAN);
            let end = start.saturating_add(size).min(tile.packets.end);
            let elapsed = self.timed(|| {
                // SAFETY: the flow numbers of the tile's packets were written before its first
                // shard started, and stay until the last one has ended.
                let flows = unsafe { std::slice::from_raw_parts(self.flow_context.targets.add(start), end - start) };
                let mut count = 0;
                // Without branches: half of them would be mispredicted.
                for (index, flow) in (start as u32..).zip(flows) {
                    indices[count] = index;
                    count += usize::from(((flow >> 8) * shards) >> 16 == shard);
                }
                let context = BatchContext { indices: indices.as_ptr(), ..self.context };
                self.run(assignment.variant, &context, 0, count);
            });
            self.shared.record_time(assignment, end - start, elapsed);
            start = end;
        }
        if tile.remaining_shards.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        if number + 1 == self.tiles.len() {
            return self.complete();
        }
        for _ in 0..shards {
            let job = self.clone();
            self.shared.pool.spawn(move || job.run_chunks(number + 1));
        }
    }

    /// Polls the cancel token, and marks the job as cancelled if it is set.
    fn check_cancelled(&self) -> bool {
        let cancelled = self.shared.cancel.is_cancelled();
        if cancelled {
            self.cancelled.store(true, Ordering::Relaxed);
        }
        cancelled
    }

    /// Runs a closure, adding its time to `busy_nanos`.
    fn timed(&self, work: impl FnOnce()) -> Duration {
        let begin = Instant::now();
        work();
        let elapsed = begin.elapsed();
        self.busy_nanos.fetch_add(nanoseconds(elapsed), Ordering::Relaxed);
        elapsed
    }

    fn run(&self, variant: usize, context: &BatchContext, start: usize, end: usize) {
        // SAFETY:
        // - the buffers live until this chunk has ended, and own the packets with their rooms
        //   (`check_submission` made sure of those); a batch's descriptors lie in its arena, which
        //   is readable past its end;
        // - the columns have room for the whole batch if the program uses them;
        // - no two chunks have a packet in common, nor do two shards, and packets share no word;
        // - if the batch is sharded, the flow numbers of a tile are written before its first shard
        //   starts.
        unsafe { self.shared.run(variant, context, start, end) };
    }

    /// Wakes the rest of the pool: the batch takes longer than estimated.
    fn wake_remaining_threads(self: &Arc<Job>) {
        let all = self.shared.pool.current_num_threads();
        let awake = self.threads.swap(all, Ordering::Relaxed);
        if self.tiles[0].next.load(Ordering::Relaxed) < self.packets {
            self.spawn_threads(all.saturating_sub(awake));
        }
    }

    /// Publishes the result; every chunk has ended. Calls after the first one do nothing.
    fn complete(&self) {
        let buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(_), Some(sequencer)) = (&buffers, self.sequencer()) {
            // Before the result is visible: a caller that sees it may submit the next batch.
            sequencer.advance();
        }
        if let Some(buffers) = buffers {
            let done = match self.cancelled.load(Ordering::Relaxed) {
                true => Err(DeviceError::Cancelled),
                // SAFETY: every chunk has ended, and none was skipped.
                false => unsafe {
                    let busy_nanos = self.busy_nanos.load(Ordering::Relaxed);
                    buffers.into_completion(&self.shared, busy_nanos, self.participants.load(Ordering::Relaxed))
                },
            };
            *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            self.completed.notify_one();
        }
    }

    /// Blocks until the batch is complete and takes its result. A second call would block forever.
    pub fn wait_result(&self) -> Result<Completion, DeviceError> {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        let result = self.completed.wait_while(result, |result| result.is_none());
        result.unwrap_or_else(PoisonError::into_inner).take().expect("the job is complete")
    }
}
