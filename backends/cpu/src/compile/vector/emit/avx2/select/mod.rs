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
use super::lazy_arms::Arms;
use super::vcode::Listing;
use crate::compile::errors::Result;
use crate::compile::vector::ir::{Lanes, RegionId};
use selector::Select;

/// The code for a group.
///
/// # Errors
/// What is not done eight at a time.
pub(super) fn select(lanes: &Lanes, plan: &Plan, tables: &[u32]) -> Result<Listing> {
    let mut select = Select {
        lanes,
        plan,
        tables,
        arms: Arms::new(lanes),
        listing: Listing::default(),
        found: HashMap::new(),
        journal: Vec::new(),
    };
    select.region(RegionId::ROOT)?;
    let verdict = select.value(lanes.verdict)?;
    select.listing.verdict = Some(verdict);
    Ok(select.listing)
}
