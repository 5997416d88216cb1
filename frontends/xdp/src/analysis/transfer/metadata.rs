//! The metadata in front of the packet: up to 216 bytes that a program makes room for, and hands on to programs that it calls by
//! a tail call. They are kept like one more frame's stack, of which the top is the packet's first byte, so that they move
//! with it; and so a pointer to them is below one into the packet exactly where its offset is.

use super::{METADATA, Result, Walk};
use crate::analysis::domain::range::Range;
use crate::analysis::domain::state::{FIXED, META, Offsets, Ty, Value};
use crate::decode::instruction::Comparison;
use crate::errno::{EACCES, EINVAL};
use crate::lower::ir::Binary::*;
use crate::lower::ir::Id;

/// What there is in front of a packet that arrives (`XDP_PACKET_HEADROOM`) less `struct xdp_frame` of 40 bytes, which the
/// kernel keeps there. It is below the 252 bytes that metadata may have besides.
const MOST: u32 = 256 - 40;

impl Walk<'_, '_> {
    /// The pointer that the context has for the metadata's first byte.
    pub(super) fn metadata(&mut self) -> Result<Value> {
        let length = self.get(METADATA)?;
        let range = self.expect_number(length, "how long the metadata is")?;
        let off = Offsets::one(0).sub(range);
        let (zero, one) = (self.code.known(0), self.code.known(1));
        let low = self.code.binary(Sub, zero, length.low);
        Ok(Value { ty: Ty::Stack { frame: META, off }, low, high: one })
    }

    /// `bpf_xdp_adjust_meta(ctx, delta)`: the metadata begins so many bytes further behind.
    pub(super) fn adjust_meta(&mut self) -> Result<Value> {
        let (context, delta) = (self.get(1)?, self.get(2)?);
        if context.ty != Ty::Context(0) {
            let what = context.ty.words();
            return self.refuse(format!("the packet's metadata is moved by {what}, and not by the context"));
        }
        self.expect_number(delta, "how far the metadata's beginning is moved")?;
        let before = self.get(METADATA)?;
        let length = self.code.binary(Sub, before.low, delta.low);
        let most = self.code.known(MOST);
        // Below zero is far above.
        let fits = self.code.binary(Le, length, most);
        let odd = self.code.by(And, length, 3);
        let is_even = self.code.by(Eq, odd, 0);
        let done = self.code.binary(Both, fits, is_even);
        let now = self.code.select(done, length, before.low);
        let now = self.word(Range::new(0, u64::from(MOST)), now);
        self.set(METADATA, now)?;
        // As `xdp_metalen_invalid` (net/xdp.h) has them.
        let wrong = [EACCES as u32, EINVAL as u32].map(|error| self.code.known(error));
        let (zero, all) = (self.code.known(0), self.code.known(u32::MAX));
        let wrong = self.code.select(fits, wrong[0], wrong[1]);
        let (low, high) = (self.code.select(done, zero, wrong), self.code.select(done, zero, all));
        // Pointers into the packet are as good as before: it is where it was.
        Ok(self.number(Range::ANY, low, high))
    }

    /// That an access at a known offset lies in the metadata, or the packet has been aborted.
    pub(super) fn in_metadata(&mut self, off: i64, size: u32) -> Result<()> {
        let length = self.get(METADATA)?;
        let range = self.expect_number(length, "how long the metadata is")?;
        if off + i64::from(size) > 0 || off < -(range.high as i64) {
            let what = format!(
                "the packet's metadata has {} bytes at most here, and is accessed {off} bytes from its end, the packet's first byte",
                range.high
            );
            return self.lack(what, "more metadata");
        }
        if off < -(range.low as i64) {
            self.in_metadata_at(length.low, off as u32);
        }
        Ok(())
    }

    /// The same of an offset that is known only when the packet is there.
    pub(super) fn in_metadata_somewhere(&mut self, low: Id, off: i64) -> Result<()> {
        let length = self.get(METADATA)?.low;
        let at = self.code.by(Add, low, off as u32);
        let at = self.code.binary(Add, at, length);
        // Before its beginning is below zero.
        let before = self.code.by(Shr, at, 31);
        let before = self.code.by(Ne, before, 0);
        self.trap(before, "the packet's metadata is not so long");
        Ok(())
    }

    fn in_metadata_at(&mut self, length: Id, off: u32) {
        let least = self.code.known(off.wrapping_neg());
        let short = self.code.binary(Lt, length, least);
        self.trap(short, "the packet's metadata is not so long");
    }

    /// A pointer to the metadata against one into the packet: as offsets with a sign.
    pub(super) fn against_packet(&mut self, comparison: Comparison, left: Value, right: Value) -> Id {
        let place = |ty: Ty| match ty {
            Ty::Stack { off, .. } => Some(off),
            Ty::Packet { name: FIXED, off, .. } => Some(Offsets::one(off)),
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
                (true, _) => return self.code.truth(true),
                (_, true) => return self.code.truth(false),
                _ => {}
            }
        }
        self.compared32(super::branch::signed(comparison), left, right)
    }
}
