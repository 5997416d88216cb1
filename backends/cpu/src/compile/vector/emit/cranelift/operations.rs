//! Pure operations: on all lanes at once if the processor can, otherwise lane by lane.

use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value, types as clif};
use portcullis_core::packet::Metadata;

use super::emitter::{CacheKey, Emitter, LANES};
use crate::compile::abi::context_offset;
use crate::compile::errors::{Result, Unsupported};
use crate::compile::lowered::constant_memory;
use crate::compile::vector::ir::{Binary, Compare, MetadataField, Node, Op, Unary};

/// The highest bit of a word.
const SIGN: u32 = 1 << 31;

impl Emitter<'_, '_> {
    /// Returns a node's value: a word per lane; masks are all ones or all zeros.
    pub(super) fn value(&mut self, node: Node) -> Result<Value> {
        // Constants are emitted where they are used.
        match self.dag().op(node) {
            Op::Constant(value) => return Ok(self.splat(value)),
            Op::Flag(value) => return Ok(self.splat(if value { u32::MAX } else { 0 })),
            _ => {}
        }
        if let Some(&value) = self.cache.get(&CacheKey::Node(node)) {
            return Ok(value);
        }
        let value = self.compute(node)?;
        Ok(self.remember(CacheKey::Node(node), value))
    }

    fn compute(&mut self, node: Node) -> Result<Value> {
        Ok(match self.dag().op(node) {
            Op::Constant(_) | Op::Flag(_) => self.value(node)?,
            Op::Length => self.group().lengths,
            Op::Metadata(field) => self.metadata(match field {
                MetadataField::WireLength => offset_of!(Metadata, wire_length),
                MetadataField::Port => offset_of!(Metadata, port),
                MetadataField::TimeLow => offset_of!(Metadata, time_low),
                MetadataField::TimeHigh => offset_of!(Metadata, time_high),
                MetadataField::TimeMs => offset_of!(Metadata, time_ms),
            } as i32)?,
            Op::Load(load) => self.load(node, load)?,
            Op::Table { table, index } => self.table(table, index)?,
            Op::Unary(op, a) => self.unary(op, a)?,
            Op::Binary(op, a, b) => self.binary(op, a, b)?,
            Op::Select { mask, accept, reject } => self.select(mask, accept, reject)?,
            Op::Compare(op, a, b) => self.compare(op, a, b)?,
            Op::And(a, b) => {
                let (a, b) = (self.value(a)?, self.value(b)?);
                self.b.ins().band(a, b)
            }
            Op::Or(a, b) => {
                let (a, b) = (self.value(a)?, self.value(b)?);
                self.b.ins().bor(a, b)
            }
            Op::Not(a) => {
                let a = self.value(a)?;
                self.b.ins().bnot(a)
            }
            // Values of steps are in the cache once the step has been emitted.
            op @ (Op::Result(_) | Op::LoopCarried { .. } | Op::Live(_) | Op::Out { .. }) => {
                return Err(Unsupported(format!(
                    "{op:?} is used before it is computed, which is a fault of Portcullis"
                )));
            }
        })
    }

    fn table(&mut self, table: u32, index: Node) -> Result<Value> {
        let tables = self.context_field(context_offset::TABLES);
        let begin = self.table_offsets[table as usize] as i32;
        self.gather(constant_memory(), 4, |emit, lane| {
            let index = emit.lane_as_u64(index, lane)?;
            let scaled = emit.b.ins().ishl_imm_u(index, 2);
            Ok((emit.b.ins().iadd(tables, scaled), begin))
        })
    }

    fn unary(&mut self, op: Unary, a: Node) -> Result<Value> {
        if let (Unary::SwapBytes16 | Unary::SwapBytes32, Op::Load(load)) = (op, self.dag().op(a))
            && load.size == (if op == Unary::SwapBytes16 { 2 } else { 4 })
            && let Some(value) = self.load_swapped(load)
        {
            return Ok(value);
        }
        let all = self.value(a)?;
        Ok(match op {
            Unary::Invert => self.b.ins().bnot(all),
            Unary::SwapBytes16 => self.shuffle_in_lanes(all, 0, 2, true),
            Unary::SwapBytes32 => self.shuffle_in_lanes(all, 0, 4, true),
            Unary::CountOnes | Unary::LeadingZeros | Unary::TrailingZeros | Unary::ReverseBits => {
                return self.each_lane(|emit, lane| {
                    let a = emit.b.ins().extractlane(all, lane as u8);
                    Ok(match op {
                        Unary::CountOnes => emit.b.ins().popcnt(a),
                        Unary::LeadingZeros => emit.b.ins().clz(a),
                        Unary::TrailingZeros => emit.b.ins().ctz(a),
                        _ => emit.b.ins().bitrev(a),
                    })
                });
            }
        })
    }

    fn binary(&mut self, op: Binary, a: Node, b: Node) -> Result<Value> {
        if let Binary::ShiftLeft | Binary::ShiftRight | Binary::ShiftRightSigned = op
            && let Some(count) = self.dag().as_constant(b)
        {
            let a = self.value(a)?;
            let count = self.b.ins().iconst(clif::I32, i64::from(count % 32));
            return Ok(match op {
                Binary::ShiftLeft => self.b.ins().ishl(a, count),
                Binary::ShiftRight => self.b.ins().ushr(a, count),
                _ => self.b.ins().sshr(a, count),
            });
        }
        match op {
            Binary::Divide | Binary::Modulo | Binary::DivideSigned | Binary::ModuloSigned => {
                return self.each_lane(|emit, lane| emit.divide_lane(op, a, b, lane));
            }
            Binary::ShiftLeft | Binary::ShiftRight | Binary::ShiftRightSigned => {
                return self.each_lane(|emit, lane| {
                    let (a, b) = (emit.lane_word(a, lane)?, emit.lane_word(b, lane)?);
                    let count = emit.b.ins().band_imm_u(b, 31);
                    Ok(match op {
                        Binary::ShiftLeft => emit.b.ins().ishl(a, count),
                        Binary::ShiftRight => emit.b.ins().ushr(a, count),
                        _ => emit.b.ins().sshr(a, count),
                    })
                });
            }
            _ => {}
        }
        let (a, b) = (self.value(a)?, self.value(b)?);
        let ins = self.b.ins();
        Ok(match op {
            Binary::Add => ins.iadd(a, b),
            Binary::Subtract => ins.isub(a, b),
            Binary::Multiply => ins.imul(a, b),
            Binary::And => ins.band(a, b),
            Binary::Or => ins.bor(a, b),
            Binary::Xor => ins.bxor(a, b),
            Binary::Min => ins.umin(a, b),
            Binary::Max => ins.umax(a, b),
            Binary::MinSigned => ins.smin(a, b),
            Binary::MaxSigned => ins.smax(a, b),
            Binary::Divide
            | Binary::Modulo
            | Binary::DivideSigned
            | Binary::ModuloSigned
            | Binary::ShiftLeft
            | Binary::ShiftRight
            | Binary::ShiftRightSigned => unreachable!("emitted lane by lane above"),
        })
    }

    /// Emits a division in one lane, by WGSL's rules.
    fn divide_lane(&mut self, op: Binary, a: Node, b: Node, lane: usize) -> Result<Value> {
        let constant = self.dag().as_constant(b);
        let (a, b) = (self.lane_word(a, lane)?, self.lane_word(b, lane)?);
        let signed = matches!(op, Binary::DivideSigned | Binary::ModuloSigned);
        let one = self.b.ins().iconst(clif::I32, 1);
        // Replace divisors that trap.
        let mut divisor = b;
        if constant.is_none_or(|constant| constant == 0) {
            let is_zero = self.b.ins().icmp_imm_u(IntCC::Equal, b, 0);
            divisor = self.b.ins().select(is_zero, one, divisor);
        }
        let minus = signed && constant.is_none_or(|constant| constant == u32::MAX);
        let is_minus = minus.then(|| self.b.ins().icmp_imm_s(IntCC::Equal, b, -1));
        if let Some(is_minus) = is_minus {
            divisor = self.b.ins().select(is_minus, one, divisor);
        }
        // x / 1 = x and x % 1 = 0, as WGSL defines for a divisor of zero; and x % -1 = 0.
        Ok(match op {
            Binary::Divide => self.b.ins().udiv(a, divisor),
            Binary::Modulo => self.b.ins().urem(a, divisor),
            Binary::ModuloSigned => self.b.ins().srem(a, divisor),
            _ => {
                let quotient = self.b.ins().sdiv(a, divisor);
                match is_minus {
                    Some(is_minus) => {
                        let negative = self.b.ins().ineg(a);
                        self.b.ins().select(is_minus, negative, quotient)
                    }
                    None => quotient,
                }
            }
        })
    }

    fn select(&mut self, mask: Node, accept: Node, reject: Node) -> Result<Value> {
        let constants = (self.dag().as_constant(accept), self.dag().as_constant(reject));
        let m = self.value(mask)?;
        // As a number a mask is -1 or 0.
        Ok(match constants {
            (Some(on), Some(off)) if on == off.wrapping_add(1) => {
                let off = self.splat(off);
                self.b.ins().isub(off, m)
            }
            (Some(on), Some(off)) if off == on.wrapping_add(1) => {
                let off = self.splat(off);
                self.b.ins().iadd(off, m)
            }
            (_, Some(0)) => {
                let on = self.value(accept)?;
                self.b.ins().band(on, m)
            }
            (Some(0), _) => {
                let off = self.value(reject)?;
                let m = self.b.ins().bnot(m);
                self.b.ins().band(off, m)
            }
            (Some(on), Some(off)) => {
                let (differ, off) = (self.splat(on ^ off), self.splat(off));
                let differ = self.b.ins().band(m, differ);
                self.b.ins().bxor(off, differ)
            }
            (Some(u32::MAX), _) => {
                let off = self.value(reject)?;
                self.b.ins().bor(off, m)
            }
            _ => {
                let (on, off) = (self.value(accept)?, self.value(reject)?);
                self.select_lanes(m, on, off)
            }
        })
    }

    fn compare(&mut self, op: Compare, a: Node, b: Node) -> Result<Value> {
        let (x, y) = (self.dag().range(a), self.dag().range(b));
        let (constant_a, constant_b) = (self.dag().as_constant(a), self.dag().as_constant(b));
        let small = (x.high | y.high) < SIGN;
        let both = (self.value(a)?, self.value(b)?);
        // Only signed less-than is a single instruction on x86-64.
        let less = |emit: &mut Self, a, b| emit.b.ins().icmp(IntCC::SignedLessThan, a, b);
        Ok(match op {
            Compare::Equal => self.b.ins().icmp(IntCC::Equal, both.0, both.1),
            Compare::LessSigned => less(self, both.0, both.1),
            Compare::Less if small => less(self, both.0, both.1),
            Compare::Less if constant_a.or(constant_b).is_some() => {
                let mut turn = |value, constant: Option<u32>| match constant {
                    Some(constant) => self.splat(constant ^ SIGN),
                    None => {
                        let sign = self.splat(SIGN);
                        self.b.ins().bxor(value, sign)
                    }
                };
                let (a, b) = (turn(both.0, constant_a), turn(both.1, constant_b));
                less(self, a, b)
            }
            Compare::Less => self.b.ins().icmp(IntCC::UnsignedLessThan, both.0, both.1),
            Compare::LessEqual => match (constant_a, constant_b) {
                (Some(least), _) if small && least > 0 => {
                    let below = self.splat(least - 1);
                    less(self, below, both.1)
                }
                (_, Some(most)) if small && most < SIGN - 1 => {
                    let above = self.splat(most + 1);
                    less(self, both.0, above)
                }
                _ => self.b.ins().icmp(IntCC::UnsignedLessThanOrEqual, both.0, both.1),
            },
            Compare::LessEqualSigned => self.b.ins().icmp(IntCC::SignedLessThanOrEqual, both.0, both.1),
        })
    }
}

const _: () = assert!(LANES == 4, "vectors are 128 bits wide");
