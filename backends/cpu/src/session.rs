//! A program loaded on the CPU: batches go to a pool of threads and come back in order.

use std::collections::VecDeque;
use std::error::Error;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use portcullis_core::device::{
    CancelToken, DeviceError, Done, Imported, LoadOptions, Session, StageTimes, SubmitError, check_submission,
};
use portcullis_core::packet::{Batch, Descriptor, Metadata, Span, Verdicts};
use portcullis_core::program::Program;
use portcullis_core::reason;
use rayon::ThreadPool;
use rayon::prelude::*;

use crate::choice::Choice;
use crate::failed;
use crate::memory::{Code, Context};

/// The most packets that a thread takes at once: enough to make the call free, few enough for
/// threads to share the work evenly.
const MAX_PIECE: usize = 16_384;

/// What a piece may take at the very worst, in nanoseconds: between pieces the cancel token is
/// looked at, and nobody wants to wait longer for Ctrl-C to be heard.
const MAX_PIECE_TIME: u64 = 1_000_000_000;

/// What a scalar operation takes, rather too much, in nanoseconds.
const OPERATION_TIME: u64 = 2;

/// Packets for which another thread is worth waking.
const WORTH_A_THREAD: usize = 64;

/// Packets that are done before another thread has woken up.
const NOT_WORTH_WAITING: usize = 256;

/// Stack that code may need to be run on the caller's thread; the smallest that is usual has 2 MiB.
const CALLERS_STACK: usize = 256 << 10;

/// Stack of a thread that runs filters: their variables (16 KiB a packet), and 8 bytes for each
/// operation at the very worst, if the compiler had to keep every result there. It is reserved, not
/// used.
const STACK: usize = 64 << 20;

/// The code and what else the pool's threads need.
struct Shared {
    program: Arc<Program>,
    code: Code,
    choice: Mutex<Choice>,
    /// Packets of a piece, at most.
    piece: usize,
    cancel: CancelToken,
}

impl Shared {
    fn choice<T>(&self, ask: impl FnOnce(&mut Choice) -> T) -> T {
        // Half a change to it is no harm: it is about speed alone.
        ask(&mut self.choice.lock().unwrap_or_else(PoisonError::into_inner))
    }
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
        let choice = Mutex::new(Choice::new(code.len()));
        let piece = piece(&program, code.operations);
        let shared = Arc::new(Shared { program, code, choice, piece, cancel: options.cancel.clone() });
        Ok(CpuSession { shared, pool, queue: VecDeque::new(), depth: options.depth.max(1) })
    }
}

/// Packets that may be taken at once of a program of so many scalar operations: as many as a second
/// is enough for, if each of them burns all the fuel.
fn piece(program: &Program, operations: u64) -> usize {
    let rounds = program.facts().max_iterations.unwrap_or(u32::MAX).min(program.fuel());
    // A round executes each operation once at most.
    let worst = (u64::from(rounds) + 1).saturating_mul(operations.max(1)).saturating_mul(OPERATION_TIME);
    (MAX_PIECE_TIME / worst).clamp(1, MAX_PIECE as u64) as usize
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
        let (shared, threads) = (self.shared.clone(), self.pool.current_num_threads());
        self.pool.spawn(move || {
            // Nobody waiting any more is no fault: the session was dropped.
            let _ = sender.send(run(&shared, batch, threads));
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

    fn run(&mut self, batch: Batch) -> Result<Done, DeviceError> {
        assert_eq!(self.in_flight(), 0, "run needs an idle session");
        let alone = self.pool.current_num_threads() == 1 || batch.len() <= NOT_WORTH_WAITING;
        if alone && self.shared.code.stack <= CALLERS_STACK {
            check_submission(&self.shared.program, &batch, 0, self.depth)?;
            return run(&self.shared, batch, 1);
        }
        self.submit(batch).map_err(|refused| refused.error)?;
        Ok(self.complete()?.expect("one batch is in flight"))
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

/// Filters a batch, on so many threads of the pool that this is called in, or on this thread alone.
fn run(shared: &Shared, mut batch: Batch, threads: usize) -> Result<Done, DeviceError> {
    let started = Instant::now();
    let (facts, n) = (shared.program.facts(), batch.len());
    // Written once, by the code: clearing them before would take as long as a simple filter does.
    let mut verdicts = Vec::<u8>::with_capacity(n);
    let mut targets = Vec::<u32>::with_capacity(if facts.redirects { n } else { 0 });
    let mut resized = Vec::<Descriptor>::with_capacity(if facts.changes_length { n } else { 0 });
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
            let mut context = Context {
                arena: arena.get(),
                descriptors: descriptors.as_ptr(),
                verdicts: verdicts.get(),
                targets: targets.get(),
                metadata: metadata.as_ptr(),
                tables: std::ptr::null(),
                resized: resized.get(),
                runtime: shared.code.runtime(),
            };
            loop {
                let (code, wanted) = shared.choice(Choice::next);
                let piece = wanted.min(shared.piece);
                let start = next.fetch_add(piece, Ordering::Relaxed);
                if start >= n {
                    return true;
                }
                if shared.cancel.is_cancelled() {
                    return false;
                }
                let end = (start + piece).min(n);
                context.tables = shared.code.tables(code);
                let begun = Instant::now();
                // SAFETY: the batch is ours, so its packets (and their rooms, which
                // `check_submission` made sure of) are; a batch's descriptors lie in its arena,
                // which is readable past its end; the columns are as long as the batch where the
                // program uses them; no two pieces have a packet in common, and packets share no
                // word.
                unsafe { shared.code.run(code, &context, start, end) };
                shared.choice(|choice| choice.took(code, end - start, begun.elapsed()));
            }
        };
        let threads = threads.min(n.div_ceil(WORTH_A_THREAD));
        if threads <= 1 {
            work(0)
        } else {
            (0..threads).into_par_iter().with_max_len(1).map(work).reduce(|| true, |a, b| a && b)
        }
    };
    if !finished {
        return Err(DeviceError::Cancelled);
    }
    // SAFETY: each has room for as many, and the code has written one for each packet (where the
    // facts say that it writes such a column): every piece was run to its end.
    unsafe {
        verdicts.set_len(n);
        targets.set_len(if facts.redirects { n } else { 0 });
        resized.set_len(if facts.changes_length { n } else { 0 });
    }
    if facts.changes_length {
        batch.resize(resized).map_err(|error| DeviceError::Broken { device: "cpu".into(), error })?;
    }
    let verdicts = Verdicts::from_columns(verdicts, targets);
    Ok(Done { batch, verdicts, times: StageTimes { kernel: started.elapsed(), ..StageTimes::default() } })
}
