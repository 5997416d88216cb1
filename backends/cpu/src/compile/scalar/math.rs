//! WGSL's built-in functions on numbers.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{self, AbiParam, InstBuilder, Value, types as clif};
use naga::{BinaryOperator as Op, MathFunction as Mf, RelationalFunction, ScalarKind, TypeInner};

use super::codegen::Codegen;
use crate::compile::abi::context_offset;
use crate::compile::errors::{Result, Unsupported};
use crate::compile::float_runtime::FloatFunction;
use crate::compile::lowered::constant_memory;
use crate::compile::types::Leaf;

const U32: Leaf = Leaf(naga::Scalar::U32);

/// Cost of a call of a float function in scalar operations; a pessimistic estimate.
const RUNTIME_CALL_OPERATIONS: usize = 20;

impl Codegen<'_, '_> {
    pub(super) fn relational(&mut self, fun: RelationalFunction, values: &[Value]) -> Result<Vec<Value>> {
        Ok(match fun {
            RelationalFunction::All => {
                let all = self.boolean(true);
                vec![values.iter().fold(all, |all, &v| self.logical_and(all, v))]
            }
            RelationalFunction::Any => {
                let none = self.boolean(false);
                vec![values.iter().fold(none, |any, &v| self.logical_or(any, v))]
            }
            RelationalFunction::IsNan => values.iter().map(|&v| self.b.ins().fcmp(FloatCC::Unordered, v, v)).collect(),
            RelationalFunction::IsInf => {
                let infinity = self.b.ins().f32const(f32::INFINITY);
                values
                    .iter()
                    .map(|&v| {
                        let v = self.b.ins().fabs(v);
                        self.b.ins().fcmp(FloatCC::Equal, v, infinity)
                    })
                    .collect()
            }
        })
    }

    /// Lowers a built-in function. `leaf` is the scalar type of its first argument, `result` the
    /// type of its result.
    pub(super) fn math(
        &mut self,
        fun: Mf,
        leaf: Leaf,
        arguments: &[Vec<Value>],
        result: &TypeInner,
    ) -> Result<Vec<Value>> {
        let a = &arguments[0];
        match fun {
            Mf::Dot => return Ok(vec![self.dot(leaf, a, &arguments[1])?]),
            Mf::Length => return Ok(vec![self.vector_length(leaf, a)?]),
            Mf::Distance => {
                let difference = self.zip(Op::Subtract, leaf, a, &arguments[1])?;
                return Ok(vec![self.vector_length(leaf, &difference)?]);
            }
            Mf::Normalize => {
                let length = self.vector_length(leaf, a)?;
                return Ok(a.iter().map(|&v| self.b.ins().fdiv(v, length)).collect());
            }
            Mf::Cross => {
                let b = &arguments[1];
                return (0..3)
                    .map(|i| {
                        let (j, k) = ((i + 1) % 3, (i + 2) % 3);
                        let (left, right) = (self.b.ins().fmul(a[j], b[k]), self.b.ins().fmul(a[k], b[j]));
                        Ok(self.b.ins().fsub(left, right))
                    })
                    .collect();
            }
            Mf::Transpose => {
                let &TypeInner::Matrix { columns, rows, .. } = result else {
                    return Err(Unsupported("transposing a value that is not a matrix".into()));
                };
                let (columns, rows) = (columns as usize, rows as usize);
                return Ok((0..columns * rows).map(|i| a[(i % rows) * columns + i / rows]).collect());
            }
            Mf::Dot4U8Packed | Mf::Dot4I8Packed => {
                let signed = fun == Mf::Dot4I8Packed;
                let (x, y) = (self.unpack_bytes(a[0], signed), self.unpack_bytes(arguments[1][0], signed));
                return Ok(vec![self.dot(U32, &x, &y)?]);
            }
            Mf::Unpack4xU8 => return Ok(self.unpack_bytes(a[0], false)),
            Mf::Unpack4xI8 => return Ok(self.unpack_bytes(a[0], true)),
            Mf::Pack4xU8 | Mf::Pack4xI8 => return Ok(vec![self.pack_bytes(a)]),
            Mf::Pack4xU8Clamp => {
                let most = self.constant(255);
                let clamped: Vec<Value> = a.iter().map(|&v| self.b.ins().umin(v, most)).collect();
                return Ok(vec![self.pack_bytes(&clamped)]);
            }
            Mf::Pack4xI8Clamp => {
                let (least, most) = (self.constant(-128i32 as u32), self.constant(127));
                let clamped: Vec<Value> = a
                    .iter()
                    .map(|&v| {
                        let v = self.b.ins().smax(v, least);
                        self.b.ins().smin(v, most)
                    })
                    .collect();
                return Ok(vec![self.pack_bytes(&clamped)]);
            }
            _ => {
                if let Some(values) = self.float_composite(fun, arguments) {
                    return values;
                }
            }
        }
        let n = arguments.iter().map(Vec::len).max().unwrap_or(0);
        (0..n)
            .map(|i| {
                let scalars: Vec<Value> = arguments.iter().map(|a| if a.len() == 1 { a[0] } else { a[i] }).collect();
                match leaf.0.kind {
                    ScalarKind::Float => self.float_math(fun, leaf, &scalars),
                    _ => self.integer_math(fun, leaf, &scalars),
                }
            })
            .collect()
    }

    fn zip(&mut self, op: Op, leaf: Leaf, a: &[Value], b: &[Value]) -> Result<Vec<Value>> {
        a.iter().zip(b).map(|(&a, &b)| self.binary(op, leaf, a, b)).collect()
    }

    pub(super) fn dot(&mut self, leaf: Leaf, a: &[Value], b: &[Value]) -> Result<Value> {
        let products = self.zip(Op::Multiply, leaf, a, b)?;
        let mut sum = products[0];
        for &product in &products[1..] {
            sum = self.binary(Op::Add, leaf, sum, product)?;
        }
        Ok(sum)
    }

    fn vector_length(&mut self, leaf: Leaf, a: &[Value]) -> Result<Value> {
        let square = self.dot(leaf, a, a)?;
        Ok(self.b.ins().sqrt(square))
    }

    fn unpack_bytes(&mut self, value: Value, signed: bool) -> Vec<Value> {
        (0..4)
            .map(|i| {
                let up = self.b.ins().ishl_imm_u(value, 24 - 8 * i);
                if signed { self.b.ins().sshr_imm_u(up, 24) } else { self.b.ins().ushr_imm_u(up, 24) }
            })
            .collect()
    }

    fn pack_bytes(&mut self, values: &[Value]) -> Value {
        let mut packed = None;
        for (i, &value) in values.iter().enumerate() {
            let byte = self.b.ins().band_imm_u(value, 0xff);
            let placed = self.b.ins().ishl_imm_u(byte, 8 * i as i64);
            packed = Some(packed.map_or(placed, |packed| self.b.ins().bor(packed, placed)));
        }
        packed.unwrap_or_else(|| self.constant(0))
    }

    fn integer_math(&mut self, fun: Mf, leaf: Leaf, a: &[Value]) -> Result<Value> {
        let signed = leaf.0.kind == ScalarKind::Sint;
        let (ty, bits) = (leaf.clif(), i64::from(leaf.0.width) * 8);
        let x = a[0];
        let value = match fun {
            Mf::Abs if signed => self.b.ins().iabs(x),
            Mf::Abs => x,
            Mf::Min if signed => self.b.ins().smin(x, a[1]),
            Mf::Min => self.b.ins().umin(x, a[1]),
            Mf::Max if signed => self.b.ins().smax(x, a[1]),
            Mf::Max => self.b.ins().umax(x, a[1]),
            Mf::Clamp if signed => {
                let low = self.b.ins().smax(x, a[1]);
                self.b.ins().smin(low, a[2])
            }
            Mf::Clamp => {
                let low = self.b.ins().umax(x, a[1]);
                self.b.ins().umin(low, a[2])
            }
            Mf::Sign => {
                let positive = self.b.ins().icmp_imm_s(IntCC::SignedGreaterThan, x, 0);
                let positive = self.b.ins().uextend(ty, positive);
                let negative = self.b.ins().sshr_imm_u(x, bits - 1);
                self.b.ins().bor(positive, negative)
            }
            Mf::CountOneBits => self.b.ins().popcnt(x),
            Mf::CountLeadingZeros => self.b.ins().clz(x),
            Mf::CountTrailingZeros => self.b.ins().ctz(x),
            Mf::ReverseBits => self.b.ins().bitrev(x),
            Mf::FirstTrailingBit => {
                let zeros = self.b.ins().ctz(x);
                self.or_minus_one(leaf, x, zeros)
            }
            Mf::FirstLeadingBit => {
                // For a negative number: the highest bit that differs from the sign bit.
                let sign = self.b.ins().sshr_imm_u(x, bits - 1);
                let x = if signed { self.b.ins().bxor(x, sign) } else { x };
                let zeros = self.b.ins().clz(x);
                let last = self.b.ins().iconst(ty, bits - 1);
                let bit = self.b.ins().isub(last, zeros);
                self.or_minus_one(leaf, x, bit)
            }
            Mf::ExtractBits => {
                let (offset, count) = self.bit_field(bits, a[1], a[2]);
                // Shift up to the top and down again. A count of 0 would shift by the width, hence
                // the select.
                let width = self.constant(bits as u32);
                let rest = self.b.ins().isub(width, count);
                let up = self.b.ins().isub(rest, offset);
                let up = self.b.ins().ishl(x, up);
                let down = if signed { self.b.ins().sshr(up, rest) } else { self.b.ins().ushr(up, rest) };
                let zero = self.b.ins().iconst(ty, 0);
                self.b.ins().select(count, down, zero)
            }
            Mf::InsertBits => {
                let (offset, count) = self.bit_field(bits, a[2], a[3]);
                let width = self.constant(bits as u32);
                let rest = self.b.ins().isub(width, count);
                let ones = self.b.ins().iconst(ty, -1);
                let ones = self.b.ins().ushr(ones, rest);
                let mask = self.b.ins().ishl(ones, offset);
                let zero = self.b.ins().iconst(ty, 0);
                let mask = self.b.ins().select(count, mask, zero);
                let moved = self.b.ins().ishl(a[1], offset);
                let new = self.b.ins().band(moved, mask);
                let old = self.b.ins().band_not(x, mask);
                self.b.ins().bor(old, new)
            }
            other => return Err(Unsupported(format!("{other:?} on integers"))),
        };
        if leaf == U32 {
            let (x, y) = (self.known.range(x), a.get(1).map(|&y| self.known.range(y)));
            match (fun, y) {
                (Mf::Min, Some(y)) => self.known.set_range(value, x.0.min(y.0), x.1.min(y.1)),
                (Mf::Max, Some(y)) => self.known.set_range(value, x.0.max(y.0), x.1.max(y.1)),
                (Mf::CountOneBits | Mf::CountLeadingZeros | Mf::CountTrailingZeros, _) => {
                    self.known.set_range(value, 0, 32);
                }
                _ => {}
            }
        }
        Ok(value)
    }

    /// Emits −1 if `x` is zero, `otherwise` if not.
    fn or_minus_one(&mut self, leaf: Leaf, x: Value, otherwise: Value) -> Value {
        let none = self.b.ins().iconst(leaf.clif(), -1);
        self.b.ins().select(x, otherwise, none)
    }

    /// Clamps offset and count of a bit field to the number's `bits`, as WGSL defines.
    fn bit_field(&mut self, bits: i64, offset: Value, count: Value) -> (Value, Value) {
        let width = self.constant(bits as u32);
        let offset = self.b.ins().umin(offset, width);
        let rest = self.b.ins().isub(width, offset);
        (offset, self.b.ins().umin(count, rest))
    }

    fn float_math(&mut self, fun: Mf, leaf: Leaf, a: &[Value]) -> Result<Value> {
        let x = a[0];
        let (zero, one) = (self.b.ins().f32const(0.0), self.b.ins().f32const(1.0));
        Ok(match fun {
            Mf::Abs => self.b.ins().fabs(x),
            Mf::Min => self.float_min(x, a[1]),
            Mf::Max => self.float_max(x, a[1]),
            Mf::Clamp => {
                let low = self.float_max(x, a[1]);
                self.float_min(low, a[2])
            }
            Mf::Saturate => {
                let low = self.float_max(x, zero);
                self.float_min(low, one)
            }
            Mf::Sqrt => self.b.ins().sqrt(x),
            Mf::InverseSqrt => {
                let root = self.b.ins().sqrt(x);
                self.b.ins().fdiv(one, root)
            }
            Mf::Fma => {
                let product = self.b.ins().fmul(x, a[1]);
                self.b.ins().fadd(product, a[2])
            }
            Mf::Sign => {
                let signed = self.b.ins().fcopysign(one, x);
                let is_zero = self.b.ins().fcmp(FloatCC::Equal, x, zero);
                self.b.ins().select(is_zero, zero, signed)
            }
            Mf::Fract => {
                let floor = self.call_float(FloatFunction::Floor, leaf, &[x])?;
                self.b.ins().fsub(x, floor)
            }
            Mf::Mix => {
                let rest = self.b.ins().fsub(one, a[2]);
                let (left, right) = (self.b.ins().fmul(x, rest), self.b.ins().fmul(a[1], a[2]));
                self.b.ins().fadd(left, right)
            }
            Mf::Step => {
                let reached = self.b.ins().fcmp(FloatCC::LessThanOrEqual, x, a[1]);
                self.b.ins().select(reached, one, zero)
            }
            Mf::SmoothStep => {
                let (along, whole) = (self.b.ins().fsub(a[2], x), self.b.ins().fsub(a[1], x));
                let t = self.b.ins().fdiv(along, whole);
                let t = self.float_max(t, zero);
                let t = self.float_min(t, one);
                let (two, three) = (self.b.ins().f32const(2.0), self.b.ins().f32const(3.0));
                let doubled = self.b.ins().fmul(two, t);
                let rest = self.b.ins().fsub(three, doubled);
                let square = self.b.ins().fmul(t, t);
                self.b.ins().fmul(square, rest)
            }
            Mf::Radians | Mf::Degrees => {
                let factor =
                    if fun == Mf::Radians { std::f32::consts::PI / 180.0 } else { 180.0 / std::f32::consts::PI };
                let factor = self.b.ins().f32const(factor);
                self.b.ins().fmul(x, factor)
            }
            Mf::Ldexp => {
                let exponent = self.b.ins().fcvt_from_sint(clif::F32, a[1]);
                self.call_float(FloatFunction::Ldexp, leaf, &[x, exponent])?
            }
            other => {
                let function = FloatFunction::from_builtin(other)
                    .ok_or_else(|| Unsupported(format!("the built-in function {other:?}")))?;
                self.call_float(function, leaf, a)?
            }
        })
    }

    /// Emits the smaller number, or the other one if one is NaN.
    pub(super) fn float_min(&mut self, a: Value, b: Value) -> Value {
        let less = self.b.ins().fcmp(FloatCC::LessThan, b, a);
        self.b.ins().select(less, b, a)
    }

    pub(super) fn float_max(&mut self, a: Value, b: Value) -> Value {
        let greater = self.b.ins().fcmp(FloatCC::GreaterThan, b, a);
        self.b.ins().select(greater, b, a)
    }

    /// Calls a function by its address.
    pub(super) fn call_float(&mut self, function: FloatFunction, leaf: Leaf, arguments: &[Value]) -> Result<Value> {
        self.count_operations(RUNTIME_CALL_OPERATIONS)?;
        if leaf.clif() != clif::F32 {
            return Err(Unsupported(format!("the function {function:?} on {leaf:?}")));
        }
        let mut signature = ir::Signature::new(self.isa.default_call_conv());
        signature.params.extend(arguments.iter().map(|_| AbiParam::new(clif::F32)));
        signature.returns.push(AbiParam::new(clif::F32));
        let signature = self.b.import_signature(signature);
        let table = self.context_field(context_offset::FLOAT_FUNCTIONS);
        let address = self.b.ins().load(clif::I64, constant_memory(), table, 8 * function as i32);
        let call = self.b.ins().call_indirect(signature, address, arguments);
        Ok(self.b.inst_results(call)[0])
    }
}
