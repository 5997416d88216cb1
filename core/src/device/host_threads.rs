//! The threads that share the host's work on large chunks.

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
    pool: OnceLock<Option<ThreadPool>>,
}

impl HostThreads {
    /// Prepares `threads` threads; one per core if `None`.
    pub(crate) fn new(threads: Option<NonZeroUsize>) -> HostThreads {
        let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        HostThreads { threads: threads.map_or_else(cores, NonZeroUsize::get), pool: OnceLock::new() }
    }

    /// Number of threads.
    pub(crate) fn count(&self) -> NonZeroUsize {
        NonZeroUsize::new(self.threads).unwrap_or(NonZeroUsize::MIN)
    }

    /// Runs `work`, whose parallel iterators use the session's threads if there are at least two
    /// parts of work for them, else this thread alone.
    pub(crate) fn run<T: Send>(&self, parts: usize, work: impl FnOnce(bool) -> T + Send) -> T {
        if self.threads < 2 || parts < 2 {
            return work(false);
        }
        let start = || {
            let name = |number| format!("gather {number}");
            // Without threads, work is done on the caller's.
            rayon::ThreadPoolBuilder::new().num_threads(self.threads).thread_name(name).build().ok()
        };
        match self.pool.get_or_init(start) {
            Some(pool) => pool.install(|| work(true)),
            None => work(false),
        }
    }
}
