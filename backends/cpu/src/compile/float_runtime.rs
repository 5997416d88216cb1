//! Floating-point functions that generated code calls because no instruction computes them. Like
//! all floating point they are outside the promise of identical results on every device.

/// A function that generated code calls by its index in [`FUNCTIONS`].
#[derive(Clone, Copy)]
pub(super) enum Function {
    Unary(extern "C" fn(f32) -> f32),
    Binary(extern "C" fn(f32, f32) -> f32),
}

macro_rules! functions {
    ($($name:literal => $kind:ident |$($argument:ident),+| $body:expr;)+) => {
        /// All functions by name, in the order of [`addresses`].
        pub(super) const FUNCTIONS: &[(&str, Function)] = &[
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

/// Returns the functions' addresses, for
/// [`BatchContext::float_functions`](super::abi::BatchContext::float_functions).
pub(super) fn addresses() -> Vec<usize> {
    FUNCTIONS
        .iter()
        .map(|(_, function)| match *function {
            Function::Unary(f) => f as usize,
            Function::Binary(f) => f as usize,
        })
        .collect()
}

/// Splits `x` into a fraction of magnitude [0.5, 1) and an exponent, `x = fraction * 2^exponent`.
/// Zero, infinities and NaN come back as they are, with exponent 0.
fn frexp(x: f32) -> (f32, f32) {
    if x == 0.0 || !x.is_finite() {
        return (x, 0.0);
    }
    // Every f32 is a normal number as an f64, which has its exponent in bits 52 to 62.
    let bits = f64::from(x).to_bits();
    let exponent = (bits >> 52 & 0x7ff) as i32 - 1022;
    let fraction = f64::from_bits(bits & !(0x7ff << 52) | 1022 << 52);
    (fraction as f32, exponent as f32)
}
