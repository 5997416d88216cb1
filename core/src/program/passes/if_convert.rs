//! If-conversion of early returns.
//!
//! `if c { return a; } …; return b;` becomes `…; return select(b, a, c);` if the code in between
//! has no side effects and costs less than a branch that is hard to predict. C compilers do this on
//! their own only if there is no code in between, because they must assume that a load can fault;
//! the prelude's loads cannot.

use std::collections::{HashMap, HashSet};

use naga::{
    BinaryOperator, Block, Expression, Function, FunctionResult, Handle, Literal, MathFunction, Module, Range, Span,
    Statement, TypeInner, UnaryOperator,
};

use crate::program::prelude::Intrinsic;

/// Maximum number of operations to execute speculatively: a packet byte at a fixed offset and a
/// comparison or two. A mispredicted branch costs about 15 cycles; a larger budget would pay off on
/// mixed traffic only, and cost time on predictable traffic (`docs/performance.md`).
const SPECULATION_BUDGET: u32 = 8;

/// Cost model of speculative execution.
struct CostModel<'a> {
    intrinsics: &'a HashMap<Handle<Function>, Intrinsic>,
    /// Convert at any cost: lanes execute both branches anyway.
    unlimited: bool,
    /// The filter's functions that have no side effects and no loops.
    pure_functions: HashSet<Handle<Function>>,
}

/// Converts the functions that `is_own` selects, at any cost if `unlimited`. Returns whether
/// anything changed.
pub(super) fn run(
    module: &mut Module,
    intrinsics: &HashMap<Handle<Function>, Intrinsic>,
    is_own: impl Fn(Handle<Function>) -> bool,
    unlimited: bool,
) -> bool {
    let mut any = false;
    let mut costs = CostModel { intrinsics, unlimited, pure_functions: HashSet::new() };
    for (handle, function) in module.functions.iter_mut() {
        // Only scalars: structures and arrays have no select, and one between vectors may be
        // lowered component by component.
        let scalar = |result: &FunctionResult| matches!(module.types[result.ty].inner, TypeInner::Scalar(_));
        if is_own(handle) && function.result.as_ref().is_some_and(scalar) {
            let mut body = std::mem::take(&mut function.body);
            any |= convert_block(&mut body, function, &costs);
            function.body = body;
        }
        // A function follows those that it calls.
        if unlimited && is_own(handle) && is_speculatable(function, &costs) {
            costs.pure_functions.insert(handle);
        }
    }
    any
}

/// Whether a function may be called speculatively.
fn is_speculatable(function: &Function, costs: &CostModel<'_>) -> bool {
    let Some((Statement::Return { value: Some(_) }, before)) = function.body.split_last() else { return false };
    before.iter().all(|statement| speculation_cost(statement, function, costs).is_some())
}

/// Joins the returns of a block that ends with one, from the last to the first.
fn convert_block(block: &mut Block, function: &mut Function, costs: &CostModel<'_>) -> bool {
    let Some(Statement::Return { value: Some(mut last) }) = block.last().cloned() else { return false };
    let mut any = false;
    let mut cost = 0;
    // Statements from `end` to the last return can be speculated; those before `end` are yet to be
    // examined.
    let mut end = block.len() - 1;
    while end > 0 {
        let at = end - 1;
        let Some((condition, value, negated)) = early_return(&block[at]) else {
            match speculation_cost(&block[at], function, costs) {
                Some(more) if costs.unlimited || cost + more <= SPECULATION_BUDGET => cost += more,
                _ => break,
            }
            end = at;
            continue;
        };
        // If there is no code in between, the compiler decides better whether to branch.
        let is_adjacent = end == block.len() - 1;
        let merges_condition = matches!(function.expressions[last], Expression::Select { accept, .. } if is_same_value(function, value, accept));
        if is_adjacent && !merges_condition && !costs.unlimited {
            break;
        }
        let before = function.expressions.len();
        last = join(function, condition, value, negated, last);
        let added = Range::from_index_range(before as u32..function.expressions.len() as u32, &function.expressions);
        cost += 1;
        block.cull(at..end);
        let place = block.len() - 1;
        let both = vec![Statement::Emit(added), Statement::Return { value: Some(last) }];
        block.splice(place.., Block::from_vec(both));
        any = true;
        end = at;
    }
    any
}

/// Whether two expressions certainly have the same value.
fn is_same_value(function: &Function, a: Handle<Expression>, b: Handle<Expression>) -> bool {
    a == b
        || match (&function.expressions[a], &function.expressions[b]) {
            (Expression::Constant(a), Expression::Constant(b)) => a == b,
            (Expression::Literal(a), Expression::Literal(b)) => a == b,
            _ => false,
        }
}

/// Selects `value` if the condition holds (or, with `negated`, if it does not), else `last`.
fn join(
    function: &mut Function,
    condition: Handle<Expression>,
    value: Handle<Expression>,
    negated: bool,
    last: Handle<Expression>,
) -> Handle<Expression> {
    // Two selects of one value become one select with a combined condition: compilers would turn
    // the outer select back into a branch.
    if let Expression::Select { condition: inner, accept, reject } = function.expressions[last]
        && is_same_value(function, value, accept)
    {
        let mut add = |expression| function.expressions.append(expression, Span::UNDEFINED);
        let outer = match negated {
            true => add(Expression::Unary { op: UnaryOperator::LogicalNot, expr: condition }),
            false => condition,
        };
        let condition = add(Expression::Binary { op: BinaryOperator::InclusiveOr, left: outer, right: inner });
        return add(Expression::Select { condition, accept, reject });
    }
    let (accept, reject) = if negated { (last, value) } else { (value, last) };
    function.expressions.append(Expression::Select { condition, accept, reject }, Span::UNDEFINED)
}

/// Matches an `if` with one branch that returns a value known before it and an empty other branch.
/// Returns the condition, the value, and whether it is returned when the condition does not hold.
fn early_return(statement: &Statement) -> Option<(Handle<Expression>, Handle<Expression>, bool)> {
    let Statement::If { condition, accept, reject } = statement else { return None };
    match (&accept[..], &reject[..]) {
        ([Statement::Return { value: Some(value) }], []) => Some((*condition, *value, false)),
        ([], [Statement::Return { value: Some(value) }]) => Some((*condition, *value, true)),
        _ => None,
    }
}

/// Cost of executing a statement speculatively; `None` if it has effects beyond the function's own
/// variables or is too expensive.
fn speculation_cost(statement: &Statement, function: &Function, costs: &CostModel<'_>) -> Option<u32> {
    let all = |block: &Block| block.iter().map(|s| speculation_cost(s, function, costs)).sum::<Option<u32>>();
    match statement {
        Statement::Emit(_) if costs.unlimited => Some(0),
        Statement::Emit(range) => range.clone().map(|e| cost(&function.expressions[e])).sum(),
        Statement::Call { function: callee, .. } if costs.pure_functions.contains(callee) => Some(0),
        Statement::Call { function: callee, .. } if costs.unlimited => match costs.intrinsics.get(callee)? {
            Intrinsic::Store { .. } | Intrinsic::AdjustHead | Intrinsic::AdjustTail => None,
            Intrinsic::Map { .. } | Intrinsic::MapIsNew => None,
            _ => Some(0),
        },
        Statement::Call { function: callee, arguments, .. } => match costs.intrinsics.get(callee)? {
            Intrinsic::PktLen => Some(0),
            // A load at an unknown offset checks bounds first, which is a branch.
            Intrinsic::Load { .. } => {
                matches!(function.expressions[arguments[1]], Expression::Literal(Literal::U32(0..=64))).then_some(2)
            }
            _ => None,
        },
        Statement::Store { pointer, .. } => {
            matches!(function.expressions[*pointer], Expression::LocalVariable(_)).then_some(1)
        }
        // naga lowers `&&` and `||` to such statements.
        Statement::If { accept, reject, .. } => Some(all(accept)? + all(reject)? + 1),
        Statement::Block(block) => all(block),
        _ => None,
    }
}

fn cost(expression: &Expression) -> Option<u32> {
    match expression {
        Expression::Binary { op: BinaryOperator::Divide | BinaryOperator::Modulo, .. } => None,
        Expression::Binary { .. } | Expression::Unary { .. } | Expression::Select { .. } => Some(1),
        Expression::Math { fun: MathFunction::Min | MathFunction::Max | MathFunction::Abs, .. } => Some(1),
        Expression::As { .. } | Expression::Load { .. } | Expression::AccessIndex { .. } => Some(0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Pair;
    use super::super::{Lowering, lower};
    use super::*;
    use crate::program::child_blocks;
    use crate::testing::program;

    const CONVERT: Lowering = Lowering { if_convert: true, ..Lowering::NONE };

    const CONVERT_ALL: Lowering = Lowering { if_convert_all: true, ..CONVERT };

    /// Number of returns in the filter after if-conversion.
    fn returns(text: &str) -> usize {
        returns_after(text, CONVERT)
    }

    fn returns_after(text: &str, lowering: Lowering) -> usize {
        fn count(block: &Block) -> usize {
            let of = |statement: &Statement| match statement {
                Statement::Return { .. } => 1,
                other => child_blocks(other).into_iter().map(count).sum(),
            };
            block.iter().map(of).sum()
        }
        let lowered = lower(&program(text), lowering).unwrap();
        count(&lowered.module.functions[lowered.filter].body)
    }

    fn filter(body: &str) -> String {
        format!("fn xdp_filter(pkt: u32) -> u32 {{ {body} }}")
    }

    #[test]
    fn cheap_code_without_side_effects_is_converted() {
        let joined = [
            "let p = load_u8(pkt, 9u); if p != 6u && p != 17u { return XDP_DROP; }
             return select(XDP_PASS, XDP_TX, load_be32(pkt, 26u) == 7u);",
            "if load_u8(pkt, 0u) == 1u { return XDP_DROP; } let v = load_u8(pkt, 1u);
             if v == 2u { return XDP_TX; } return v & 3u;",
            "if load_u8(pkt, 0u) == 1u {} else { return XDP_TX; } return select(XDP_PASS, XDP_TX, load_u8(pkt, 1u) == 2u);",
            "if load_u8(pkt, 0u) == 1u { return XDP_TX; } return select(XDP_PASS, XDP_TX, load_u8(pkt, 1u) == 2u);",
            "var x = 3u; if load_u8(pkt, 0u) == 1u {} else { return XDP_TX; } x = load_u8(pkt, 1u); return x;",
        ];
        for body in joined {
            let text = filter(body);
            assert_eq!(returns(&text), 1, "{body}");
            let pair = Pair::new(&text, CONVERT);
            for first in 0..=3 {
                for second in 0..=3 {
                    let mut packet = [0; 40];
                    packet[..2].copy_from_slice(&[first, second]);
                    packet[9] = [6, 17, 1, 0][usize::from(second)];
                    packet[29] = if first == 2 { 7 } else { 8 };
                    pair.run(&packet);
                    pair.run(&packet[..usize::from(first)]);
                }
            }
        }
    }

    #[test]
    fn only_scalar_results_are_converted() {
        let helpers = [
            "struct S { a: u32, b: u32 }
             fn f(x: S, y: S, c: bool) -> S { if c { return x; } return y; }
             fn g(n: u32) -> u32 { return f(S(1u, n), S(n, 2u), n > 1u).a; }",
            "fn f(x: vec2<u32>, y: vec2<u32>, c: bool) -> vec2<u32> { if c { return x; } return select(y, x, y > x); }
             fn g(n: u32) -> u32 { return f(vec2(1u, n), vec2(n, 2u), n > 1u).y; }",
            "fn f(x: array<u32, 3>, y: array<u32, 3>, c: bool) -> array<u32, 3> { if c { return x; } return y; }
             fn g(n: u32) -> u32 { var r = f(array(1u, n, 2u), array(n, 2u, 1u), n > 1u); return r[n & 1u]; }",
            "fn f(x: mat2x2<f32>, y: mat2x2<f32>, c: bool) -> mat2x2<f32> { if c { return x; } return y; }
             fn g(n: u32) -> u32 { let m = mat2x2(1.0, 2.0, 3.0, 1.0); return u32(f(m, m + m, n > 1u)[1][0]); }",
            "fn f(x: bool, y: bool, c: bool) -> bool { if c { return x; } return y; }
             fn g(n: u32) -> u32 { return select(1u, 2u, f(n == 1u, n == 2u, n > 1u)); }",
            "fn f(x: u64, y: u64, c: bool) -> u64 { if c { return x; } return y; }
             fn g(n: u32) -> u32 { return u32(f(u64(n), 2lu, n > 1u)); }",
        ];
        for helper in helpers {
            let text = format!("{helper}\nfn xdp_filter(pkt: u32) -> u32 {{ return g(load_u8(pkt, 0u)) & 3u; }}");
            let pair = Pair::new(&text, CONVERT);
            (0..4).for_each(|n| drop(pair.run(&[n, 7, 7])));
        }
    }

    #[test]
    fn expensive_code_and_side_effects_are_not_converted() {
        let first = "if load_u8(pkt, 0u) == 1u { return XDP_DROP; }";
        let left = [
            "store_u8(pkt, 3u, 1u); return XDP_PASS;",
            "return load_u8(pkt, load_u8(pkt, 1u)) & 3u;",
            "return redirect(load_u8(pkt, 3u) / load_u8(pkt, 4u));",
            "if load_u8(pkt, 1u) == 1u { store_u8(pkt, 1u, 2u); } return XDP_PASS;",
            "var i = 0u; loop { i += 1u; if i == load_u8(pkt, 1u) { break; } } return XDP_PASS;",
            "let a = load_u8(pkt, 1u); let b = load_u8(pkt, 2u); let c = load_u8(pkt, 3u);
             return (a ^ b ^ c) & (a | b) & 3u;",
        ];
        for rest in left {
            assert_eq!(returns(&filter(&format!("{first} {rest}"))), 2, "{rest}");
        }
        // No code in between.
        assert_eq!(returns(&filter(&format!("{first} return XDP_PASS;"))), 2);
        // The returned value is computed in the branch.
        assert_eq!(returns(&filter("if pkt_len(pkt) > 9u { return load_u8(pkt, 1u) & 3u; } return XDP_PASS;")), 2);
    }

    #[test]
    fn unlimited_conversion_takes_all_code_without_side_effects() {
        let first = "if load_u8(pkt, 0u) == 1u { return XDP_DROP; }";
        let joined = [
            "return XDP_PASS;",
            "return load_u8(pkt, load_u8(pkt, 1u)) & 3u;",
            "return redirect(load_u8(pkt, 3u) / load_u8(pkt, 1u));",
            "let a = load_u8(pkt, 1u); let b = load_u8(pkt, 2u); let c = load_u8(pkt, 3u); return (a ^ b ^ c) & 3u;",
            "var x = 2u; if load_u8(pkt, 1u) == 2u { x = load_be16(pkt, 30u) & 3u; } return x;",
            "return byte_at(pkt, load_u8(pkt, 1u));",
            "if pkt_time_ms(pkt) == 7u { return XDP_TX; } return select(XDP_PASS, XDP_DROP, pkt_len(pkt) > 30u);",
        ];
        let left = [
            "store_u8(pkt, 3u, 1u); return XDP_PASS;",
            "if load_u8(pkt, 1u) == 1u { store_u8(pkt, 1u, 2u); } return XDP_PASS;",
            "return kept(pkt, load_u8(pkt, 1u));",
            "return counted(pkt, load_u8(pkt, 1u));",
            "var i = 0u; loop { i += 1u; if i >= load_u8(pkt, 1u) { break; } } return XDP_PASS;",
            "if !adjust_tail(pkt, -1) { return XDP_DROP; } return XDP_PASS;",
        ];
        let helpers = "fn byte_at(pkt: u32, n: u32) -> u32 { if n == 1u { return XDP_TX; } return load_u8(pkt, n) & 3u; }
             fn kept(pkt: u32, n: u32) -> u32 { store_u8(pkt, n, 9u); return n & 3u; }
             fn counted(pkt: u32, n: u32) -> u32 { for (var i = 0u; i < n; i++) { if i == 2u { return 3u; } } return 1u; }";
        for (rest, is_joined) in joined.iter().map(|rest| (rest, true)).chain(left.iter().map(|rest| (rest, false))) {
            let text = format!("{helpers}\n{}", filter(&format!("{first} {rest}")));
            assert_eq!(returns_after(&text, CONVERT_ALL) == 1, is_joined, "{rest}");
            let pair = Pair::new(&text, CONVERT_ALL);
            for byte in 0..=4 {
                for first in 0..=1 {
                    let mut packet = [byte; 40];
                    packet[0] = first;
                    pair.run(&packet);
                    pair.run(&packet[..usize::from(byte)]);
                }
            }
        }
    }
}
