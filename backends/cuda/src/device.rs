//! An opened device: its context, its streams, and how errors are told.

use std::fmt::Display;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::{CUcontext, CUdevice, CUevent, CUstream};
use portcullis_core::device::{DeviceError, DeviceKind, offload};

use crate::api::{Code, Driver, check};

/// `CU_CTX_SCHED_BLOCKING_SYNC`: who waits in the driver sleeps.
const CONTEXT_FLAGS: u32 = 4;

/// `CU_STREAM_NON_BLOCKING`: nothing waits for the stream that everybody shares.
const STREAM_FLAGS: u32 = 1;

/// `CU_EVENT_DISABLE_TIMING`.
const EVENT_FLAGS: u32 = 2;

/// What is a device's own in the driver: memory, code, streams. Each session has one: drivers wait for all kernels of a
/// context where memory comes and goes in it, and resident ones stay.
#[derive(Debug)]
pub(crate) struct Context {
    pub driver: &'static Driver,
    handle: CUcontext,
    /// The device may be busy for ever, and whoever released anything would wait for that.
    abandoned: AtomicBool,
}

// SAFETY: a context may be current on any thread, and on several (CUDA's driver API, "Context management").
unsafe impl Send for Context {}
// SAFETY: as above; the driver guards itself.
unsafe impl Sync for Context {}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Driver")
    }
}

/// The context is current on this thread while this is there.
pub(crate) struct Entered<'a>(&'a Context);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: room for a context; it was pushed by the same thread.
        unsafe { (self.0.driver.cuCtxPopCurrent_v2)(&mut popped) };
        debug_assert_eq!(popped, self.0.handle, "contexts are entered and left in order");
    }
}

impl Context {
    pub fn new(driver: &'static Driver, device: CUdevice) -> Result<Context, Code> {
        let mut handle = ptr::null_mut();
        // SAFETY: room for a context.
        check(unsafe { (driver.cuCtxCreate_v2)(&mut handle, CONTEXT_FLAGS, device) })?;
        let mut popped = ptr::null_mut();
        // SAFETY: room for a context. A new one is current; what was so before is again.
        check(unsafe { (driver.cuCtxPopCurrent_v2)(&mut popped) })?;
        Ok(Context { driver, handle, abandoned: AtomicBool::new(false) })
    }

    /// Makes the context current on this thread.
    pub fn enter(&self) -> Result<Entered<'_>, Code> {
        // SAFETY: the context is alive.
        check(unsafe { (self.driver.cuCtxPushCurrent_v2)(self.handle) })?;
        Ok(Entered(self))
    }

    pub fn handle(&self) -> CUcontext {
        self.handle
    }

    /// The same, for releasing what was made in it; `None` where that would wait for a device that may never
    /// end: then it goes when the context does.
    pub fn releasing(&self) -> Option<Entered<'_>> {
        if self.is_abandoned() { None } else { self.enter().ok() }
    }

    /// Whether the device was left behind.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Leaves the device behind, with what it uses: a thread waits for its end, and then drops `kept`. It does
    /// `first` before, without which the device might never end.
    pub fn abandon(self: &Arc<Self>, kept: impl Send + 'static, first: impl FnOnce() + Send + 'static) {
        self.abandoned.store(true, Ordering::Relaxed);
        let context = self.clone();
        offload::keep_until((kept, self.clone()), move || {
            first();
            context.settle();
            context.abandoned.store(false, Ordering::Relaxed);
        });
    }

    /// Waits until the device is done with everything, or its driver says that it never will be.
    pub fn settle(&self) {
        if let Ok(_here) = self.enter() {
            // SAFETY: a context is current.
            unsafe { (self.driver.cuCtxSynchronize)() };
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: nobody uses it: whatever is made in it keeps it alive, or was left for this to release.
        unsafe { (self.driver.cuCtxDestroy_v2)(self.handle) };
    }
}

/// A device opened for one session.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub id: String,
    pub kind: DeviceKind,
    /// Multiprocessors.
    pub processors: u32,
    // Each in order: what one batch brings in, another runs and a third brings back go on side by side.
    // Events say what waits for what. Where nothing is to overlap they are the same.
    pub uploads: Arc<Stream>,
    pub kernels: Arc<Stream>,
    pub downloads: Arc<Stream>,
    pub context: Arc<Context>,
}

impl Gpu {
    /// The error that means: this device gave up, in the middle of `what`.
    pub fn failed(&self, what: impl Display, code: Code) -> DeviceError {
        self.gave_up(format!("{what}: {code}"))
    }

    /// Whether nothing is queued. A context that has failed runs nothing any more.
    pub fn is_idle(&self) -> bool {
        [&self.uploads, &self.kernels, &self.downloads].iter().all(|stream| stream.is_idle().unwrap_or(true))
    }

    /// The error that means: this device gave up.
    pub fn gave_up(&self, reason: String) -> DeviceError {
        DeviceError::Failed { device: self.id.clone(), reason }
    }
}

/// A queue of the device's, first in, first out.
#[derive(Debug)]
pub(crate) struct Stream {
    handle: CUstream,
    context: Arc<Context>,
}

// SAFETY: as for the context that it belongs to.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub fn new(context: &Arc<Context>) -> Result<Stream, Code> {
        let _here = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: room for a stream; a context is current.
        check(unsafe { (context.driver.cuStreamCreate)(&mut handle, STREAM_FLAGS) })?;
        Ok(Stream { handle, context: context.clone() })
    }

    pub fn handle(&self) -> CUstream {
        self.handle
    }

    /// An event that comes about when all that is queued now has ended.
    pub fn record(&self) -> Result<Event, Code> {
        let event = Event::new(&self.context, EVENT_FLAGS)?;
        event.record(self)?;
        Ok(event)
    }

    /// The same, by an event that is kept and nobody waits for any more, made where there is none.
    pub fn record_in(&self, kept: &mut Option<Event>) -> Result<(), Code> {
        match kept {
            Some(event) => event.record(self),
            None => self.record().map(|event| *kept = Some(event)),
        }
    }

    /// What is queued here from now on waits for what is queued in `other` now, by an event that is kept.
    pub fn follow(&self, other: &Stream, kept: &mut Option<Event>) -> Result<(), Code> {
        if self.handle == other.handle {
            return Ok(());
        }
        other.record_in(kept)?;
        kept.as_ref().map_or(Ok(()), |event| self.wait_for(event))
    }

    /// What is queued here from now on waits for the event.
    pub fn wait_for(&self, event: &Event) -> Result<(), Code> {
        let _here = self.context.enter()?;
        // SAFETY: both are alive, and of the context that is current.
        check(unsafe { (self.context.driver.cuStreamWaitEvent)(self.handle, event.handle, 0) })
    }

    /// Whether all that was queued has ended.
    pub fn is_idle(&self) -> Result<bool, Code> {
        let _here = self.context.enter()?;
        // SAFETY: the stream is alive, and of the context that is current.
        ended(unsafe { (self.context.driver.cuStreamQuery)(self.handle) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Some(_here) = self.context.releasing() else { return };
        // SAFETY: nobody uses it any more. What is queued still ends (CUDA's driver API, cuStreamDestroy).
        unsafe { (self.context.driver.cuStreamDestroy_v2)(self.handle) };
    }
}

/// A point in a stream.
#[derive(Debug)]
pub(crate) struct Event {
    handle: CUevent,
    context: Arc<Context>,
}

// SAFETY: as for the context that it belongs to.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    fn new(context: &Arc<Context>, flags: u32) -> Result<Event, Code> {
        let _here = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: room for an event; a context is current.
        check(unsafe { (context.driver.cuEventCreate)(&mut handle, flags) })?;
        Ok(Event { handle, context: context.clone() })
    }

    /// One that knows when it came about.
    pub fn timed(context: &Arc<Context>) -> Result<Event, Code> {
        Event::new(context, 0)
    }

    /// Comes about when all that is queued in the stream now has ended.
    pub fn record(&self, stream: &Stream) -> Result<(), Code> {
        let _here = self.context.enter()?;
        // SAFETY: both are alive, and of the context that is current.
        check(unsafe { (self.context.driver.cuEventRecord)(self.handle, stream.handle) })
    }

    /// Whether it has come about.
    ///
    /// # Errors
    /// That of any earlier command that has failed.
    pub fn has_come(&self) -> Result<bool, Code> {
        let _here = self.context.enter()?;
        // SAFETY: the event is alive, and of the context that is current.
        ended(unsafe { (self.context.driver.cuEventQuery)(self.handle) })
    }

    /// Milliseconds since another, both of which have come about.
    pub fn since(&self, before: &Event) -> Result<f32, Code> {
        let _here = self.context.enter()?;
        let mut time = 0.0;
        // SAFETY: both are alive, and of the context that is current; room for a number.
        check(unsafe { (self.context.driver.cuEventElapsedTime)(&mut time, before.handle, self.handle) })?;
        Ok(time)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Some(_here) = self.context.releasing() else { return };
        // SAFETY: nobody uses it any more; one that has not come about is released when it has.
        unsafe { (self.context.driver.cuEventDestroy_v2)(self.handle) };
    }
}

fn ended(code: i32) -> Result<bool, Code> {
    match Code(code) {
        Code::NOT_READY => Ok(false),
        _ => check(code).map(|()| true),
    }
}
