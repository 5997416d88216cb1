//! Rejects statements and expressions that concern other invocations, or features that filters do
//! not have.

use naga::{Block, Expression, Function, Span, Statement};

use super::{Errors, VerifierInput, text_range};

pub(super) fn check(input: &VerifierInput, errors: &mut Errors) {
    for (_, function) in input.own_functions() {
        for (handle, expression) in function.expressions.iter() {
            if let Some(what) = rejected_expression(expression) {
                reject(input, function.expressions.get_span(handle), what, errors);
            }
        }
        visit_statements(&function.body, &mut |statement, span| {
            if let Some(what) = rejected_statement(statement) {
                reject(input, result_span(function, statement).unwrap_or(span), what, errors);
            }
        });
    }
}

fn reject(input: &VerifierInput, span: Span, what: &str, errors: &mut Errors) {
    let note = "a filter sees one packet, and packets of a batch run in any order and in parallel";
    errors.add(text_range(input.source, span), format!("{what} are not for filters"), "", note);
}

/// Span of a statement's result, which is narrower than the statement's; `None` if it has none.
fn result_span(function: &Function, statement: &Statement) -> Option<Span> {
    let result = match *statement {
        Statement::Atomic { result, .. } => result?,
        Statement::WorkGroupUniformLoad { result, .. }
        | Statement::SubgroupBallot { result, .. }
        | Statement::SubgroupGather { result, .. }
        | Statement::SubgroupCollectiveOperation { result, .. } => result,
        _ => return None,
    };
    let span = function.expressions.get_span(result);
    span.is_defined().then_some(span)
}

/// Calls `visit` on every statement of a block and of its nested blocks, with its span.
pub(super) fn visit_statements(block: &Block, visit: &mut impl FnMut(&Statement, Span)) {
    for (statement, span) in block.span_iter() {
        visit(statement, *span);
        for inner in child_blocks(statement) {
            visit_statements(inner, visit);
        }
    }
}

/// The blocks directly in a statement.
pub fn child_blocks(statement: &Statement) -> Vec<&Block> {
    match statement {
        Statement::Block(block) => vec![block],
        Statement::If { accept, reject, .. } => vec![accept, reject],
        Statement::Switch { cases, .. } => cases.iter().map(|case| &case.body).collect(),
        Statement::Loop { body, continuing, .. } => vec![body, continuing],
        _ => Vec::new(),
    }
}

fn rejected_statement(statement: &Statement) -> Option<&'static str> {
    Some(match statement {
        Statement::ControlBarrier(_) | Statement::MemoryBarrier(_) => "barriers",
        Statement::Kill => "`discard` statements",
        Statement::ImageStore { .. } | Statement::ImageAtomic { .. } => "textures",
        Statement::Atomic { .. } => "atomics",
        Statement::WorkGroupUniformLoad { .. } => "barriers and workgroup memory",
        Statement::RayQuery { .. } | Statement::RayPipelineFunction(_) => "ray queries",
        Statement::SubgroupBallot { .. }
        | Statement::SubgroupGather { .. }
        | Statement::SubgroupCollectiveOperation { .. } => "subgroup operations",
        Statement::CooperativeStore { .. } => "cooperative matrices",
        Statement::Emit(_)
        | Statement::Block(_)
        | Statement::If { .. }
        | Statement::Switch { .. }
        | Statement::Loop { .. }
        | Statement::Break
        | Statement::Continue
        | Statement::Return { .. }
        | Statement::Store { .. }
        | Statement::Call { .. } => return None,
    })
}

fn rejected_expression(expression: &Expression) -> Option<&'static str> {
    Some(match expression {
        Expression::ImageSample { .. } | Expression::ImageLoad { .. } | Expression::ImageQuery { .. } => "textures",
        Expression::Derivative { .. } => "derivatives",
        Expression::AtomicResult { .. } => "atomics",
        Expression::WorkGroupUniformLoadResult { .. } => "barriers and workgroup memory",
        Expression::ArrayLength(_) => "arrays without a fixed size",
        Expression::RayQueryVertexPositions { .. }
        | Expression::RayQueryProceedResult
        | Expression::RayQueryGetIntersection { .. } => "ray queries",
        Expression::SubgroupBallotResult | Expression::SubgroupOperationResult { .. } => "subgroup operations",
        Expression::CooperativeLoad { .. } | Expression::CooperativeMultiplyAdd { .. } => "cooperative matrices",
        Expression::Literal(_)
        | Expression::Constant(_)
        | Expression::Override(_)
        | Expression::ZeroValue(_)
        | Expression::Compose { .. }
        | Expression::Access { .. }
        | Expression::AccessIndex { .. }
        | Expression::Splat { .. }
        | Expression::Swizzle { .. }
        | Expression::FunctionArgument(_)
        | Expression::GlobalVariable(_)
        | Expression::LocalVariable(_)
        | Expression::Load { .. }
        | Expression::Unary { .. }
        | Expression::Binary { .. }
        | Expression::Select { .. }
        | Expression::Relational { .. }
        | Expression::Math { .. }
        | Expression::As { .. }
        | Expression::CallResult(_) => return None,
    })
}
