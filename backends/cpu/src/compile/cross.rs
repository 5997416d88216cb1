//! Cross compilation: a filter's machine code for a processor other than the host, for tests under
//! an emulator.

use cranelift_codegen::Context;
use cranelift_codegen::control::ControlPlane;
use portcullis_core::device::DeviceError;
use portcullis_core::program::Program;

use super::abi::context_offset;
use super::compiler_stack::with_compiler_stack;
use super::errors::failed;
use super::lowered::{CompiledBody, Style};
use super::pipeline::{StyleSet, lower_variants};
use super::processor::Processor;

/// Machine code of a filter in one style.
#[derive(Debug, Clone)]
pub struct MachineCode {
    /// Filters any number of packets.
    pub scalar: Function,
    /// Filters whole groups of packets, if the filter has vector code in this style. It runs first,
    /// and `scalar` filters the remainder.
    pub vector: Option<Function>,
}

/// A function in the C convention of the processor's ABI (AAPCS64 or System V) with three 64-bit
/// parameters: the address of a context ([`ContextPointers::to_bytes`]), the index of the first
/// packet in the batch, and the index past the last one. It calls nothing, and may be placed at any
/// address that is a multiple of 64 bytes.
#[derive(Debug, Clone)]
pub struct Function {
    /// Instructions, beginning with the entry point, and the constants that they read.
    pub code: Vec<u8>,
    /// The bytes that [`ContextPointers::tables`] has to point to.
    pub tables: Vec<u8>,
    /// Packets per round of the loop. A remainder smaller than a group is not filtered.
    pub group_size: usize,
}

/// Addresses of a function's data, in the address space of its processor. Columns that the filter
/// does not use may be anything.
#[derive(Debug, Clone, Copy, Default)]
pub struct ContextPointers {
    /// The packets' memory, readable
    /// [`READABLE_PAST_END`](portcullis_core::packet::READABLE_PAST_END) bytes past its end.
    pub arena: u64,
    /// One [`Descriptor`](portcullis_core::packet::Descriptor) per packet.
    pub descriptors: u64,
    /// One byte per packet, written.
    pub verdicts: u64,
    /// One 32-bit word per packet, written by filters that redirect.
    pub targets: u64,
    /// One [`Metadata`](portcullis_core::packet::Metadata) per packet.
    pub metadata: u64,
    /// A copy of [`Function::tables`].
    pub tables: u64,
    /// One descriptor per packet, written by filters that change lengths.
    pub resized: u64,
    /// Addresses of the maps' words, 64 bits each.
    pub maps: u64,
}

impl ContextPointers {
    /// Encodes the context in memory as the functions read it: 64-bit little-endian words.
    pub fn to_bytes(self) -> [u8; 80] {
        let mut bytes = [0; 80];
        for (offset, address) in [
            (context_offset::ARENA, self.arena),
            (context_offset::DESCRIPTORS, self.descriptors),
            (context_offset::VERDICTS, self.verdicts),
            (context_offset::TARGETS, self.targets),
            (context_offset::METADATA, self.metadata),
            (context_offset::TABLES, self.tables),
            (context_offset::RESIZED, self.resized),
            (context_offset::MAPS, self.maps),
        ] {
            bytes[offset as usize..][..8].copy_from_slice(&address.to_le_bytes());
        }
        bytes
    }
}

/// Compiles a filter for a processor. A vector style that the filter does not allow gives scalar
/// code alone.
///
/// # Errors
///
/// [`DeviceError::Unsupported`] for filters with floating point, which would call functions of this
/// process, and for what the code generator lacks; [`DeviceError::Failed`] if it does not know the
/// processor.
pub fn compile_machine_code(program: &Program, style: Style, processor: Processor) -> Result<MachineCode, DeviceError> {
    if program.facts().uses_float {
        let reason = "floating point calls functions of this process".into();
        return Err(DeviceError::Unsupported { device: "cpu".into(), reason });
    }
    with_compiler_stack(|| {
        let isa = processor.isa().map_err(failed)?;
        let mut functions = Vec::new();
        for (_, lowered) in lower_variants(program, StyleSet::Only(style), &*isa)?.0 {
            let code = match lowered.body {
                CompiledBody::Machine { code, .. } => code,
                CompiledBody::Clif(function) => {
                    let mut context = Context::for_function(*function);
                    let compiled = context.compile(&*isa, &mut ControlPlane::default());
                    let compiled = compiled.map_err(|error| failed(format!("{:?}", error.inner)))?;
                    if let Some(relocation) = compiled.buffer.relocs().first() {
                        return Err(failed(format!("the code needs a relocation: {relocation:?}")));
                    }
                    compiled.code_buffer().to_vec()
                }
            };
            functions.push(Function { code, tables: lowered.tables, group_size: lowered.group_size });
        }
        let mut functions = functions.into_iter();
        let scalar = functions.next().ok_or_else(|| failed("the compiler made no code".into()))?;
        Ok(MachineCode { scalar, vector: functions.next() })
    })
}
