//! An opened device: its streams, their events, and how errors are told.

use std::fmt::Display;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUdevice, CUdevice_attribute, CUevent, CUevent_st, CUflushGPUDirectRDMAWritesScope,
    CUflushGPUDirectRDMAWritesTarget, CUstream, CUstream_st,
};
use portcullis_core::device::offload::{self, LAUNCH_TIMEOUT};
use portcullis_core::device::{CancelToken, DeviceError, DeviceKind};

use crate::api::{Code, Driver, check};
use crate::context::{Context, Entered, Handle};
use crate::probe::attribute_of;
use crate::wait;

/// `CU_STREAM_NON_BLOCKING`: nothing waits for the stream that everybody shares.
const STREAM_FLAGS: u32 = 1;

/// `CU_EVENT_DISABLE_TIMING`.
const EVENT_FLAGS: u32 = 2;

/// What makes writes of other devices, as a network card's, into the memory of this one visible to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flush {
    /// Nothing has to: they come in order with what tells of them.
    Ordered,
    /// The driver does (`cuFlushGPUDirectRDMAWrites`).
    ByDriver,
    /// There is no way from the host. Kernels that are launched afterwards see them.
    Never,
}

impl Flush {
    pub fn of(driver: &Driver, device: CUdevice) -> Flush {
        use CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS as OPTIONS,
            CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING as ORDERING,
        };
        let (ordering, options) = (attribute_of(driver, device, ORDERING), attribute_of(driver, device, OPTIONS));
        // CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER, and CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST.
        match (ordering >= 100, options & 1 != 0 && driver.cuFlushGPUDirectRDMAWrites.is_some()) {
            (true, _) => Flush::Ordered,
            (false, true) => Flush::ByDriver,
            (false, false) => Flush::Never,
        }
    }
}

/// A device opened for one session.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub id: String,
    /// What tells it and its driver from all others.
    pub about: String,
    pub kind: DeviceKind,
    /// Multiprocessors.
    pub processors: u32,
    // Each in order: what one batch brings in, another runs and a third brings back go on side by side.
    // Events say what waits for what. Where nothing is to overlap they are the same.
    pub uploads: Arc<Stream>,
    pub kernels: Arc<Stream>,
    pub downloads: Arc<Stream>,
    pub flush: Flush,
    pub context: Arc<Context>,
}

impl Gpu {
    /// The error that means: there is no room for `what`, or the device gave up when that was asked for.
    pub fn no_room(&self, what: impl Display, code: Code) -> DeviceError {
        match code {
            Code::OUT_OF_MEMORY => self.gave_up(format!("has no memory for {what}: {code}")),
            _ => self.failed("cannot be used", code),
        }
    }

    /// The error that means: this device gave up, in the middle of `what`.
    pub fn failed(&self, what: impl Display, code: Code) -> DeviceError {
        match code {
            Code::CANCELLED => DeviceError::Cancelled,
            _ => self.gave_up(format!("{what}: {code}")),
        }
    }

    /// Makes the device's context current on this thread, for several calls of the driver's.
    pub fn enter(&self) -> Result<Entered<'_>, DeviceError> {
        self.context.enter().map_err(|code| self.failed("cannot be used", code))
    }

    /// Whether nothing is queued. A context that has failed runs nothing any more.
    pub fn is_idle(&self) -> bool {
        [&self.uploads, &self.kernels, &self.downloads].iter().all(|stream| stream.is_idle().unwrap_or(true))
    }

    /// Waits until nothing is queued, however long that takes.
    pub fn settle(&self) {
        while !wait::within(LAUNCH_TIMEOUT, None, || self.is_idle()) {}
    }

    /// What was written to the device's memory from outside, and is known on the host to have been, is seen by kernels from
    /// now on, those too that run already.
    pub fn flush_remote_writes(&self) -> Result<(), Code> {
        let flush = self.context.driver.cuFlushGPUDirectRDMAWrites.filter(|_| self.flush == Flush::ByDriver);
        let Some(flush) = flush else { return Ok(()) };
        let _here = self.context.enter()?;
        let target = CUflushGPUDirectRDMAWritesTarget::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
        let scope = CUflushGPUDirectRDMAWritesScope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER;
        // SAFETY: the context is current.
        check(unsafe { flush(target, scope) })
    }

    /// Waits until what is queued in a stream has ended, and gives back what it uses.
    pub fn finish<T: Send + 'static>(
        self: &Arc<Self>,
        stream: &Stream,
        used: T,
        failed: impl Fn(Code) -> DeviceError + Copy,
    ) -> Result<T, DeviceError> {
        let ended = stream
            .record()
            .map_err(failed)
            .and_then(|end| wait::until(&self.id, &CancelToken::new(), || end.has_come().map_err(failed)));
        match ended {
            Ok(()) => Ok(used),
            Err(error) => {
                self.abandon(used, || ());
                Err(error)
            }
        }
    }

    /// Leaves the device behind, with what it uses: a thread waits for its end, and then drops `kept`. It does
    /// `first` before, without which the device might never end.
    pub fn abandon(self: &Arc<Self>, kept: impl Send + 'static, first: impl FnOnce() + Send + 'static) {
        let gpu = self.clone();
        // Dropped in this order: what the first two release waits until the device is no longer left behind.
        let kept = (kept, self.clone(), self.context.abandon());
        offload::drop_after(kept, move || {
            first();
            gpu.settle();
        });
    }

    /// The error that means: this device gave up.
    pub fn gave_up(&self, reason: String) -> DeviceError {
        DeviceError::Failed { device: self.id.clone(), reason }
    }
}

/// A queue of the device's, first in, first out.
#[derive(Debug)]
pub(crate) struct Stream {
    handle: Handle<CUstream_st>,
    context: Arc<Context>,
}

impl Stream {
    pub fn new(context: &Arc<Context>) -> Result<Stream, Code> {
        let _here = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: room for a stream; a context is current.
        check(unsafe { (context.driver.cuStreamCreate)(&mut handle, STREAM_FLAGS) })?;
        Ok(Stream { handle: Handle(handle), context: context.clone() })
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub fn handle(&self) -> CUstream {
        self.handle.get()
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
        if self.handle() == other.handle() {
            return Ok(());
        }
        other.record_in(kept)?;
        kept.as_ref().map_or(Ok(()), |event| self.wait_for(event))
    }

    /// What is queued here from now on waits for the event.
    pub fn wait_for(&self, event: &Event) -> Result<(), Code> {
        let _here = self.context.enter()?;
        // SAFETY: both are alive, and of the context that is current.
        check(unsafe { (self.context.driver.cuStreamWaitEvent)(self.handle(), event.handle(), 0) })
    }

    /// Whether all that was queued has ended.
    pub fn is_idle(&self) -> Result<bool, Code> {
        let _here = self.context.enter()?;
        // SAFETY: the stream is alive, and of the context that is current.
        ended(unsafe { (self.context.driver.cuStreamQuery)(self.handle()) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let handle = self.handle;
        self.context.release_at_once(move |driver| {
            // SAFETY: nobody uses it any more. What is queued still ends (CUDA's driver API, cuStreamDestroy).
            unsafe { (driver.cuStreamDestroy_v2)(handle.get()) };
        });
    }
}

/// A point in a stream.
#[derive(Debug)]
pub(crate) struct Event {
    handle: Handle<CUevent_st>,
    context: Arc<Context>,
}

impl Event {
    fn new(context: &Arc<Context>, flags: u32) -> Result<Event, Code> {
        let _here = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: room for an event; a context is current.
        check(unsafe { (context.driver.cuEventCreate)(&mut handle, flags) })?;
        Ok(Event { handle: Handle(handle), context: context.clone() })
    }

    fn handle(&self) -> CUevent {
        self.handle.get()
    }

    /// One that knows when it came about.
    pub fn timed(context: &Arc<Context>) -> Result<Event, Code> {
        Event::new(context, 0)
    }

    /// Comes about when all that is queued in the stream now has ended.
    pub fn record(&self, stream: &Stream) -> Result<(), Code> {
        let _here = self.context.enter()?;
        // SAFETY: both are alive, and of the context that is current.
        check(unsafe { (self.context.driver.cuEventRecord)(self.handle(), stream.handle()) })
    }

    /// Whether it has come about.
    ///
    /// # Errors
    /// That of any earlier command that has failed.
    pub fn has_come(&self) -> Result<bool, Code> {
        let _here = self.context.enter()?;
        // SAFETY: the event is alive, and of the context that is current.
        ended(unsafe { (self.context.driver.cuEventQuery)(self.handle()) })
    }

    /// Milliseconds since another, both of which have come about.
    pub fn since(&self, before: &Event) -> Result<f32, Code> {
        let _here = self.context.enter()?;
        let mut time = 0.0;
        // SAFETY: both are alive, and of the context that is current; room for a number.
        check(unsafe { (self.context.driver.cuEventElapsedTime)(&mut time, before.handle(), self.handle()) })?;
        Ok(time)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let handle = self.handle;
        self.context.release_at_once(move |driver| {
            // SAFETY: nobody uses it any more; one that has not come about is released when it has.
            unsafe { (driver.cuEventDestroy_v2)(handle.get()) };
        });
    }
}

/// Events that are used again and again: making one is a call of the driver's.
#[derive(Debug, Default)]
pub(crate) struct Tickets(Vec<Arc<Event>>);

impl Tickets {
    /// An event that comes about when all that is queued in a stream now has ended.
    pub fn next(&mut self, stream: &Stream) -> Result<Arc<Event>, Code> {
        // One that nobody else has any more was waited for.
        if let Some(event) = self.0.iter().find(|event| Arc::strong_count(event) == 1) {
            event.record(stream)?;
            return Ok(event.clone());
        }
        let event = Arc::new(stream.record()?);
        self.0.push(event.clone());
        Ok(event)
    }
}

fn ended(code: i32) -> Result<bool, Code> {
    match Code(code) {
        Code::NOT_READY => Ok(false),
        _ => check(code).map(|()| true),
    }
}
