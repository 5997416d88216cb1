//! Code for groups of eight packets in 256-bit vectors, for processors with AVX2 and filters
//! without effects.
//!
//! Cranelift has no 256-bit vectors, so this is a code generator of its own, from lane IR to bytes:
//!
//! - `select`: instruction selection, to instructions on virtual registers (`vcode`);
//! - `lazy_arms`: which arms of a select are worth a branch around them;
//! - `allocate`: linear-scan register allocation;
//! - `encode`: instruction encoding;
//! - `assemble`: the loop around the code for a group, and the function's frame.
//!
//! The parent module's rules on memory safety hold here as well.

mod allocate;
mod assemble;
mod encode;
mod lazy_arms;
mod select;
mod vcode;

use std::fmt::Write;

use cranelift_codegen::isa::{CallConv, TargetIsa};

use super::plan::Plan;
use crate::compile::errors::{Result, Unsupported};
use crate::compile::lowered::{CompiledBody, Lowered};
use crate::compile::vector::ir::LaneIr;
use allocate::{Allocation, Location, allocate};
use assemble::{Assembler, CALLEE_SAVED, Frame, LANES, VECTOR_BYTES};
use encode::{CodeBuffer, Ymm};
use vcode::{Instruction, VCode, VReg};

/// Maximum number of slots in the frame. It is smaller than a page, so it needs no stack probes.
const MAX_SLOTS: usize = 96;

/// Whether code can be generated for a processor: it has AVX2 and System V's calling convention.
pub(super) fn is_supported(isa: &dyn TargetIsa) -> bool {
    isa.triple().architecture.to_string() == "x86_64"
        && isa.default_call_conv() == CallConv::SystemV
        && isa.isa_flags().iter().any(|flag| flag.name == "has_avx2" && flag.as_bool() == Some(true))
}

/// Emits a function whose groups are eight packets.
///
/// # Errors
///
/// [`Unsupported`] if the filter has effects, uses an operation that is not implemented for eight
/// lanes, or needs too many registers.
pub(super) fn lower(lanes: &LaneIr, plan: &Plan, redirects: bool) -> Result<Lowered> {
    if lanes.writes || lanes.ends.is_some() || !lanes.arrays.is_empty() {
        return Err(Unsupported("writes to packets or arrays in groups of eight packets".into()));
    }
    let (mut tables, mut table_offsets) = (Vec::new(), Vec::new());
    for table in &lanes.tables {
        table_offsets.push(tables.len() as u32);
        tables.extend(table.iter().flat_map(|word| word.to_le_bytes()));
    }
    let code = select::select(lanes, plan, &table_offsets)?;
    let allocation = allocate(&code);
    if allocation.slots > MAX_SLOTS {
        return Err(Unsupported(format!("more than {MAX_SLOTS} spilled vectors")));
    }
    let frame = Frame { slots: allocation.slots as i32 };
    let operations = code.instructions.iter().map(Instruction::operations).sum();
    let text = render(&code, &allocation);
    let code = Assembler { code: CodeBuffer::default(), allocation: &allocation, frame }.assemble(&code, redirects);
    let stack_bytes = (frame.size() + VECTOR_BYTES) as usize + 8 * CALLEE_SAVED.len();
    Ok(Lowered {
        body: CompiledBody::Machine { code, stack_bytes, text },
        tables,
        operations,
        saves_branches: true,
        group_size: LANES,
    })
}

/// Renders the code as text, an instruction per line (`check --emit clif`).
fn render(code: &VCode, allocation: &Allocation) -> String {
    let mut text = String::new();
    let vreg = |vreg: VReg| match allocation.locations[vreg.0] {
        Location::Register(Ymm(number)) => format!("v{} (ymm{number})", vreg.0),
        Location::Slot(place) => format!("v{} (frame {place})", vreg.0),
        Location::Dead => format!("v{}", vreg.0),
    };
    for instruction in &code.instructions {
        let _ = match instruction.writes() {
            Some(to) => writeln!(text, "    {} = {instruction:?}", vreg(to)),
            None => writeln!(text, "    {instruction:?}"),
        };
    }
    for (number, constant) in code.constants.iter().enumerate() {
        let _ = writeln!(text, "    constant {number}: {:02x?}", &constant[..constant.len() / 2]);
    }
    text
}
