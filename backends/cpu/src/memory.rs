//! Native code in memory, what it is called with, and its end.

use std::mem::offset_of;

use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::{CodegenError, isa::OwnedTargetIsa};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{FuncId, Linkage, Module, ModuleError};
use portcullis_core::packet::{Descriptor, Metadata};

use crate::compile::Lowered;
use crate::runtime;

/// What the code reads its buffers' addresses from.
#[repr(C)]
pub(crate) struct Context {
    /// The arena's first byte.
    pub arena: *mut u8,
    /// One descriptor a packet.
    pub descriptors: *const Descriptor,
    /// One byte a packet, written.
    pub verdicts: *mut u8,
    /// One target a packet, written by filters that redirect.
    pub targets: *mut u32,
    /// One entry a packet, read by filters that use metadata.
    pub metadata: *const Metadata,
    /// The program's constant tables.
    pub tables: *const u8,
    /// One descriptor a packet, written by filters that change lengths.
    pub resized: *mut Descriptor,
    /// The addresses of [`runtime::FUNCTIONS`](crate::runtime::FUNCTIONS).
    pub runtime: *const usize,
}

/// Where [`Context`]'s fields are, in bytes.
pub(crate) mod context_offset {
    use super::{Context, offset_of};

    pub const ARENA: i32 = offset_of!(Context, arena) as i32;
    pub const DESCRIPTORS: i32 = offset_of!(Context, descriptors) as i32;
    pub const VERDICTS: i32 = offset_of!(Context, verdicts) as i32;
    pub const TARGETS: i32 = offset_of!(Context, targets) as i32;
    pub const METADATA: i32 = offset_of!(Context, metadata) as i32;
    pub const TABLES: i32 = offset_of!(Context, tables) as i32;
    pub const RESIZED: i32 = offset_of!(Context, resized) as i32;
    pub const RUNTIME: i32 = offset_of!(Context, runtime) as i32;
}

/// Code for the host's processor, with all that it can do.
pub(crate) fn host_isa() -> Result<OwnedTargetIsa, String> {
    let mut flags = settings::builder();
    for (name, value) in [
        ("opt_level", "speed"),
        ("is_pic", "false"),
        ("use_colocated_libcalls", "false"),
        // Our own output is checked in release builds too: a fault of ours is then an error and
        // not wild code, for a tenth of the time that compiling takes.
        ("enable_verifier", "true"),
        // A filter's variables may take more than the guard page below the stack.
        ("enable_probestack", "true"),
        ("probestack_strategy", "inline"),
        ("unwind_info", "false"),
    ] {
        flags.set(name, value).map_err(|e| format!("code generator flag {name}: {e}"))?;
    }
    cranelift_native::builder()?.finish(settings::Flags::new(flags)).map_err(|e| e.to_string())
}

/// Compiled code; freed when dropped.
pub(crate) struct Code {
    module: Option<JITModule>,
    entry: unsafe extern "C" fn(*const Context, usize, usize),
    tables: Vec<u8>,
    runtime: Vec<usize>,
}

// SAFETY: the module is touched only to free its memory, in `drop`; the code itself is immutable
// and keeps no state.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Code {
    /// Compiles a function and makes it executable. Its pages are writable first and executable
    /// then, never both.
    pub fn new(lowered: Lowered, isa: OwnedTargetIsa) -> Result<Code, String> {
        let builder = JITBuilder::with_isa(isa, cranelift_module::default_libcall_names());
        let mut module = JITModule::new(builder);
        let id = match Self::define(&mut module, lowered.function) {
            Ok(id) => id,
            Err(error) => {
                // SAFETY: nothing of the module has run or will.
                unsafe { module.free_memory() };
                return Err(error);
            }
        };
        let address = module.get_finalized_function(id);
        // SAFETY: `lower` built the function with exactly this signature, in the C convention.
        let entry =
            unsafe { std::mem::transmute::<*const u8, unsafe extern "C" fn(*const Context, usize, usize)>(address) };
        Ok(Code { module: Some(module), entry, tables: lowered.tables, runtime: runtime::addresses() })
    }

    fn define(module: &mut JITModule, function: cranelift_codegen::ir::Function) -> Result<FuncId, String> {
        let id = module.declare_function("filter", Linkage::Export, &function.signature).map_err(|e| e.to_string())?;
        let mut context = module.make_context();
        context.func = function;
        module.define_function(id, &mut context).map_err(|error| match error {
            ModuleError::Compilation(CodegenError::Verifier(errors)) => format!("invalid code: {errors}"),
            other => other.to_string(),
        })?;
        module.finalize_definitions().map_err(|e| e.to_string())?;
        Ok(id)
    }

    /// Constant tables, for [`Context::tables`].
    pub fn tables(&self) -> *const u8 {
        self.tables.as_ptr()
    }

    /// The runtime's functions, for [`Context::runtime`].
    pub fn runtime(&self) -> *const usize {
        self.runtime.as_ptr()
    }

    /// Runs the filter over packets `start..end`.
    ///
    /// # Safety
    /// Every pointer of the context that the program uses (see its fields) is good for packets
    /// `start..end`; their descriptors lie in the arena (and with their room, where the filter
    /// changes lengths), which is readable [`READABLE_PAST_END`] bytes past its end; and nobody
    /// else touches the packets, or writes to anything else that the context points to.
    ///
    /// [`READABLE_PAST_END`]: portcullis_core::packet::READABLE_PAST_END
    pub unsafe fn run(&self, context: &Context, start: usize, end: usize) {
        // SAFETY: passed on to the caller.
        unsafe { (self.entry)(context, start, end) }
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        if let Some(module) = self.module.take() {
            // SAFETY: `entry` is not called again, and nobody else has it.
            unsafe { module.free_memory() };
        }
    }
}
