//! Functions on floating point that native code calls: those that no instruction does. They are
//! outside the promise of identical results, like all floating point.

/// A function that generated code finds by its name's place in the table.
#[derive(Clone, Copy)]
pub(crate) enum Function {
    /// One argument.
    Unary(extern "C" fn(f32) -> f32),
    /// Two arguments.
    Binary(extern "C" fn(f32, f32) -> f32),
}

macro_rules! functions {
    ($($name:literal => $kind:ident |$($argument:ident),+| $body:expr;)+) => {
        /// Every function, in the order of [`addresses`].
        pub(crate) const FUNCTIONS: &[(&str, Function)] = &[
            $(($name, Function::$kind({
                extern "C" fn function($($argument: f32),+) -> f32 { $body }
                function
            })),)+
        ];
    };
}

functions! {
    "acos" => Unary |x| x.acos();
    "acosh" => Unary |x| x.acosh();
    "asin" => Unary |x| x.asin();
    "asinh" => Unary |x| x.asinh();
    "atan" => Unary |x| x.atan();
    "atan2" => Binary |y, x| y.atan2(x);
    "atanh" => Unary |x| x.atanh();
    "ceil" => Unary |x| x.ceil();
    "cos" => Unary |x| x.cos();
    "cosh" => Unary |x| x.cosh();
    "exp" => Unary |x| x.exp();
    "exp2" => Unary |x| x.exp2();
    "floor" => Unary |x| x.floor();
    "log" => Unary |x| x.ln();
    "log2" => Unary |x| x.log2();
    "pow" => Binary |x, y| x.powf(y);
    "round" => Unary |x| x.round_ties_even();
    "sin" => Unary |x| x.sin();
    "sinh" => Unary |x| x.sinh();
    "tan" => Unary |x| x.tan();
    "tanh" => Unary |x| x.tanh();
    "trunc" => Unary |x| x.trunc();
}

/// The functions' addresses, for [`Context::runtime`](crate::memory::Context).
pub(crate) fn addresses() -> Vec<usize> {
    FUNCTIONS
        .iter()
        .map(|(_, function)| match *function {
            Function::Unary(f) => f as usize,
            Function::Binary(f) => f as usize,
        })
        .collect()
}
