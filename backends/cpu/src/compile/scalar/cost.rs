//! Cost model for the decision between a branch and a select: which parts of a filter have no side
//! effects except on variables, and what it costs to execute them.

use std::collections::HashMap;

use naga::{BinaryOperator, Block, Expression, Function, Handle, MathFunction, Statement, TypeInner};
use portcullis_core::map::MapFunction;
use portcullis_core::program::Program;
use portcullis_core::program::prelude::Intrinsic;

use super::placement;

/// Cost in simple instructions. `None` if the code must not be executed speculatively: it writes to
/// memory, loops, or leaves a loop.
pub(super) type Cost = Option<u32>;

/// Costs of the filter's functions, computed once.
pub(super) struct CostModel {
    functions: HashMap<Handle<Function>, Cost>,
    /// Result of [`placement::uses_dynamic_indexing`] for the filter: variables may live in memory,
    /// and storing to one of those is a side effect.
    pub uses_dynamic_indexing: bool,
    /// Whether words of maps may be read speculatively.
    reads_maps: bool,
}

impl CostModel {
    pub fn new(program: &Program, reads_maps: bool) -> CostModel {
        let mut costs = CostModel { functions: HashMap::new(), uses_dynamic_indexing: false, reads_maps };
        costs.uses_dynamic_indexing = placement::uses_dynamic_indexing(program);
        // Callees precede their callers in the arena, so one pass is enough.
        for (handle, function) in program.module().functions.iter() {
            if !program.is_prelude(handle) {
                let types = &program.module().types;
                let in_registers = function.local_variables.iter().all(|(_, l)| {
                    placement::in_registers(program.module(), &types[l.ty].inner, costs.uses_dynamic_indexing)
                });
                let cost = if in_registers { costs.block(program, function, &function.body) } else { None };
                costs.functions.insert(handle, cost);
            }
        }
        costs
    }

    /// Cost of a call of one of the filter's own functions.
    pub fn function(&self, function: Handle<Function>) -> Cost {
        self.functions.get(&function).copied().flatten()
    }

    /// Cost of a block, all of its paths taken together.
    pub fn block(&self, program: &Program, function: &Function, block: &Block) -> Cost {
        let mut sum = 0u32;
        for statement in block.iter() {
            sum = sum.saturating_add(self.statement(program, function, statement)?);
        }
        Some(sum)
    }

    pub fn statement(&self, program: &Program, function: &Function, statement: &Statement) -> Cost {
        match statement {
            Statement::Emit(range) => {
                Some(range.clone().map(|h| expression_cost(&function.expressions[h])).fold(0, u32::saturating_add))
            }
            Statement::Block(block) => self.block(program, function, block),
            Statement::If { accept, reject, .. } => Some(
                1u32.saturating_add(self.block(program, function, accept)?)
                    .saturating_add(self.block(program, function, reject)?),
            ),
            Statement::Switch { cases, .. } => {
                let mut sum = 0u32;
                for case in cases {
                    if case.fall_through && !case.body.is_empty() {
                        return None;
                    }
                    sum = sum.saturating_add(2).saturating_add(self.block(program, function, &case.body)?);
                }
                Some(sum)
            }
            Statement::Return { .. } => Some(1),
            Statement::Store { pointer, .. } => {
                // Only for a variable of the function itself: a pointer argument may point to
                // anything.
                let ty = variable_type(program, function, *pointer)?;
                placement::in_registers(program.module(), ty, self.uses_dynamic_indexing).then_some(0)
            }
            Statement::Call { function: callee, .. } => match program.intrinsic(*callee) {
                Some(Intrinsic::Map { call: MapFunction::Read, .. }) if self.reads_maps => Some(6),
                Some(intrinsic) if !intrinsic.is_map_function() => intrinsic_cost(intrinsic),
                _ => self.function(*callee),
            },
            _ => None,
        }
    }
}

/// Returns the type of the variable that a pointer points into, `None` if it belongs to the caller.
fn variable_type<'a>(
    program: &'a Program,
    function: &Function,
    mut pointer: Handle<Expression>,
) -> Option<&'a TypeInner> {
    let module = program.module();
    loop {
        match function.expressions[pointer] {
            Expression::AccessIndex { base, .. } => pointer = base,
            Expression::LocalVariable(local) => return Some(&module.types[function.local_variables[local].ty].inner),
            Expression::GlobalVariable(global) => return Some(&module.types[module.global_variables[global].ty].inner),
            _ => return None,
        }
    }
}

fn expression_cost(expression: &Expression) -> u32 {
    match expression {
        Expression::Binary { op: BinaryOperator::Divide | BinaryOperator::Modulo, .. } => 20,
        Expression::Binary { .. } | Expression::Unary { .. } | Expression::Select { .. } => 1,
        Expression::Math { fun, .. } => match fun {
            MathFunction::Min | MathFunction::Max | MathFunction::Abs => 1,
            MathFunction::Clamp | MathFunction::CountOneBits | MathFunction::CountLeadingZeros => 2,
            _ => 12,
        },
        Expression::Access { .. } => 3,
        _ => 0,
    }
}

fn intrinsic_cost(intrinsic: Intrinsic) -> Cost {
    match intrinsic {
        Intrinsic::PktLen => Some(0),
        Intrinsic::PktWireLen | Intrinsic::PktPort | Intrinsic::PktTime | Intrinsic::PktTimeMs => Some(2),
        Intrinsic::Load { .. } => Some(2),
        Intrinsic::Redirect => Some(3),
        Intrinsic::CsumAdd => Some(3),
        Intrinsic::CsumFold => Some(5),
        Intrinsic::CsumReplace16 | Intrinsic::CsumReplace32 => Some(12),
        Intrinsic::Store { .. } | Intrinsic::AdjustHead | Intrinsic::AdjustTail => None,
        Intrinsic::MapIsNew | Intrinsic::Map { .. } => None,
    }
}
