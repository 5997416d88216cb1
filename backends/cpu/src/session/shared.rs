//! State that a session shares with the threads of its pool.

use std::error::Error;
use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use portcullis_core::device::{CancelToken, DeviceError, LoadOptions};
use portcullis_core::packet::Metadata;
use portcullis_core::program::Program;
use portcullis_core::reason;

use super::column::Column;
use super::partitions::PartitionBuffers;
use super::sequencer::BatchSequencer;
use super::synthetic_work::SyntheticWork;
use super::variant_selector::{Assignment, SAMPLE_PACKETS, VariantSelector};
use super::workers::Workers;
use crate::compile::abi::BatchContext;
use crate::compile::errors::failed;
use crate::compile::filter_code::FilterCode;
use crate::maps::Maps;

/// Maximum number of packets that a thread takes at once: enough to make the call free, few enough
/// to balance the load.
pub(super) const MAX_CHUNK: usize = 16_384;

/// Worst-case time of a chunk in nanoseconds. Threads poll the cancel token between chunks, so this
/// bounds how long a user waits after Ctrl-C.
const MAX_CHUNK_NANOS: u64 = 1_000_000_000;

/// Pessimistic estimate of the time that a scalar operation takes, in nanoseconds.
const NANOS_PER_OPERATION: u64 = 2;

/// Estimated time per packet before any has been measured, in nanoseconds.
const INITIAL_NANOS_PER_PACKET: u64 = 300;

/// Stack that code may need and still be run on the caller's thread, in bytes. Threads with as
/// little as 128 KiB are common on some systems.
pub(crate) const CALLER_STACK_BYTES: usize = 64 << 10;

/// How a session's batches are distributed among several threads.
enum Scheduling {
    /// Any thread filters any packet.
    AnyOrder,
    /// In partitions.
    Partitioned,
    /// One or the other, whichever measures faster: without partitions threads may wait for each
    /// other's entries, with them each packet's search begins twice.
    Fastest(Mutex<VariantSelector>),
}

/// Batches before partitions are tried: the first ones insert keys and touch memory for the first
/// time.
const FIRST_SCHEDULE_TRIAL: u64 = 16;

/// The variant of [`Scheduling::Fastest`] that partitions.
const PARTITIONED: usize = 1;

impl Scheduling {
    fn of(program: &Program, code: &FilterCode) -> Scheduling {
        let by_search = program.can_be_partitioned_by_search() && code.finds_searches();
        if program.has_flows() || by_search && code.always_prefetches() {
            Scheduling::Partitioned
        } else if by_search {
            let first_trial = FIRST_SCHEDULE_TRIAL * SAMPLE_PACKETS as u64;
            Scheduling::Fastest(Mutex::new(VariantSelector::new(2).with_first_trial_after(first_trial)))
        } else {
            Scheduling::AnyOrder
        }
    }
}

/// The compiled code, and everything that pool threads need to run it.
pub(super) struct Shared {
    pub program: Arc<Program>,
    pub code: FilterCode,
    /// Code that computes flow numbers, for filters with flows.
    pub flows: Option<FilterCode>,
    scheduling: Scheduling,
    pub maps: Maps,
    /// Runs batches one after another, for filters whose packets share maps or flows.
    pub sequencer: Option<BatchSequencer>,
    selector: Mutex<VariantSelector>,
    /// Maximum number of packets in a chunk; see [`max_chunk`].
    pub max_chunk: usize,
    /// Recent time for 1,024 packets on one thread, in nanoseconds.
    pace: AtomicU64,
    pub(super) synthetic_work: Option<SyntheticWork>,
    pub cancel: CancelToken,
    pub workers: Workers,
    /// Whether callers wait for each batch as soon as they have submitted it
    /// ([`Dispatch::Inline`]).
    ///
    /// [`Dispatch::Inline`]: portcullis_core::device::Dispatch::Inline
    pub is_inline: bool,
    /// Number of packets of the last batch for several threads.
    last_packets: AtomicUsize,
    /// Buffers of partitioned batches that are done, for the next ones.
    pub partition_buffers: Mutex<Vec<PartitionBuffers>>,
    /// Columns of default metadata of batches that are done, for the next ones.
    pub metadata_columns: Mutex<Vec<Column<Metadata>>>,
}

impl Shared {
    /// Starts the pool and allocates the maps. Parameters as for
    /// [`CpuSession::new`](super::CpuSession::new).
    pub fn new(
        program: Arc<Program>,
        code: FilterCode,
        flows: Option<FilterCode>,
        work: Option<NonZeroU64>,
        is_inline: bool,
        options: &LoadOptions,
    ) -> Result<Shared, DeviceError> {
        let workers = Workers::new(options.threads.map(NonZeroUsize::get), options.idle_spin).map_err(|error| {
            let system = error.source().and_then(|source| source.downcast_ref());
            let cause = system.map_or_else(|| error.to_string(), reason);
            failed(format!("cannot start worker threads (try fewer): {cause}"))
        })?;
        let selector = Mutex::new(VariantSelector::new(code.variant_count()));
        let chunk_of_flows = program.flow_program().zip(flows.as_ref());
        let chunk_of_flows = chunk_of_flows.map(|(program, code)| max_chunk(&program, code.operations, 0));
        let max_chunk = max_chunk(&program, code.operations, work.map_or(0, NonZeroU64::get));
        let max_chunk = max_chunk.min(chunk_of_flows.unwrap_or(usize::MAX));
        let shares_state = !program.maps().is_empty() || flows.is_some();
        Ok(Shared {
            scheduling: Scheduling::of(&program, &code),
            maps: Maps::new(program.maps(), if workers.count() > 1 { workers.count() + 1 } else { 1 })?,
            sequencer: shares_state.then(|| BatchSequencer::new(&program)),
            program,
            code,
            flows,
            selector,
            max_chunk,
            pace: AtomicU64::new(INITIAL_NANOS_PER_PACKET * 1024),
            synthetic_work: work.map(SyntheticWork::new),
            cancel: options.cancel.clone(),
            workers,
            is_inline,
            last_packets: AtomicUsize::new(0),
            partition_buffers: Mutex::new(Vec::new()),
            metadata_columns: Mutex::new(Vec::new()),
        })
    }

    /// Returns the variant for the next packets, and how many of them to run through it. The caller
    /// must report back with [`record_time`](Shared::record_time), even if no packets were left.
    fn next_assignment(&self) -> Assignment {
        let variants = self.code.variant_count();
        if variants < 2 {
            return Assignment::unsampled(0);
        }
        // A panic halfway through a change does no harm: the selector only affects speed.
        let mut selector = self.selector.lock().unwrap_or_else(PoisonError::into_inner);
        selector.add_variants(variants);
        selector.next_assignment()
    }

    /// Records how long an assignment took and how many packets it ran.
    fn record_time(&self, assignment: Assignment, packets: usize, time: Duration) {
        self.record_use(&self.code, time);
        if self.code.variant_count() >= 2 {
            self.selector.lock().unwrap_or_else(PoisonError::into_inner).record(assignment, packets, time);
        }
    }

    /// Decides whether the next batch for several threads is filtered in partitions. The
    /// assignment, if any, is for [`record_batch_time`](Shared::record_batch_time).
    pub fn next_schedule(&self, packets: usize) -> (bool, Option<Assignment>) {
        match &self.scheduling {
            Scheduling::AnyOrder => (false, None),
            Scheduling::Partitioned => (true, None),
            Scheduling::Fastest(selector) => {
                let mut selector = selector.lock().unwrap_or_else(PoisonError::into_inner);
                // Packets of batches of different sizes take different times.
                let last = self.last_packets.swap(packets, Ordering::Relaxed);
                if packets.abs_diff(last) > last / 4 {
                    return (selector.current() == PARTITIONED, None);
                }
                let assignment = selector.next_assignment();
                (assignment.variant == PARTITIONED, Some(assignment))
            }
        }
    }

    /// Records how long a batch took that was scheduled with an assignment.
    pub fn record_batch_time(&self, assignment: Assignment, packets: usize, time: Duration) {
        if let Scheduling::Fastest(selector) = &self.scheduling {
            // A trial costs as many batches as it has samples, however large they are.
            let time = time.mul_f64(SAMPLE_PACKETS as f64 / packets as f64);
            selector.lock().unwrap_or_else(PoisonError::into_inner).record(assignment, SAMPLE_PACKETS, time);
        }
    }

    /// Records that code ran for a time; after enough of it, more of the code is compiled in the
    /// background.
    pub fn record_use(&self, code: &FilterCode, time: Duration) {
        if let Some(background) = code.background()
            && background.record_filtering(time)
        {
            // Start it from a worker: a new thread inherits the CPU affinity of the one that starts
            // it, and the caller's may be pinned.
            if self.workers.has_current_thread() {
                background.start();
            } else if background.should_request_start() {
                // Workers that are awake do not see this, but they filter and come here themselves.
                let background = background.clone();
                self.workers.spawn(move || background.start());
            }
        }
    }

    /// Filters packets with the variants that are assigned to them, in chunks; stops between two of
    /// them when `is_cancelled` says so.
    ///
    /// # Safety
    ///
    /// As for [`FilterCode::run`].
    pub unsafe fn run_in_chunks(
        &self,
        context: &BatchContext,
        packets: Range<usize>,
        variants: &mut VariantTimer<'_>,
        is_cancelled: impl Fn() -> bool,
    ) {
        let mut start = packets.start;
        while start < packets.end && !is_cancelled() {
            let (variant, most) = variants.next(self.max_chunk);
            let end = start.saturating_add(most).min(packets.end);
            // SAFETY: by the caller's promise.
            variants.time(end - start, || unsafe { self.run(variant, context, start, end) });
            start = end;
        }
    }

    /// Filters packets with a variant, then does the synthetic work for each.
    ///
    /// # Safety
    ///
    /// As for [`FilterCode::run`].
    pub unsafe fn run(&self, variant: usize, context: &BatchContext, start: usize, end: usize) {
        let maps = self.maps.addresses(self.workers.current_thread());
        let context = &BatchContext { maps, ..*context };
        // SAFETY: by the caller's promise.
        unsafe { self.code.run(variant, context, start, end) };
        if let Some(work) = &self.synthetic_work {
            work.burn(end - start);
        }
    }

    /// Updates the estimate of time per packet.
    pub fn record_pace(&self, nanos: u64, packets: usize) {
        if packets > 0 {
            // Threads that wait for memory take longer, and must not ask for more threads at once.
            let (last, now) = (self.pace.load(Ordering::Relaxed), nanos.saturating_mul(1024) / packets as u64);
            self.pace.store(now.min(last / 2 + now / 2), Ordering::Relaxed);
        }
    }

    /// Estimates how many packets one thread filters in `nanos` nanoseconds.
    pub fn packets_in(&self, nanos: u64) -> usize {
        usize::try_from(nanos * 1024 / self.pace.load(Ordering::Relaxed).max(1)).unwrap_or(usize::MAX)
    }

    /// Estimates how many threads to use for a batch, `callers` of which are no workers; 0 if the
    /// caller's own thread is enough.
    pub fn estimate_threads(&self, packets: usize, callers: usize) -> usize {
        let nanos = (packets as u64).saturating_mul(self.pace.load(Ordering::Relaxed)) / 1024;
        let worth = self.workers.estimate_threads(nanos, callers);
        if self.fits_callers_stack() { worth } else { worth.max(1) }
    }

    /// Whether threads with little stack may run the code.
    pub fn fits_callers_stack(&self) -> bool {
        let of_flows = self.flows.as_ref().map_or(0, |flows| flows.stack_bytes);
        self.code.stack_bytes.max(of_flows) <= CALLER_STACK_BYTES
    }
}

/// Time after which a thread asks again which variant to use, in nanoseconds. All threads share the
/// selector's lock.
const ASSIGNMENT_NANOS: u64 = 20_000;

/// A thread's times of the variants that are assigned to it. They are recorded when it asks for
/// another assignment, and when this is dropped.
pub(super) struct VariantTimer<'a> {
    shared: &'a Shared,
    assignment: Option<Assignment>,
    packets: usize,
    nanos: u64,
    /// Time of all assignments in nanoseconds.
    pub total_nanos: u64,
}

impl VariantTimer<'_> {
    pub fn new(shared: &Shared) -> VariantTimer<'_> {
        VariantTimer { shared, assignment: None, packets: 0, nanos: 0, total_nanos: 0 }
    }

    /// Returns the variant for the next packets, and the maximum number of packets to run through
    /// it, at most `most`.
    pub fn next(&mut self, most: usize) -> (usize, usize) {
        if self
            .assignment
            .is_some_and(|assignment| self.nanos >= ASSIGNMENT_NANOS || self.packets >= assignment.max_packets)
        {
            self.record();
        }
        let assignment = *self.assignment.get_or_insert_with(|| self.shared.next_assignment());
        (assignment.variant, (assignment.max_packets - self.packets).min(most))
    }

    /// Times the filtering of `packets` packets.
    pub fn time(&mut self, packets: usize, work: impl FnOnce()) {
        let begin = Instant::now();
        work();
        self.packets += packets;
        let nanos = nanoseconds(begin.elapsed());
        self.nanos += nanos;
        self.total_nanos += nanos;
    }

    fn record(&mut self) {
        if let Some(assignment) = self.assignment.take() {
            self.shared.record_time(assignment, self.packets, Duration::from_nanos(self.nanos));
            (self.packets, self.nanos) = (0, 0);
        }
    }
}

impl Drop for VariantTimer<'_> {
    fn drop(&mut self) {
        self.record();
    }
}

/// A time in nanoseconds.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns how many packets a chunk may have so that it ends within [`MAX_CHUNK_NANOS`] even if
/// every packet uses up its fuel. `operations` is the size of the code, `work` the additional time
/// per packet in nanoseconds.
pub(crate) fn max_chunk(program: &Program, operations: u64, work: u64) -> usize {
    let iterations = program.facts().max_iterations.unwrap_or(u32::MAX).min(program.fuel());
    // An iteration executes each operation at most once.
    let worst = (u64::from(iterations) + 1)
        .saturating_mul(operations.max(1))
        .saturating_mul(NANOS_PER_OPERATION)
        .saturating_add(work);
    (MAX_CHUNK_NANOS / worst).clamp(1, MAX_CHUNK as u64) as usize
}
