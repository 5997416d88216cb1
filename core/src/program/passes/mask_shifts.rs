//! Masking of shift counts to the width of the shifted value (`docs/reference/semantics.md`,
//! "Arithmetic").
//!
//! WGSL takes a shift count modulo the width of the shifted value. In SPIR-V and in C, a count of
//! the width or more is undefined, and naga's writers emit it as it is. So this pass masks the
//! counts.

use std::collections::HashMap;

use naga::valid::ModuleInfo;
use naga::{Arena, BinaryOperator, Expression, Function, Handle, Literal, Module, Span, TypeInner, VectorSize};

use super::rewrite::rebuild;

/// Masks the dynamic shift counts of all functions that `is_own` selects; `info` describes the
/// current module. Constant counts stay, because the validator has checked them. Returns whether
/// there were any dynamic counts.
pub(super) fn run(module: &mut Module, info: &ModuleInfo, is_own: impl Fn(Handle<Function>) -> bool) -> bool {
    let mut any = false;
    let mut functions = std::mem::take(&mut module.functions);
    for (handle, function) in functions.iter_mut() {
        if is_own(handle) {
            let types = &info[handle];
            let found = find_dynamic_counts(function, |e| types[e].ty.inner_with(&module.types));
            if !found.is_empty() {
                any = true;
                mask_counts(function, &found);
            }
        }
    }
    module.functions = functions;
    any
}

/// The mask for a shift count, and the number of components if it is a vector.
#[derive(Clone, Copy)]
struct Count {
    mask: u32,
    size: Option<VectorSize>,
}

fn find_dynamic_counts<'a>(
    function: &Function,
    type_of: impl Fn(Handle<Expression>) -> &'a TypeInner,
) -> HashMap<Handle<Expression>, Count> {
    let mut found = HashMap::new();
    for (handle, expression) in function.expressions.iter() {
        let &Expression::Binary { op: BinaryOperator::ShiftLeft | BinaryOperator::ShiftRight, left, right } =
            expression
        else {
            continue;
        };
        let (mask, size) = match *type_of(left) {
            TypeInner::Scalar(scalar) => (u32::from(scalar.width) * 8 - 1, None),
            TypeInner::Vector { size, scalar } => (u32::from(scalar.width) * 8 - 1, Some(size)),
            _ => continue,
        };
        let constant = matches!(function.expressions[right], Expression::Literal(Literal::U32(count)) if count <= mask);
        if !constant {
            found.insert(handle, Count { mask, size });
        }
    }
    found
}

fn mask_counts(function: &mut Function, found: &HashMap<Handle<Expression>, Count>) {
    let front = |arena: &mut Arena<Expression>| {
        [31, 63].map(|mask| arena.append(Expression::Literal(Literal::U32(mask)), Span::UNDEFINED))
    };
    rebuild(function, front, |&[narrow, wide], arena, old, expression, span| {
        let (Some(count), Expression::Binary { right, .. }) = (found.get(&old), expression) else { return };
        let mut add = |e| arena.append(e, span);
        let mut mask = if count.mask == 63 { wide } else { narrow };
        if let Some(size) = count.size {
            mask = add(Expression::Splat { size, value: mask });
        }
        *right = add(Expression::Binary { op: BinaryOperator::And, left: *right, right: mask });
    });
}

#[cfg(test)]
mod tests {
    use super::super::{Lowering, lower};
    use super::*;
    use crate::testing::program;

    /// The masks of all shifts by `y & mask` in the filter.
    fn masks(text: &str, mask_shifts: bool) -> Vec<u32> {
        let lowered = lower(&program(text), Lowering { mask_shifts, ..Lowering::default() }).unwrap();
        let expressions = &lowered.module.functions[lowered.filter].expressions;
        let literal = |handle: Handle<Expression>| match expressions[handle] {
            Expression::Literal(Literal::U32(value)) => Some(value),
            _ => None,
        };
        expressions
            .iter()
            .filter_map(|(_, expression)| match *expression {
                Expression::Binary { op: BinaryOperator::ShiftLeft | BinaryOperator::ShiftRight, right, .. } => {
                    Some(right)
                }
                _ => None,
            })
            .filter_map(|count| match expressions[count] {
                Expression::Binary { op: BinaryOperator::And, right, .. } => match expressions[right] {
                    Expression::Splat { value, .. } => literal(value),
                    _ => literal(right),
                },
                _ => None,
            })
            .collect()
    }

    #[test]
    fn dynamic_counts_are_masked_once() {
        let text = "fn xdp_filter(pkt: u32) -> u32 {
            let n = load_u8(pkt, 0u);
            let narrow = (1u << n) + (n >> 4u);
            let signed = -5i >> n;
            let wide = (7lu << n) >> n;
            let both = vec2<u32>(n, 1u) << vec2<u32>(n, n);
            return u32(wide) + narrow + bitcast<u32>(signed) + both.x;
        }";
        assert_eq!(masks(text, true), [31, 31, 63, 63, 31]);
        assert_eq!(masks(text, false), []);
    }
}
