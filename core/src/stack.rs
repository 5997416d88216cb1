//! Running recursive compiler passes on a thread with a large stack.

use crate::diagnostics::{Diagnostic, Diagnostics, Source};
use crate::reason;

/// Stack size for compilation, in bytes. It is virtual memory: untouched pages cost nothing. The
/// deepest filter that the checks accept needs a fraction of it, which the test
/// `deep_texts_fit_the_stack` measures.
pub const COMPILE_STACK_BYTES: usize = 256 << 20;

/// Runs `work` on a thread with [`COMPILE_STACK_BYTES`] of stack and waits for it. Everything that
/// recurses over a filter's syntax or its nested statements runs here, whatever the caller's stack.
///
/// # Errors
/// A diagnostic if the thread cannot be created, or if `work` panics: a filter that triggers a bug
/// of ours or of naga's must not end the process.
pub fn run_on_large_stack<T: Send>(source: &Source, work: impl FnOnce() -> T + Send) -> Result<T, Diagnostics> {
    let failed = |message: String| Diagnostics::one(source, Diagnostic::new(message));
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("portcullis-compile".into())
            .stack_size(COMPILE_STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|error| failed(format!("cannot create a compiler thread: {}", reason(&error))))?
            .join()
            .map_err(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
                failed(format!("internal compiler error: {text}"))
            })
    })
}
