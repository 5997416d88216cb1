//! One batch on its way: shared by the threads that filter it, and taken apart by the last of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use portcullis_core::device::{DeviceError, Done, StageTimes};
use portcullis_core::packet::{Batch, Descriptor, Metadata, Verdicts};

use super::{Choice, Shared};
use crate::memory::Context;

/// The fewest packets that a thread takes at once, where the filter may be given as many.
const MIN_PIECE: usize = 64;

/// Pieces for each thread: so that all end at about the same time.
const PIECES: usize = 4;

pub(super) struct Job {
    shared: Arc<Shared>,
    batch: Batch,
    verdicts: Vec<u8>,
    targets: Vec<u32>,
    resized: Vec<Descriptor>,
    /// What the code reads and writes, all of it owned by the fields above (and below, for
    /// metadata that the batch has not).
    context: Context,
    _metadata: Vec<Metadata>,
    threads: usize,
    /// Packets that a thread takes at once, at most.
    piece: usize,
    /// The first packet that nobody has taken.
    next: AtomicUsize,
    cancelled: AtomicBool,
    /// Time spent filtering, all threads together, in nanoseconds.
    busy: AtomicU64,
    sender: Sender<Result<Done, DeviceError>>,
}

// SAFETY: threads share a job to call `work`, which touches nothing but atomics, the shared session,
// and, through the context, packets and columns of which each thread has its own part. All that the
// context points to is owned by the job and may be sent to another thread.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Job {
    /// A batch that nobody has begun with, for so many threads.
    pub fn new(shared: Arc<Shared>, batch: Batch, threads: usize, sender: Sender<Result<Done, DeviceError>>) -> Job {
        let (facts, n) = (shared.program.facts(), batch.len());
        // Written once, by the code: clearing them before would take as long as a simple filter does.
        let mut verdicts = Vec::<u8>::with_capacity(n);
        let mut targets = Vec::<u32>::with_capacity(if facts.redirects { n } else { 0 });
        let mut resized = Vec::<Descriptor>::with_capacity(if facts.changes_length { n } else { 0 });
        let made_up: Vec<Metadata> = if facts.uses_metadata && batch.metadata().is_empty() {
            (0..n).map(|i| batch.metadata_of(i)).collect()
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
        };
        Job {
            batch,
            verdicts,
            targets,
            resized,
            context,
            _metadata: made_up,
            threads,
            piece: (n / (threads * PIECES)).max(MIN_PIECE).min(shared.piece),
            next: AtomicUsize::new(0),
            cancelled: AtomicBool::new(false),
            busy: AtomicU64::new(0),
            sender,
            shared,
        }
    }

    /// Takes pieces until none is left, and ends the job if all others have ended.
    pub fn work(self: Arc<Job>) {
        self.filter();
        if let Some(job) = Arc::into_inner(self) {
            let sender = job.sender.clone();
            // Nobody waiting any more is no fault: the session was dropped.
            let _ = sender.send(job.finish());
        }
    }

    fn filter(&self) {
        let (shared, n) = (&*self.shared, self.batch.len());
        let mut context = self.context;
        loop {
            let (code, wanted) = shared.choice(Choice::next);
            let piece = wanted.min(self.piece);
            let start = self.next.fetch_add(piece, Ordering::Relaxed);
            if start >= n {
                return;
            }
            if shared.cancel.is_cancelled() {
                return self.cancelled.store(true, Ordering::Relaxed);
            }
            let end = (start + piece).min(n);
            context.tables = shared.code.tables(code);
            let begun = Instant::now();
            // SAFETY: the batch is ours, so its packets (and their rooms, which `check_submission`
            // made sure of) are; a batch's descriptors lie in its arena, which is readable past its
            // end; the columns have room for the whole batch where the program uses them; no two
            // pieces have a packet in common, and packets share no word.
            unsafe { shared.code.run(code, &context, start, end) };
            let took = begun.elapsed();
            shared.choice(|choice| choice.took(code, end - start, took));
            self.busy.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// The batch as the filter left it; every piece that was taken has been run to its end.
    fn finish(self) -> Result<Done, DeviceError> {
        let Job { shared, mut batch, mut verdicts, mut targets, mut resized, threads, cancelled, busy, .. } = self;
        if cancelled.into_inner() {
            return Err(DeviceError::Cancelled);
        }
        let (facts, n, busy) = (shared.program.facts(), batch.len(), busy.into_inner());
        shared.note_pace(busy, n);
        let kernel = Duration::from_nanos(busy) / threads as u32;
        // SAFETY: each has room for as many, and the code has written one for each packet, where the
        // facts say that it writes such a column.
        unsafe {
            verdicts.set_len(n);
            targets.set_len(if facts.redirects { n } else { 0 });
            resized.set_len(if facts.changes_length { n } else { 0 });
        }
        if facts.changes_length {
            batch.resize(resized).map_err(|error| DeviceError::Broken { device: "cpu".into(), error })?;
        }
        let verdicts = Verdicts::from_columns(verdicts, targets);
        Ok(Done { batch, verdicts, times: StageTimes { kernel, ..StageTimes::default() } })
    }
}
