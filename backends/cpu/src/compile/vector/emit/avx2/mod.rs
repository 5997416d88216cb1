//! CodeBuffer for groups of eight packets in 256-bit vectors, for processors with AVX2 and filters without
//! effects.
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

/// Places in the frame: it fits into a page, so that nobody need touch one page after the other.
const MAX_SLOTS: usize = 96;

/// Whether a processor has what the code needs.
pub(super) fn is_supported(isa: &dyn TargetIsa) -> bool {
    isa.triple().architecture.to_string() == "x86_64"
        && isa.default_call_conv() == CallConv::SystemV
        && isa.isa_flags().iter().any(|flag| flag.name == "has_avx2" && flag.as_bool() == Some(true))
}

/// Builds a function as `super::lower` does.
///
/// # Errors
/// What is not done eight at a time.
pub(super) fn lower(lanes: &LaneIr, plan: &Plan, redirects: bool) -> Result<Lowered> {
    if lanes.writes || lanes.ends.is_some() || !lanes.arrays.is_empty() {
        return Err(Unsupported("packets and arrays that are written to, eight at a time".into()));
    }
    let (mut tables, mut begins) = (Vec::new(), Vec::new());
    for table in &lanes.tables {
        begins.push(tables.len() as u32);
        tables.extend(table.iter().flat_map(|word| word.to_le_bytes()));
    }
    let code = select::select(lanes, plan, &begins)?;
    let allocation = allocate(&code);
    if allocation.slots > MAX_SLOTS {
        return Err(Unsupported(format!("more than {MAX_SLOTS} vectors beside those in registers")));
    }
    let frame = Frame { slots: allocation.slots as i32 };
    let operations = code.instructions.iter().map(Instruction::operations).sum();
    let text = text(&code, &allocation);
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

/// The code as text, one instruction a line: `check --emit clif`.
fn text(code: &VCode, allocation: &Allocation) -> String {
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
