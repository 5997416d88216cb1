//! Cranelift code that filters one packet at a time.
//!
//! A program becomes one function that loops over the packets of a batch, with the filter, its
//! helpers and the prelude's functions inlined into the loop's body.
//!
//! - `codegen`: the state of the code generator, and the loop;
//! - `value_facts`: ranges, sums and length facts about values;
//! - `operators`: operators on scalars, with peephole optimisations;
//! - `math`, `float_math`: WGSL's built-in functions;
//! - `packet_access`: the prelude's functions on a packet;
//! - `map_lookup`: searches for a key in a hash map;
//! - `search_prefetch`: the part of a filter that leads to its first map search, run ahead of it;
//! - `expressions`, `variables`: naga's expressions, variables and pointers;
//! - `placement`: which variables live in registers;
//! - `cost`: which parts of a filter have no side effects, and what they cost;
//! - `control_flow`, `branch_free`: statements, with branches or with selects;
//! - `jump_threading`: removes blocks that only jump on.
//!
//! What makes the code safe for any filter and any packet is stated at the two places that access
//! memory: `packet_access::Codegen::load_packet` and `variables::Codegen::element_address`.

mod branch_free;
mod codegen;
mod control_flow;
mod cost;
mod expressions;
mod float_math;
mod jump_threading;
mod map_lookup;
mod math;
mod operators;
mod packet_access;
mod placement;
pub(super) mod search_prefetch;
mod value_facts;
mod variables;

use cranelift_codegen::ir;
use cranelift_codegen::isa::TargetIsa;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use portcullis_core::program::Program;

use super::errors::Result;
use super::lowered::{CompiledBody, Lowered, Style, empty_function};
use codegen::{Codegen, LoweringOutput};

/// Lowers a filter to a [`BatchFunction`](super::abi::BatchFunction).
pub(super) fn lower(program: &Program, style: Style, isa: &dyn TargetIsa) -> Result<Lowered> {
    let mut function = empty_function(isa)?;
    let mut context = FunctionBuilderContext::new();
    let builder = FunctionBuilder::new(&mut function, &mut context);
    let output = Codegen::new(builder, program, style, isa).lower_filter()?;
    Ok(finish(function, output))
}

/// Lowers a filter's prefetch code to a function with the same signature (see `search_prefetch`).
/// Returns `None` if there is no search whose address it could compute.
pub(super) fn lower_prefetch(program: &Program, isa: &dyn TargetIsa) -> Result<Option<Lowered>> {
    let mut function = empty_function(isa)?;
    let mut context = FunctionBuilderContext::new();
    let builder = FunctionBuilder::new(&mut function, &mut context);
    // One style will do: there is no verdict to select, and little is computed for nothing.
    let output = Codegen::new(builder, program, Style::BranchFree, isa).lower_prefetch()?;
    Ok(output.map(|output| finish(function, output)))
}

fn finish(mut function: ir::Function, output: LoweringOutput) -> Lowered {
    jump_threading::thread_jumps(&mut function);
    Lowered {
        tables: output.tables,
        operations: output.operations,
        saves_branches: output.saves_branches,
        group_size: 1,
        body: CompiledBody::Clif(Box::new(function)),
    }
}
