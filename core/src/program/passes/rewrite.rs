//! Traversal and rewriting of functions, shared by the passes.
//!
//! Blocks are visited from a worklist rather than recursively: the verifier bounds their nesting,
//! but passes need not rely on the stack.

use naga::{Arena, AtomicFunction, Block, Expression, Function, Handle, Range, Span, Statement, SwitchCase};

use super::FunctionMap;

/// The blocks directly in a statement.
pub(super) fn child_blocks_mut(statement: &mut Statement) -> Vec<&mut Block> {
    match statement {
        Statement::Block(block) => vec![block],
        Statement::If { accept, reject, .. } => vec![accept, reject],
        Statement::Switch { cases, .. } => cases.iter_mut().map(|SwitchCase { body, .. }| body).collect(),
        Statement::Loop { body, continuing, .. } => vec![body, continuing],
        _ => Vec::new(),
    }
}

/// Calls `f` on every operand of an expression. Expressions that the verifier rejects (images, ray
/// queries, subgroups) count as having none.
pub(super) fn for_each_operand_mut(expression: &mut Expression, mut f: impl FnMut(&mut Handle<Expression>)) {
    match expression {
        Expression::Compose { components, .. } => components.iter_mut().for_each(f),
        Expression::Access { base, index } => [base, index].into_iter().for_each(f),
        Expression::AccessIndex { base, .. } => f(base),
        Expression::Splat { value, .. } => f(value),
        Expression::Swizzle { vector, .. } => f(vector),
        Expression::Load { pointer } => f(pointer),
        Expression::Unary { expr, .. } | Expression::Derivative { expr, .. } | Expression::As { expr, .. } => f(expr),
        Expression::Binary { left, right, .. } => [left, right].into_iter().for_each(f),
        Expression::Select { condition, accept, reject } => [condition, accept, reject].into_iter().for_each(f),
        Expression::Relational { argument, .. } => f(argument),
        Expression::Math { arg, arg1, arg2, arg3, .. } => {
            f(arg);
            [arg1, arg2, arg3].into_iter().flatten().for_each(f);
        }
        Expression::ArrayLength(array) => f(array),
        _ => {}
    }
}

/// Calls `f` on every expression that a statement itself refers to, and `emit` on the range that it
/// emits, but not on the contents of its blocks. Statements that the verifier rejects count as
/// referring to none.
pub(super) fn for_each_reference_mut(
    statement: &mut Statement,
    mut f: impl FnMut(&mut Handle<Expression>),
    emit: impl FnOnce(&mut Range<Expression>),
) {
    match statement {
        Statement::Emit(range) => emit(range),
        Statement::If { condition, .. } => f(condition),
        Statement::Switch { selector, .. } => f(selector),
        Statement::Loop { break_if, .. } => break_if.iter_mut().for_each(f),
        Statement::Return { value } => value.iter_mut().for_each(f),
        Statement::Store { pointer, value } => [pointer, value].into_iter().for_each(f),
        Statement::Atomic { pointer, fun, value, result } => {
            [pointer, value].into_iter().for_each(&mut f);
            if let AtomicFunction::Exchange { compare: Some(compare) } = fun {
                f(compare);
            }
            result.iter_mut().for_each(f);
        }
        Statement::Call { arguments, result, .. } => {
            arguments.iter_mut().for_each(&mut f);
            result.iter_mut().for_each(f);
        }
        _ => {}
    }
}

/// Rebuilds a function's expressions so that new ones can precede existing ones: an operand has to
/// precede its users, and an arena only grows at its end.
///
/// First `front` adds expressions that need no emitting (literals, constants). Then `insert` is
/// called on every expression, its operands already remapped, and may append what it needs before
/// it; that is emitted together with the expression.
pub(super) fn rebuild<T>(
    function: &mut Function,
    front: impl FnOnce(&mut Arena<Expression>) -> T,
    mut insert: impl FnMut(&T, &mut Arena<Expression>, Handle<Expression>, &mut Expression, Span),
) {
    let mut new = Arena::new();
    let extra = front(&mut new);
    // For each old expression: the first expression inserted for it, and its new handle.
    let mut moved: Vec<(u32, Handle<Expression>)> = Vec::with_capacity(function.expressions.len());
    for (old, mut expression, span) in function.expressions.drain() {
        for_each_operand_mut(&mut expression, |operand| *operand = moved[operand.index()].1);
        let first = new.len() as u32;
        insert(&extra, &mut new, old, &mut expression, span);
        let handle = new.append(expression, span);
        moved.push((first, handle));
    }
    let at = |handle: &mut Handle<Expression>| *handle = moved[handle.index()].1;
    for (_, variable) in function.local_variables.iter_mut() {
        variable.init.iter_mut().for_each(at);
    }
    function.named_expressions =
        function.named_expressions.drain(..).map(|(handle, name)| (moved[handle.index()].1, name)).collect();
    let mut work = vec![&mut function.body];
    while let Some(block) = work.pop() {
        for statement in block.iter_mut() {
            for_each_reference_mut(statement, at, |range| {
                if let Some((first, last)) = range.first_and_last() {
                    let indices = moved[first.index()].0..moved[last.index()].1.index() as u32 + 1;
                    *range = Range::from_index_range(indices, &new);
                }
            });
            work.extend(child_blocks_mut(statement));
        }
    }
    function.expressions = new;
}

/// Replaces the callees of a function's calls by their new handles.
pub(super) fn remap_calls(function: &mut Function, new_handles: &FunctionMap) {
    for (_, expression) in function.expressions.iter_mut() {
        if let Expression::CallResult(callee) = expression {
            *callee = new_handles[callee];
        }
    }
    let mut blocks = vec![&mut function.body];
    while let Some(block) = blocks.pop() {
        for statement in block.iter_mut() {
            if let Statement::Call { function, .. } = statement {
                *function = new_handles[function];
            }
            blocks.extend(child_blocks_mut(statement));
        }
    }
}
