//! Streams, the events recorded in them, and a pool that recycles events.

use std::ptr;
use std::sync::{Arc, Weak};

use cudarc::driver::sys::{CUevent, CUevent_st, CUstream, CUstream_st};

use super::api::{ErrorCode, check};
use super::context::{CommandQueue, Context, Handle};

/// `CU_STREAM_NON_BLOCKING`: no implicit synchronisation with the default stream.
const STREAM_FLAGS: u32 = 1;

/// `CU_EVENT_DISABLE_TIMING`.
const UNTIMED: u32 = 2;

/// An in-order queue of commands on the device.
#[derive(Debug)]
pub(crate) struct Stream {
    handle: Handle<CUstream_st>,
    context: Arc<Context>,
}

impl Stream {
    pub fn new(context: &Arc<Context>) -> Result<Arc<Stream>, ErrorCode> {
        let _current = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the pointer outlives the call; a context is current.
        check(unsafe { (context.driver.cuStreamCreate)(&mut handle, STREAM_FLAGS) })?;
        let stream = Arc::new(Stream { handle: Handle(handle), context: context.clone() });
        let queue: Weak<Stream> = Arc::downgrade(&stream);
        context.register_queue(queue);
        Ok(stream)
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub fn handle(&self) -> CUstream {
        self.handle.get()
    }

    /// Records a new event, which completes when everything queued so far has.
    pub fn record_event(&self) -> Result<Event, ErrorCode> {
        let event = Event::new(&self.context, UNTIMED)?;
        event.record(self)?;
        Ok(event)
    }

    /// Records the event in `event`, creating it if there is none. Nobody may still wait for it.
    pub fn record_reusing(&self, event: &mut Option<Event>) -> Result<(), ErrorCode> {
        match event {
            Some(event) => event.record(self),
            None => self.record_event().map(|new| *event = Some(new)),
        }
    }

    /// Makes later commands of this stream wait for everything queued in `other` so far, through an
    /// event that is reused. Does nothing if both are the same stream.
    pub fn follow(&self, other: &Stream, event: &mut Option<Event>) -> Result<(), ErrorCode> {
        if self.handle() == other.handle() {
            return Ok(());
        }
        other.record_reusing(event)?;
        event.as_ref().map_or(Ok(()), |event| self.wait_for(event))
    }

    /// Makes later commands of this stream wait for the event.
    pub fn wait_for(&self, event: &Event) -> Result<(), ErrorCode> {
        let _current = self.context.enter()?;
        // SAFETY: both are alive, and belong to the current context.
        check(unsafe { (self.context.driver.cuStreamWaitEvent)(self.handle(), event.handle(), 0) })
    }

    /// Whether everything queued so far has completed.
    pub fn is_idle(&self) -> Result<bool, ErrorCode> {
        let _current = self.context.enter()?;
        // SAFETY: the stream is alive, and belongs to the current context.
        completion(unsafe { (self.context.driver.cuStreamQuery)(self.handle()) })
    }
}

impl CommandQueue for Stream {
    fn queued_work(&self) -> Option<Box<dyn Fn() -> bool>> {
        if self.is_idle().unwrap_or(true) {
            return None;
        }
        let event = self.record_event().ok()?;
        Some(Box::new(move || event.is_complete().unwrap_or(true)))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let handle = self.handle;
        self.context.release_now(move |driver| {
            // SAFETY: nothing else uses the stream. Commands still queued complete all the same
            // (CUDA driver API, cuStreamDestroy).
            unsafe { (driver.cuStreamDestroy_v2)(handle.get()) };
        });
    }
}

/// A point in a stream that can be waited for.
#[derive(Debug)]
pub(crate) struct Event {
    handle: Handle<CUevent_st>,
    context: Arc<Context>,
}

impl Event {
    fn new(context: &Arc<Context>, flags: u32) -> Result<Event, ErrorCode> {
        let _current = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the pointer outlives the call; a context is current.
        check(unsafe { (context.driver.cuEventCreate)(&mut handle, flags) })?;
        Ok(Event { handle: Handle(handle), context: context.clone() })
    }

    fn handle(&self) -> CUevent {
        self.handle.get()
    }

    /// Creates an event that records the time at which it completes.
    pub fn with_timing(context: &Arc<Context>) -> Result<Event, ErrorCode> {
        Event::new(context, 0)
    }

    /// Records the event: it completes when everything queued in the stream so far has.
    pub fn record(&self, stream: &Stream) -> Result<(), ErrorCode> {
        let _current = self.context.enter()?;
        // SAFETY: both are alive, and belong to the current context.
        check(unsafe { (self.context.driver.cuEventRecord)(self.handle(), stream.handle()) })
    }

    /// Whether the event has completed.
    ///
    /// # Errors
    /// If an earlier command of the stream has failed, with its error.
    pub fn is_complete(&self) -> Result<bool, ErrorCode> {
        let _current = self.context.enter()?;
        // SAFETY: the event is alive, and belongs to the current context.
        completion(unsafe { (self.context.driver.cuEventQuery)(self.handle()) })
    }

    /// Milliseconds from the completion of `earlier` to that of this event; both have completed and
    /// record times.
    pub fn elapsed_ms_since(&self, earlier: &Event) -> Result<f32, ErrorCode> {
        let _current = self.context.enter()?;
        let mut time = 0.0;
        // SAFETY: both are alive, and belong to the current context; the number outlives the call.
        check(unsafe { (self.context.driver.cuEventElapsedTime)(&mut time, earlier.handle(), self.handle()) })?;
        Ok(time)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let handle = self.handle;
        self.context.release_now(move |driver| {
            // SAFETY: nothing else uses the event; the driver defers the release of a pending
            // event.
            unsafe { (driver.cuEventDestroy_v2)(handle.get()) };
        });
    }
}

/// Recycles events, since creating one is a driver call.
#[derive(Debug, Default)]
pub(crate) struct EventPool(Vec<Arc<Event>>);

impl EventPool {
    /// Records an event that completes when everything queued in the stream so far has.
    pub fn record(&mut self, stream: &Stream) -> Result<Arc<Event>, ErrorCode> {
        // An event that only the pool still has was waited for.
        if let Some(event) = self.0.iter().find(|event| Arc::strong_count(event) == 1) {
            event.record(stream)?;
            return Ok(event.clone());
        }
        let event = Arc::new(stream.record_event()?);
        self.0.push(event.clone());
        Ok(event)
    }
}

/// Interprets the result of a query for completion.
fn completion(code: i32) -> Result<bool, ErrorCode> {
    match ErrorCode(code) {
        ErrorCode::NOT_READY => Ok(false),
        _ => check(code).map(|()| true),
    }
}
