//! Built-in functions that work on each component by itself.

use naga::{MathFunction, Scalar, ScalarKind};

use super::unsupported_builtin;
use crate::c_expr::CExpr;
use crate::dialect::{float_function_name, short_name};
use crate::types::{is_signed, unsigned};
use crate::{Result, Writer};

/// pi / 180, and its inverse.
const RADIANS: &str = "0.017453292f";
const DEGREES: &str = "57.29578f";

impl Writer<'_> {
    /// Writes a componentwise built-in, for one component.
    pub(crate) fn math(&mut self, fun: MathFunction, scalar: Scalar, arguments: &[CExpr]) -> Result<CExpr> {
        if scalar.kind == ScalarKind::Float {
            return self.float_math(fun, arguments);
        }
        use MathFunction as M;
        let dialect = self.dialect;
        let wide = scalar.width == 8;
        let signed = is_signed(scalar);
        let ty = dialect.scalar(scalar);
        let bits = unsigned(scalar);
        let u = dialect.scalar(bits);
        let width = u32::from(scalar.width) * 8;
        let as_bits = |value: &CExpr| if signed { CExpr::cast(u, value.clone()) } else { value.clone() };
        Ok(match fun {
            M::Abs if !signed => arguments[0].clone(),
            M::Abs => {
                let body = format!("return x < 0 ? ({ty})(0u - ({u})x) : x;");
                self.polyfill_same_type("abs", scalar, "x", &body, arguments)
            }
            M::Min => self.polyfill_same_type("min", scalar, "a b", "return a < b ? a : b;", arguments),
            M::Max => self.polyfill_same_type("max", scalar, "a b", "return a > b ? a : b;", arguments),
            M::Clamp => {
                let body = "x = x > low ? x : low;\nreturn x < high ? x : high;";
                self.polyfill_same_type("clamp", scalar, "x low high", body, arguments)
            }
            M::Sign => self.polyfill_same_type("sign", scalar, "x", "return x > 0 ? 1 : x < 0 ? -1 : 0;", arguments),
            M::CountOneBits => {
                CExpr::cast(ty, CExpr::atom(dialect.count_ones(&as_bits(&arguments[0]).parenthesized(), wide)))
            }
            M::CountLeadingZeros => {
                CExpr::cast(ty, CExpr::atom(dialect.leading_zeros(&as_bits(&arguments[0]).parenthesized(), wide)))
            }
            M::CountTrailingZeros => {
                let ones = dialect.count_ones("(~x & (x - 1u))", wide);
                let count = self.polyfill_same_type(
                    "trailing_zeros",
                    bits,
                    "x",
                    &format!("return {ones};"),
                    &[as_bits(&arguments[0])],
                );
                if signed { CExpr::cast(ty, count) } else { count }
            }
            M::FirstTrailingBit => {
                let ones = dialect.count_ones("(~x & (x - 1u))", wide);
                let body = format!("return x == 0u ? ~({u})0u : ({u}){ones};");
                let found = self.polyfill_same_type("first_trailing_bit", bits, "x", &body, &[as_bits(&arguments[0])]);
                if signed { CExpr::cast(ty, found) } else { found }
            }
            M::FirstLeadingBit => {
                // The highest bit that differs from the sign, which is 0 for unsigned types; all
                // ones if there is none.
                let of = if signed { format!("({u})(x < 0 ? ~x : x)") } else { "x".into() };
                let zeros = dialect.leading_zeros(&format!("({of})"), wide);
                let body = format!("return ({ty})({} - ({u}){zeros});", width - 1);
                self.polyfill_same_type("first_leading_bit", scalar, "x", &body, arguments)
            }
            M::ReverseBits => {
                let body = match dialect.reverse_bits("x", wide) {
                    Some(text) => format!("return {text};"),
                    None => reverse_bits_body(wide, dialect.wide_suffix(false)),
                };
                let turned = self.polyfill_same_type("reverse_bits", bits, "x", &body, &[as_bits(&arguments[0])]);
                if signed { CExpr::cast(ty, turned) } else { turned }
            }
            M::ExtractBits => {
                // Clamp `offset` and `count` to the width.
                let field = format!(
                    "offset = offset < {width}u ? offset : {width}u;\ncount = count < {width}u - offset ? count : {width}u - \
                     offset;\nif (count == 0u) return 0;"
                );
                let up = format!("(({u})x << ({width}u - offset - count))");
                let body = match signed {
                    true => format!("{field}\nreturn ({ty}){up} >> ({width}u - count);"),
                    false => format!("{field}\nreturn {up} >> ({width}u - count);"),
                };
                let parameters = [(ty, "x"), ("uint", "offset"), ("uint", "count")];
                self.polyfill(&format!("pc_extract_bits_{}", short_name(scalar)), ty, &parameters, &body, arguments)
            }
            M::InsertBits => {
                let body = format!(
                    "offset = offset < {width}u ? offset : {width}u;\ncount = count < {width}u - offset ? count : {width}u - \
                     offset;\nif (count == 0u) return x;\n{u} mask = ~({u})0u >> ({width}u - count) << offset;\nreturn \
                     ({ty})((({u})x & ~mask) | (({u})y << offset & mask));"
                );
                let parameters = [(ty, "x"), (ty, "y"), ("uint", "offset"), ("uint", "count")];
                self.polyfill(&format!("pc_insert_bits_{}", short_name(scalar)), ty, &parameters, &body, arguments)
            }
            other => return Err(unsupported_builtin(other)),
        })
    }

    fn float_math(&mut self, fun: MathFunction, arguments: &[CExpr]) -> Result<CExpr> {
        use MathFunction as M;
        let dialect = self.dialect;
        if let Some(name) = float_function_name(fun) {
            return Ok(CExpr::call(&dialect.float_function(name), arguments));
        }
        let call = |name: &str, arguments: &str| format!("{}({arguments})", dialect.float_function(name));
        let clamp =
            |x: &str, low: &str, high: &str| call("fmin", &format!("{}, {high}", call("fmax", &format!("{x}, {low}"))));
        let (stem, parameters, body) = match fun {
            M::Clamp => ("clamp", "x low high", format!("return {};", clamp("x", "low", "high"))),
            M::Saturate => ("saturate", "x", format!("return {};", clamp("x", "0.0f", "1.0f"))),
            M::Radians => return Ok(CExpr::binary("*", arguments[0].clone(), CExpr::atom(RADIANS))),
            M::Degrees => return Ok(CExpr::binary("*", arguments[0].clone(), CExpr::atom(DEGREES))),
            M::Fract => ("fract", "x", format!("return x - {};", call("floor", "x"))),
            M::Sign => ("sign", "x", "return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x;".into()),
            M::Mix => ("mix", "x y a", "return x * (1.0f - a) + y * a;".into()),
            M::Step => ("step", "edge x", "return edge <= x ? 1.0f : 0.0f;".into()),
            M::SmoothStep => {
                let t = clamp("(x - low) / (high - low)", "0.0f", "1.0f");
                ("smoothstep", "low high x", format!("float t = {t};\nreturn t * t * (3.0f - 2.0f * t);"))
            }
            M::InverseSqrt => ("inverse_sqrt", "x", format!("return 1.0f / {};", call("sqrt", "x"))),
            other => return Err(unsupported_builtin(other)),
        };
        Ok(self.polyfill_same_type(stem, Scalar::F32, parameters, &body, arguments))
    }

    /// Whether a float is NaN or infinite, by its bits, which works even if compiler options assume
    /// that there are none.
    pub(crate) fn float_class(&mut self, nan: bool, value: CExpr) -> CExpr {
        let bits = self.dialect.float_bits("x", false);
        let (name, operator) = if nan { ("pc_is_nan", ">") } else { ("pc_is_inf", "==") };
        let body = format!("return ({bits} & 0x7fffffffu) {operator} 0x7f800000u;");
        self.polyfill(name, "bool", &[("float", "x")], &body, &[value])
    }
}

/// Reverses bits by swapping neighbours of 1, 2, 4, … bits.
fn reverse_bits_body(wide: bool, suffix: &str) -> String {
    let (masks, half): (&[(u32, &str)], u32) = match wide {
        false => (&[(1, "0x55555555u"), (2, "0x33333333u"), (4, "0x0f0f0f0fu"), (8, "0x00ff00ffu")], 16),
        true => (
            &[
                (1, "0x5555555555555555"),
                (2, "0x3333333333333333"),
                (4, "0x0f0f0f0f0f0f0f0f"),
                (8, "0x00ff00ff00ff00ff"),
                (16, "0x0000ffff0000ffff"),
            ],
            32,
        ),
    };
    let suffix = if wide { suffix } else { "" };
    let mut body = String::new();
    for (shift, mask) in masks {
        body += &format!("x = (x >> {shift} & {mask}{suffix}) | (x & {mask}{suffix}) << {shift};\n");
    }
    body + &format!("return x >> {half} | x << {half};")
}
