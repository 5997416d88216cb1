//! The threads that share the host's work on large chunks.
#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::sync::OnceLock;

use rayon::ThreadPool;

/// Packets that a thread takes at a time. Waking a thread takes as long as gathering a thousand
/// packets; a chunk of fewer than two parts is left to the session's own thread.
pub(crate) const PART_PACKETS: usize = 8 << 10;

/// Bytes that a thread copies at a time.
pub(crate) const PART_BYTES: usize = 512 << 10;

/// A session's threads, started when a chunk first needs them.
#[derive(Debug)]
pub struct HostThreads {
    threads: usize,
    /// The processors that the thread that made this may use. The pool's threads are started later,
    /// maybe by a thread that was pinned to one since.
    affinity: Affinity,
    pool: OnceLock<Option<ThreadPool>>,
}

impl HostThreads {
    /// Prepares `threads` threads; one per core if `None`.
    pub(crate) fn new(threads: Option<NonZeroUsize>) -> HostThreads {
        let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = threads.map_or_else(cores, NonZeroUsize::get);
        HostThreads { threads, affinity: Affinity::of_this_thread(), pool: OnceLock::new() }
    }

    /// Number of threads that gather a batch of this many packets.
    pub(crate) fn count_for(&self, packets: usize) -> NonZeroUsize {
        let threads = if packets < 2 * PART_PACKETS { 1 } else { self.threads };
        NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN)
    }

    /// Runs `work`, whose parallel iterators use the session's threads if there are at least two
    /// parts of work for them, else this thread alone.
    pub(crate) fn run<T: Send>(&self, parts: usize, work: impl FnOnce(bool) -> T + Send) -> T {
        // A thread of another pool would run that pool's jobs while it waits, with whatever locks
        // its caller holds.
        if self.threads < 2 || parts < 2 || rayon::current_thread_index().is_some() {
            return work(false);
        }
        let start = || {
            let (name, affinity) = (|number| format!("gather {number}"), self.affinity);
            let builder = rayon::ThreadPoolBuilder::new().num_threads(self.threads).thread_name(name);
            // Without threads, work is done on the caller's.
            builder.start_handler(move |_| affinity.apply()).build().ok()
        };
        match self.pool.get_or_init(start) {
            Some(pool) => pool.install(|| work(true)),
            None => work(false),
        }
    }
}

/// The processors on which a thread may run, where the system lets programs choose.
#[derive(Debug, Clone, Copy)]
struct Affinity {
    #[cfg(target_os = "linux")]
    set: Option<libc::cpu_set_t>,
}

#[cfg(target_os = "linux")]
impl Affinity {
    fn of_this_thread() -> Affinity {
        // SAFETY: a set of bits, for which zeros are a value.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set has the size that is passed; 0 is this thread.
        let known = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } == 0;
        Affinity { set: known.then_some(set) }
    }

    fn apply(self) {
        if let Some(set) = self.set {
            // SAFETY: as above. If it fails, the thread keeps what it has inherited.
            unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Affinity {
    fn of_this_thread() -> Affinity {
        Affinity {}
    }

    fn apply(self) {}
}
