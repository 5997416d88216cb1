//! The threads that filter a session's batches: those of a rayon pool, which poll for another task
//! for a while before they return to the pool and sleep (spin, then park).
//!
//! A sleeping thread takes tens of microseconds to wake, one that polls less than one. Polling for
//! as long as waking takes costs at most twice as much as knowing in advance which of the two is
//! better (the ski-rental bound). A thread that polls yields its core to others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

use super::queue::{Next, Participant, RequestQueue};

/// Stack of a worker in bytes: the filter's variables (16 KiB per packet), and 8 bytes per
/// operation in case the compiler spills every result. It is reserved address space, not memory in
/// use.
const STACK_BYTES: usize = 64 << 20;

/// Time for which a thread polls without yielding its core. Yielding costs a system call, and if
/// others want the core, as much time as they take.
const SPIN_WITHOUT_YIELD: Duration = Duration::from_micros(4);

/// Work in nanoseconds for which a thread that is awake is worth having: several times what
/// handing it a task costs both sides.
const AWAKE_THREAD_NANOS: u64 = 4_000;

/// Work in nanoseconds for which waking a thread pays, about as long as waking it takes: an
/// estimate before waking has been measured, and bounds on the measured value.
const SLEEPING_THREAD_NANOS: u64 = 50_000;
const SLEEPING_THREAD_BOUNDS: (u64, u64) = (10_000, 200_000);

/// What waking a thread costs the thread that wakes it, in nanoseconds: a system call.
const REQUEST_NANOS: u64 = 5_000;

/// Work that threads share.
pub(super) trait Task: Send + Sync {
    /// Takes part in the work, until nothing is left that this thread could begin.
    fn participate(self: Arc<Self>);
}

/// A session's threads.
pub(super) struct Workers {
    pool: ThreadPool,
    shared: Arc<SharedQueue>,
    start: Instant,
    /// When the last work that was too short to wake threads for was expected to end, in
    /// nanoseconds since `start`.
    last_short: AtomicU64,
    /// Nanoseconds that more threads would have saved in such works since a longer pause.
    saved: AtomicU64,
}

struct SharedQueue {
    requests: RequestQueue<dyn Task>,
    /// How long a thread polls for a task before it sleeps.
    idle_spin: Duration,
    /// Recent time from waking a worker until it polls, in nanoseconds.
    wake_nanos: AtomicU64,
    /// Whether the session has been dropped.
    is_closed: AtomicBool,
}

impl Workers {
    /// Starts `threads` threads; one per core if `None`.
    pub fn new(threads: Option<usize>, idle_spin: Duration) -> Result<Workers, ThreadPoolBuildError> {
        let builder = ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).stack_size(STACK_BYTES);
        let pool = builder.thread_name(|i| format!("portcullis-cpu-{i}")).build()?;
        let shared = SharedQueue {
            requests: RequestQueue::new(pool.current_num_threads()),
            idle_spin,
            wake_nanos: AtomicU64::new(SLEEPING_THREAD_NANOS),
            is_closed: AtomicBool::new(false),
        };
        let (last_short, saved) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Workers { pool, shared: Arc::new(shared), start: Instant::now(), last_short, saved })
    }

    /// The calling thread's number, below [`count`](Workers::count) for workers and equal to it for
    /// others.
    pub fn current_thread(&self) -> usize {
        self.pool.current_thread_index().unwrap_or(self.count())
    }

    /// Number of threads.
    pub fn count(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Estimates how many threads to use for work of `nanos` nanoseconds, which begins now.
    /// `callers` threads that are no workers take part.
    pub fn estimate_threads(&self, nanos: u64, callers: usize) -> usize {
        let threads = |cost: u64| usize::try_from(nanos / cost).unwrap_or(usize::MAX).min(self.count());
        let wanted = threads(AWAKE_THREAD_NANOS);
        // Workers that are busy with a batch before this one are free soon.
        let worth = wanted.min(self.shared.requests.awake() + callers).max(threads(self.wake_nanos()));
        if worth >= wanted || wanted < 2 {
            return worth;
        }
        // Work that is too short to wake threads for, but may follow such work so closely that they
        // would still be awake. They are woken once they would have saved as much as that costs.
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let took = nanos / worth.max(1) as u64;
        let gap = now.saturating_sub(self.last_short.swap(now + took, Ordering::Relaxed));
        let saved = took - nanos / wanted as u64;
        let saved = if u128::from(gap) < self.shared.idle_spin.as_nanos() {
            self.saved.fetch_add(saved, Ordering::Relaxed) + saved
        } else {
            self.saved.store(saved, Ordering::Relaxed);
            saved
        };
        if saved < self.wake_nanos() + (wanted - worth) as u64 * REQUEST_NANOS {
            return worth;
        }
        self.saved.store(0, Ordering::Relaxed);
        wanted
    }

    /// How long threads poll for work, or wait for other threads, before they sleep.
    pub fn idle_spin(&self) -> Duration {
        self.shared.idle_spin
    }

    /// Whether the calling thread is a worker.
    pub fn has_current_thread(&self) -> bool {
        self.pool.current_thread_index().is_some()
    }

    /// Recent time that waking a thread takes, in nanoseconds.
    pub fn wake_nanos(&self) -> u64 {
        self.shared.wake_nanos.load(Ordering::Relaxed)
    }

    /// Asks for workers to take part in a task, so that at least `threads` are asked for with what
    /// is left of the task's last request.
    pub fn request(&self, task: &Arc<dyn Task>, threads: usize) {
        for _ in 0..self.shared.requests.request(task, threads) {
            let (shared, begin) = (self.shared.clone(), Instant::now());
            self.pool.spawn(move || {
                shared.record_wake(begin.elapsed());
                shared.serve();
            });
        }
    }

    /// Lets the calling thread take tasks like a worker until `is_done`, or until there has been
    /// none for a while.
    pub fn help_until(&self, is_done: impl Fn() -> bool) {
        self.shared.run_tasks(Participant::Caller, self.shared.requests.start_polling(), is_done);
    }

    /// Runs a closure on a thread of the pool.
    pub fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        self.pool.spawn(work);
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::Relaxed);
    }
}

impl SharedQueue {
    /// A worker that has been woken.
    fn serve(&self) {
        self.run_tasks(Participant::Worker, self.requests.poll(), || false);
    }

    /// Runs tasks, `next` first, until `is_done` or until there has been none for
    /// [`idle_spin`](SharedQueue::idle_spin).
    fn run_tasks(&self, participant: Participant, mut next: Next<dyn Task>, is_done: impl Fn() -> bool) {
        loop {
            if let Next::Idle = next {
                next = spin(self.idle_spin, || match self.requests.poll() {
                    Next::Idle if is_done() || self.is_closed.load(Ordering::Relaxed) => Some(Next::Idle),
                    Next::Idle => None,
                    run @ Next::Run(_) => Some(run),
                })
                .unwrap_or(Next::Idle);
            }
            if let Next::Idle = next {
                next = self.requests.stop_polling(participant);
            }
            match next {
                Next::Run(task) => task.participate(),
                Next::Idle => return,
            }
            next = self.requests.start_polling();
        }
    }

    fn record_wake(&self, time: Duration) {
        let (least, most) = SLEEPING_THREAD_BOUNDS;
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).clamp(least, most);
        let before = self.wake_nanos.load(Ordering::Relaxed);
        self.wake_nanos.store((7 * before + nanos) / 8, Ordering::Relaxed);
    }
}

/// Polls until there is a value or `time` has passed.
pub(super) fn spin<T>(time: Duration, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    loop {
        // Reading the clock takes as long as some twenty polls.
        for _ in 0..16 {
            if let Some(value) = poll() {
                return Some(value);
            }
            std::hint::spin_loop();
        }
        let elapsed = begin.elapsed();
        if elapsed >= time {
            return None;
        }
        if elapsed >= SPIN_WITHOUT_YIELD {
            std::thread::yield_now();
        }
    }
}
