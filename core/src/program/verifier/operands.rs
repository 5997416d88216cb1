//! Rejects operands that naga's validator accepts and WGSL does not: backends have no code for
//! them.

use naga::valid::ModuleInfo;
use naga::{Expression, MathFunction, ScalarKind};

use super::{Errors, VerifierInput, text_range};

pub(super) fn check(input: &VerifierInput, info: &ModuleInfo, errors: &mut Errors) {
    for (function_handle, function) in input.own_functions() {
        for (handle, expression) in function.expressions.iter() {
            let Expression::Math { fun: MathFunction::Sign, arg, .. } = *expression else { continue };
            let inner = info[function_handle][arg].ty.inner_with(&input.module.types);
            if inner.scalar_kind() == Some(ScalarKind::Uint) {
                let text_range = text_range(input.source, function.expressions.get_span(handle));
                let note = "the sign of an unsigned `x` is `min(x, 1u)`";
                errors.add(text_range, "`sign` does not take unsigned numbers", "", note);
            }
        }
    }
}
