//! Metadata in front of the packet, up to 216 bytes, which a program reserves and hands on to
//! programs that it tail-calls.
//!
//! Metadata is kept like one more stack frame whose top is the packet's first byte. So it moves
//! with the packet, and a metadata pointer compares below a packet pointer exactly if its offset
//! does.

use super::{BlockInterpreter, Result};
use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::offsets::Offsets;
use crate::analysis::domain::pseudo_registers::METADATA_LENGTH;
use crate::analysis::domain::reg_type::{PACKET_START, RegType};
use crate::analysis::domain::state::{METADATA_FRAME, Value};
use crate::errno::{EACCES, EINVAL};
use crate::instruction::Comparison;
use crate::ir::BinaryOp::*;
use crate::ir::Id;

/// Maximum size: the headroom of a received packet (`XDP_PACKET_HEADROOM`) less the 40 bytes of
/// `struct xdp_frame` that the kernel keeps there. The limit of 252 bytes on metadata proper is
/// larger.
const MAX_METADATA_BYTES: u32 = 256 - 40;

impl BlockInterpreter<'_, '_> {
    /// The pointer `data_meta` of the context.
    pub(super) fn metadata_pointer(&mut self) -> Result<Value> {
        let length = self.read_register(METADATA_LENGTH)?;
        let range = self.expect_scalar(length, "the length of the metadata")?;
        let off = Offsets::constant(0).sub(range);
        let (zero, one) = (self.code.constant(0), self.code.constant(1));
        let low = self.code.binary(Sub, zero, length.low);
        Ok(Value { ty: RegType::Stack { frame: METADATA_FRAME, off }, low, high: one })
    }

    /// `bpf_xdp_adjust_meta(ctx, delta)`: moves the start of the metadata by `delta`.
    pub(super) fn adjust_meta(&mut self) -> Result<Value> {
        let (context, delta) = (self.read_register(1)?, self.read_register(2)?);
        if context.ty != RegType::Context(0) {
            let what = context.ty.describe();
            return self.reject(format!(
                "the first argument is {what}, not the context, where the packet's metadata is moved"
            ));
        }
        self.expect_scalar(delta, "the distance by which the metadata is moved")?;
        let before = self.read_register(METADATA_LENGTH)?;
        let length = self.code.binary(Sub, before.low, delta.low);
        let most = self.code.constant(MAX_METADATA_BYTES);
        // A negative length is a large unsigned number.
        let fits = self.code.binary(Le, length, most);
        let odd = self.code.binary_const(And, length, 3);
        let is_even = self.code.binary_const(Eq, odd, 0);
        let done = self.code.binary(LogicalAnd, fits, is_even);
        let now = self.code.select(done, length, before.low);
        let now = self.scalar32(Interval::new(0, u64::from(MAX_METADATA_BYTES)), now);
        self.write_register(METADATA_LENGTH, now)?;
        // Same errors as `xdp_metalen_invalid` (net/xdp.h).
        let wrong = [EACCES as u32, EINVAL as u32].map(|error| self.code.constant(error));
        let (zero, all) = (self.code.constant(0), self.code.constant(u32::MAX));
        let wrong = self.code.select(fits, wrong[0], wrong[1]);
        let (low, high) = (self.code.select(done, zero, wrong), self.code.select(done, zero, all));
        // The packet does not move, so pointers into it stay valid.
        Ok(self.scalar(Interval::ANY, low, high))
    }

    /// Checks an access at a constant offset; aborts the packet at run time if the metadata is too
    /// short.
    pub(super) fn check_metadata_access(&mut self, off: i64, size: u32) -> Result<()> {
        let length = self.read_register(METADATA_LENGTH)?;
        let range = self.expect_scalar(length, "the length of the metadata")?;
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

    /// Checks an access at an offset known only at run time.
    pub(super) fn check_indexed_metadata_access(&mut self, low: Id, off: i64) -> Result<()> {
        let length = self.read_register(METADATA_LENGTH)?.low;
        let at = self.code.binary_const(Add, low, off as u32);
        let at = self.code.binary(Add, at, length);
        // An access before the start gives a negative number.
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

    /// Compares a metadata pointer with a packet pointer, as signed offsets.
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
