//! The prelude's functions on a packet in native code; `prelude.wgsl` defines what each does.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types as clif};
use portcullis_core::packet::{MIN_PACKET_LENGTH, Metadata, READABLE_PAST_END, RESIZE_ROOM};
use portcullis_core::program::prelude::{ByteOrder, Intrinsic};

use super::codegen::Codegen;
use super::value_facts::{ByteSwapped, LoadOrigin, Sum};
use crate::compile::abi::context_offset;
use crate::compile::errors::{Result, Unsupported};
use crate::compile::lowered::{Style, constant_memory};

/// End of the bytes that may be read of any packet, however short it is, counted from its start:
/// the arena is readable that far past its end.
const ALWAYS_READABLE: u32 = READABLE_PAST_END as u32;

impl Codegen<'_, '_> {
    /// Lowers a call of a prelude function. `arguments` are its scalar arguments without the
    /// packet.
    pub(super) fn intrinsic(&mut self, intrinsic: Intrinsic, arguments: &[Value]) -> Result<Vec<Value>> {
        Ok(match (intrinsic, arguments) {
            (Intrinsic::PktLen, []) => vec![self.packet_length()],
            (Intrinsic::PktWireLen, []) => vec![self.load_metadata(std::mem::offset_of!(Metadata, wire_length))],
            (Intrinsic::PktPort, []) => vec![self.load_metadata(std::mem::offset_of!(Metadata, port))],
            (Intrinsic::PktTime, []) => vec![
                self.load_metadata(std::mem::offset_of!(Metadata, time_low)),
                self.load_metadata(std::mem::offset_of!(Metadata, time_high)),
            ],
            (Intrinsic::PktTimeMs, []) => vec![self.load_metadata(std::mem::offset_of!(Metadata, time_ms))],
            (Intrinsic::Load { size, order }, &[offset]) => vec![self.load_packet(offset, size, order)],
            (Intrinsic::Store { size, order }, &[offset, value]) => {
                self.store_packet(offset, value, size, order);
                Vec::new()
            }
            (Intrinsic::AdjustHead, &[delta]) => vec![self.adjust_bounds(delta, true)],
            (Intrinsic::AdjustTail, &[delta]) => vec![self.adjust_bounds(delta, false)],
            (Intrinsic::Redirect, &[port]) => vec![self.redirect(port)],
            (Intrinsic::CsumAdd, &[a, b]) => vec![self.csum_add(a, b)],
            (Intrinsic::CsumFold, &[sum]) => vec![self.csum_fold(sum)],
            (Intrinsic::CsumReplace16, &[check, old, new]) => {
                let (check, old) = (self.invert16(check), self.invert16(old));
                let new = self.and_mask(new, 0xffff);
                let sum = self.b.ins().iadd(check, old);
                let sum = self.b.ins().iadd(sum, new);
                let folded = self.csum_fold(sum);
                vec![self.invert16(folded)]
            }
            (Intrinsic::CsumReplace32, &[check, old, new]) => {
                let check = self.invert16(check);
                let old = self.b.ins().bnot(old);
                let sum = self.csum_add(check, old);
                let sum = self.csum_add(sum, new);
                let folded = self.csum_fold(sum);
                vec![self.invert16(folded)]
            }
            _ => return Err(Unsupported(format!("{intrinsic:?} with {} arguments", arguments.len()))),
        })
    }

    /// The packet's current length.
    pub(super) fn packet_length(&mut self) -> Value {
        let packet = self.packet();
        match packet.bounds {
            Some(bounds) => {
                let length = self.b.use_var(bounds.length);
                self.known.info_mut(length).is_length = true;
                length
            }
            None => packet.length,
        }
    }

    fn packet_start(&mut self) -> Value {
        let packet = self.packet();
        packet.bounds.map_or(packet.start, |bounds| self.b.use_var(bounds.start))
    }

    fn load_metadata(&mut self, field: usize) -> Value {
        let index = self.packet().index;
        let base = self.context_field(context_offset::METADATA);
        let scaled = self.b.ins().imul_imm_u(index, size_of::<Metadata>() as i64);
        let at = self.b.ins().iadd(base, scaled);
        self.b.ins().load(clif::I32, constant_memory(), at, field as i32)
    }

    /// Flags for loads of packet bytes, which are constant while the filter runs if it writes none.
    ///
    /// `anywhere` says that the address may be read wherever it can be computed. Otherwise
    /// Cranelift must not move the load before the branch that guards it.
    fn packet_memory(&self, anywhere: bool) -> MemFlagsData {
        let flags = MemFlagsData::new().with_notrap();
        match (self.program.facts().rewrites(), anywhere) {
            (true, _) => flags,
            (false, true) => constant_memory(),
            (false, false) => flags.with_readonly(),
        }
    }

    /// Emits a check that bytes `offset..offset + size` lie in the packet.
    fn emit_bounds_check(&mut self, offset: Value, size: u32) -> Value {
        let length = self.packet_length();
        let (_, high) = self.known.range(offset);
        if let Some(end) = high.checked_add(size)
            && let Some(constant) = self.known.constant(offset)
        {
            debug_assert_eq!(end, constant + size);
            return self.b.ins().icmp_imm_u(IntCC::UnsignedGreaterThanOrEqual, length, i64::from(end));
        }
        if high.checked_add(size).is_some() {
            let end = self.b.ins().iadd_imm_u(offset, i64::from(size));
            return self.b.ins().icmp(IntCC::UnsignedLessThanOrEqual, end, length);
        }
        // In 64 bits the end of the access does not wrap.
        let wide = self.b.ins().uextend(clif::I64, offset);
        let end = self.b.ins().iadd_imm_u(wide, i64::from(size));
        let length = self.b.ins().uextend(clif::I64, length);
        self.b.ins().icmp(IntCC::UnsignedLessThanOrEqual, end, length)
    }

    /// Emits the address `start + sum`; returns it with the displacement for the access's immediate
    /// field.
    fn address(&mut self, start: Value, sum: Sum) -> (Value, i32) {
        match (sum.root, i32::try_from(sum.add)) {
            (None, Ok(add)) => (start, add),
            (Some(root), Ok(add)) => {
                let wide = self.b.ins().uextend(clif::I64, root);
                (self.b.ins().iadd(start, wide), add)
            }
            (root, Err(_)) => {
                let mut at = self.b.ins().iadd_imm_u(start, i64::from(sum.add));
                if let Some(root) = root {
                    let wide = self.b.ins().uextend(clif::I64, root);
                    at = self.b.ins().iadd(at, wide);
                }
                (at, 0)
            }
        }
    }

    /// Loads from the packet; the result is 0 if any byte is outside it.
    ///
    /// Memory safety: one of the following holds. The bytes lie less than `ALWAYS_READABLE` bytes
    /// behind the packet's start, which is never past the arena's end. Or a bounds check replaces
    /// an address that would leave the packet by the packet's start. Or the branches that lead here
    /// prove that the bytes lie in the packet. The first two hold wherever the address is computed,
    /// the third one only here.
    fn load_packet(&mut self, offset: Value, size: u32, order: ByteOrder) -> Value {
        let length = self.packet_length();
        let start = self.packet_start();
        let sum = self.known.sum(offset);
        let (_, high) = self.known.range(offset);
        let harmless = high.checked_add(size).is_some_and(|end| end <= ALWAYS_READABLE);
        let certain = self.proven.proves(length, sum, high, size);
        let assumed = certain || self.assumed.proves(length, sum, high, size);
        let mut check = None;
        if !assumed || !(harmless || certain) {
            check = Some(self.emit_bounds_check(offset, size));
        }
        if let (Some(inside), Style::Branching) = (check, self.style)
            && !harmless
        {
            return self.load_with_branch(inside, offset, size, order);
        }
        let (address, displacement) = match check {
            Some(inside) if !(harmless || certain) => {
                self.saves_branches = true;
                let wide = self.b.ins().uextend(clif::I64, offset);
                let zero = self.b.ins().iconst(clif::I64, 0);
                let safe = self.b.ins().select(inside, wide, zero);
                (self.b.ins().iadd(start, safe), 0)
            }
            _ => self.address(start, sum),
        };
        let flags = self.packet_memory(harmless || !certain);
        let raw = self.load_bytes(flags, address, displacement, size);
        let check = check.filter(|_| !assumed);
        let raw = self.zero_unless(check, raw);
        let value = self.convert_byte_order(raw, size, order);
        if size > 1 && check.is_none() && !self.program.facts().rewrites() {
            self.known.info_mut(value).loaded = Some(LoadOrigin { flags, address, displacement, size, order });
        }
        value
    }

    /// Loads if a bounds check holds, and continues with 0 otherwise.
    fn load_with_branch(&mut self, inside: Value, offset: Value, size: u32, order: ByteOrder) -> Value {
        let (there, behind) = (self.b.create_block(), self.b.create_block());
        let raw = self.b.append_block_param(behind, clif::I32);
        let zero = self.b.ins().iconst(clif::I32, 0);
        self.b.ins().brif(inside, there, &[], behind, &[zero.into()]);
        self.switch_to_sealed(there);
        let start = self.packet_start();
        let wide = self.b.ins().uextend(clif::I64, offset);
        let address = self.b.ins().iadd(start, wide);
        let loaded = self.load_bytes(self.packet_memory(false), address, 0, size);
        self.b.ins().jump(behind, &[loaded.into()]);
        self.switch_to_sealed(behind);
        self.convert_byte_order(raw, size, order)
    }

    /// Loads bytes in memory order, zero-extended.
    fn load_bytes(&mut self, flags: MemFlagsData, address: Value, displacement: i32, size: u32) -> Value {
        match size {
            1 => self.b.ins().uload8(clif::I32, flags, address, displacement),
            2 => self.b.ins().uload16(clif::I32, flags, address, displacement),
            _ => self.b.ins().load(clif::I32, flags, address, displacement),
        }
    }

    /// Converts loaded bytes to a number.
    fn convert_byte_order(&mut self, raw: Value, size: u32, order: ByteOrder) -> Value {
        let value = match (order, size) {
            (ByteOrder::Little, _) | (_, 1) => raw,
            (ByteOrder::Big, 2) => {
                let turned = self.b.ins().bswap(raw);
                self.b.ins().ushr_imm_u(turned, 16)
            }
            (ByteOrder::Big, _) => self.b.ins().bswap(raw),
        };
        self.known.set_range(value, 0, u32::MAX >> (32 - 8 * size));
        if size > 1 && order == ByteOrder::Big {
            self.known.info_mut(value).swapped = Some(ByteSwapped { raw, size });
        }
        value
    }

    fn zero_unless(&mut self, check: Option<Value>, value: Value) -> Value {
        match check {
            None => value,
            Some(check) => {
                let zero = self.b.ins().iconst(clif::I32, 0);
                self.b.ins().select(check, value, zero)
            }
        }
    }

    /// Stores to the packet; does nothing if any byte is outside it.
    fn store_packet(&mut self, offset: Value, value: Value, size: u32, order: ByteOrder) {
        let length = self.packet_length();
        let start = self.packet_start();
        let sum = self.known.sum(offset);
        let (_, high) = self.known.range(offset);
        let behind = if self.proven.proves(length, sum, high, size) {
            None
        } else {
            let inside = self.emit_bounds_check(offset, size);
            let (write, behind) = (self.b.create_block(), self.b.create_block());
            self.b.ins().brif(inside, write, &[], behind, &[]);
            self.switch_to_sealed(write);
            Some(behind)
        };
        // Use `offset`, not `sum`: the bounds check was made for `offset`, and `root + add` may be
        // unproven.
        let (address, displacement) = if behind.is_none() {
            self.address(start, sum)
        } else {
            let wide = self.b.ins().uextend(clif::I64, offset);
            (self.b.ins().iadd(start, wide), 0)
        };
        // Not `packet_memory`: the facts may say that no store is ever reached, but this code
        // exists all the same.
        let flags = MemFlagsData::new().with_notrap();
        match size {
            1 => {
                self.b.ins().istore8(flags, value, address, displacement);
            }
            2 => {
                let narrow = self.b.ins().ireduce(clif::I16, value);
                let ordered = if order == ByteOrder::Big { self.b.ins().bswap(narrow) } else { narrow };
                self.b.ins().store(flags, ordered, address, displacement);
            }
            _ => {
                let ordered = if order == ByteOrder::Big { self.b.ins().bswap(value) } else { value };
                self.b.ins().store(flags, ordered, address, displacement);
            }
        }
        if let Some(behind) = behind {
            self.b.ins().jump(behind, &[]);
            self.switch_to_sealed(behind);
        }
    }

    /// Lowers `adjust_head` and `adjust_tail`, in 64 bits so that nothing wraps.
    fn adjust_bounds(&mut self, delta: Value, head: bool) -> Value {
        let packet = self.packet();
        let Some(bounds) = packet.bounds else { unreachable!("the facts say that the filter never changes lengths") };
        let (start, length) = (self.packet_start(), self.packet_length());
        let length = self.b.ins().uextend(clif::I64, length);
        let delta = self.b.ins().sextend(clif::I64, delta);
        let end = self.b.ins().iadd(start, length);
        let original = self.b.ins().uextend(clif::I64, packet.length);
        let (new_start, new_end) =
            if head { (self.b.ins().iadd(start, delta), end) } else { (start, self.b.ins().iadd(end, delta)) };
        let new_length = self.b.ins().isub(new_end, new_start);
        let enough = self.b.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, new_length, i64::from(MIN_PACKET_LENGTH));
        let room = if head {
            let first = self.b.ins().iadd_imm_s(packet.start, -i64::from(RESIZE_ROOM));
            self.b.ins().icmp(IntCC::SignedGreaterThanOrEqual, new_start, first)
        } else {
            let last = self.b.ins().iadd(packet.start, original);
            let last = self.b.ins().iadd_imm_u(last, i64::from(RESIZE_ROOM));
            self.b.ins().icmp(IntCC::SignedLessThanOrEqual, new_end, last)
        };
        let good = self.b.ins().band(enough, room);
        let (change, behind) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(good, change, &[], behind, &[]);
        self.switch_to_sealed(change);
        // Zero the bytes that the packet grows by.
        let (from, to) = if head { (new_start, start) } else { (end, new_end) };
        let (round, filled) = (self.b.create_block(), self.b.create_block());
        let at = self.b.append_block_param(round, clif::I64);
        let grows = self.b.ins().icmp(IntCC::UnsignedLessThan, from, to);
        self.b.ins().brif(grows, round, &[from.into()], filled, &[]);
        self.b.switch_to_block(round);
        let zero = self.constant(0);
        self.b.ins().istore8(MemFlagsData::new().with_notrap(), zero, at, 0);
        let next = self.b.ins().iadd_imm_u(at, 1);
        let more = self.b.ins().icmp(IntCC::UnsignedLessThan, next, to);
        self.b.ins().brif(more, round, &[next.into()], filled, &[]);
        self.b.seal_block(round);
        self.switch_to_sealed(filled);
        self.b.def_var(bounds.start, new_start);
        let new_length = self.b.ins().ireduce(clif::I32, new_length);
        self.b.def_var(bounds.length, new_length);
        self.b.ins().jump(behind, &[]);
        self.switch_to_sealed(behind);
        good
    }

    fn redirect(&mut self, port: Value) -> Value {
        let (_, high) = self.known.range(port);
        let shifted = self.b.ins().ishl_imm_u(port, 8);
        let verdict = self.b.ins().bor_imm_u(shifted, 4);
        let value = if high < 1 << 24 {
            verdict
        } else {
            let fits = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, port, 1 << 24);
            let aborted = self.constant(0);
            self.b.ins().select(fits, verdict, aborted)
        };
        self.known.info_mut(value).is_verdict = true;
        value
    }

    fn and_mask(&mut self, value: Value, mask: u32) -> Value {
        let result = self.b.ins().band_imm_u(value, i64::from(mask));
        self.known.set_range(result, 0, mask);
        result
    }

    fn invert16(&mut self, value: Value) -> Value {
        let inverted = self.b.ins().bnot(value);
        self.and_mask(inverted, 0xffff)
    }

    fn csum_add(&mut self, a: Value, b: Value) -> Value {
        let sum = self.b.ins().iadd(a, b);
        let carry = self.b.ins().icmp(IntCC::UnsignedLessThan, sum, a);
        let carry = self.b.ins().uextend(clif::I32, carry);
        self.b.ins().iadd(sum, carry)
    }

    fn csum_fold(&mut self, sum: Value) -> Value {
        let mut value = sum;
        for _ in 0..2 {
            let low = self.and_mask(value, 0xffff);
            let high = self.b.ins().ushr_imm_u(value, 16);
            value = self.b.ins().iadd(low, high);
        }
        self.known.set_range(value, 0, 0x1_0000);
        value
    }
}
