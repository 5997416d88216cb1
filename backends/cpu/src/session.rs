//! A program loaded on the CPU: batches go to a pool of threads and come back in order.

mod choice;
mod gate;
mod job;
mod work;

use std::collections::VecDeque;
use std::error::Error;
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use portcullis_core::device::{
    CancelToken, Completion, DeviceError, Imported, LoadOptions, Session, Stages, SubmitError, check_map_range,
    check_submission, map_layout,
};
use portcullis_core::packet::{Batch, Span};
use portcullis_core::program::Program;
use portcullis_core::reason;
use rayon::ThreadPool;

use crate::failed;
use crate::maps::Maps;
use crate::memory::{Code, Context};
use choice::{Choice, Turn};
use gate::Gate;
use job::{Job, MIN_PIECE};
use work::Work;

/// The most packets that a thread takes at once: enough to make the call free, few enough for
/// threads to share the work evenly.
const MAX_PIECE: usize = 16_384;

/// What a piece may take at the very worst, in nanoseconds: between pieces the cancel token is
/// looked at, and nobody wants to wait longer for Ctrl-C to be heard.
const MAX_PIECE_TIME: u64 = 1_000_000_000;

/// What a scalar operation takes, rather too much, in nanoseconds.
const OPERATION_TIME: u64 = 2;

/// Work for which a thread is worth waking, in nanoseconds: about what waking one costs, and what it
/// costs the others when it goes back to sleep.
const WORTH_A_THREAD: u64 = 50_000;

/// What a packet takes, while nobody knows, in nanoseconds.
const PACKET_TIME: u64 = 300;

/// Stack that code may need to be run on the caller's thread. Threads with as little as 128 KiB are
/// usual on some systems.
pub(crate) const CALLERS_STACK: usize = 64 << 10;

/// Stack of a thread that runs filters: their variables (16 KiB a packet), and 8 bytes for each
/// operation at the very worst, if the compiler had to keep every result there. It is reserved, not
/// used.
const STACK: usize = 64 << 20;

/// The code and what else the pool's threads need.
struct Shared {
    program: Arc<Program>,
    code: Code,
    /// What gives the numbers of packets' flows, where the filter has any.
    flows: Option<Code>,
    maps: Maps,
    /// For filters whose packets share something: their batches come one after the other.
    gate: Option<Gate>,
    choice: Mutex<Choice>,
    /// Packets of a piece, at most.
    piece: usize,
    /// What 1,024 packets took on one thread, in nanoseconds, lately.
    pace: AtomicU64,
    work: Option<Work>,
    cancel: CancelToken,
    pool: ThreadPool,
}

impl Shared {
    /// The code for the next packets, and how many of them it should get at most.
    fn next_turn(&self) -> Turn {
        let codes = self.code.len();
        if codes < 2 {
            return Turn::of(0);
        }
        // Half a change to it is no harm: it is about speed alone.
        let mut choice = self.choice.lock().unwrap_or_else(PoisonError::into_inner);
        choice.grow(codes);
        choice.next()
    }

    /// Takes note of how long a turn took, and for how many packets. Each is to be told, though there were none.
    fn took(&self, turn: Turn, packets: usize, time: Duration) {
        if let Some(late) = self.code.late()
            && late.filtered(time)
        {
            // From a thread of the pool, which may be on any processor: the caller's may be kept on one.
            let late = late.clone();
            self.pool.spawn(move || late.begin());
        }
        if self.code.len() >= 2 {
            self.choice.lock().unwrap_or_else(PoisonError::into_inner).took(turn, packets, time);
        }
    }

    /// Filters packets, each of which then takes what work was asked for.
    ///
    /// # Safety
    /// As [`Code::run`]'s.
    unsafe fn run(&self, code: usize, context: &Context, start: usize, end: usize) {
        // SAFETY: by the caller's promise.
        unsafe { self.code.run(code, context, start, end) };
        if let Some(work) = &self.work {
            work.keep(end - start);
        }
    }

    fn note_pace(&self, nanos: u64, packets: usize) {
        if packets > 0 {
            self.pace.store(nanos.saturating_mul(1024) / packets as u64, Ordering::Relaxed);
        }
    }

    /// How many threads are worth waking for so many packets; 0 where the caller's own is enough.
    fn worth(&self, packets: usize) -> usize {
        let threads = self.pool.current_num_threads();
        let work = (packets as u64).saturating_mul(self.pace.load(Ordering::Relaxed)) / 1024;
        let worth = usize::try_from(work / WORTH_A_THREAD).unwrap_or(usize::MAX).min(threads);
        if self.code.stack > CALLERS_STACK { worth.max(1) } else { worth }
    }

    /// Whether whoever asks for a batch may filter it alone: so few packets are one piece, of which nobody else could take a part,
    /// and no other batch waits for this one.
    fn is_for_one(&self, threads: usize, packets: usize) -> bool {
        threads == 0 && packets <= MIN_PIECE && self.gate.is_none()
    }
}

/// A batch in flight.
enum Queued {
    /// Whoever asks for it is the one to filter it, alone.
    Own(Batch),
    /// Threads of the pool filter it, and where it is `own`, whoever asks for it.
    Job { job: Arc<Job>, own: bool },
    /// What came of it, where somebody had to know that it was done.
    Ended(Box<Result<Completion, DeviceError>>),
}

impl Queued {
    /// Waits until the batch is done, or filters it.
    fn end(self, shared: &Shared) -> Result<Completion, DeviceError> {
        match self {
            Queued::Own(batch) => job::alone(shared, batch),
            Queued::Job { job, own } => {
                if own {
                    job.work();
                }
                job.answer()
            }
            Queued::Ended(done) => *done,
        }
    }
}

pub(crate) struct CpuSession {
    shared: Arc<Shared>,
    queue: VecDeque<Queued>,
    depth: usize,
    stages: Option<Stages>,
}

impl CpuSession {
    pub fn new(
        program: Arc<Program>,
        code: Code,
        flows: Option<Code>,
        work: Option<NonZeroU64>,
        options: &LoadOptions,
    ) -> Result<CpuSession, DeviceError> {
        options.refuse_copies("cpu")?;
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
        let most = flows.iter().map(|flows| flows.operations).fold(code.operations, u64::max);
        let piece = piece(&program, most, work.map_or(0, NonZeroU64::get));
        let shares = !program.maps().is_empty() || flows.is_some();
        let shared = Arc::new(Shared {
            maps: Maps::new(program.maps())?,
            gate: shares.then(|| Gate::new(&program)),
            program,
            code,
            flows,
            choice,
            piece,
            pace: AtomicU64::new(PACKET_TIME * 1024),
            work: work.map(Work::new),
            cancel: options.cancel.clone(),
            pool,
        });
        let stages = options.record_stages.then(Stages::default);
        Ok(CpuSession { shared, queue: VecDeque::new(), depth: options.depth.max(1), stages })
    }

    /// Takes note of a batch that is complete.
    fn note(&mut self, done: &Completion) {
        if let Some(stages) = &mut self.stages {
            stages.record_batch(done.batch.len(), done.times.kernel);
        }
    }

    /// Waits until all batches in flight are done.
    fn end_all(&mut self) {
        for queued in &mut self.queue {
            // Nobody sees what stands there meanwhile.
            let batch = std::mem::replace(queued, Queued::Ended(Box::new(Err(DeviceError::Cancelled))));
            *queued = Queued::Ended(Box::new(batch.end(&self.shared)));
        }
    }
}

/// Packets that may be taken at once of a program of so many scalar operations: as many as a second
/// is enough for, if each of them burns all the fuel; `work` is what each takes beside that, in nanoseconds.
pub(crate) fn piece(program: &Program, operations: u64, work: u64) -> usize {
    let rounds = program.facts().max_iterations.unwrap_or(u32::MAX).min(program.fuel());
    // A round executes each operation once at most.
    let worst =
        (u64::from(rounds) + 1).saturating_mul(operations.max(1)).saturating_mul(OPERATION_TIME).saturating_add(work);
    (MAX_PIECE_TIME / worst).clamp(1, MAX_PIECE as u64) as usize
}

impl Drop for CpuSession {
    fn drop(&mut self) {
        // They have the session's memory as long as they are there.
        if let Some(gate) = &self.shared.gate {
            gate.close();
        }
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
        let threads = self.shared.worth(batch.len());
        if self.shared.is_for_one(threads, batch.len()) {
            self.queue.push_back(Queued::Own(batch));
            return Ok(());
        }
        let job = Arc::new(Job::new(self.shared.clone(), batch, threads.max(1)));
        Gate::enter(&job, threads);
        self.queue.push_back(Queued::Job { job, own: threads == 0 });
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Completion>, DeviceError> {
        let Some(queued) = self.queue.pop_front() else { return Ok(None) };
        let done = queued.end(&self.shared)?;
        self.note(&done);
        Ok(Some(done))
    }

    fn run(&mut self, batch: Batch) -> Result<Completion, DeviceError> {
        assert_eq!(self.in_flight(), 0, "run needs an idle session");
        if self.shared.code.stack > CALLERS_STACK {
            self.submit(batch).map_err(|refused| refused.error)?;
            return Ok(self.complete()?.expect("one batch is in flight"));
        }
        check_submission(&self.shared.program, &batch, 0, self.depth)?;
        let threads = self.shared.worth(batch.len());
        if self.shared.is_for_one(threads, batch.len()) {
            let done = job::alone(&self.shared, batch)?;
            self.note(&done);
            return Ok(done);
        }
        // This thread is awake already: it takes part, and waits for as few others as possible.
        let threads = threads.max(1);
        let job = Arc::new(Job::new(self.shared.clone(), batch, threads));
        Gate::enter(&job, threads - 1);
        job.work();
        let done = job.answer()?;
        self.note(&done);
        Ok(done)
    }

    fn map_words(&mut self, map: usize) -> Result<Vec<u32>, DeviceError> {
        let words = map_layout(&self.shared.program, map)?.words();
        self.map_words_at(map, 0, words)
    }

    fn map_words_at(&mut self, map: usize, at: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        check_map_range(&self.shared.program, map, at, words)?;
        self.end_all();
        Ok(self.shared.maps.words(map, at, words))
    }

    fn set_map_words(&mut self, map: usize, at: usize, words: &[u32]) -> Result<(), DeviceError> {
        check_map_range(&self.shared.program, map, at, words.len())?;
        self.end_all();
        self.shared.maps.set_words(map, at, words);
        Ok(())
    }

    fn finish_background_work(&mut self) {
        if let Some(late) = self.shared.code.late() {
            late.wait();
        }
    }

    fn stages(&self) -> Option<Stages> {
        self.stages
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }
}
