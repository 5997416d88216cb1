//! Built-in functions that pack numbers into a `uint`, unpack them, or multiply packed bytes.

use naga::{MathFunction, Scalar};

use super::unsupported_builtin;
use crate::c_expr::CExpr;
use crate::types::COMPONENTS;
use crate::{Result, Writer};

impl Writer<'_> {
    /// Built-ins that pack numbers into a `uint` or unpack them.
    pub(crate) fn pack(&mut self, fun: MathFunction, arguments: &[CExpr]) -> Result<CExpr> {
        use MathFunction as M;
        let dialect = self.dialect;
        // The helper, the component type of its vector, and the bits of each component.
        let (name, scalar, bits) = match fun {
            M::Pack4x8snorm => ("pc_pack4x8snorm", Scalar::F32, 8),
            M::Pack4x8unorm => ("pc_pack4x8unorm", Scalar::F32, 8),
            M::Pack2x16snorm => ("pc_pack2x16snorm", Scalar::F32, 16),
            M::Pack2x16unorm => ("pc_pack2x16unorm", Scalar::F32, 16),
            M::Pack4xI8 => ("pc_pack4xi8", Scalar::I32, 8),
            M::Pack4xU8 => ("pc_pack4xu8", Scalar::U32, 8),
            M::Pack4xI8Clamp => ("pc_pack4xi8_clamp", Scalar::I32, 8),
            M::Pack4xU8Clamp => ("pc_pack4xu8_clamp", Scalar::U32, 8),
            M::Unpack4x8snorm => ("pc_unpack4x8snorm", Scalar::F32, 8),
            M::Unpack4x8unorm => ("pc_unpack4x8unorm", Scalar::F32, 8),
            M::Unpack2x16snorm => ("pc_unpack2x16snorm", Scalar::F32, 16),
            M::Unpack2x16unorm => ("pc_unpack2x16unorm", Scalar::F32, 16),
            M::Unpack4xI8 => ("pc_unpack4xi8", Scalar::I32, 8),
            M::Unpack4xU8 => ("pc_unpack4xu8", Scalar::U32, 8),
            M::Dot4I8Packed | M::Dot4U8Packed => return Ok(self.packed_dot(fun == M::Dot4I8Packed, arguments)),
            other => return Err(unsupported_builtin(other)),
        };
        let ty = self.vector_name(scalar, 32 / bits);
        let mask = u32::MAX >> (32 - bits);
        // What 1.0 is packed as.
        let (most_signed, most) = if bits == 8 { ("127.0f", "255.0f") } else { ("32767.0f", "65535.0f") };
        let packed = |term: &dyn Fn(&str) -> String| {
            let part = |i: usize| {
                let masked = format!("((uint){} & 0x{mask:x}u)", term(&format!("v.{}", COMPONENTS[i])));
                if i == 0 { masked } else { format!("{masked} << {}", bits * i) }
            };
            let body = format!("return {};", (0..32 / bits).map(part).collect::<Vec<_>>().join(" | "));
            ("uint", (ty.as_str(), "v"), body)
        };
        let unpacked = |term: &dyn Fn(String) -> String| {
            let part = |i: usize| term(format!("(x >> {} & 0x{mask:x}u)", bits * i));
            let body = format!("return {};", dialect.vector(&ty, &(0..32 / bits).map(part).collect::<Vec<_>>()));
            (ty.as_str(), ("uint", "x"), body)
        };
        let [min, max, floor] = ["fmin", "fmax", "floor"].map(|name| dialect.float_function(name));
        let normal = |value: &str, least: &str, scale: &str| {
            format!("(int){floor}(0.5f + {scale} * {min}({max}({value}, {least}), 1.0f))")
        };
        let (result, parameter, body) = match fun {
            M::Pack4x8snorm | M::Pack2x16snorm => packed(&|v| normal(v, "-1.0f", most_signed)),
            M::Pack4x8unorm | M::Pack2x16unorm => packed(&|v| normal(v, "0.0f", most)),
            M::Pack4xI8Clamp => packed(&|v| format!("({v} < -128 ? -128 : {v} > 127 ? 127 : {v})")),
            M::Pack4xU8Clamp => packed(&|v| format!("({v} > 255u ? 255u : {v})")),
            M::Pack4xI8 | M::Pack4xU8 => packed(&str::to_owned),
            M::Unpack4x8snorm | M::Unpack2x16snorm => {
                unpacked(&|v| format!("{max}((float){} / {most_signed}, -1.0f)", sign_extended(&v, bits)))
            }
            M::Unpack4x8unorm | M::Unpack2x16unorm => unpacked(&|v| format!("(float){v} / {most}")),
            M::Unpack4xI8 => unpacked(&|v| sign_extended(&v, bits)),
            _ => unpacked(&|v| v),
        };
        Ok(self.polyfill(name, result, &[parameter], &body, arguments))
    }

    /// The dot product of four bytes each.
    fn packed_dot(&mut self, signed: bool, arguments: &[CExpr]) -> CExpr {
        let byte = |of: &str, i: usize| {
            let value = format!("({of} >> {} & 0xffu)", 8 * i);
            if signed { sign_extended(&value, 8) } else { value }
        };
        let terms: Vec<String> = (0..4).map(|i| format!("{} * {}", byte("x", i), byte("y", i))).collect();
        let body = format!("return {};", terms.join(" + "));
        let (name, result) = if signed { ("pc_dot4_i8", "int") } else { ("pc_dot4_u8", "uint") };
        self.polyfill(name, result, &[("uint", "x"), ("uint", "y")], &body, arguments)
    }
}

/// The number in the low `bits` of a `uint`, as an `int`.
fn sign_extended(value: &str, bits: usize) -> String {
    format!("((int)({value} << {}) >> {})", 32 - bits, 32 - bits)
}
