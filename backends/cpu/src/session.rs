//! A program loaded on the CPU: batches go to a pool of threads and come back in order.

use std::collections::VecDeque;
use std::error::Error;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use portcullis_core::device::{
    CancelToken, DeviceError, Done, Imported, LoadOptions, Session, StageTimes, SubmitError, check_submission,
};
use portcullis_core::packet::{Batch, Descriptor, Metadata, Span, Verdicts};
use portcullis_core::program::Program;
use portcullis_core::reason;
use rayon::ThreadPool;
use rayon::prelude::*;

use crate::failed;
use crate::memory::{Code, Context};

/// The most packets that a thread takes at once: enough to make the call free, few enough for
/// threads to share the work evenly.
const MAX_PIECE: usize = 16_384;

/// Packets for which another thread is worth waking.
const WORTH_A_THREAD: usize = 64;

/// Between pieces the cancel token is looked at. A filter may take a second for one packet (32,768
/// rounds of a long loop), so a piece begins with one packet and grows as the time allows.
const PIECE_TIME: Duration = Duration::from_millis(20);

/// Stack of a thread that runs filters: their variables (16 KiB a packet), and 8 bytes for each
/// operation at the very worst, if the compiler had to keep every result there. It is reserved, not
/// used.
const STACK: usize = 64 << 20;

/// The code and what else the pool's threads need.
struct Shared {
    program: Arc<Program>,
    code: Code,
    cancel: CancelToken,
}

pub(crate) struct CpuSession {
    shared: Arc<Shared>,
    pool: ThreadPool,
    queue: VecDeque<Receiver<Result<Done, DeviceError>>>,
    depth: usize,
}

impl CpuSession {
    pub fn new(program: Arc<Program>, code: Code, options: &LoadOptions) -> Result<CpuSession, DeviceError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(options.threads.map_or(0, NonZeroUsize::get))
            .stack_size(STACK)
            .thread_name(|i| format!("portcullis-cpu-{i}"))
            .build()
            .map_err(|error| {
                let system = error.source().and_then(|source| source.downcast_ref());
                failed(format!("no threads, take fewer: {}", system.map_or_else(|| error.to_string(), reason)))
            })?;
        let shared = Arc::new(Shared { program, code, cancel: options.cancel.clone() });
        Ok(CpuSession { shared, pool, queue: VecDeque::new(), depth: options.depth.max(1) })
    }
}

impl Session for CpuSession {
    fn import(&mut self, _: &Arc<Span>) -> Result<Imported, DeviceError> {
        Ok(Imported::InPlace)
    }

    fn submit(&mut self, batch: Batch) -> Result<(), SubmitError> {
        if let Err(error) = check_submission(&self.shared.program, &batch, self.queue.len(), self.depth) {
            return Err(SubmitError { batch: Box::new(batch), error });
        }
        let (sender, receiver) = channel();
        let shared = self.shared.clone();
        self.pool.spawn(move || {
            // Nobody waiting any more is no fault: the session was dropped.
            let _ = sender.send(run(&shared, batch));
        });
        self.queue.push_back(receiver);
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Done>, DeviceError> {
        let Some(receiver) = self.queue.pop_front() else { return Ok(None) };
        match receiver.recv() {
            Ok(done) => done.map(Some),
            Err(_) => Err(failed("a thread ended without an answer".into())),
        }
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

/// A pointer that threads may share; what each may touch behind it, `run` says.
struct Shareable<T>(*mut T);

// SAFETY: a pointer is only a number; every use of it has its own reason.
unsafe impl<T> Sync for Shareable<T> {}

impl<T> Shareable<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

fn run(shared: &Shared, mut batch: Batch) -> Result<Done, DeviceError> {
    let started = Instant::now();
    let (facts, n) = (shared.program.facts(), batch.len());
    let mut verdicts = vec![0u8; n];
    let mut targets = vec![0u32; if facts.redirects { n } else { 0 }];
    let mut resized = if facts.changes_length { vec![Descriptor::default(); n] } else { Vec::new() };
    let made_up: Vec<Metadata>;
    let metadata = if facts.uses_metadata && batch.metadata().is_empty() {
        made_up = (0..n).map(|i| batch.metadata_of(i)).collect();
        &made_up[..]
    } else {
        batch.metadata()
    };
    let finished = {
        let arena = Shareable(batch.span().as_ptr());
        let (verdicts, targets, resized) =
            (Shareable(verdicts.as_mut_ptr()), Shareable(targets.as_mut_ptr()), Shareable(resized.as_mut_ptr()));
        let (descriptors, metadata) = (batch.descriptors(), metadata);
        let next = AtomicUsize::new(0);
        // What one thread does: takes pieces until none is left. False if it was cancelled.
        let work = |_| {
            let context = Context {
                arena: arena.get(),
                descriptors: descriptors.as_ptr(),
                verdicts: verdicts.get(),
                targets: targets.get(),
                metadata: metadata.as_ptr(),
                tables: shared.code.tables(),
                resized: resized.get(),
                runtime: shared.code.runtime(),
            };
            let mut piece = 1;
            loop {
                let start = next.fetch_add(piece, Ordering::Relaxed);
                if start >= n {
                    return true;
                }
                if shared.cancel.is_cancelled() {
                    return false;
                }
                let begun = Instant::now();
                // SAFETY: the batch is ours, so its packets (and their rooms, which
                // `check_submission` made sure of) are; a batch's descriptors lie in its arena,
                // which is readable past its end; the columns are as long as the batch where the
                // program uses them; no two pieces have a packet in common, and packets share no
                // word.
                unsafe { shared.code.run(&context, start, (start + piece).min(n)) };
                let took = begun.elapsed();
                if took < PIECE_TIME / 4 {
                    piece = (piece * 4).min(MAX_PIECE);
                } else if took > PIECE_TIME {
                    piece = (piece / 2).max(1);
                }
            }
        };
        let threads = rayon::current_num_threads().min(n.div_ceil(WORTH_A_THREAD));
        if threads <= 1 {
            work(0)
        } else {
            (0..threads).into_par_iter().with_max_len(1).map(work).reduce(|| true, |a, b| a && b)
        }
    };
    if !finished {
        return Err(DeviceError::Cancelled);
    }
    if facts.changes_length {
        batch.resize(resized).map_err(|error| DeviceError::Broken { device: "cpu".into(), error })?;
    }
    let verdicts = Verdicts::new(verdicts, targets);
    Ok(Done { batch, verdicts, times: StageTimes { kernel: started.elapsed(), ..StageTimes::default() } })
}
