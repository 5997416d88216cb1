//! A filter's machine code, to be run elsewhere: for tests on processors that are not at hand.

use cranelift_codegen::Context;
use cranelift_codegen::control::ControlPlane;
use portcullis_core::device::DeviceError;
use portcullis_core::program::Program;

use crate::compile::Body;
use crate::memory::context_offset;
use crate::{Processor, Style, Styles, failed, lowered, with_stack};

/// A filter's code in one style.
#[derive(Debug, Clone)]
pub struct MachineCode {
    /// What takes any number of packets.
    pub scalar: Function,
    /// What takes whole groups of them, and comes first where it is there.
    pub vector: Option<Function>,
}

/// A function in the C convention of Arm's or System V's ABI, with three parameters: the address of [`ContextPointers`], and
/// the places in the batch of its first packet and of the one behind its last, 64 bits each. It calls nothing, and may be at any
/// address that is a multiple of 64 bytes.
#[derive(Debug, Clone)]
pub struct Function {
    /// Its instructions, the first to be called; among them the constants that they read.
    pub code: Vec<u8>,
    /// What [`ContextPointers::tables`] has to lead to.
    pub tables: Vec<u8>,
    /// Packets that it takes at a time: it leaves out what makes no whole group at the end.
    pub group_size: usize,
}

/// Where a function finds what it works on: addresses as its processor has them. Columns that the filter does not use may be
/// nowhere.
#[derive(Debug, Clone, Copy, Default)]
pub struct ContextPointers {
    /// The packets' memory, readable [`READABLE_PAST_END`](portcullis_core::packet::READABLE_PAST_END) bytes past its end.
    pub arena: u64,
    /// [`Descriptor`](portcullis_core::packet::Descriptor)s, one a packet.
    pub descriptors: u64,
    /// A byte a packet, written.
    pub verdicts: u64,
    /// A 32-bit word a packet, written by filters that redirect.
    pub targets: u64,
    /// [`Metadata`](portcullis_core::packet::Metadata), one a packet.
    pub metadata: u64,
    /// [`Function::tables`].
    pub tables: u64,
    /// Descriptors, written by filters that change lengths.
    pub resized: u64,
    /// Addresses of the maps' words, 64 bits each.
    pub maps: u64,
}

impl ContextPointers {
    /// As the functions read them: 64-bit words, the lowest byte first.
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

/// The filter's code for a processor. A style that the filter cannot have gives what takes any number of packets alone.
///
/// # Errors
/// [`DeviceError::Unsupported`] for filters with floating point, whose code calls functions of this process, and for what
/// the code generator lacks; [`DeviceError::Failed`] where it knows no such processor.
pub fn machine_code(program: &Program, style: Style, processor: Processor) -> Result<MachineCode, DeviceError> {
    if program.facts().uses_float {
        let reason = "floating point calls functions of the process that made the code".into();
        return Err(DeviceError::Unsupported { device: "cpu".into(), reason });
    }
    with_stack(|| {
        let isa = processor.isa().map_err(failed)?;
        let mut functions = Vec::new();
        for (_, lowered) in lowered(program, Styles::Only(style), &*isa)?.0 {
            let code = match lowered.body {
                Body::Machine { code, .. } => code,
                Body::Clif(function) => {
                    let mut context = Context::for_function(*function);
                    let compiled = context.compile(&*isa, &mut ControlPlane::default());
                    let compiled = compiled.map_err(|error| failed(format!("{:?}", error.inner)))?;
                    if let Some(relocation) = compiled.buffer.relocs().first() {
                        return Err(failed(format!("the code needs something outside: {relocation:?}")));
                    }
                    compiled.code_buffer().to_vec()
                }
            };
            functions.push(Function { code, tables: lowered.tables, group_size: lowered.group });
        }
        let mut functions = functions.into_iter();
        let scalar = functions.next().ok_or_else(|| failed("no code at all".into()))?;
        Ok(MachineCode { scalar, vector: functions.next() })
    })
}
