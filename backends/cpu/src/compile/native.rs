//! Functions in executable memory.

use cranelift_codegen::{CodegenError, isa::OwnedTargetIsa};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{FuncId, Module, ModuleError};

use super::abi::BatchFunction;
use super::lowered::{CompiledBody, Lowered, batch_signature};

/// Alignment of machine code in bytes: a cache line, so that no 256-bit constant straddles two.
const CODE_ALIGNMENT: u64 = 64;

/// Stack that a function needs besides its own frame, in bytes: the return address, and the frames
/// of the float functions that it calls.
const STACK_OUTSIDE_FRAME: usize = 4 << 10;

/// A compiled function with its tables.
pub(super) struct EntryPoint {
    pub run: BatchFunction,
    /// See [`Lowered::tables`].
    pub tables: Vec<u8>,
    /// See [`Lowered::group_size`].
    pub group_size: usize,
}

/// Functions in executable memory, which is freed on drop.
pub(crate) struct NativeCode {
    module: Option<JITModule>,
    pub(super) entries: Vec<EntryPoint>,
    /// Bytes of stack of the function that needs most.
    pub stack_bytes: usize,
    /// Operations per packet of the function that has most; see [`Lowered::operations`].
    pub operations: u64,
}

// SAFETY: the module is touched only to free its memory, in `drop`; the code itself is immutable
// and keeps no state.
unsafe impl Send for NativeCode {}
// SAFETY: as above.
unsafe impl Sync for NativeCode {}

impl NativeCode {
    /// Compiles functions and makes them executable. Their pages are first writable, then
    /// executable, never both.
    pub fn new(lowered: Vec<Lowered>, isa: OwnedTargetIsa) -> Result<NativeCode, String> {
        let builder = JITBuilder::with_isa(isa, cranelift_module::default_libcall_names());
        let mut native = NativeCode {
            module: Some(JITModule::new(builder)),
            entries: Vec::with_capacity(lowered.len()),
            stack_bytes: 0,
            operations: lowered.iter().map(|l| l.operations / l.group_size as u64).max().unwrap_or(0),
        };
        // If this returns early, `drop` frees what the module has allocated so far.
        let Some(module) = &mut native.module else { unreachable!("set above") };
        let mut defined = Vec::with_capacity(lowered.len());
        for Lowered { body, tables, group_size, .. } in lowered {
            let (id, stack_bytes) = Self::define_function(module, body)?;
            native.stack_bytes = native.stack_bytes.max(stack_bytes);
            defined.push((id, tables, group_size));
        }
        module.finalize_definitions().map_err(|e| e.to_string())?;
        let finished = |(id, tables, group_size)| {
            let address = module.get_finalized_function(id);
            // SAFETY: every code generator builds its function with exactly this signature, in the
            // C convention.
            let run = unsafe { std::mem::transmute::<*const u8, BatchFunction>(address) };
            EntryPoint { run, tables, group_size }
        };
        native.entries = defined.into_iter().map(finished).collect();
        Ok(native)
    }

    /// Compiles a function into the module; returns its id and the bytes of stack that it needs.
    fn define_function(module: &mut JITModule, body: CompiledBody) -> Result<(FuncId, usize), String> {
        let signature = match &body {
            CompiledBody::Clif(function) => function.signature.clone(),
            // Both kinds are called through the same type of pointer.
            CompiledBody::Machine { .. } => batch_signature(module.isa()),
        };
        let id = module.declare_anonymous_function(&signature).map_err(|e| e.to_string())?;
        let function = match body {
            CompiledBody::Clif(function) => function,
            CompiledBody::Machine { code, stack_bytes, .. } => {
                module.define_function_bytes(id, CODE_ALIGNMENT, &code, &[]).map_err(|e| e.to_string())?;
                return Ok((id, stack_bytes));
            }
        };
        let mut context = module.make_context();
        context.func = *function;
        module.define_function(id, &mut context).map_err(|error| match error {
            ModuleError::Compilation(CodegenError::Verifier(errors)) => format!("invalid code: {errors}"),
            other => other.to_string(),
        })?;
        let frame = context.compiled_code().and_then(|code| code.buffer.frame_layout());
        let stack_bytes = frame.map_or(usize::MAX, |frame| frame.frame_to_fp_offset as usize + STACK_OUTSIDE_FRAME);
        Ok((id, stack_bytes))
    }
}

impl Drop for NativeCode {
    fn drop(&mut self) {
        if let Some(module) = self.module.take() {
            // SAFETY: the entry points are owned by this value, so none is called again.
            unsafe { module.free_memory() };
        }
    }
}
