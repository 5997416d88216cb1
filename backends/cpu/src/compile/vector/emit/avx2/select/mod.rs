//! Instruction selection: from lane IR to instructions on virtual registers.
//!
//! This does for eight lanes what `emit::cranelift` does for four. Both visit the graph in the same
//! order, from a node to its operands.
//!
//! - `selector`: the state, and helpers for single instructions;
//! - `words`: pure operations;
//! - `packets`: descriptors and loads from packets;
//! - `steps`: regions and loops.

mod packets;
mod selector;
mod steps;
mod words;

use std::collections::HashMap;

use super::super::plan::Plan;
use super::lazy_arms::ArmAnalysis;
use super::vcode::VCode;
use crate::compile::errors::Result;
use crate::compile::vector::ir::{LaneIr, RegionId};
use selector::Selector;

/// Selects the instructions for a group. `tables` are the byte offsets of the constant tables.
///
/// # Errors
///
/// [`Unsupported`](crate::compile::errors::Unsupported) if an operation is not implemented for
/// eight lanes.
pub(super) fn select(lanes: &LaneIr, plan: &Plan, tables: &[u32]) -> Result<VCode> {
    let mut select = Selector {
        lanes,
        plan,
        tables,
        arm_analysis: ArmAnalysis::new(lanes),
        code: VCode::default(),
        cache: HashMap::new(),
        journal: Vec::new(),
    };
    select.select_region(RegionId::ROOT)?;
    let verdict = select.value(lanes.verdict)?;
    select.code.verdict = Some(verdict);
    Ok(select.code)
}
