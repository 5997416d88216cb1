//! The CPU device: a filter becomes native code for a whole batch (Cranelift), and rayon's threads
//! share the batch's packets.
//!
//! The code of a batch is one loop with everything inlined. Packet accesses that the filter has
//! already made sure of go unchecked; all others are checked, so that no filter and no packet can
//! make it touch memory that is not the packet's. `docs/design.md`, section 7, has the measurements
//! behind it.

#![allow(unsafe_code)]

mod compile;
mod memory;
mod probe;
mod runtime;
mod session;

use std::sync::Arc;

use portcullis_core::device::{Device, DeviceError, DeviceInfo, LoadOptions, Session};
use portcullis_core::program::Program;

/// The host's processor.
#[derive(Debug)]
pub struct Cpu {
    info: DeviceInfo,
}

impl Cpu {
    /// The device; it is always there, though a program is refused on a processor that the code
    /// generator does not know.
    pub fn new() -> Cpu {
        Cpu { info: probe::info() }
    }
}

impl Default for Cpu {
    fn default() -> Self {
        Cpu::new()
    }
}

impl Device for Cpu {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
        let code = compiled(program)?;
        Ok(Box::new(session::CpuSession::new(program.clone(), code, options)?))
    }
}

/// Stack for the compiler, whose recursion follows the filter's nesting (bounded by the verifier:
/// expressions and blocks 256 deep, in a chain of helpers). It is reserved, not used.
const COMPILER_STACK: usize = 256 << 20;

/// Runs a piece of the compiler on a stack that is large enough.
fn with_stack<T: Send>(work: impl FnOnce() -> Result<T, DeviceError> + Send) -> Result<T, DeviceError> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("portcullis-compile".into())
            .stack_size(COMPILER_STACK)
            .spawn_scoped(scope, work)
            .map_err(|error| failed(format!("no thread for the compiler: {error}")))?
            .join()
            .map_err(|_| failed("the code generator failed; this is a fault of Portcullis".into()))?
    })
}

fn failed(reason: String) -> DeviceError {
    DeviceError::Failed { device: "cpu".into(), reason }
}

fn unsupported(reason: compile::Unsupported) -> DeviceError {
    DeviceError::Unsupported { device: "cpu".into(), reason: reason.0 }
}

fn compiled(program: &Program) -> Result<memory::Code, DeviceError> {
    with_stack(|| {
        let isa = memory::host_isa().map_err(failed)?;
        let lowered = compile::lower(program, &*isa).map_err(unsupported)?;
        memory::Code::new(lowered, isa).map_err(failed)
    })
}

/// The filter in Cranelift's intermediate form, before optimisation: `check --emit clif`.
///
/// # Errors
/// [`DeviceError::Unsupported`] where the filter needs something that the code generator lacks.
pub fn clif(program: &Program) -> Result<String, DeviceError> {
    with_stack(|| {
        let isa = memory::host_isa().map_err(failed)?;
        let lowered = compile::lower(program, &*isa).map_err(unsupported)?;
        Ok(lowered.function.display().to_string())
    })
}
