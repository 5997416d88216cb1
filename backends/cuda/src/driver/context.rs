//! A device's context, and the quiescent periods in which memory and code may come and go.
//!
//! Sessions share the device's primary context with everything else in the process, so their
//! kernels run concurrently, and each can use memory that another has allocated.
//!
//! While memory is allocated or freed, or code is loaded, the driver may wait for all kernels of
//! the context, and its wait cannot be interrupted. Resident kernels, which wait for batches, would
//! block it for long or forever, as would a filter that hangs. Such work is therefore done in a
//! quiescent period ([`QuiescentGuard`]): every owner of resident kernels makes them leave, and
//! launches none until the period is over; and whatever else was queued before has completed.
//! Waiting for a period ends after a timeout or by cancellation.
//!
//! An abandoned session ([`AbandonedSession`]) has work on the device that may never end. While
//! there is one, no quiescent period begins, and whatever would be released is kept in a list for
//! the next.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult, Weak,
};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUcontext, CUctx_st, CUdevice};
use portcullis_core::device::CancelToken;
use portcullis_core::device::offload::{DRAIN_TIMEOUT, LAUNCH_TIMEOUT};

use super::api::{Driver, ErrorCode, check};
use super::poll;

/// Kernels that stay on the device for longer than a launch.
pub(crate) trait ResidentKernels: Send + Sync {
    /// Tells the kernels to leave, between two launch requests, until there is work again; returns
    /// whether they have left. Never blocks: the caller polls.
    fn try_leave(&self) -> bool;
}

/// A queue of commands on the device, which quiescent periods wait for.
pub(crate) trait CommandQueue: Send + Sync {
    /// Returns a test for the completion of everything queued so far, or `None` if it has
    /// completed. In a context that has failed no command runs, and everything counts as completed.
    fn queued_work(&self) -> Option<Box<dyn Fn() -> bool>>;
}

/// Releases a resource of the driver's.
type Release = Box<dyn FnOnce(&Driver) + Send>;

/// A device's primary context; one for each device in the process.
struct PrimaryContext {
    driver: &'static Driver,
    device: CUdevice,
    handle: Handle<CUctx_st>,
    /// Locked for writing during a quiescent period, and for reading while resident kernels are
    /// launched.
    launch_gate: RwLock<()>,
    residents: Mutex<Vec<Weak<dyn ResidentKernels>>>,
    queues: Mutex<Vec<Weak<dyn CommandQueue>>>,
    /// Number of sessions whose work on the device may never end.
    abandoned_sessions: AtomicUsize,
    /// Releases to be run in the next quiescent period.
    deferred_releases: Mutex<Vec<Release>>,
    /// Set if a release waited in vain for a quiescent period: releases then do not wait again
    /// until there was one.
    quiescence_timed_out: AtomicBool,
}

/// The contexts in use, by device.
static PRIMARY_CONTEXTS: Mutex<BTreeMap<CUdevice, Weak<PrimaryContext>>> = Mutex::new(BTreeMap::new());

/// How long a quiescent period waits for abandoned work: that ends at once, usually, or never.
const ABANDONED_WORK_TIMEOUT: Duration = Duration::from_secs(10);

thread_local! {
    /// The context that this crate has made current on this thread.
    static CURRENT_CONTEXT: Cell<CUcontext> = const { Cell::new(ptr::null_mut()) };
    /// The context for which this thread holds a quiescent period.
    static QUIESCENT_CONTEXT: Cell<CUcontext> = const { Cell::new(ptr::null_mut()) };
}

/// Returns the guard of a successful attempt to lock. Poisoning is ignored, as in [`lock`].
fn into_guard<T>(attempt: TryLockResult<T>) -> Option<T> {
    match attempt {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Locks a mutex whose data a panic elsewhere cannot leave inconsistent.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a reference to a list, and removes those whose values are gone.
fn register<T: ?Sized>(list: &Mutex<Vec<Weak<T>>>, new: Weak<T>) {
    let mut list = lock(list);
    list.retain(|known| known.strong_count() > 0);
    list.push(new);
}

/// Returns the values in a list that still exist.
fn registered<T: ?Sized>(list: &Mutex<Vec<Weak<T>>>) -> Vec<Arc<T>> {
    lock(list).iter().filter_map(Weak::upgrade).collect()
}

/// Keeps the context current on this thread.
#[must_use]
pub(crate) struct ContextGuard<'a> {
    primary: &'a PrimaryContext,
    /// The context that was current before; `None` if it was this one.
    previous: Option<CUcontext>,
    /// The guard must be dropped on the thread that made it.
    _not_send: PhantomData<*mut ()>,
}

impl Drop for ContextGuard<'_> {
    fn drop(&mut self) {
        let Some(previous) = self.previous else { return };
        CURRENT_CONTEXT.set(previous);
        let mut popped = ptr::null_mut();
        // SAFETY: the pointer outlives the call; the same thread has pushed the context.
        unsafe { (self.primary.driver.cuCtxPopCurrent_v2)(&mut popped) };
        debug_assert_eq!(popped, self.primary.handle.get(), "contexts are entered and left in order");
    }
}

impl PrimaryContext {
    fn of_device(driver: &'static Driver, device: CUdevice) -> Result<Arc<PrimaryContext>, ErrorCode> {
        let mut contexts = lock(&PRIMARY_CONTEXTS);
        if let Some(primary) = contexts.get(&device).and_then(Weak::upgrade) {
            return Ok(primary);
        }
        let mut handle = ptr::null_mut();
        // SAFETY: the pointer outlives the call.
        check(unsafe { (driver.cuDevicePrimaryCtxRetain)(&mut handle, device) })?;
        let primary = Arc::new(PrimaryContext {
            driver,
            device,
            handle: Handle(handle),
            launch_gate: RwLock::default(),
            residents: Mutex::default(),
            queues: Mutex::default(),
            abandoned_sessions: AtomicUsize::new(0),
            deferred_releases: Mutex::default(),
            quiescence_timed_out: AtomicBool::new(false),
        });
        contexts.insert(device, Arc::downgrade(&primary));
        Ok(primary)
    }

    fn enter(&self) -> Result<ContextGuard<'_>, ErrorCode> {
        let current = CURRENT_CONTEXT.get();
        let previous = (current != self.handle.get()).then_some(current);
        if previous.is_some() {
            // SAFETY: the context is alive.
            check(unsafe { (self.driver.cuCtxPushCurrent_v2)(self.handle.get()) })?;
            CURRENT_CONTEXT.set(self.handle.get());
        }
        Ok(ContextGuard { primary: self, previous, _not_send: PhantomData })
    }

    /// Runs the deferred releases; the context is current and quiescent.
    fn run_deferred_releases(&self) {
        loop {
            // Unlocked while they run: a release may defer another.
            let releases = std::mem::take(&mut *lock(&self.deferred_releases));
            if releases.is_empty() {
                return;
            }
            releases.into_iter().for_each(|release| release(self.driver));
        }
    }
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        let contexts = lock(&PRIMARY_CONTEXTS);
        // A session that was opened meanwhile has made a successor, which may have resident
        // kernels.
        let successor = contexts.get(&self.device).and_then(Weak::upgrade);
        match (&successor, self.enter()) {
            (Some(successor), _) => {
                lock(&successor.deferred_releases).append(&mut lock(&self.deferred_releases));
            }
            (None, Ok(_current)) => self.run_deferred_releases(),
            (None, Err(_)) => {}
        }
        // SAFETY: it was retained once for this value.
        unsafe { (self.driver.cuDevicePrimaryCtxRelease_v2)(self.device) };
        // Unlock before `successor` is dropped: if that is the last reference, its `drop` locks
        // again.
        drop(contexts);
    }
}

/// Holds a quiescent period: no resident kernel is on the device and none is launched, whatever was
/// queued before the period has completed, and the context is current.
#[must_use]
pub(crate) struct QuiescentGuard<'a> {
    // In this order: the context is left before others may launch.
    _current: ContextGuard<'a>,
    /// The context for which the thread held a period before; `None` if this guard has joined one.
    previous: Option<CUcontext>,
    _gate: Option<RwLockWriteGuard<'a, ()>>,
}

impl Drop for QuiescentGuard<'_> {
    fn drop(&mut self) {
        if let Some(previous) = self.previous {
            QUIESCENT_CONTEXT.set(previous);
        }
    }
}

/// One session's share of a device's primary context.
pub(crate) struct Context {
    pub driver: &'static Driver,
    primary: Arc<PrimaryContext>,
    cancel: CancelToken,
    /// Set while the session's work may keep the device busy forever, so that a release would
    /// block.
    abandoned: AtomicBool,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("handle", &self.primary.handle).finish_non_exhaustive()
    }
}

impl Context {
    /// Opens the device's primary context. `cancel` ends waiting for a quiescent period.
    pub fn new(driver: &'static Driver, device: CUdevice, cancel: &CancelToken) -> Result<Context, ErrorCode> {
        let primary = PrimaryContext::of_device(driver, device)?;
        Ok(Context { driver, primary, cancel: cancel.clone(), abandoned: AtomicBool::new(false) })
    }

    /// Makes the context current on this thread; free if it is already.
    pub fn enter(&self) -> Result<ContextGuard<'_>, ErrorCode> {
        self.primary.enter()
    }

    /// Registers resident kernels, which quiescent periods ask to leave.
    pub fn register_resident(&self, kernels: Weak<dyn ResidentKernels>) {
        register(&self.primary.residents, kernels);
    }

    /// Registers a command queue, which quiescent periods wait for.
    pub fn register_queue(&self, queue: Weak<dyn CommandQueue>) {
        register(&self.primary.queues, queue);
    }

    /// Permits launches of resident kernels: no quiescent period begins while the guard is held.
    /// `None` during a quiescent period, or if one is about to begin.
    pub fn try_launch_permit(&self) -> Option<RwLockReadGuard<'_, ()>> {
        into_guard(self.primary.launch_gate.try_read())
    }

    /// Begins a quiescent period, or joins the one that this thread holds. Resident kernels first
    /// complete the requests posted to them, and streams what was queued in them, so this may wait
    /// as long as their batches take.
    ///
    /// # Errors
    /// [`ErrorCode::CANCELLED`], [`ErrorCode::DEVICE_BUSY`] or [`ErrorCode::ABANDONED_WORK`] if the
    /// period cannot begin.
    pub fn quiesce(&self) -> Result<QuiescentGuard<'_>, ErrorCode> {
        self.quiesce_within(LAUNCH_TIMEOUT, Some(&self.cancel))
    }

    fn quiesce_within(&self, timeout: Duration, cancel: Option<&CancelToken>) -> Result<QuiescentGuard<'_>, ErrorCode> {
        let primary = &*self.primary;
        let has_abandoned_work = || primary.abandoned_sessions.load(Ordering::Acquire) > 0;
        let refusal = || match cancel.is_some_and(CancelToken::is_cancelled) {
            true => Err(ErrorCode::CANCELLED),
            false if has_abandoned_work() => Err(ErrorCode::ABANDONED_WORK),
            false => Err(ErrorCode::DEVICE_BUSY),
        };
        let held = QUIESCENT_CONTEXT.get();
        let joins = held == primary.handle.get();
        let mut gate = None;
        let start = Instant::now();
        let mut abandoned_since = None;
        // Polls a condition until it holds, or abandoned work makes waiting pointless.
        let mut wait_for = |condition: &mut dyn FnMut() -> bool| {
            let mut hopeless = false;
            let is_decided = || {
                let holds = condition();
                abandoned_since = has_abandoned_work().then(|| abandoned_since.unwrap_or_else(Instant::now));
                hopeless =
                    !holds && abandoned_since.is_some_and(|since: Instant| since.elapsed() >= ABANDONED_WORK_TIMEOUT);
                holds || hopeless
            };
            poll::within(timeout.saturating_sub(start.elapsed()), cancel, is_decided) && !hopeless
        };
        let mut close_gate = || {
            // With abandoned work the gate stays open: other sessions may go on launching.
            gate = (!has_abandoned_work()).then(|| into_guard(primary.launch_gate.try_write())).flatten();
            gate.is_some()
        };
        if !joins && !wait_for(&mut close_gate) {
            return refusal();
        }
        let guard = QuiescentGuard { previous: (!joins).then_some(held), _gate: gate, _current: primary.enter()? };
        if has_abandoned_work() {
            return Err(ErrorCode::ABANDONED_WORK);
        }
        if !joins {
            let residents = registered(&primary.residents);
            // Ask each of them every time, not just up to the first refusal: they leave
            // concurrently.
            let mut leave = || residents.iter().filter(|kernels| !kernels.try_leave()).count() == 0;
            let mut is_quiescent = wait_for(&mut leave);
            if is_quiescent {
                // Queues of resident kernels are empty now.
                let queues = registered(&primary.queues);
                let queued: Vec<_> = queues.iter().filter_map(|queue| queue.queued_work()).collect();
                is_quiescent = wait_for(&mut || queued.iter().all(|is_complete| is_complete()));
            }
            if !is_quiescent {
                // If one of these references is the session's last, what it releases must find
                // neither this period, in which others' kernels run, nor the gate closed.
                drop(guard);
                drop(residents);
                return refusal();
            }
            // Such references are dropped within the period, with the list unlocked.
            QUIESCENT_CONTEXT.set(primary.handle.get());
        }
        primary.quiescence_timed_out.store(false, Ordering::Relaxed);
        primary.run_deferred_releases();
        Ok(guard)
    }

    /// Releases a resource in a quiescent period: soon, or if none begins soon, in the next one.
    pub fn release_when_quiescent(&self, release: impl FnOnce(&Driver) + Send + 'static) {
        let primary = &self.primary;
        lock(&primary.deferred_releases).push(Box::new(release));
        let timeout = if primary.quiescence_timed_out.load(Ordering::Relaxed) { Duration::ZERO } else { DRAIN_TIMEOUT };
        if !self.is_abandoned()
            && matches!(self.quiesce_within(timeout, None), Err(ErrorCode::DEVICE_BUSY | ErrorCode::ABANDONED_WORK))
        {
            primary.quiescence_timed_out.store(true, Ordering::Relaxed);
        }
    }

    /// Releases a resource at once, for resources whose release does not wait for kernels. Deferred
    /// all the same if the session is abandoned.
    pub fn release_now(&self, release: impl FnOnce(&Driver) + Send + 'static) {
        match self.enter() {
            Ok(_current) if !self.is_abandoned() => release(self.driver),
            _ => lock(&self.primary.deferred_releases).push(Box::new(release)),
        }
    }

    /// Whether other sessions of this crate have the same primary context.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.primary) > 1
    }

    /// Whether the session is abandoned.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Marks the session abandoned until the returned guard is dropped; `None` if it already is.
    pub fn abandon(self: &Arc<Self>) -> Option<AbandonedSession> {
        if self.abandoned.swap(true, Ordering::Relaxed) {
            return None;
        }
        self.primary.abandoned_sessions.fetch_add(1, Ordering::AcqRel);
        Some(AbandonedSession(self.clone()))
    }
}

/// A session that was abandoned with work on the device; dropped once that work has ended.
pub(crate) struct AbandonedSession(Arc<Context>);

impl Drop for AbandonedSession {
    fn drop(&mut self) {
        self.0.abandoned.store(false, Ordering::Relaxed);
        self.0.primary.abandoned_sessions.fetch_sub(1, Ordering::AcqRel);
        let _ = self.0.quiesce_within(DRAIN_TIMEOUT, None);
    }
}

/// A handle of the driver's, usable on any thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handle<T>(pub *mut T);

// SAFETY: only the driver dereferences handles. It synchronises access to what they name, except
// for graphs, and a context may be current on several threads (CUDA driver API, "Context
// management").
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    pub fn get(self) -> *mut T {
        self.0
    }
}
