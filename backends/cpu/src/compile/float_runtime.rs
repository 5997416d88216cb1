//! Floating-point functions that generated code calls because no instruction computes them. Like
//! all floating point they are outside the promise of identical results on every device.

use naga::MathFunction;

macro_rules! address {
    (($($argument:ident),+) $body:expr) => {{
        extern "C" fn function($($argument: f32),+) -> f32 {
            $body
        }
        function as *const () as usize
    }};
}

macro_rules! functions {
    (
        builtins { $($builtin:ident $arguments:tt => $body:expr;)+ }
        parts { $($part:ident $part_arguments:tt => $part_body:expr;)+ }
    ) => {
        /// A function that generated code calls; its discriminant is its index in [`addresses`].
        #[derive(Debug, Clone, Copy)]
        pub(super) enum FloatFunction {
            $($builtin,)+
            $($part,)+
        }

        impl FloatFunction {
            /// The function that computes a built-in by itself, if one does.
            pub(super) fn from_builtin(fun: MathFunction) -> Option<FloatFunction> {
                match fun {
                    $(MathFunction::$builtin => Some(FloatFunction::$builtin),)+
                    _ => None,
                }
            }
        }

        /// Returns the functions' addresses, for
        /// [`BatchContext::float_functions`](super::abi::BatchContext::float_functions).
        pub(super) fn addresses() -> Vec<usize> {
            vec![$(address!($arguments $body),)+ $(address!($part_arguments $part_body),)+]
        }
    };
}

functions! {
    builtins {
        Acos(x) => x.acos();
        Acosh(x) => x.acosh();
        Asin(x) => x.asin();
        Asinh(x) => x.asinh();
        Atan(x) => x.atan();
        Atan2(y, x) => y.atan2(x);
        Atanh(x) => x.atanh();
        Ceil(x) => x.ceil();
        Cos(x) => x.cos();
        Cosh(x) => x.cosh();
        Exp(x) => x.exp();
        Exp2(x) => x.exp2();
        Floor(x) => x.floor();
        Ldexp(x, e) => (f64::from(x) * 2f64.powf(f64::from(e.clamp(-400.0, 400.0)))) as f32;
        Log(x) => x.ln();
        Log2(x) => x.log2();
        Pow(x, y) => x.powf(y);
        Round(x) => x.round_ties_even();
        Sin(x) => x.sin();
        Sinh(x) => x.sinh();
        Tan(x) => x.tan();
        Tanh(x) => x.tanh();
        Trunc(x) => x.trunc();
    }
    parts {
        FrexpExponent(x) => frexp(x).1;
        FrexpFraction(x) => frexp(x).0;
    }
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
