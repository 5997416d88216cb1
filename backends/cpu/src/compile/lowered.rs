//! Code of one function before it is linked, and what all code generators agree on.

use std::fmt::{self, Display, Formatter};

use cranelift_codegen::ir::{self, AbiParam, MemFlagsData, UserFuncName, types as clif};
use cranelift_codegen::isa::TargetIsa;

use super::errors::{Result, Unsupported};

/// A style of code. Which one is fastest depends on the traffic and is measured while filtering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Scalar code that executes both arms of a condition and selects the result, if that is safe
    /// and cheap: for traffic that branch predictors cannot learn.
    BranchFree,
    /// Scalar code with a branch for every condition: for uniform traffic.
    Branching,
    /// Vector code that reads fields behind a header of variable length where they lie if the
    /// header has its usual length, and falls back to a gather if one packet of the group differs.
    SpeculativeVector,
    /// Vector code that gathers fields at variable offsets packet by packet.
    Vector,
}

impl Style {
    /// Name for device ids and listings.
    pub fn name(self) -> &'static str {
        match self {
            Style::BranchFree => "branch-free",
            Style::Branching => "branching",
            Style::SpeculativeVector => "speculative vector",
            Style::Vector => "vector",
        }
    }

    /// Whether the code filters several packets at a time.
    pub fn is_vector(self) -> bool {
        matches!(self, Style::SpeculativeVector | Style::Vector)
    }
}

/// A compiled function body, before relocation.
pub(crate) enum CompiledBody {
    /// Cranelift's intermediate form.
    Clif(Box<ir::Function>),
    /// Position-independent machine code without relocations, the bytes of stack that it needs, and
    /// a listing of the instructions that it was encoded from.
    Machine { code: Vec<u8>, stack_bytes: usize, text: String },
}

impl Display for CompiledBody {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            CompiledBody::Clif(function) => write!(f, "{}", function.display()),
            CompiledBody::Machine { text, .. } => f.write_str(text),
        }
    }
}

/// A lowered function with the data that it needs at run time.
pub(crate) struct Lowered {
    pub body: CompiledBody,
    /// Constant tables, read through [`BatchContext::tables`](super::abi::BatchContext::tables).
    pub tables: Vec<u8>,
    /// Scalar operations after inlining, for a whole group of packets.
    pub operations: u64,
    /// Whether the code selects where [`Style::Branching`] would branch.
    pub saves_branches: bool,
    /// Packets per round of the loop. A remainder at the end of the range that is smaller than a
    /// group is not filtered.
    pub group_size: usize,
}

/// Creates a function without code.
///
/// # Errors
///
/// [`Unsupported`] unless the processor is 64 bits wide and little-endian.
pub(super) fn empty_function(isa: &dyn TargetIsa) -> Result<ir::Function> {
    let pointer = isa.pointer_type();
    if pointer != clif::I64 {
        return Err(Unsupported("a processor that is not 64 bits wide".into()));
    }
    if isa.endianness() != ir::Endianness::Little {
        return Err(Unsupported("a big-endian processor".into()));
    }
    Ok(ir::Function::with_name_signature(UserFuncName::user(0, 0), batch_signature(isa)))
}

/// Returns the signature of a [`BatchFunction`](super::abi::BatchFunction).
pub(super) fn batch_signature(isa: &dyn TargetIsa) -> ir::Signature {
    let mut signature = ir::Signature::new(isa.default_call_conv());
    signature.params.extend([AbiParam::new(isa.pointer_type()); 3]);
    signature
}

/// Flags for memory that nothing writes to while the function runs: the context, the descriptors,
/// the metadata, the tables.
pub(super) fn constant_memory() -> MemFlagsData {
    MemFlagsData::new().with_notrap().with_readonly().with_can_move()
}

/// Flags for memory that only the end of the loop's body writes to and nothing reads.
pub(super) fn output_memory() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}
