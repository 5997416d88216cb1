//! Cranelift code for groups of four packets, in 128-bit vectors (SSE4.1 or NEON).
//!
//! - `emitter`: the state of the emitter, and the loop over groups;
//! - `lanes`: vectors and their lanes;
//! - `operations`: pure operations;
//! - `packet_rows`: loads from packets that the filter does not write to;
//! - `effects`: steps with effects;
//! - `regions`: the order of steps, regions and loops.

mod effects;
mod emitter;
mod lanes;
mod operations;
mod packet_rows;
mod regions;

use std::collections::HashMap;

use cranelift_codegen::ir::Value;
use cranelift_codegen::isa::TargetIsa;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};

use super::plan::Plan;
use crate::compile::errors::Result;
use crate::compile::lowered::{CompiledBody, Lowered, empty_function};
use crate::compile::vector::ir::LaneIr;
use emitter::{Emitter, LANES};

/// Nodes up to which the loop's body filters two groups.
const MAX_NODES_FOR_TWO_GROUPS: usize = 200;

/// Emits a function whose groups are four packets, or eight for small filters.
pub(super) fn lower(lanes: &LaneIr, plan: &Plan, redirects: bool, isa: &dyn TargetIsa) -> Result<Lowered> {
    let mut function = empty_function(isa)?;
    let mut context = FunctionBuilderContext::new();
    let b = FunctionBuilder::new(&mut function, &mut context);
    let groups = if plan.node_count <= MAX_NODES_FOR_TWO_GROUPS { 2 } else { 1 };
    let emit = Emitter {
        b,
        isa,
        tables: Vec::new(),
        table_offsets: Vec::new(),
        lanes,
        plan,
        redirects,
        group: None,
        context: Value::from_u32(0),
        cache: HashMap::new(),
        journal: Vec::new(),
        arrays: Vec::new(),
        scratch: None,
        operations: 0,
    };
    let (tables, operations) = emit.emit_function(groups)?;
    let body = CompiledBody::Clif(Box::new(function));
    Ok(Lowered { body, tables, operations, saves_branches: true, group_size: LANES * groups })
}
