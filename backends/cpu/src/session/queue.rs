//! Requests of tasks for threads, and the threads that poll for them.
//!
//! Threads poll a counter in a cache line of its own, which changes with the requests only. They
//! take the lock, which is held for a few instructions, when there is a request.

use std::collections::VecDeque;

use super::sync::{Arc, AtomicUsize, CachePadded, Mutex, MutexGuard, Ordering, PoisonError, TryLockError};

/// Requests of tasks for threads, the oldest first.
pub(super) struct RequestQueue<T: ?Sized> {
    state: CachePadded<Mutex<State<T>>>,
    /// Threads asked for in total. Written under the lock.
    requested: CachePadded<AtomicUsize>,
    /// Threads that poll or are being woken to do so. Written under the lock.
    polling: CachePadded<AtomicUsize>,
    /// Workers that run a task, poll, or are being woken. Written under the lock.
    awake: CachePadded<AtomicUsize>,
    /// Number of workers.
    workers: usize,
}

struct State<T: ?Sized> {
    requests: VecDeque<Request<T>>,
}

struct Request<T: ?Sized> {
    task: Arc<T>,
    threads: usize,
}

/// What kind of thread polls for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Participant {
    /// A worker, which [`request`](RequestQueue::request) has woken.
    Worker,
    /// Another thread that joined the workers for a while.
    Caller,
}

/// What a thread that polls for a request does next.
pub(super) enum Next<T: ?Sized> {
    /// Run a task, then [poll again](RequestQueue::start_polling).
    Run(Arc<T>),
    /// There is no request.
    Idle,
}

impl<T: ?Sized> RequestQueue<T> {
    /// A queue for `workers` workers, none of which is awake.
    pub fn new(workers: usize) -> RequestQueue<T> {
        RequestQueue {
            state: CachePadded::new(Mutex::new(State { requests: VecDeque::new() })),
            requested: CachePadded::new(AtomicUsize::new(0)),
            polling: CachePadded::new(AtomicUsize::new(0)),
            awake: CachePadded::new(AtomicUsize::new(0)),
            workers,
        }
    }

    /// Requests threads for a task, so that at least `threads` are requested with what is left of
    /// its last request. Returns how many workers the caller must wake: each has to call
    /// [`poll`](RequestQueue::poll).
    pub fn request(&self, task: &Arc<T>, threads: usize) -> usize {
        let mut state = self.lock();
        match state.requests.iter_mut().find(|request| Arc::ptr_eq(&request.task, task)) {
            Some(request) => request.threads = request.threads.max(threads),
            None if threads > 0 => state.requests.push_back(Request { task: task.clone(), threads }),
            None => {}
        }
        let requested = state.requests.iter().map(|request| request.threads).sum::<usize>();
        self.requested.store(requested, Ordering::Relaxed);
        let (polling, awake) = (self.polling(), self.awake());
        let wake = requested.saturating_sub(polling).min(self.workers - awake);
        self.awake.store(awake + wake, Ordering::Relaxed);
        self.polling.store(polling + wake, Ordering::Relaxed);
        wake
    }

    /// Threads that poll for a request or are being woken to do so.
    pub fn polling(&self) -> usize {
        self.polling.load(Ordering::Relaxed)
    }

    /// Workers that run a task, poll for a request, or are being woken.
    pub fn awake(&self) -> usize {
        self.awake.load(Ordering::Relaxed)
    }

    /// Starts to poll for a request, after a task or as a caller that joins the workers for a
    /// while, and takes one if there is one.
    pub fn start_polling(&self) -> Next<T> {
        let mut state = self.lock();
        self.polling.store(self.polling() + 1, Ordering::Relaxed);
        self.take(&mut state)
    }

    /// Takes a request if there is one. Does not wait for the lock: whoever holds it may take the
    /// request, or be about to add one.
    pub fn poll(&self) -> Next<T> {
        if self.requested.load(Ordering::Relaxed) == 0 {
            return Next::Idle;
        }
        match self.state.try_lock() {
            Ok(mut state) => self.take(&mut state),
            Err(TryLockError::Poisoned(state)) => self.take(&mut state.into_inner()),
            Err(TryLockError::WouldBlock) => Next::Idle,
        }
    }

    /// Takes a request if there is one, and otherwise stops to poll.
    pub fn stop_polling(&self, participant: Participant) -> Next<T> {
        let mut state = self.lock();
        let next = self.take(&mut state);
        if let Next::Idle = next {
            self.polling.store(self.polling() - 1, Ordering::Relaxed);
            self.awake.store(self.awake() - usize::from(participant == Participant::Worker), Ordering::Relaxed);
        }
        next
    }

    fn take(&self, state: &mut State<T>) -> Next<T> {
        let Some(mut request) = state.requests.pop_front() else { return Next::Idle };
        self.requested.store(self.requested.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        self.polling.store(self.polling() - 1, Ordering::Relaxed);
        let task = request.task.clone();
        request.threads -= 1;
        if request.threads > 0 {
            state.requests.push_front(request);
        }
        Next::Run(task)
    }

    /// No operation panics halfway through a change, so a poisoned lock guards a valid state.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
