//! A device's context in the driver, and what may be done in it while kernels stay at the device.
//!
//! It is the primary one, which all that uses the device in a process shares, other libraries too: so kernels of
//! several sessions run side by side, and memory that one has is memory that all can name.
//!
//! Where memory comes or goes, or code is loaded, a driver may wait for all kernels of the context. Those that stay
//! and wait for batches would have it wait for long, or for ever. So such work is done in a [`Quiet`] time: whoever
//! has kernels that stay has them leave, and sends no others until it is over. Nobody waits for that without looking
//! at the clock and at their cancel token.

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

use crate::api::{Code, Driver, check};
use crate::wait;

/// Kernels that are at the device for longer than a launch.
pub(crate) trait Resident: Send + Sync {
    /// Has them leave, between two entries, until there is something to do again. Whether they have: this is asked
    /// again and again, and waits for nothing.
    fn leaves(&self) -> bool;
}

/// What releases something of the driver's.
type Release = Box<dyn FnOnce(&Driver) + Send>;

/// A device's context, one in the process.
struct Primary {
    driver: &'static Driver,
    device: CUdevice,
    handle: Handle<CUctx_st>,
    /// Held for writing in a quiet time, and for reading by whoever sends kernels that stay.
    gate: RwLock<()>,
    residents: Mutex<Vec<Weak<dyn Resident>>>,
    /// Sessions that were left behind, with kernels that may never end.
    left_behind: AtomicUsize,
    /// What is released in the next quiet time.
    releases: Mutex<Vec<Release>>,
    /// Kernels did not leave, or end, for somebody who had something to release: nobody waits for that again, until they do.
    occupied: AtomicBool,
}

/// The contexts that there are.
static OPEN: Mutex<BTreeMap<CUdevice, Weak<Primary>>> = Mutex::new(BTreeMap::new());

/// How long what was left behind may take to end, for whoever needs a quiet time: usually it does in no time, or never.
const PATIENCE: Duration = Duration::from_secs(10);

thread_local! {
    /// The context that is current on this thread by this crate's doing.
    static CURRENT: Cell<CUcontext> = const { Cell::new(ptr::null_mut()) };
    /// The context in which this thread has a quiet time.
    static QUIET: Cell<CUcontext> = const { Cell::new(ptr::null_mut()) };
}

/// What an attempt at a lock gave; a panic elsewhere is no reason not to have it.
fn tried<T>(attempt: TryLockResult<T>) -> Option<T> {
    match attempt {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The context is current on this thread while this is there.
#[must_use]
pub(crate) struct Entered<'a> {
    primary: &'a Primary,
    /// What was current before, where this has changed it.
    before: Option<CUcontext>,
    /// It belongs to the thread.
    _thread: PhantomData<*mut ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let Some(before) = self.before else { return };
        CURRENT.set(before);
        let mut popped = ptr::null_mut();
        // SAFETY: room for a context; it was pushed by the same thread.
        unsafe { (self.primary.driver.cuCtxPopCurrent_v2)(&mut popped) };
        debug_assert_eq!(popped, self.primary.handle.get(), "contexts are entered and left in order");
    }
}

impl Primary {
    fn of(driver: &'static Driver, device: CUdevice) -> Result<Arc<Primary>, Code> {
        let mut open = locked(&OPEN);
        if let Some(primary) = open.get(&device).and_then(Weak::upgrade) {
            return Ok(primary);
        }
        let mut handle = ptr::null_mut();
        // SAFETY: room for a context.
        check(unsafe { (driver.cuDevicePrimaryCtxRetain)(&mut handle, device) })?;
        let primary = Arc::new(Primary {
            driver,
            device,
            handle: Handle(handle),
            gate: RwLock::default(),
            residents: Mutex::default(),
            left_behind: AtomicUsize::new(0),
            releases: Mutex::default(),
            occupied: AtomicBool::new(false),
        });
        open.insert(device, Arc::downgrade(&primary));
        Ok(primary)
    }

    fn enter(&self) -> Result<Entered<'_>, Code> {
        let current = CURRENT.get();
        let before = (current != self.handle.get()).then_some(current);
        if before.is_some() {
            // SAFETY: the context is alive.
            check(unsafe { (self.driver.cuCtxPushCurrent_v2)(self.handle.get()) })?;
            CURRENT.set(self.handle.get());
        }
        Ok(Entered { primary: self, before, _thread: PhantomData })
    }

    /// Releases what waits for that; the context is current, and the time quiet.
    fn tidy(&self) {
        loop {
            // The lock is free meanwhile: what is released may have something else to release.
            let releases = std::mem::take(&mut *locked(&self.releases));
            if releases.is_empty() {
                return;
            }
            releases.into_iter().for_each(|release| release(self.driver));
        }
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        let open = locked(&OPEN);
        // Another may have come meanwhile, with kernels that stay.
        let next = open.get(&self.device).and_then(Weak::upgrade);
        match (&next, self.enter()) {
            (Some(next), _) => locked(&next.releases).append(&mut locked(&self.releases)),
            (None, Ok(_here)) => self.tidy(),
            (None, Err(_)) => {}
        }
        // SAFETY: it was retained as often as this.
        unsafe { (self.driver.cuDevicePrimaryCtxRelease_v2)(self.device) };
        // Before `next`, which may be the last of its kind and takes the lock.
        drop(open);
    }
}

/// No kernel that stays is at the device, and none comes, while this is there; the context is current.
#[must_use]
pub(crate) struct Quiet<'a> {
    // In this order: the driver's state is put back before others go on.
    _here: Entered<'a>,
    /// The context in which the thread had a quiet time before. Nothing where it is this one's, which goes on.
    before: Option<CUcontext>,
    _gate: Option<RwLockWriteGuard<'a, ()>>,
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            QUIET.set(before);
        }
    }
}

/// A session's share of a device's context.
pub(crate) struct Context {
    pub driver: &'static Driver,
    primary: Arc<Primary>,
    cancel: CancelToken,
    /// The device may be busy for ever with what this session has sent, and whoever released any of that would wait.
    abandoned: AtomicBool,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("handle", &self.primary.handle).finish_non_exhaustive()
    }
}

impl Context {
    /// The token ends waiting for a quiet time.
    pub fn new(driver: &'static Driver, device: CUdevice, cancel: &CancelToken) -> Result<Context, Code> {
        let primary = Primary::of(driver, device)?;
        Ok(Context { driver, primary, cancel: cancel.clone(), abandoned: AtomicBool::new(false) })
    }

    pub fn handle(&self) -> CUcontext {
        self.primary.handle.get()
    }

    /// Makes the context current on this thread, which costs nothing where it is so already.
    pub fn enter(&self) -> Result<Entered<'_>, Code> {
        self.primary.enter()
    }

    /// Kernels that stay, which will be asked to leave.
    pub fn has_resident(&self, kernels: Weak<dyn Resident>) {
        let mut residents = locked(&self.primary.residents);
        residents.retain(|known| known.strong_count() > 0);
        residents.push(kernels);
    }

    /// For whoever sends kernels that stay: no quiet time begins while this is there. `None` in a quiet time, or when
    /// one is about to begin.
    pub fn sending(&self) -> Option<RwLockReadGuard<'_, ()>> {
        tried(self.primary.gate.try_read())
    }

    /// Begins a quiet time, or joins that which the thread has. Kernels that stay do first what was posted before, of all
    /// sessions, which takes its time: whoever waits for the device waits as long.
    ///
    /// # Errors
    /// [`Code::CANCELLED`], [`Code::OCCUPIED`] or [`Code::LEFT_BEHIND`] where there is none to be had.
    pub fn quiet(&self) -> Result<Quiet<'_>, Code> {
        self.quiet_within(LAUNCH_TIMEOUT, Some(&self.cancel))
    }

    fn quiet_within(&self, time: Duration, cancel: Option<&CancelToken>) -> Result<Quiet<'_>, Code> {
        let primary = &*self.primary;
        let is_left = || primary.left_behind.load(Ordering::Acquire) > 0;
        let refused = || match cancel.is_some_and(CancelToken::is_cancelled) {
            true => Err(Code::CANCELLED),
            false if is_left() => Err(Code::LEFT_BEHIND),
            false => Err(Code::OCCUPIED),
        };
        let known = QUIET.get();
        let joins = known == primary.handle.get();
        let mut gate = None;
        let began = Instant::now();
        let mut left_since = None;
        // Waits until it is so, or there is no hope that it will be.
        let mut within = |is_so: &mut dyn FnMut() -> bool| {
            let mut hopeless = false;
            let ends = || {
                let is_so = is_so();
                left_since = is_left().then(|| left_since.unwrap_or_else(Instant::now));
                hopeless = !is_so && left_since.is_some_and(|since: Instant| since.elapsed() >= PATIENCE);
                is_so || hopeless
            };
            wait::within(time.saturating_sub(began.elapsed()), cancel, ends) && !hopeless
        };
        let mut opens = || {
            // What was left behind is in nobody's way but of quiet times.
            gate = (!is_left()).then(|| tried(primary.gate.try_write())).flatten();
            gate.is_some()
        };
        if !joins && !within(&mut opens) {
            return refused();
        }
        let quiet = Quiet { before: (!joins).then_some(known), _gate: gate, _here: primary.enter()? };
        QUIET.set(primary.handle.get());
        if is_left() {
            return Err(Code::LEFT_BEHIND);
        }
        if !joins {
            // Those that are the last of their session are dropped after the lock is free, and before the time ends.
            let residents: Vec<_> = locked(&primary.residents).iter().filter_map(Weak::upgrade).collect();
            // Each is asked, whatever the others say: they leave side by side.
            let mut leave = || residents.iter().filter(|kernels| !kernels.leaves()).count() == 0;
            if !within(&mut leave) {
                return refused();
            }
        }
        primary.occupied.store(false, Ordering::Relaxed);
        primary.tidy();
        Ok(quiet)
    }

    /// Releases something in a quiet time: soon, or where there is none to be had in the next.
    pub fn release(&self, how: impl FnOnce(&Driver) + Send + 'static) {
        let primary = &self.primary;
        locked(&primary.releases).push(Box::new(how));
        let time = if primary.occupied.load(Ordering::Relaxed) { Duration::ZERO } else { DRAIN_TIMEOUT };
        if !self.is_abandoned() && matches!(self.quiet_within(time, None), Err(Code::OCCUPIED | Code::LEFT_BEHIND)) {
            primary.occupied.store(true, Ordering::Relaxed);
        }
    }

    /// The same for what a driver releases without waiting for anything but its own end.
    pub fn release_at_once(&self, how: impl FnOnce(&Driver) + Send + 'static) {
        match self.enter() {
            Ok(_here) if !self.is_abandoned() => how(self.driver),
            _ => locked(&self.primary.releases).push(Box::new(how)),
        }
    }

    /// Whether others have the same context in the driver, as far as this crate knows.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.primary) > 1
    }

    /// Whether the session was left behind.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Leaves behind what the session has sent to the device, until what is given is dropped. Nothing where it was left
    /// behind already.
    pub fn abandon(self: &Arc<Self>) -> Option<LeftBehind> {
        if self.abandoned.swap(true, Ordering::Relaxed) {
            return None;
        }
        self.primary.left_behind.fetch_add(1, Ordering::AcqRel);
        Some(LeftBehind(self.clone()))
    }
}

/// A session that was left behind.
pub(crate) struct LeftBehind(Arc<Context>);

impl Drop for LeftBehind {
    fn drop(&mut self) {
        self.0.abandoned.store(false, Ordering::Relaxed);
        self.0.primary.left_behind.fetch_sub(1, Ordering::AcqRel);
        let _ = self.0.quiet_within(DRAIN_TIMEOUT, None);
    }
}

/// A handle of the driver's, which names something and may be told to any thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handle<T>(pub *mut T);

// SAFETY: handles are names: only the driver looks behind them. It guards what it finds there, but for graphs, and a
// context may be current on any thread and on several (CUDA's driver API, "Context management").
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    pub fn get(self) -> *mut T {
        self.0
    }
}
