//! The prelude's functions of packets: what each does is said in `prelude.wgsl`. All others are
//! executed by their text.

use portcullis_core::packet::{MIN_PACKET_LENGTH, RESIZE_ROOM};
use portcullis_core::program::prelude::{ByteOrder, Intrinsic};

use super::tracer::{LENGTH, START, Trace};
use crate::compile::errors::{Result, Unsupported};
use crate::compile::vector::ir::{Binary, Compare, Effect, Field, Load, Node, Place, Range};

impl Trace<'_> {
    /// A call; `arguments` are its scalars, the packet left out.
    pub(super) fn intrinsic(&mut self, intrinsic: Intrinsic, arguments: &[Node]) -> Result<Vec<Node>> {
        Ok(match (intrinsic, arguments) {
            (Intrinsic::PktLen, []) => vec![self.state[LENGTH]],
            (Intrinsic::PktWireLen, []) => vec![self.dag.metadata(Field::WireLength)],
            (Intrinsic::PktPort, []) => vec![self.dag.metadata(Field::Port)],
            (Intrinsic::PktTime, []) => vec![self.dag.metadata(Field::TimeLow), self.dag.metadata(Field::TimeHigh)],
            (Intrinsic::PktTimeMs, []) => vec![self.dag.metadata(Field::TimeMs)],
            (Intrinsic::Load { size, order }, &[offset]) => vec![self.load(offset, size, order)],
            (Intrinsic::Store { size, order }, &[offset, value]) => {
                self.store_packet(offset, size, order, value);
                Vec::new()
            }
            (Intrinsic::AdjustHead, &[delta]) => vec![self.adjust(delta, true)],
            (Intrinsic::AdjustTail, &[delta]) => vec![self.adjust(delta, false)],
            _ => return Err(Unsupported(format!("{intrinsic:?} with {} arguments", arguments.len()))),
        })
    }

    /// Whether the bytes lie in the packet: a mask, right in the lanes that are here.
    fn inside(&mut self, offset: Node, size: u32) -> Node {
        let length = self.state[LENGTH];
        let sum = self.dag.sum(offset);
        let high = self.dag.range(offset).high;
        if self.facts.prove(&self.dag, self.here, length, sum, high, size) {
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
        self.dag.both(enough, before)
    }

    fn place_in_packet(&self, offset: Node) -> Place {
        Place { start: self.moves.then_some(self.state[START]), offset }
    }

    /// A load from the packet, 0 where any byte of it lies outside.
    fn load(&mut self, offset: Node, size: u32, order: ByteOrder) -> Node {
        let inside = self.inside(offset, size);
        let zero = self.dag.constant(0);
        if self.dag.as_flag(inside) == Some(false) {
            return zero;
        }
        let raw = if self.writes {
            let at = self.place_in_packet(offset);
            // Lanes may be back that were not here then: what was loaded is not theirs.
            let known = self.loaded.get(&(at, size)).copied();
            match known.filter(|&(_, lanes)| self.dag.both(self.here, lanes) == self.here) {
                Some((raw, _)) => raw,
                None => {
                    let mask = self.dag.both(self.here, inside);
                    let raw = self.effect(mask, Effect::LoadPacket { at, size }, Range::bytes(size));
                    self.loaded.insert((at, size), (raw, self.here));
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

    /// A store to the packet, nothing where any byte of it lies outside.
    fn store_packet(&mut self, offset: Node, size: u32, order: ByteOrder, value: Node) {
        let inside = self.inside(offset, size);
        let mask = self.dag.both(self.here, inside);
        let value = match order {
            ByteOrder::Big if size > 1 => {
                let low = self.dag.and(value, u32::MAX >> (32 - 8 * size));
                self.dag.swap_bytes(low, size)
            }
            _ => value,
        };
        let at = self.place_in_packet(offset);
        self.effect(mask, Effect::StorePacket { at, size, value }, Range::ALL);
        self.loaded.clear();
        self.written += 1;
    }

    /// `adjust_head` and `adjust_tail`, as their text has it.
    fn adjust(&mut self, delta: Node, head: bool) -> Node {
        let (start, length) = (self.state[START], self.state[LENGTH]);
        let zero = self.dag.constant(0);
        let negated = self.negated(delta);
        let negative = self.dag.compare(Compare::LessSigned, delta, zero);
        // Forward at the head and backward at the tail cut.
        let cuts = if head { self.dag.not(negative) } else { negative };
        let (cut, add) = if head { (delta, negated) } else { (negated, delta) };

        let least = self.dag.constant(MIN_PACKET_LENGTH);
        let enough = self.dag.at_least(length, MIN_PACKET_LENGTH);
        let most = self.dag.binary(Binary::Subtract, length, least);
        let fits = self.dag.compare(Compare::LessEqual, cut, most);
        let may_cut = self.dag.both(enough, fits);

        // What has not been used of the room on this side.
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
        let may_add = self.dag.both(fits, enough);

        let good = self.dag.select(cuts, may_cut, may_add);
        let shorter = self.dag.binary(Binary::Subtract, length, cut);
        let new_length = self.dag.select(cuts, shorter, longer);
        let new_start = if head { self.dag.binary(Binary::Add, start, delta) } else { start };

        let adds = self.dag.not(cuts);
        let some = self.dag.not_zero(add);
        let adds = self.dag.both(adds, some);
        let mask = self.dag.both(self.here, good);
        let mask = self.dag.both(mask, adds);
        let (from, offset) = if head { (new_start, zero) } else { (start, length) };
        let at = Place { start: Some(from), offset };
        self.effect(mask, Effect::ClearPacket { at, count: add }, Range::ALL);
        self.loaded.clear();
        self.written += 1;

        self.state[START] = self.dag.select(good, new_start, start);
        self.state[LENGTH] = self.dag.select(good, new_length, length);
        good
    }
}
