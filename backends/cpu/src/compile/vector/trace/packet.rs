//! The prelude's functions on a packet; `prelude.wgsl` defines what each does. All other prelude
//! functions are traced like the filter's own.

use portcullis_core::packet::{MIN_PACKET_LENGTH, RESIZE_ROOM};
use portcullis_core::program::prelude::{ByteOrder, Intrinsic};

use super::tracer::{LENGTH, START, Tracer};
use crate::compile::errors::{Result, Unsupported};
use crate::compile::vector::ir::{Binary, Compare, Effect, Load, MetadataField, Node, PacketAddress, Range};

impl Tracer<'_> {
    /// Traces a call. `arguments` are its scalar arguments without the packet.
    pub(super) fn intrinsic(&mut self, intrinsic: Intrinsic, arguments: &[Node]) -> Result<Vec<Node>> {
        Ok(match (intrinsic, arguments) {
            (Intrinsic::PktLen, []) => vec![self.state[LENGTH]],
            (Intrinsic::PktWireLen, []) => vec![self.dag.metadata(MetadataField::WireLength)],
            (Intrinsic::PktPort, []) => vec![self.dag.metadata(MetadataField::Port)],
            (Intrinsic::PktTime, []) => {
                vec![self.dag.metadata(MetadataField::TimeLow), self.dag.metadata(MetadataField::TimeHigh)]
            }
            (Intrinsic::PktTimeMs, []) => vec![self.dag.metadata(MetadataField::TimeMs)],
            (Intrinsic::Load { size, order }, &[offset]) => vec![self.load_packet(offset, size, order)],
            (Intrinsic::Store { size, order }, &[offset, value]) => {
                self.store_packet(offset, size, order, value);
                Vec::new()
            }
            (Intrinsic::AdjustHead, &[delta]) => vec![self.adjust_bounds(delta, true)],
            (Intrinsic::AdjustTail, &[delta]) => vec![self.adjust_bounds(delta, false)],
            _ => return Err(Unsupported(format!("{intrinsic:?} with {} arguments", arguments.len()))),
        })
    }

    /// Returns a mask of the lanes whose access is in the packet; it is correct in active lanes.
    fn bounds_mask(&mut self, offset: Node, size: u32) -> Node {
        let length = self.state[LENGTH];
        let sum = self.dag.sum(offset);
        let high = self.dag.range(offset).high;
        if self.facts.proves(&self.dag, self.active, length, sum, high, size) {
            return self.dag.flag(true);
        }
        if high.checked_add(size).is_some() {
            let end = self.dag.add_constant(offset, size);
            return self.dag.compare(Compare::LessEqual, end, length);
        }
        let size = self.dag.constant(size);
        let enough = self.dag.compare(Compare::LessEqual, size, length);
        let last = self.dag.binary(Binary::Subtract, length, size);
        let before = self.dag.compare(Compare::LessEqual, offset, last);
        self.dag.mask_and(enough, before)
    }

    fn packet_address(&self, offset: Node) -> PacketAddress {
        PacketAddress { start: self.moves.then_some(self.state[START]), offset }
    }

    /// Loads from the packet; the result is 0 if any byte is outside it.
    fn load_packet(&mut self, offset: Node, size: u32, order: ByteOrder) -> Node {
        let inside = self.bounds_mask(offset, size);
        let zero = self.dag.constant(0);
        if self.dag.as_flag(inside) == Some(false) {
            return zero;
        }
        let raw = if self.writes {
            let at = self.packet_address(offset);
            // A value loaded earlier can be reused only if all active lanes were active then.
            let known = self.loaded.get(&(at, size)).copied();
            match known.filter(|&(_, lanes)| self.dag.mask_and(self.active, lanes) == self.active) {
                Some((raw, _)) => raw,
                None => {
                    let mask = self.dag.mask_and(self.active, inside);
                    let raw = self.push_effect(mask, Effect::LoadPacket { at, size }, Range::of_bytes(size));
                    self.loaded.insert((at, size), (raw, self.active));
                    raw
                }
            }
        } else {
            let (root, add) = self.dag.sum(offset);
            self.dag.load(Load { root, add, size })
        };
        let value = if order == ByteOrder::Big { self.dag.swap_bytes(raw, size) } else { raw };
        self.dag.select(inside, value, zero)
    }

    /// Stores to the packet; does nothing if any byte is outside it.
    fn store_packet(&mut self, offset: Node, size: u32, order: ByteOrder, value: Node) {
        let inside = self.bounds_mask(offset, size);
        let mask = self.dag.mask_and(self.active, inside);
        let value = match order {
            ByteOrder::Big if size > 1 => {
                let low = self.dag.and(value, u32::MAX >> (32 - 8 * size));
                self.dag.swap_bytes(low, size)
            }
            _ => value,
        };
        let at = self.packet_address(offset);
        self.push_effect(mask, Effect::StorePacket { at, size, value }, Range::ALL);
        self.loaded.clear();
        self.written += 1;
    }

    /// Traces `adjust_head` and `adjust_tail`, computing what the prelude's definition does.
    fn adjust_bounds(&mut self, delta: Node, head: bool) -> Node {
        let (start, length) = (self.state[START], self.state[LENGTH]);
        let zero = self.dag.constant(0);
        let negated = self.negate(delta);
        let negative = self.dag.compare(Compare::LessSigned, delta, zero);
        // Forward at the head and backward at the tail cut bytes off.
        let cuts = if head { self.dag.mask_not(negative) } else { negative };
        let (cut, add) = if head { (delta, negated) } else { (negated, delta) };

        let least = self.dag.constant(MIN_PACKET_LENGTH);
        let enough = self.dag.at_least(length, MIN_PACKET_LENGTH);
        let most = self.dag.binary(Binary::Subtract, length, least);
        let fits = self.dag.compare(Compare::LessEqual, cut, most);
        let may_cut = self.dag.mask_and(enough, fits);

        // Bytes that the packet can still grow by on this side.
        let room = if head {
            self.dag.add_constant(start, RESIZE_ROOM)
        } else {
            let whole = self.dag.length();
            let last = self.dag.add_constant(whole, RESIZE_ROOM);
            let end = self.dag.binary(Binary::Add, start, length);
            self.dag.binary(Binary::Subtract, last, end)
        };
        let fits = self.dag.compare(Compare::LessEqual, add, room);
        let longer = self.dag.binary(Binary::Add, length, add);
        let enough = self.dag.at_least(longer, MIN_PACKET_LENGTH);
        let may_add = self.dag.mask_and(fits, enough);

        let good = self.dag.select(cuts, may_cut, may_add);
        let shorter = self.dag.binary(Binary::Subtract, length, cut);
        let new_length = self.dag.select(cuts, shorter, longer);
        let new_start = if head { self.dag.binary(Binary::Add, start, delta) } else { start };

        let adds = self.dag.mask_not(cuts);
        let some = self.dag.nonzero_mask(add);
        let adds = self.dag.mask_and(adds, some);
        let mask = self.dag.mask_and(self.active, good);
        let mask = self.dag.mask_and(mask, adds);
        let (from, offset) = if head { (new_start, zero) } else { (start, length) };
        let at = PacketAddress { start: Some(from), offset };
        self.push_effect(mask, Effect::ClearPacket { at, count: add }, Range::ALL);
        self.loaded.clear();
        self.written += 1;

        self.state[START] = self.dag.select(good, new_start, start);
        self.state[LENGTH] = self.dag.select(good, new_length, length);
        good
    }
}
