//! WGSL's built-in functions on f32 that take whole vectors or matrices, or return several values.

use cranelift_codegen::ir::condcodes::FloatCC;
use cranelift_codegen::ir::{InstBuilder, Value, types as clif};
use naga::{MathFunction as Mf, Scalar};

use super::codegen::Codegen;
use crate::compile::errors::Result;
use crate::compile::float_runtime::FloatFunction;
use crate::compile::types::Leaf;

const F32: Leaf = Leaf(Scalar::F32);

impl Codegen<'_, '_> {
    /// Lowers a built-in function of this kind; returns `None` for any other.
    pub(super) fn float_composite(&mut self, fun: Mf, arguments: &[Vec<Value>]) -> Option<Result<Vec<Value>>> {
        let (a, b) = (&arguments[0], arguments.get(1));
        Some(match (fun, b) {
            (Mf::Modf, _) => self.split_each(a, |this, x| {
                let whole = this.call_float(FloatFunction::Trunc, F32, &[x])?;
                Ok((this.b.ins().fsub(x, whole), whole))
            }),
            (Mf::Frexp, _) => self.split_each(a, |this, x| {
                let exponent = this.call_float(FloatFunction::FrexpExponent, F32, &[x])?;
                let fraction = this.call_float(FloatFunction::FrexpFraction, F32, &[x])?;
                Ok((fraction, this.b.ins().fcvt_to_sint_sat(clif::I32, exponent)))
            }),
            (Mf::FaceForward, Some(incident)) => self.face_forward(a, incident, &arguments[2]),
            (Mf::Reflect, Some(normal)) => self.reflect(a, normal),
            (Mf::Refract, Some(normal)) => self.refract(a, normal, arguments[2][0]),
            (Mf::Determinant, _) => {
                // The matrix is square: 4, 9 or 16 values.
                let size = (2..4).find(|n| n * n == a.len()).unwrap_or(4);
                Ok(vec![self.determinant(a, size)])
            }
            (Mf::Pack4x8snorm, _) => self.pack_floats(a, -1.0, 127.0),
            (Mf::Pack4x8unorm, _) => self.pack_floats(a, 0.0, 255.0),
            (Mf::Pack2x16snorm, _) => self.pack_floats(a, -1.0, 32_767.0),
            (Mf::Pack2x16unorm, _) => self.pack_floats(a, 0.0, 65_535.0),
            (Mf::Unpack4x8snorm, _) => Ok(self.unpack_floats(a[0], 8, Some(127.0))),
            (Mf::Unpack4x8unorm, _) => Ok(self.unpack_floats(a[0], 8, None)),
            (Mf::Unpack2x16snorm, _) => Ok(self.unpack_floats(a[0], 16, Some(32_767.0))),
            (Mf::Unpack2x16unorm, _) => Ok(self.unpack_floats(a[0], 16, None)),
            _ => return None,
        })
    }

    /// Splits each value in two; returns all first parts, then all second parts.
    fn split_each(
        &mut self,
        values: &[Value],
        split: impl Fn(&mut Self, Value) -> Result<(Value, Value)>,
    ) -> Result<Vec<Value>> {
        let parts = values.iter().map(|&x| split(self, x)).collect::<Result<Vec<_>>>()?;
        Ok(parts.iter().map(|p| p.0).chain(parts.iter().map(|p| p.1)).collect())
    }

    fn face_forward(&mut self, a: &[Value], incident: &[Value], reference: &[Value]) -> Result<Vec<Value>> {
        let product = self.dot(F32, incident, reference)?;
        let zero = self.b.ins().f32const(0.0);
        let forward = self.b.ins().fcmp(FloatCC::LessThan, product, zero);
        Ok(a.iter()
            .map(|&x| {
                let negative = self.b.ins().fneg(x);
                self.b.ins().select(forward, x, negative)
            })
            .collect())
    }

    /// `incident - 2 * dot(normal, incident) * normal`
    fn reflect(&mut self, incident: &[Value], normal: &[Value]) -> Result<Vec<Value>> {
        let product = self.dot(F32, normal, incident)?;
        let twice = self.b.ins().fadd(product, product);
        let pairs = incident.iter().zip(normal);
        Ok(pairs
            .map(|(&i, &n)| {
                let part = self.b.ins().fmul(twice, n);
                self.b.ins().fsub(i, part)
            })
            .collect())
    }

    /// With `k = 1 - ratio² * (1 - dot(normal, incident)²)`: zeros if k is negative, otherwise
    /// `ratio * incident - (ratio * dot(normal, incident) + sqrt(k)) * normal`.
    fn refract(&mut self, incident: &[Value], normal: &[Value], ratio: Value) -> Result<Vec<Value>> {
        let cosine = self.dot(F32, normal, incident)?;
        let (zero, one) = (self.b.ins().f32const(0.0), self.b.ins().f32const(1.0));
        let square = self.b.ins().fmul(cosine, cosine);
        let sine = self.b.ins().fsub(one, square);
        let ratios = self.b.ins().fmul(ratio, ratio);
        let lost = self.b.ins().fmul(ratios, sine);
        let k = self.b.ins().fsub(one, lost);
        let root = self.b.ins().sqrt(k);
        let along = self.b.ins().fmul(ratio, cosine);
        let along = self.b.ins().fadd(along, root);
        let reflected = self.b.ins().fcmp(FloatCC::LessThan, k, zero);
        let pairs = incident.iter().zip(normal);
        Ok(pairs
            .map(|(&i, &n)| {
                let (i, n) = (self.b.ins().fmul(ratio, i), self.b.ins().fmul(along, n));
                let turned = self.b.ins().fsub(i, n);
                self.b.ins().select(reflected, zero, turned)
            })
            .collect())
    }

    /// Emits a determinant by Laplace expansion along the first column. Matrices are stored by
    /// column.
    fn determinant(&mut self, m: &[Value], size: usize) -> Value {
        let mut sum = None;
        for row in 0..size {
            let rest: Vec<Value> = (size..size * size).filter(|i| i % size != row).map(|i| m[i]).collect();
            let minor = if size == 2 { rest[0] } else { self.determinant(&rest, size - 1) };
            let part = self.b.ins().fmul(m[row], minor);
            sum = Some(match sum {
                None => part,
                Some(sum) if row % 2 == 1 => self.b.ins().fsub(sum, part),
                Some(sum) => self.b.ins().fadd(sum, part),
            });
        }
        sum.unwrap_or_else(|| self.b.ins().f32const(1.0))
    }

    /// Emits `floor(0.5 + most * clamp(x, least, 1))` of each value, packed into a u32.
    fn pack_floats(&mut self, values: &[Value], least: f32, most: f32) -> Result<Vec<Value>> {
        let bits = 32 / values.len() as i64;
        let (low, high) = (self.b.ins().f32const(least), self.b.ins().f32const(1.0));
        let (scale, half) = (self.b.ins().f32const(most), self.b.ins().f32const(0.5));
        let mut packed = self.constant(0);
        for (i, &x) in (0..).zip(values) {
            let x = self.float_max(x, low);
            let x = self.float_min(x, high);
            let x = self.b.ins().fmul(x, scale);
            let x = self.b.ins().fadd(x, half);
            let x = self.call_float(FloatFunction::Floor, F32, &[x])?;
            let x = self.b.ins().fcvt_to_sint_sat(clif::I32, x);
            let x = self.b.ins().band_imm_u(x, (1 << bits) - 1);
            let x = self.b.ins().ishl_imm_u(x, i * bits);
            packed = self.b.ins().bor(packed, x);
        }
        Ok(vec![packed])
    }

    /// Unpacks the fields of `bits` bits of a u32, divided by the largest number that they can
    /// hold. `signed` is that number for signed fields, whose results are at least −1.
    fn unpack_floats(&mut self, word: Value, bits: i64, signed: Option<f32>) -> Vec<Value> {
        let most = self.b.ins().f32const(signed.unwrap_or(((1u32 << bits) - 1) as f32));
        let least = self.b.ins().f32const(-1.0);
        (0..32 / bits)
            .map(|i| {
                let up = self.b.ins().ishl_imm_u(word, 32 - bits - i * bits);
                if signed.is_some() {
                    let part = self.b.ins().sshr_imm_u(up, 32 - bits);
                    let part = self.b.ins().fcvt_from_sint(clif::F32, part);
                    let part = self.b.ins().fdiv(part, most);
                    self.float_max(part, least)
                } else {
                    let part = self.b.ins().ushr_imm_u(up, 32 - bits);
                    let part = self.b.ins().fcvt_from_uint(clif::F32, part);
                    self.b.ins().fdiv(part, most)
                }
            })
            .collect()
    }
}
