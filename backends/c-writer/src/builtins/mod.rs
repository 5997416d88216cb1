//! Operators and built-in functions, each in C directly or as a helper that is written once in each
//! file that needs it.

use naga::{MathFunction, Scalar};

use crate::c_expr::CExpr;
use crate::dialect::short_name;
use crate::{WriteError, Writer};

mod matrices;
mod operators;
mod packing;
mod scalar_math;
mod vectors;

pub(crate) use matrices::MatrixOperation;

impl Writer<'_> {
    /// Defines a helper, unless it is defined already.
    pub(crate) fn define_helper(&mut self, name: &str, text: &str) {
        if self.defined_helpers.insert(name.into()) {
            self.helpers += text;
            self.helpers.push('\n');
        }
    }

    /// Calls a helper that returns `result` and has these parameters, given as types and names;
    /// defines it if it is new.
    fn polyfill(
        &mut self,
        name: &str,
        result: &str,
        parameters: &[(&str, &str)],
        body: &str,
        arguments: &[CExpr],
    ) -> CExpr {
        if !self.defined_helpers.contains(name) {
            let function = self.dialect.function();
            let parameters: Vec<String> = parameters.iter().map(|(ty, name)| format!("{ty} {name}")).collect();
            let lines: String = body.lines().map(|line| format!("    {}\n", line.trim())).collect();
            self.define_helper(name, &format!("{function}{result} {name}({})\n{{\n{lines}}}\n", parameters.join(", ")));
        }
        CExpr::call(name, arguments)
    }

    /// Calls a helper whose parameters and result have the same scalar type.
    fn polyfill_same_type(
        &mut self,
        stem: &str,
        scalar: Scalar,
        parameters: &str,
        body: &str,
        arguments: &[CExpr],
    ) -> CExpr {
        let ty = self.dialect.scalar(scalar);
        let parameters: Vec<(&str, &str)> = parameters.split(' ').map(|name| (ty, name)).collect();
        self.polyfill(&format!("pc_{stem}_{}", short_name(scalar)), ty, &parameters, body, arguments)
    }
}

pub(crate) fn unsupported_builtin(fun: MathFunction) -> WriteError {
    WriteError::Unsupported(format!("the built-in {fun:?}"))
}

/// Whether a built-in works on each component by itself.
pub(crate) fn is_componentwise(fun: MathFunction) -> bool {
    use MathFunction as M;
    !matches!(
        fun,
        M::Dot
            | M::Dot4I8Packed
            | M::Dot4U8Packed
            | M::Outer
            | M::Cross
            | M::Distance
            | M::Length
            | M::Normalize
            | M::FaceForward
            | M::Reflect
            | M::Refract
            | M::Inverse
            | M::Transpose
            | M::Determinant
            | M::Modf
            | M::Frexp
            | M::Pack4x8snorm
            | M::Pack4x8unorm
            | M::Pack2x16snorm
            | M::Pack2x16unorm
            | M::Pack2x16float
            | M::Pack4xI8
            | M::Pack4xU8
            | M::Pack4xI8Clamp
            | M::Pack4xU8Clamp
            | M::Unpack4x8snorm
            | M::Unpack4x8unorm
            | M::Unpack2x16snorm
            | M::Unpack2x16unorm
            | M::Unpack2x16float
            | M::Unpack4xI8
            | M::Unpack4xU8
    )
}
