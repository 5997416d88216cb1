//! Waiting for a command, with a timeout and cancellation.
//!
//! `clWaitForEvents` cannot be interrupted, and a driver that hangs would take its callers with it.
//! Instead, GPUs are polled ([`poll`]): with callbacks, batches on an H100 took up to 20 ms longer
//! than their commands. A CPU's driver calls back when the command has completed
//! (`clSetEventCallback`), as polling would take time from its kernels, and whoever waits checks
//! the clock and the cancel token meanwhile.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ocl_core::ffi::{self, cl_event, cl_int};
use ocl_core::{CommandExecutionStatus, Event};
use portcullis_core::device::offload::{CANCEL_POLL_INTERVAL, LAUNCH_TIMEOUT, find_unused, poll};
use portcullis_core::device::{CancelToken, DeviceError};

use super::gpu::{Gpu, status_name};

/// A queued command whose completion can be waited for.
pub(crate) struct PendingCommand {
    /// Kept until then: some drivers drop the callbacks of an event that was released.
    event: Event,
    /// `None` if the event is polled.
    completion: Option<Arc<Completion>>,
}

/// The status with which a command has completed: 0, or an error; `None` while it has not.
#[derive(Default)]
struct Completion {
    status: Mutex<Option<cl_int>>,
    changed: Condvar,
}

impl Completion {
    fn status_within(&self, timeout: Duration) -> Option<cl_int> {
        let status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(status, timeout, |status| status.is_none());
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Completions of a session's commands, reused so that nothing is allocated for a command.
#[derive(Default)]
pub(crate) struct CompletionPool(Vec<Arc<Completion>>);

impl CompletionPool {
    fn take(&mut self) -> Arc<Completion> {
        match find_unused(&mut self.0, |_| true) {
            Some(unused) => {
                *unused.status.lock().unwrap_or_else(PoisonError::into_inner) = None;
                unused
            }
            None => {
                self.0.push(Arc::default());
                self.0[self.0.len() - 1].clone()
            }
        }
    }
}

impl PendingCommand {
    /// Makes the command of this event one that can be waited for. Its queue must be flushed.
    pub fn new(gpu: &Gpu, event: Event, pool: &mut CompletionPool) -> Result<PendingCommand, DeviceError> {
        if gpu.polls_completion {
            return Ok(PendingCommand { event, completion: None });
        }
        let completion = pool.take();
        let shared = Arc::into_raw(completion.clone());
        let at = CommandExecutionStatus::Complete;
        // SAFETY: the callback takes back the reference that it is passed here, once.
        let set = unsafe { ocl_core::set_event_callback(&event, at, Some(on_complete), shared.cast_mut().cast()) };
        set.map_err(|error| {
            // SAFETY: the driver has refused the callback, so the reference is still ours.
            drop(unsafe { Arc::from_raw(shared) });
            gpu.error("setting an event callback failed", &error)
        })?;
        Ok(PendingCommand { event, completion: Some(completion) })
    }

    /// Waits for at most `timeout`, and returns whether the command has completed. If the driver
    /// does not say, it may still be running.
    pub fn completes_within(&self, timeout: Duration) -> bool {
        if let Some(completion) = &self.completion {
            return completion.status_within(timeout).is_some();
        }
        let mut status = Ok(None);
        poll::within(timeout, None, || {
            status = self.poll_status();
            status != Ok(None)
        });
        matches!(status, Ok(Some(_)))
    }

    /// The status with which the command has completed; `None` if it has not.
    ///
    /// # Errors
    /// The status code of the query.
    fn poll_status(&self) -> Result<Option<cl_int>, cl_int> {
        let mut status: cl_int = 0;
        // SAFETY: the value is an integer, which outlives the call.
        let asked = unsafe {
            let (event, value) = (*self.event.as_ptr_ref(), (&raw mut status).cast());
            ffi::clGetEventInfo(
                event,
                ffi::CL_EVENT_COMMAND_EXECUTION_STATUS,
                size_of::<cl_int>(),
                value,
                ptr::null_mut(),
            )
        };
        // Positive values are those of commands that are queued, submitted or running.
        if asked == 0 { Ok(Some(status).filter(|status| *status <= 0)) } else { Err(asked) }
    }

    /// Waits until the command has completed.
    ///
    /// # Errors
    /// [`DeviceError::Cancelled`] if the token is used while waiting, in which case the device may
    /// still be busy; [`DeviceError::Failed`] if the command failed, or after [`LAUNCH_TIMEOUT`].
    pub fn wait(&self, gpu: &Gpu, cancel: &CancelToken) -> Result<(), DeviceError> {
        let result = |status| match status {
            0 => Ok(()),
            code => Err(gpu.failure(format!("a command failed: {}", status_name(code)))),
        };
        let Some(completion) = &self.completion else {
            return poll::until(&gpu.id, cancel, || {
                let status = self.poll_status().unwrap_or_else(Some);
                status.map_or(Ok(false), |status| result(status).map(|()| true))
            });
        };
        let start = Instant::now();
        loop {
            match completion.status_within(CANCEL_POLL_INTERVAL) {
                Some(status) => return result(status),
                None if cancel.is_cancelled() => return Err(DeviceError::Cancelled),
                None if start.elapsed() >= LAUNCH_TIMEOUT => {
                    return Err(gpu.failure(format!(
                        "no answer for {} s; its driver may still be compiling the filter, which some do at the first \
                         launch: make the filter shorter, or take --device cpu",
                        LAUNCH_TIMEOUT.as_secs()
                    )));
                }
                None => {}
            }
        }
    }
}

/// Called by the driver on a thread of its own.
extern "C" fn on_complete(_: cl_event, status: cl_int, completion: *mut c_void) {
    // SAFETY: the reference that `PendingCommand::new` passed; a driver calls once for each
    // callback.
    let completion = unsafe { Arc::from_raw(completion.cast_const().cast::<Completion>()) };
    *completion.status.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    completion.changed.notify_all();
}
