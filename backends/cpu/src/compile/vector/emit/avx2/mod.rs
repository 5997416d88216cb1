//! Code for groups of eight packets in 256-bit vectors, for processors with AVX2 and filters without
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
use crate::compile::vector::ir::Lanes;
use allocate::{Home, Homes, allocate};
use assemble::{Assemble, BYTES, Frame, KEPT, LANES};
use encode::{Code, Register};
use vcode::{Instruction, Listing, Vector};

/// Places in the frame: it fits into a page, so that nobody need touch one page after the other.
const MOST_PLACES: usize = 96;

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
pub(super) fn lower(lanes: &Lanes, plan: &Plan, redirects: bool) -> Result<Lowered> {
    if lanes.writes || lanes.ends.is_some() || !lanes.arrays.is_empty() {
        return Err(Unsupported("packets and arrays that are written to, eight at a time".into()));
    }
    let (mut tables, mut begins) = (Vec::new(), Vec::new());
    for table in &lanes.tables {
        begins.push(tables.len() as u32);
        tables.extend(table.iter().flat_map(|word| word.to_le_bytes()));
    }
    let listing = select::select(lanes, plan, &begins)?;
    let homes = allocate(&listing);
    if homes.places > MOST_PLACES {
        return Err(Unsupported(format!("more than {MOST_PLACES} vectors beside those in registers")));
    }
    let frame = Frame { places: homes.places as i32 };
    let operations = listing.instructions.iter().map(Instruction::operations).sum();
    let text = text(&listing, &homes);
    let code = Assemble { code: Code::default(), homes: &homes, frame }.run(&listing, redirects);
    let stack_bytes = (frame.size() + BYTES) as usize + 8 * KEPT.len();
    Ok(Lowered {
        body: CompiledBody::Machine { code, stack_bytes, text },
        tables,
        operations,
        saves_branches: true,
        group_size: LANES,
    })
}

/// The code as text, one instruction a line: `check --emit clif`.
fn text(listing: &Listing, homes: &Homes) -> String {
    let mut text = String::new();
    let vector = |vector: Vector| match homes.homes[vector.0] {
        Home::Register(Register(number)) => format!("v{} (ymm{number})", vector.0),
        Home::Memory(place) => format!("v{} (frame {place})", vector.0),
        Home::Nowhere => format!("v{}", vector.0),
    };
    for instruction in &listing.instructions {
        let _ = match instruction.writes() {
            Some(to) => writeln!(text, "    {} = {instruction:?}", vector(to)),
            None => writeln!(text, "    {instruction:?}"),
        };
    }
    for (number, constant) in listing.constants.iter().enumerate() {
        let _ = writeln!(text, "    constant {number}: {:02x?}", &constant[..constant.len() / 2]);
    }
    text
}
