//! Room for recursion.

use crate::diagnostics::{Diagnostic, Diagnostics, Source};
use crate::reason;

/// The stack that compiling runs on, in bytes. Virtual memory: pages that nothing touches cost
/// nothing. The deepest text that the checks let through needs a fraction of it
/// (`deep_texts_fit_the_stack` measures that).
pub const COMPILE_STACK_BYTES: usize = 256 << 20;

/// Runs `work` on a thread with [`COMPILE_STACK_BYTES`] bytes of stack and waits for it. For everything
/// that recurses over a filter's syntax or over its nested statements: a caller's own stack may be
/// as small as it likes.
///
/// # Errors
/// A diagnostic where the system has no such thread to give, or where `work` panicked: a fault of
/// ours or of naga's that a filter's text must not turn into the end of the process.
pub fn run_on_large_stack<T: Send>(source: &Source, work: impl FnOnce() -> T + Send) -> Result<T, Diagnostics> {
    let failed = |message: String| Diagnostics::one(source, Diagnostic::new(message));
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("portcullis-compile".into())
            .stack_size(COMPILE_STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|error| failed(format!("no thread to compile on: {}", reason(&error))))?
            .join()
            .map_err(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
                failed(format!("the compiler itself failed on this text: {text}"))
            })
    })
}
