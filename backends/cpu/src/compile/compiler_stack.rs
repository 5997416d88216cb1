//! Threads with a stack that is large enough for the compiler.

use portcullis_core::device::DeviceError;

use super::errors::failed;

/// Stack of a thread that compiles, in bytes. The compiler's recursion follows the filter's
/// nesting, which the verifier bounds: expressions and blocks 256 deep, in a chain of helpers. The
/// stack is reserved address space, not memory in use.
pub(super) const COMPILER_STACK_BYTES: usize = 256 << 20;

/// Runs a step of the compiler on a thread of its own with [`COMPILER_STACK_BYTES`] of stack.
pub(super) fn with_compiler_stack<T: Send>(
    work: impl FnOnce() -> Result<T, DeviceError> + Send,
) -> Result<T, DeviceError> {
    on_large_stack(work).map_err(failed)?
}

/// Runs any closure on a thread of its own with [`COMPILER_STACK_BYTES`] of stack.
pub(super) fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("portcullis-compile".into())
            .stack_size(COMPILER_STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|error| format!("cannot start a thread for the compiler: {error}"))?
            .join()
            .map_err(|_| "the code generator panicked, which is a fault of Portcullis".into())
    })
}
