//! State that a session shares with the threads of its pool.

use std::error::Error;
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use portcullis_core::device::{CancelToken, DeviceError, LoadOptions};
use portcullis_core::program::Program;
use portcullis_core::reason;
use rayon::ThreadPool;

use super::sequencer::BatchSequencer;
use super::synthetic_work::SyntheticWork;
use super::variant_selector::{Assignment, VariantSelector};
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

/// Work for which waking a thread pays, in nanoseconds: about what it costs to wake it, and what it
/// costs the other threads when it goes back to sleep.
pub(super) const THREAD_WAKE_NANOS: u64 = 50_000;

/// Estimated time per packet before any has been measured, in nanoseconds.
const INITIAL_NANOS_PER_PACKET: u64 = 300;

/// Stack that code may need and still be run on the caller's thread, in bytes. Threads with as
/// little as 128 KiB are common on some systems.
pub(crate) const CALLER_STACK_BYTES: usize = 64 << 10;

/// Stack of a pool thread in bytes: the filter's variables (16 KiB per packet), and 8 bytes per
/// operation in case the compiler spills every result. It is reserved address space, not memory in
/// use.
const WORKER_STACK_BYTES: usize = 64 << 20;

/// The compiled code, and everything that pool threads need to run it.
pub(super) struct Shared {
    pub program: Arc<Program>,
    pub code: FilterCode,
    /// Code that computes flow numbers, for filters with flows.
    pub flows: Option<FilterCode>,
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
    pub pool: ThreadPool,
}

impl Shared {
    /// Starts the pool and allocates the maps. Parameters as for
    /// [`CpuSession::new`](super::CpuSession::new).
    pub fn new(
        program: Arc<Program>,
        code: FilterCode,
        flows: Option<FilterCode>,
        work: Option<NonZeroU64>,
        options: &LoadOptions,
    ) -> Result<Shared, DeviceError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(options.threads.map_or(0, NonZeroUsize::get))
            .stack_size(WORKER_STACK_BYTES)
            .thread_name(|i| format!("portcullis-cpu-{i}"))
            .build()
            .map_err(|error| {
                let system = error.source().and_then(|source| source.downcast_ref());
                let cause = system.map_or_else(|| error.to_string(), reason);
                failed(format!("cannot start worker threads (try fewer): {cause}"))
            })?;
        let selector = Mutex::new(VariantSelector::new(code.variant_count()));
        let operations = flows.iter().map(|flows| flows.operations).fold(code.operations, u64::max);
        let max_chunk = max_chunk(&program, operations, work.map_or(0, NonZeroU64::get));
        let shares_state = !program.maps().is_empty() || flows.is_some();
        Ok(Shared {
            maps: Maps::new(program.maps())?,
            sequencer: shares_state.then(|| BatchSequencer::new(&program)),
            program,
            code,
            flows,
            selector,
            max_chunk,
            pace: AtomicU64::new(INITIAL_NANOS_PER_PACKET * 1024),
            synthetic_work: work.map(SyntheticWork::new),
            cancel: options.cancel.clone(),
            pool,
        })
    }

    /// Returns the variant for the next packets, and how many of them to run through it. The caller
    /// must report back with [`record_time`](Shared::record_time), even if no packets were left.
    pub fn next_assignment(&self) -> Assignment {
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
    pub fn record_time(&self, assignment: Assignment, packets: usize, time: Duration) {
        if let Some(background) = self.code.background()
            && background.record_filtering(time)
        {
            // Start it from a pool thread: a new thread inherits the CPU affinity of the one that
            // starts it, and the caller's may be pinned.
            let background = background.clone();
            self.pool.spawn(move || background.start());
        }
        if self.code.variant_count() >= 2 {
            self.selector.lock().unwrap_or_else(PoisonError::into_inner).record(assignment, packets, time);
        }
    }

    /// Filters packets with a variant, then does the synthetic work for each.
    ///
    /// # Safety
    ///
    /// As for [`FilterCode::run`].
    pub unsafe fn run(&self, variant: usize, context: &BatchContext, start: usize, end: usize) {
        // SAFETY: by the caller's promise.
        unsafe { self.code.run(variant, context, start, end) };
        if let Some(work) = &self.synthetic_work {
            work.burn(end - start);
        }
    }

    /// Updates the estimate of time per packet.
    pub fn record_pace(&self, nanos: u64, packets: usize) {
        if packets > 0 {
            self.pace.store(nanos.saturating_mul(1024) / packets as u64, Ordering::Relaxed);
        }
    }

    /// Returns how many pool threads a batch is worth; 0 if the caller's own thread is enough.
    pub fn threads_worth_waking(&self, packets: usize) -> usize {
        let threads = self.pool.current_num_threads();
        let nanos = (packets as u64).saturating_mul(self.pace.load(Ordering::Relaxed)) / 1024;
        let worth = usize::try_from(nanos / THREAD_WAKE_NANOS).unwrap_or(usize::MAX).min(threads);
        if self.code.stack_bytes > CALLER_STACK_BYTES { worth.max(1) } else { worth }
    }
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
