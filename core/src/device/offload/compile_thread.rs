//! Running a driver's compiler, which cannot be interrupted, on a thread of its own.

use std::any::Any;
use std::sync::mpsc::{self, RecvTimeoutError};

use super::CANCEL_POLL_INTERVAL;
use crate::device::{CancelToken, DeviceError};
use crate::reason;

/// Stack size in bytes: our writers and the drivers' compilers recurse over nested blocks.
const STACK_BYTES: usize = 64 << 20;

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
    let work = move || {
        let _ = done.send(work());
    };
    let thread = std::thread::Builder::new().name("compile".into()).stack_size(STACK_BYTES).spawn(work);
    let thread = thread.map_err(|error| failed(format!("cannot create a compiler thread: {}", reason(&error))))?;
    loop {
        match result.recv_timeout(CANCEL_POLL_INTERVAL) {
            Ok(result) => return result,
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
