//! The metadata in front of the packet: up to 216 bytes that a program makes room for, and hands on to programs that it calls by
//! a tail call. They are kept like one more frame's stack, of which the top is the packet's first byte, so that they move
//! with it; and so a pointer to them is below one into the packet exactly where its offset is.

use super::{BlockInterpreter, METADATA_LENGTH, Result};
use crate::lang::xdp::analysis::domain::interval::Interval;
use crate::lang::xdp::analysis::domain::offsets::Offsets;
use crate::lang::xdp::analysis::domain::reg_type::{PACKET_START, RegType};
use crate::lang::xdp::analysis::domain::state::{METADATA_FRAME, Value};
use crate::lang::xdp::decode::instruction::Comparison;
use crate::lang::xdp::errno::{EACCES, EINVAL};
use crate::lang::xdp::lower::ir::BinaryOp::*;
use crate::lang::xdp::lower::ir::Id;

/// What there is in front of a packet that arrives (`XDP_PACKET_HEADROOM`) less `struct xdp_frame` of 40 bytes, which the
/// kernel keeps there. It is below the 252 bytes that metadata may have besides.
const MAX_METADATA_BYTES: u32 = 256 - 40;

impl BlockInterpreter<'_, '_> {
    /// The pointer that the context has for the metadata's first byte.
    pub(super) fn metadata_pointer(&mut self) -> Result<Value> {
        let length = self.read_register(METADATA_LENGTH)?;
        let range = self.expect_scalar(length, "how long the metadata is")?;
        let off = Offsets::constant(0).sub(range);
        let (zero, one) = (self.code.constant(0), self.code.constant(1));
        let low = self.code.binary(Sub, zero, length.low);
        Ok(Value { ty: RegType::Stack { frame: METADATA_FRAME, off }, low, high: one })
    }

    /// `bpf_xdp_adjust_meta(ctx, delta)`: the metadata begins so many bytes further behind.
    pub(super) fn adjust_meta(&mut self) -> Result<Value> {
        let (context, delta) = (self.read_register(1)?, self.read_register(2)?);
        if context.ty != RegType::Context(0) {
            let what = context.ty.describe();
            return self.reject(format!("the packet's metadata is moved by {what}, and not by the context"));
        }
        self.expect_scalar(delta, "how far the metadata's beginning is moved")?;
        let before = self.read_register(METADATA_LENGTH)?;
        let length = self.code.binary(Sub, before.low, delta.low);
        let most = self.code.constant(MAX_METADATA_BYTES);
        // Below zero is far above.
        let fits = self.code.binary(Le, length, most);
        let odd = self.code.binary_const(And, length, 3);
        let is_even = self.code.binary_const(Eq, odd, 0);
        let done = self.code.binary(LogicalAnd, fits, is_even);
        let now = self.code.select(done, length, before.low);
        let now = self.scalar32(Interval::new(0, u64::from(MAX_METADATA_BYTES)), now);
        self.write_register(METADATA_LENGTH, now)?;
        // As `xdp_metalen_invalid` (net/xdp.h) has them.
        let wrong = [EACCES as u32, EINVAL as u32].map(|error| self.code.constant(error));
        let (zero, all) = (self.code.constant(0), self.code.constant(u32::MAX));
        let wrong = self.code.select(fits, wrong[0], wrong[1]);
        let (low, high) = (self.code.select(done, zero, wrong), self.code.select(done, zero, all));
        // Pointers into the packet are as good as before: it is where it was.
        Ok(self.scalar(Interval::ANY, low, high))
    }

    /// That an access at a known offset lies in the metadata, or the packet has been aborted.
    pub(super) fn check_metadata_access(&mut self, off: i64, size: u32) -> Result<()> {
        let length = self.read_register(METADATA_LENGTH)?;
        let range = self.expect_scalar(length, "how long the metadata is")?;
        if off + i64::from(size) > 0 || off < -(range.high as i64) {
            let what = format!(
                "the packet's metadata has {} bytes at most here, and is accessed {off} bytes from its end, the packet's first byte",
                range.high
            );
            return self.reject_unsupported(what, "more metadata");
        }
        if off < -(range.low as i64) {
            self.trap_outside_metadata(length.low, off as u32);
        }
        Ok(())
    }

    /// The same of an offset that is known only when the packet is there.
    pub(super) fn check_indexed_metadata_access(&mut self, low: Id, off: i64) -> Result<()> {
        let length = self.read_register(METADATA_LENGTH)?.low;
        let at = self.code.binary_const(Add, low, off as u32);
        let at = self.code.binary(Add, at, length);
        // Before its beginning is below zero.
        let before = self.code.binary_const(Shr, at, 31);
        let before = self.code.binary_const(Ne, before, 0);
        self.trap(before, "the packet's metadata is not so long");
        Ok(())
    }

    fn trap_outside_metadata(&mut self, length: Id, off: u32) {
        let least = self.code.constant(off.wrapping_neg());
        let short = self.code.binary(Lt, length, least);
        self.trap(short, "the packet's metadata is not so long");
    }

    /// A pointer to the metadata against one into the packet: as offsets with a sign.
    pub(super) fn compare_with_packet(&mut self, comparison: Comparison, left: Value, right: Value) -> Id {
        let place = |ty: RegType| match ty {
            RegType::Stack { off, .. } => Some(off),
            RegType::Packet { name: PACKET_START, off, .. } => Some(Offsets::constant(off)),
            _ => None,
        };
        if let (Some(a), Some(b)) = (place(left.ty), place(right.ty)) {
            let (below, up_to) = (a.high < b.low, a.high <= b.low);
            let (above, from) = (a.low > b.high, a.low >= b.high);
            let known = match comparison {
                Comparison::Lt => (below, from),
                Comparison::Le => (up_to, above),
                Comparison::Gt => (above, up_to),
                Comparison::Ge => (from, below),
                _ => (false, false),
            };
            match known {
                (true, _) => return self.code.boolean(true),
                (_, true) => return self.code.boolean(false),
                _ => {}
            }
        }
        self.compare32(super::branch::to_signed(comparison), left, right)
    }
}
