//! Waiting for a command without being at the mercy of its driver.
//!
//! `clWaitForEvents` cannot be told to stop, and a driver that hangs takes its callers with it. So the
//! driver is asked to call when the command has ended (`clSetEventCallback`), and who waits looks at
//! the clock and at the cancel token meanwhile.

use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ocl_core::ffi::{cl_event, cl_int};
use ocl_core::{CommandExecutionStatus, Event};
use portcullis_core::device::offload::{CANCEL_POLL_INTERVAL, LAUNCH_TIMEOUT};
use portcullis_core::device::{CancelToken, DeviceError};

use crate::device::{Gpu, name_of};

/// A command that somebody waits for.
pub(crate) struct Ticket {
    /// Kept until then: some drivers call nobody for an event that is gone.
    _event: Event,
    ended: Arc<Ended>,
}

/// How the command ended, once it has: 0, or an error.
#[derive(Default)]
struct Ended {
    status: Mutex<Option<cl_int>>,
    changed: Condvar,
}

impl Ticket {
    /// For the command that this event belongs to.
    pub fn new(gpu: &Gpu, event: Event) -> Result<Ticket, DeviceError> {
        let ended = Arc::new(Ended::default());
        let lent = Arc::into_raw(ended.clone());
        let at = CommandExecutionStatus::Complete;
        // SAFETY: the callback takes back the reference that is lent to it here, once.
        let set = unsafe { ocl_core::set_event_callback(&event, at, Some(end), lent.cast_mut().cast()) };
        set.map_err(|error| {
            // SAFETY: the driver has refused the callback, so the reference is still ours.
            drop(unsafe { Arc::from_raw(lent) });
            gpu.failed("setting an event callback failed", &error)
        })?;
        Ok(Ticket { _event: event, ended })
    }

    /// Waits no longer than `time`; gives whether the command has ended.
    pub fn ends_within(&self, time: Duration) -> bool {
        self.status_within(time).is_some()
    }

    fn status_within(&self, time: Duration) -> Option<cl_int> {
        let status = self.ended.status.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.ended.changed.wait_timeout_while(status, time, |status| status.is_none());
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits until the command has ended.
    ///
    /// # Errors
    /// [`DeviceError::Cancelled`] where the token was used meanwhile, and the device may be busy still;
    /// [`DeviceError::Failed`] where the command has failed, or does not end.
    pub fn wait(&self, gpu: &Gpu, cancel: &CancelToken) -> Result<(), DeviceError> {
        let began = Instant::now();
        loop {
            match self.status_within(CANCEL_POLL_INTERVAL) {
                Some(0) => return Ok(()),
                Some(code) => return Err(gpu.gave_up(format!("a command failed: {}", name_of(code)))),
                None if cancel.is_cancelled() => return Err(DeviceError::Cancelled),
                None if began.elapsed() >= LAUNCH_TIMEOUT => {
                    return Err(gpu.gave_up(format!(
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

/// What the driver calls, on a thread of its own.
extern "C" fn end(_: cl_event, status: cl_int, ended: *mut c_void) {
    // SAFETY: the reference that `Ticket::new` lent; a driver calls once for each callback set.
    let ended = unsafe { Arc::from_raw(ended.cast_const().cast::<Ended>()) };
    *ended.status.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    ended.changed.notify_all();
}
