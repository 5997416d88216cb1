//! Threads on which drivers work: compilers, and waiting for a busy device. Drivers cannot be
//! interrupted, so a session that is cancelled leaves them to end by themselves.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};

use super::CANCEL_POLL_INTERVAL;
use crate::device::{CancelToken, DeviceError};
use crate::reason;

/// Stack size in bytes: our writers and the drivers' compilers recurse over nested blocks.
const STACK_BYTES: usize = 64 << 20;

/// Number of these threads in the process.
static DRIVER_THREADS: AtomicUsize = AtomicUsize::new(0);

/// Whether a driver is compiling, or at work for a session that is gone. If no session is being
/// loaded, the work is abandoned.
///
/// A process that ends then should do so without the handlers of `exit` (by `_exit`): they destroy
/// objects that the driver's threads use, and PoCL, for one, crashes.
pub fn has_abandoned_work() -> bool {
    DRIVER_THREADS.load(Ordering::Acquire) > 0
}

/// Counts a thread in [`has_abandoned_work`] until dropped, after whatever the thread releases.
pub struct DriverThread(());

impl DriverThread {
    /// Counts a thread.
    #[expect(clippy::new_without_default, reason = "it has a side effect")]
    pub fn new() -> DriverThread {
        DRIVER_THREADS.fetch_add(1, Ordering::Relaxed);
        DriverThread(())
    }
}

impl Drop for DriverThread {
    fn drop(&mut self) {
        DRIVER_THREADS.fetch_sub(1, Ordering::Release);
    }
}

/// Runs `work`, a driver's compiler with the steps around it, on a new thread with a large stack.
/// On cancellation the thread is abandoned, because drivers cannot be interrupted. `device` is for
/// messages.
///
/// # Errors
/// The errors of `work`; [`DeviceError::Cancelled`]; [`DeviceError::Failed`] if `work` panics.
pub fn compile_on_thread<T: Send + 'static>(
    device: &str,
    cancel: &CancelToken,
    work: impl FnOnce() -> Result<T, DeviceError> + Send + 'static,
) -> Result<T, DeviceError> {
    let failed = |reason: String| DeviceError::Failed { device: device.into(), reason };
    let (done, result) = mpsc::channel();
    let counted = DriverThread::new();
    let work = move || {
        // If nobody waits any more, the result is dropped here, and is the driver's to release.
        let _ = done.send((work(), counted));
    };
    let thread = std::thread::Builder::new().name("compile".into()).stack_size(STACK_BYTES).spawn(work);
    let thread = thread.map_err(|error| failed(format!("cannot create a compiler thread: {}", reason(&error))))?;
    loop {
        match result.recv_timeout(CANCEL_POLL_INTERVAL) {
            Ok((result, _)) => return result,
            Err(RecvTimeoutError::Timeout) if cancel.is_cancelled() => return Err(DeviceError::Cancelled),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let panic = thread.join().err();
                let message = panic.as_deref().map_or("no message", panic_message);
                return Err(failed(format!("compiling the filter failed: {message}")));
            }
        }
    }
}

/// Drops `guarded` after `wait_idle` has returned, which may take long, on a thread of its own. If
/// the process exits first, the value is never dropped.
pub fn drop_after<T: Send + 'static>(guarded: T, wait_idle: impl FnOnce() + Send + 'static) {
    // If the thread cannot be created, leak the value: the device may still use it.
    let guarded = ManuallyDrop::new((guarded, DriverThread::new()));
    let wait_and_drop = move || {
        wait_idle();
        drop(ManuallyDrop::into_inner(guarded));
    };
    let _ = std::thread::Builder::new().name("device".into()).spawn(wait_and_drop);
}

/// The message of a panic.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_and_cancellation_are_errors() {
        let token = CancelToken::new();
        assert_eq!(compile_on_thread("gpu", &token, || Ok(7)), Ok(7));
        let failed = |reason: &str| DeviceError::Failed { device: "gpu".into(), reason: reason.into() };
        let panics = compile_on_thread::<()>("gpu", &token, || panic!("at {}", 3));
        assert_eq!(panics, Err(failed("compiling the filter failed: at 3")));
        let (end, ends) = mpsc::channel::<()>();
        token.cancel();
        let endless = compile_on_thread("gpu", &token, move || {
            let _ = ends.recv();
            Ok(())
        });
        assert_eq!(endless, Err(DeviceError::Cancelled));
        drop(end);
    }
}
