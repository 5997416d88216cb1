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
    "frexp_exponent" => Unary |x| frexp(x).1;
    "frexp_fraction" => Unary |x| frexp(x).0;
    "ldexp" => Binary |x, e| (f64::from(x) * 2f64.powf(f64::from(e.clamp(-400.0, 400.0)))) as f32;
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

/// A fraction of magnitude [0.5, 1) and an exponent that give `x` as `fraction * 2^exponent`; `x`
/// itself and 0 where there is none.
fn frexp(x: f32) -> (f32, f32) {
    if x == 0.0 || !x.is_finite() {
        return (x, 0.0);
    }
    // Every f32 is a normal number as an f64, whose exponent stands in bits 52 to 62.
    let bits = f64::from(x).to_bits();
    let exponent = (bits >> 52 & 0x7ff) as i32 - 1022;
    let fraction = f64::from_bits(bits & !(0x7ff << 52) | 1022 << 52);
    (fraction as f32, exponent as f32)
}
