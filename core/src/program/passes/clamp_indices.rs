//! Clamping of dynamic indices (`docs/reference/semantics.md`, "Arithmetic";
//! `docs/reference/passes.md`, "Indices").
//!
//! An index into one of the filter's arrays, vectors or matrices, in function or private memory or
//! in a value, is taken as unsigned and clamped to the last element. Buffers are left alone,
//! because only the prelude accesses them.

use std::collections::HashMap;

use naga::valid::ModuleInfo;
use naga::{
    AddressSpace, Arena, ArraySize, Expression, Function, Handle, Literal, MathFunction, Module, Scalar, ScalarKind,
    Span, TypeInner,
};

use super::rewrite::rebuild;

/// Clamps the dynamic indices of all functions that `is_own` selects; `info` describes the current
/// module.
pub(super) fn run(module: &mut Module, info: &ModuleInfo, is_own: impl Fn(Handle<Function>) -> bool) {
    let mut functions = std::mem::take(&mut module.functions);
    for (handle, function) in functions.iter_mut() {
        if is_own(handle) {
            let types = &info[handle];
            let found = find_dynamic_indices(module, function, |e| types[e].ty.inner_with(&module.types));
            if !found.is_empty() {
                clamp_accesses(function, &found);
            }
        }
    }
    module.functions = functions;
}

/// The type of a dynamic index, and the last element that it may select.
#[derive(Clone, Copy)]
struct Bound {
    scalar: Scalar,
    last: u32,
}

fn find_dynamic_indices<'a>(
    module: &Module,
    function: &Function,
    type_of: impl Fn(Handle<Expression>) -> &'a TypeInner,
) -> HashMap<Handle<Expression>, Bound> {
    let mut found = HashMap::new();
    for (handle, expression) in function.expressions.iter() {
        let Expression::Access { base, index } = *expression else { continue };
        let (Some(length), Some(scalar)) = (length(module, type_of(base)), type_of(index).scalar()) else { continue };
        // The validator has checked constant indices.
        if function.expressions[index].is_dynamic_index() {
            found.insert(handle, Bound { scalar, last: length - 1 });
        }
    }
    found
}

/// Number of elements of what is indexed; `None` if it is in a buffer.
fn length(module: &Module, base: &TypeInner) -> Option<u32> {
    let of = |inner: &TypeInner| match *inner {
        TypeInner::Vector { size, .. } => Some(size as u32),
        TypeInner::Matrix { columns, .. } => Some(columns as u32),
        TypeInner::Array { size: ArraySize::Constant(length), .. } => Some(length.get()),
        _ => None,
    };
    let is_variable_space = |space| matches!(space, AddressSpace::Function | AddressSpace::Private);
    match *base {
        TypeInner::Pointer { base, space } if is_variable_space(space) => of(&module.types[base].inner),
        TypeInner::ValuePointer { size: Some(size), space, .. } if is_variable_space(space) => Some(size as u32),
        TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. } => None,
        ref value => of(value),
    }
}

fn clamp_accesses(function: &mut Function, found: &HashMap<Handle<Expression>, Bound>) {
    let literal = |bound: &Bound| match bound.scalar.width {
        8 => Literal::U64(bound.last.into()),
        _ => Literal::U32(bound.last),
    };
    let front = |arena: &mut Arena<Expression>| {
        let mut lasts: Vec<&Bound> = found.values().collect();
        lasts.sort_unstable_by_key(|b| (b.scalar.width, b.last));
        lasts.dedup_by_key(|b| (b.scalar.width, b.last));
        lasts
            .into_iter()
            .map(|b| ((b.scalar.width, b.last), arena.append(Expression::Literal(literal(b)), Span::UNDEFINED)))
            .collect::<HashMap<_, _>>()
    };
    rebuild(function, front, |lasts, arena, old, expression, span| {
        let (Some(bound), Expression::Access { index, .. }) = (found.get(&old), expression) else { return };
        let mut add = |e| arena.append(e, span);
        if bound.scalar.kind == ScalarKind::Sint {
            *index = add(Expression::As { expr: *index, kind: ScalarKind::Uint, convert: None });
        }
        *index = add(Expression::Math {
            fun: MathFunction::Min,
            arg: *index,
            arg1: Some(lasts[&(bound.scalar.width, bound.last)]),
            arg2: None,
            arg3: None,
        });
        if bound.scalar.width == 8 {
            *index = add(Expression::As { expr: *index, kind: ScalarKind::Uint, convert: Some(4) });
        }
    });
}
