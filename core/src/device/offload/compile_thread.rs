//! Compilers that cannot be told to stop.

use std::any::Any;
use std::sync::mpsc::{self, RecvTimeoutError};

use super::CANCEL_POLL_INTERVAL;
use crate::device::{CancelToken, DeviceError};
use crate::reason;

/// Writers and drivers' compilers walk nested blocks by recursion.
const STACK: usize = 64 << 20;

/// Runs a driver's compiler, and what goes before and after it, on a thread of its own with a large stack. When the
/// token is used meanwhile the thread is left behind: drivers cannot be told to stop. `device` is for messages.
///
/// # Errors
/// The work's own; [`DeviceError::Cancelled`]; [`DeviceError::Failed`] where the work panics.
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
    let thread = std::thread::Builder::new().name("compile".into()).stack_size(STACK).spawn(work);
    let thread = thread.map_err(|error| failed(format!("no thread to compile on: {}", reason(&error))))?;
    loop {
        match result.recv_timeout(CANCEL_POLL_INTERVAL) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) if cancel.is_cancelled() => return Err(DeviceError::Cancelled),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let panic = thread.join().err();
                let panic_message = panic.as_deref().map_or("no reason given", panic_message);
                return Err(failed(format!("the filter could not be compiled: {panic_message}")));
            }
        }
    }
}

/// What a panic said.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_panics_or_never_ends_is_an_error() {
        let token = CancelToken::new();
        assert_eq!(compile_on_thread("gpu", &token, || Ok(7)), Ok(7));
        let failed = |reason: &str| DeviceError::Failed { device: "gpu".into(), reason: reason.into() };
        let panics = compile_on_thread::<()>("gpu", &token, || panic!("at {}", 3));
        assert_eq!(panics, Err(failed("the filter could not be compiled: at 3")));
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
