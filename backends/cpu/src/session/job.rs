//! A batch as a task of the workers.
//!
//! Threads take chunks of the batch until none is left; the thread that finishes the last one
//! completes the batch. Packets of a flow must stay in order, so batches of filters with flows are
//! filtered in partitions instead; see [`Partitions`].

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use portcullis_core::device::{Completion, DeviceError, StageTimes};
use portcullis_core::packet::{Batch, Descriptor, Metadata, Verdicts};

use super::default_metadata::{self, DefaultMetadata};
use super::partitions::Partitions;
use super::sequencer::{BatchSequencer, SequencedBatch};
use super::shared::{Shared, VariantTimer, nanoseconds};
use super::variant_selector::Assignment;
use super::workers::{Task, spin};
use crate::compile::abi::BatchContext;
use crate::compile::errors::failed;
use crate::maps::Maps;

/// Minimum number of packets in a chunk, unless [`Shared::max_chunk`] is smaller.
const MIN_CHUNK: usize = 64;

/// Minimum work in a chunk in nanoseconds: some twenty times what taking a chunk costs.
const MIN_CHUNK_NANOS: u64 = 2_000;

/// Chunks per thread: several, so that all threads finish at about the same time and more can be
/// woken if a chunk takes longer than expected.
const CHUNKS_PER_THREAD: usize = 8;

/// How a batch's packets are distributed among threads.
enum Schedule {
    /// Any thread takes the next chunk.
    AnyOrder(Chunks),
    /// One thread takes all chunks in order.
    InOrder(Chunks),
    /// Each flow's packets are in one partition, which one thread filters in order.
    Partitioned(Box<Partitions>),
}

/// Progress through a batch in chunks.
struct Chunks {
    /// First packet that no thread has taken.
    next: CachePadded<AtomicUsize>,
    /// Packets whose chunk is not finished.
    remaining: CachePadded<AtomicUsize>,
    /// Maximum number of packets in a chunk.
    max: usize,
}

/// A batch that threads of the pool filter.
pub(super) struct Job {
    shared: Arc<Shared>,
    /// Number of packets.
    packets: usize,
    schedule: Schedule,
    /// What the choice of the schedule was made with, if there was a choice.
    assignment: Option<Assignment>,
    default_metadata: Option<DefaultMetadata>,
    /// When the first thread began.
    begin: OnceLock<Instant>,
    /// Pointers to the memory that the code reads and writes, which `buffers` owns.
    context: BatchContext,
    /// Taken by the thread that finishes the last chunk.
    buffers: Mutex<Option<BatchBuffers>>,
    /// Threads that were asked to take part.
    threads: AtomicUsize,
    /// Threads that took at least one chunk.
    participants: AtomicUsize,
    /// Time spent filtering, summed over all threads, in nanoseconds.
    busy_nanos: CachePadded<AtomicU64>,
    cancelled: AtomicBool,
    /// The message of a panic in a thread that took part.
    panic: Mutex<Option<String>>,
    /// The job's result, set once by the thread that completes it.
    result: Mutex<Option<Result<Completion, DeviceError>>>,
    /// Whether there is a result.
    is_complete: AtomicBool,
    completed: Condvar,
}

/// A batch and the columns that the code fills.
struct BatchBuffers {
    batch: Batch,
    verdicts: Vec<u8>,
    targets: Vec<u32>,
    resized: Vec<Descriptor>,
}

impl BatchBuffers {
    /// Allocates the columns, and points a context at them and at the packets' metadata.
    fn new(shared: &Shared, batch: Batch, metadata: *const Metadata) -> (BatchBuffers, BatchContext) {
        let (facts, packets) = (shared.program.facts(), batch.len());
        // Not zeroed: the code writes every element once.
        let mut verdicts = Vec::<u8>::with_capacity(packets);
        let mut targets = Vec::<u32>::with_capacity(if facts.redirects { packets } else { 0 });
        let mut resized = Vec::<Descriptor>::with_capacity(if facts.changes_length { packets } else { 0 });
        let context = BatchContext {
            arena: batch.span().as_ptr(),
            descriptors: batch.descriptors().as_ptr(),
            verdicts: verdicts.as_mut_ptr(),
            targets: targets.as_mut_ptr(),
            metadata,
            tables: std::ptr::null(),
            resized: resized.as_mut_ptr(),
            float_functions: shared.code.float_functions(),
            maps: shared.maps.addresses(0),
        };
        (BatchBuffers { batch, verdicts, targets, resized }, context)
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
/// [`Shared::estimate_threads`] says.
pub(super) fn runs_inline(shared: &Shared, threads: usize, packets: usize) -> bool {
    threads == 0 && packets <= MIN_CHUNK && shared.sequencer.is_none()
}

/// Filters a batch on the calling thread alone. The filter's packets must not share state.
pub(super) fn run_inline(shared: &Shared, batch: Batch) -> Result<Completion, DeviceError> {
    let packets = batch.len();
    let is_needed = default_metadata::is_needed(shared, &batch);
    let defaults: Vec<Metadata> = (0..if is_needed { packets } else { 0 }).map(|i| batch.metadata_of(i)).collect();
    let metadata = if is_needed { defaults.as_ptr() } else { batch.metadata().as_ptr() };
    let (buffers, context) = BatchBuffers::new(shared, batch, metadata);
    let mut variants = VariantTimer::new(shared);
    // SAFETY: as in `Job::run`, with one thread for all packets.
    unsafe { shared.run_in_chunks(&context, 0..packets, &mut variants, || shared.cancel.is_cancelled()) };
    if shared.cancel.is_cancelled() {
        return Err(DeviceError::Cancelled);
    }
    let busy_nanos = variants.total_nanos;
    drop(variants);
    // SAFETY: all packets have been filtered.
    unsafe { buffers.into_completion(shared, busy_nanos, 1) }
}

// SAFETY: threads share a job to filter its packets, which touches nothing but atomics, the shared
// state, the buffers' lock, and, through the contexts, packets and columns of which each thread has
// a part to itself. All that the contexts point to is owned by the buffers, which live until every
// chunk has ended and may be sent to another thread.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl SequencedBatch for Job {
    fn start(self: Arc<Self>, threads: usize) {
        self.request_threads(threads);
    }

    fn maps(&self) -> &Maps {
        &self.shared.maps
    }

    fn packets(&self) -> usize {
        self.packets
    }
}

impl Task for Job {
    fn participate(self: Arc<Self>) {
        Job::participate(&self);
    }
}

impl Job {
    /// Prepares a batch for `threads` threads, at least one.
    pub fn new(shared: Arc<Shared>, batch: Batch, threads: usize) -> Job {
        let packets = batch.len();
        let default_metadata =
            default_metadata::is_needed(&shared, &batch).then(|| DefaultMetadata::new(&shared, &batch));
        let metadata = default_metadata.as_ref().map_or(batch.metadata().as_ptr(), DefaultMetadata::as_ptr);
        let (buffers, context) = BatchBuffers::new(&shared, batch, metadata);
        let chunks = || Chunks {
            next: CachePadded::new(AtomicUsize::new(0)),
            remaining: CachePadded::new(AtomicUsize::new(packets)),
            max: (packets / (threads * CHUNKS_PER_THREAD))
                .max(shared.packets_in(MIN_CHUNK_NANOS).min(packets / threads))
                .max(MIN_CHUNK)
                .min(shared.max_chunk),
        };
        let (is_partitioned, assignment) =
            if threads > 1 && packets > 0 { shared.next_schedule(packets) } else { (false, None) };
        let schedule = match &shared.flows {
            _ if is_partitioned => Schedule::Partitioned(Box::new(Partitions::new(&shared, context, packets, threads))),
            Some(_) => Schedule::InOrder(chunks()),
            None => Schedule::AnyOrder(chunks()),
        };
        Job {
            packets,
            schedule,
            assignment,
            default_metadata,
            begin: OnceLock::new(),
            context,
            buffers: Mutex::new(Some(buffers)),
            threads: AtomicUsize::new(threads),
            participants: AtomicUsize::new(0),
            busy_nanos: CachePadded::new(AtomicU64::new(0)),
            cancelled: AtomicBool::new(false),
            panic: Mutex::new(None),
            result: Mutex::new(None),
            is_complete: AtomicBool::new(false),
            completed: Condvar::new(),
            shared,
        }
    }

    /// Starts the job with `threads` workers: at once, or after the batches before it if the
    /// filter's packets share state.
    pub fn start(self: &Arc<Job>, threads: usize) {
        match self.sequencer() {
            Some(sequencer) => sequencer.admit(self.clone(), threads),
            None => self.request_threads(threads),
        }
    }

    fn request_threads(self: &Arc<Job>, threads: usize) {
        let task: Arc<dyn Task> = self.clone();
        self.shared.workers.request(&task, threads);
    }

    fn sequencer(&self) -> Option<&BatchSequencer> {
        self.shared.sequencer.as_ref()
    }

    /// Filters packets on the calling thread until there are none that it could begin with.
    pub fn participate(self: &Arc<Job>) {
        if self.packets == 0 {
            return self.complete();
        }
        self.begin.get_or_init(Instant::now);
        match &self.schedule {
            Schedule::AnyOrder(chunks) | Schedule::InOrder(chunks) => self.run_chunks(chunks),
            Schedule::Partitioned(partitions) => self.run_steps(partitions),
        }
    }

    /// Takes chunks until none is left.
    fn run_chunks(self: &Arc<Job>, chunks: &Chunks) {
        let begin = Instant::now();
        let mut variants = VariantTimer::new(&self.shared);
        for chunk in 0.. {
            let (variant, size) = variants.next(chunks.max);
            let start = chunks.next.fetch_add(size, Ordering::Relaxed);
            if start >= self.packets {
                return;
            }
            if chunk == 0 {
                self.participants.fetch_add(1, Ordering::Relaxed);
            }
            let end = (start + size).min(self.packets);
            // Chunks of a cancelled batch are counted without running them.
            if !self.check_cancelled() {
                let run = || variants.time(end - start, || self.run(variant, start, end));
                self.timed(run);
            }
            // Release this thread's writes, and acquire those of the other threads.
            if chunks.remaining.fetch_sub(end - start, Ordering::AcqRel) == end - start {
                return self.complete();
            }
            let is_late = || begin.elapsed().as_nanos() > u128::from(self.shared.workers.wake_nanos());
            if matches!(self.schedule, Schedule::AnyOrder(_)) && is_late() {
                self.request_remaining_threads(chunks);
            }
        }
    }

    /// Takes units of one step after the other until none is left, or another thread takes long for
    /// the last units of a step.
    fn run_steps(self: &Arc<Job>, partitions: &Partitions) {
        partitions.enter();
        while let Some(unit) = partitions.next_unit(self.shared.workers.idle_spin()) {
            // Units of a cancelled batch are counted without running them; so are all later ones,
            // which need their results.
            if !self.check_cancelled() {
                self.timed(|| partitions.run_unit(unit, self));
            }
            if !partitions.finish_unit() {
                continue;
            }
            let threads = self.threads.load(Ordering::Relaxed);
            let units = partitions.begin_next_step(unit);
            if units == 0 {
                self.participants.store(threads, Ordering::Relaxed);
                return self.complete();
            }
            let missing = threads.min(units).saturating_sub(partitions.threads_present());
            if missing > 0 {
                self.request_threads(missing);
            }
        }
    }

    /// Polls the cancel token, and marks the job as cancelled if it is set. The mark stays.
    pub fn check_cancelled(&self) -> bool {
        if self.shared.cancel.is_cancelled() {
            self.cancelled.store(true, Ordering::Relaxed);
        }
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Runs a closure, adding its time to `busy_nanos`. If it panics, the batch is given up: its
    /// other chunks are counted, so that it completes, with the panic's message as its result.
    fn timed(&self, work: impl FnOnce()) {
        let begin = Instant::now();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            let text = text.unwrap_or("no message").to_owned();
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
            self.cancelled.store(true, Ordering::Relaxed);
        }
        self.busy_nanos.fetch_add(nanoseconds(begin.elapsed()), Ordering::Relaxed);
    }

    /// Filters packets `start..end` of the batch with a variant of the code.
    fn run(&self, variant: usize, start: usize, end: usize) {
        self.write_default_metadata(start..end);
        // SAFETY:
        // - the buffers live until this chunk has ended, and own the packets with their rooms
        //   (`check_submission` made sure of those); a batch's descriptors lie in its arena, which
        //   is readable past its end;
        // - the columns have room for the whole batch if the program uses them;
        // - no two chunks have a packet in common, and packets share no word.
        unsafe { self.shared.run(variant, &self.context, start, end) };
    }

    /// Writes the metadata of packets that have none, if the filter reads it. Called once for each
    /// packet, before code runs for it.
    pub fn write_default_metadata(&self, packets: Range<usize>) {
        if let Some(defaults) = &self.default_metadata {
            // SAFETY: the buffers live until the caller's chunk has ended, and own the packets.
            unsafe { defaults.write(packets) };
        }
    }

    /// Requests the rest of the workers: the batch takes longer than estimated.
    fn request_remaining_threads(self: &Arc<Job>, chunks: &Chunks) {
        let all = self.shared.workers.count();
        let awake = self.threads.swap(all, Ordering::Relaxed);
        if awake < all && chunks.next.load(Ordering::Relaxed) < self.packets {
            self.request_threads(all - awake);
        }
    }

    /// Publishes the result; every chunk has ended. Calls after the first one do nothing.
    fn complete(&self) {
        let buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(_), Some(assignment), Some(begin)) = (&buffers, self.assignment, self.begin.get()) {
            self.shared.record_batch_time(assignment, self.packets, begin.elapsed());
        }
        if let (Some(_), Some(sequencer)) = (&buffers, self.sequencer()) {
            self.shared.maps.add_up_counters();
            // Before the result is visible: a caller that sees it may submit the next batch.
            sequencer.advance();
        }
        if let Some(buffers) = buffers {
            let panic = self.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
            let done = match (panic, self.cancelled.load(Ordering::Relaxed)) {
                (Some(text), _) => Err(failed(format!("a worker thread panicked: {text}"))),
                (None, true) => Err(DeviceError::Cancelled),
                // SAFETY: every chunk has ended, and none was skipped.
                (None, false) => unsafe {
                    let busy_nanos = self.busy_nanos.load(Ordering::Relaxed);
                    buffers.into_completion(&self.shared, busy_nanos, self.participants.load(Ordering::Relaxed))
                },
            };
            *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            self.is_complete.store(true, Ordering::Release);
            self.completed.notify_one();
        }
    }

    /// Lets the calling thread take part like a worker until the batch is complete or there has
    /// been nothing to do for a while.
    pub fn help(&self) {
        if !self.is_complete() {
            self.shared.workers.help_until(|| self.is_complete());
        }
    }

    fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Acquire)
    }

    /// Blocks until the batch is complete and takes its result. A second call would block forever.
    pub fn wait_result(&self) -> Result<Completion, DeviceError> {
        // A sleeping thread takes long to wake.
        spin(self.shared.workers.idle_spin(), || self.is_complete().then_some(()));
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        let result = self.completed.wait_while(result, |result| result.is_none());
        result.unwrap_or_else(PoisonError::into_inner).take().expect("the job is complete")
    }
}
