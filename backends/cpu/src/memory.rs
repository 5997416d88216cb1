//! Native code in memory, what it is called with, and its end.

use std::mem::offset_of;

use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::{CodegenError, isa::OwnedTargetIsa};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{FuncId, Module, ModuleError};
use portcullis_core::packet::{Descriptor, Metadata};
use portcullis_core::program::FLOW_BITS;

use crate::compile::Lowered;
use crate::runtime;

/// What the code reads its buffers' addresses from.
#[derive(Clone, Copy)]
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
    /// The addresses of the maps' words, read and written.
    pub maps: *const *mut u32,
    /// One flow's number a packet, read by filters with flows; null where all packets are this call's.
    pub flows: *const u32,
    /// Which of the shards is this call's: the packets of others are left out.
    pub shard: u32,
    /// How many there are, at most [`MAX_SHARDS`].
    pub shards: u32,
}

/// A flow's shard is `(number >> 8) * shards >> 16`, in 32 bits.
pub(crate) const MAX_SHARDS: usize = 1 << 16;
const _: () = assert!(FLOW_BITS == 24);

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
    pub const MAPS: i32 = offset_of!(Context, maps) as i32;
    pub const FLOWS: i32 = offset_of!(Context, flows) as i32;
    pub const SHARD: i32 = offset_of!(Context, shard) as i32;
    pub const SHARDS: i32 = offset_of!(Context, shards) as i32;
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

/// One function for a batch, and its tables.
struct Entry {
    run: unsafe extern "C" fn(*const Context, usize, usize),
    /// For [`Context::tables`].
    tables: Vec<u8>,
}

/// Compiled code: one function or more that do the same; freed when dropped.
pub(crate) struct Code {
    module: Option<JITModule>,
    entries: Vec<Entry>,
    runtime: Vec<usize>,
    /// See [`Lowered::stack`]: of the function that needs most.
    pub stack: usize,
    /// See [`Lowered::operations`]: of the function that has most.
    pub operations: u64,
}

// SAFETY: the module is touched only to free its memory, in `drop`; the code itself is immutable
// and keeps no state.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Code {
    /// Compiles functions and makes them executable. Their pages are writable first and executable
    /// then, never both.
    pub fn new(lowered: Vec<Lowered>, isa: OwnedTargetIsa) -> Result<Code, String> {
        let builder = JITBuilder::with_isa(isa, cranelift_module::default_libcall_names());
        let mut code = Code {
            module: Some(JITModule::new(builder)),
            entries: Vec::with_capacity(lowered.len()),
            runtime: runtime::addresses(),
            stack: lowered.iter().map(|l| l.stack).max().unwrap_or(0),
            operations: lowered.iter().map(|l| l.operations).max().unwrap_or(0),
        };
        // Where this ends early, `drop` frees what there is of the module.
        let Some(module) = &mut code.module else { unreachable!("set above") };
        let mut defined = Vec::with_capacity(lowered.len());
        for Lowered { function, tables, .. } in lowered {
            defined.push((Self::define(module, function)?, tables));
        }
        module.finalize_definitions().map_err(|e| e.to_string())?;
        for (id, tables) in defined {
            let address = module.get_finalized_function(id);
            // SAFETY: `lower` built the function with exactly this signature, in the C convention.
            let run = unsafe {
                std::mem::transmute::<*const u8, unsafe extern "C" fn(*const Context, usize, usize)>(address)
            };
            code.entries.push(Entry { run, tables });
        }
        Ok(code)
    }

    fn define(module: &mut JITModule, function: cranelift_codegen::ir::Function) -> Result<FuncId, String> {
        let id = module.declare_anonymous_function(&function.signature).map_err(|e| e.to_string())?;
        let mut context = module.make_context();
        context.func = function;
        module.define_function(id, &mut context).map_err(|error| match error {
            ModuleError::Compilation(CodegenError::Verifier(errors)) => format!("invalid code: {errors}"),
            other => other.to_string(),
        })?;
        Ok(id)
    }

    /// How many functions there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Constant tables of a function, for [`Context::tables`].
    pub fn tables(&self, entry: usize) -> *const u8 {
        self.entries[entry].tables.as_ptr()
    }

    /// The runtime's functions, for [`Context::runtime`].
    pub fn runtime(&self) -> *const usize {
        self.runtime.as_ptr()
    }

    /// Runs the filter over packets `start..end`, by function `entry`.
    ///
    /// # Safety
    /// Every pointer of the context that the program uses (see its fields) is good for packets
    /// `start..end`; their descriptors lie in the arena (and with their room, where the filter
    /// changes lengths), which is readable [`READABLE_PAST_END`] bytes past its end; and nobody
    /// else touches the packets, or writes to anything else that the context points to.
    ///
    /// [`READABLE_PAST_END`]: portcullis_core::packet::READABLE_PAST_END
    pub unsafe fn run(&self, entry: usize, context: &Context, start: usize, end: usize) {
        // SAFETY: passed on to the caller.
        unsafe { (self.entries[entry].run)(context, start, end) }
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        if let Some(module) = self.module.take() {
            // SAFETY: no entry is called again, and nobody else has one.
            unsafe { module.free_memory() };
        }
    }
}
