//! Coalescing of packet accesses: adjacent byte accesses become word accesses. Fields of packed C
//! structures are accessed byte by byte, and so does `memcpy` copy a MAC address.
//!
//! **Loads.** Bytes that are combined into a word (`a | b << 8`) become a load of the word. Each
//! byte was checked to lie in the packet, so the word does too. If something was written since the
//! bytes were loaded, they are left alone.
//!
//! **Stores** are delayed in [`PendingStores`] until something may observe them, or the block ends.
//! Then adjacent ones are merged into words. All pending stores are at constant distances from one
//! base, so it is known which bytes they write.

use crate::ir::BinaryOp::{Add, And, Or, Shl, Shr};
use crate::ir::pending_stores::{PacketAddress, PendingStores, StoredByte};
use crate::ir::{Argument, BlockCode, Call, Effect, Id, Op};

/// Size in bytes and big-endianness of a load function.
fn load_shape(function: &str) -> Option<(u32, bool)> {
    Some(match function {
        "load_u8" => (1, false),
        "load_le16" => (2, false),
        "load_le32" => (4, false),
        "load_be16" => (2, true),
        "load_be32" => (4, true),
        _ => return None,
    })
}

impl BlockCode {
    fn address_of(&self, at: Id) -> PacketAddress {
        match self.ops[at as usize] {
            Op::Constant(off) => PacketAddress { base: None, off },
            Op::Binary(Add, base, by) => match self.as_constant(by) {
                Some(off) => PacketAddress { base: Some(base), off },
                None => PacketAddress { base: Some(at), off: 0 },
            },
            _ => PacketAddress { base: Some(at), off: 0 },
        }
    }

    /// The distance between two offsets, if it is constant.
    pub(crate) fn offset_between(&self, from: Id, to: Id) -> Option<u32> {
        let (from, to) = (self.address_of(from), self.address_of(to));
        (from.base == to.base).then(|| to.off.wrapping_sub(from.off))
    }

    fn address_id(&mut self, place: PacketAddress) -> Id {
        match place.base {
            None => self.constant(place.off),
            Some(base) => self.binary_const(Add, base, place.off),
        }
    }

    /// Emits pending stores that a call may observe. Queries of the packet's length, time or port
    /// do not read its bytes.
    pub(crate) fn flush_before(&mut self, call: &Call) {
        if !call.arguments.contains(&Argument::Packet) || call.function.starts_with("pkt_") {
            return;
        }
        let is_unaffected = match (load_shape(&call.function), call.arguments.get(1)) {
            (Some((size, _)), Some(&Argument::Value(at))) => {
                !self.pending_stores.may_overlap(self.address_of(at), size)
            }
            _ => false,
        };
        if !is_unaffected {
            self.flush();
        }
    }

    /// Loads 1, 2 or 4 little-endian bytes of the packet.
    pub(crate) fn load_packet(&mut self, at: Id, size: u32) -> Id {
        let load =
            |code: &mut BlockCode, name| code.call(name, vec![Argument::Packet, Argument::Value(at)], Effect::Reads);
        let (little, big) = match size {
            1 => return load(self, "load_u8"),
            2 => ("load_le16", "load_be16"),
            _ => ("load_le32", "load_be32"),
        };
        let (id, twin) = (load(self, little), load(self, big));
        // A byte swap of the result becomes the other load, and this one is unused then.
        self.byte_swapped_loads.insert(id, (twin, size));
        self.byte_swapped_loads.insert(twin, (id, size));
        id
    }

    /// Stores 1, 2 or 4 little-endian bytes in the packet, possibly delayed.
    pub(crate) fn store_packet(&mut self, at: Id, size: u32, value: Id) {
        let place = self.address_of(at);
        if self.pending_stores.base != place.base {
            self.flush();
        }
        self.pending_stores.base = place.base;
        for number in 0..size {
            let byte = StoredByte { of: value, number, stored: size };
            self.pending_stores.bytes.insert(place.off.wrapping_add(number), byte);
        }
    }

    /// Emits all pending stores.
    pub fn flush(&mut self) {
        let PendingStores { base, bytes } = std::mem::take(&mut self.pending_stores);
        let mut stores = Vec::new();
        let all: Vec<(u32, StoredByte)> = bytes.into_iter().collect();
        let mut at = 0;
        while at < all.len() {
            let (off, _) = all[at];
            let rest = all[at..].iter().zip(0..4).take_while(|((there, _), by)| *there == off.wrapping_add(*by));
            let rest: Vec<StoredByte> = rest.map(|((_, byte), _)| *byte).collect();
            let size = next_store_size(&rest);
            // Compute the values before emitting any store: they may be loads of what is
            // overwritten.
            let value = self.combine_bytes(&rest[..size]);
            stores.push((PacketAddress { base, off }, size as u32, value));
            at += size;
        }
        for (place, size, value) in stores {
            let at = self.address_id(place);
            self.emit_store(at, size, value);
        }
    }

    fn emit_store(&mut self, at: Id, size: u32, value: Id) {
        let (little, big) = match size {
            1 => ("store_u8", None),
            2 => ("store_le16", Some("store_be16")),
            _ => ("store_le32", Some("store_be32")),
        };
        let turned = match (&self.ops[value as usize], size) {
            (Op::Swap16(inner), 2) | (Op::Swap32(inner), 4) => Some(*inner),
            _ => None,
        };
        let (name, value) = match (turned, big) {
            (Some(inner), Some(big)) => (big, inner),
            _ => (little, value),
        };
        let arguments = vec![Argument::Packet, Argument::Value(at), Argument::Value(value)];
        self.call(name, arguments, Effect::Writes);
    }

    /// Up to four bytes as one number.
    fn combine_bytes(&mut self, bytes: &[StoredByte]) -> Id {
        let whole = |byte: &StoredByte| bytes[0].of == byte.of && bytes[0].number == 0;
        if bytes.iter().zip(0..).all(|(byte, number)| whole(byte) && byte.number == number) {
            return bytes[0].of;
        }
        let places: Option<Vec<PacketAddress>> = bytes.iter().map(|byte| self.loaded_from(*byte)).collect();
        if let Some(load) = places.and_then(|places| self.combined_load(&places)) {
            return load;
        }
        if let [a, b, c, d] = *bytes {
            let (low, high) = (self.combine_bytes(&[a, b]), self.combine_bytes(&[c, d]));
            let is_load = |code: &BlockCode, id: Id| matches!(&code.ops[id as usize], Op::Call(_));
            if is_load(self, low) || is_load(self, high) {
                let high = self.binary_const(Shl, high, 16);
                // The low value may have more bits than its bytes.
                let low = self.binary_const(And, low, 0xffff);
                return self.binary(Or, low, high);
            }
        }
        let mut all = self.constant(0);
        for (byte, to) in bytes.iter().zip(0..) {
            let it = self.binary_const(Shr, byte.of, 8 * byte.number);
            let it = self.binary_const(And, it, 0xff);
            let it = self.binary_const(Shl, it, 8 * to);
            all = self.binary(Or, all, it);
        }
        all
    }

    /// Where a byte was loaded from, if the packet still has it there.
    fn loaded_from(&self, byte: StoredByte) -> Option<PacketAddress> {
        let Op::Call(call) = &self.ops[byte.of as usize] else { return None };
        let (size, big) = load_shape(&call.function)?;
        let Some(&Argument::Value(at)) = call.arguments.get(1) else { return None };
        if byte.number >= size || !self.is_still_current(byte.of) {
            return None;
        }
        let PacketAddress { base, off } = self.address_of(at);
        let number = if big { size - 1 - byte.number } else { byte.number };
        Some(PacketAddress { base, off: off.wrapping_add(number) })
    }

    /// A load of adjacent bytes in either byte order.
    fn combined_load(&mut self, places: &[PacketAddress]) -> Option<Id> {
        let size = places.len() as u32;
        let first = *places.first().filter(|_| matches!(size, 2 | 4))?;
        let from =
            |first: PacketAddress| (0..).map(move |by| PacketAddress { off: first.off.wrapping_add(by), ..first });
        let (lowest, big) = if places.iter().copied().eq(from(first).take(places.len())) {
            (first, false)
        } else if places.iter().rev().copied().eq(from(*places.last()?).take(places.len())) {
            (*places.last()?, true)
        } else {
            return None;
        };
        // Pending stores do not matter: they came after these loads.
        let pending = std::mem::take(&mut self.pending_stores);
        let at = self.address_id(lowest);
        let load = self.load_packet(at, size);
        self.pending_stores = pending;
        Some(if big { self.byte_swapped_loads.get(&load).map_or(load, |&(twin, _)| twin) } else { load })
    }

    /// `a | b` as one load, if it combines adjacent bytes.
    pub(crate) fn combine_or(&mut self, a: Id, b: Id) -> Option<Id> {
        let mut bytes = [None; 4];
        // Depth of `a | b << 8 | c << 16 | d << 24`.
        self.decompose(a, 0, 4, &mut bytes)?;
        self.decompose(b, 0, 4, &mut bytes)?;
        let count = bytes.iter().take_while(|byte| byte.is_some()).count();
        if bytes[count..].iter().any(Option::is_some) {
            return None;
        }
        let places: Option<Vec<PacketAddress>> =
            bytes[..count].iter().flatten().map(|byte| self.loaded_from(*byte)).collect();
        self.combined_load(&places?)
    }

    /// Collects the bytes of a combination of loads, from byte `to` of the result on.
    fn decompose(&self, id: Id, to: u32, depth: u32, bytes: &mut [Option<StoredByte>; 4]) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match &self.ops[id as usize] {
            Op::Binary(Or, a, b) => {
                self.decompose(*a, to, depth, bytes)?;
                self.decompose(*b, to, depth, bytes)
            }
            Op::Binary(Shl, inner, by) => {
                let by = self.as_constant(*by).filter(|by| by % 8 == 0)?;
                self.decompose(*inner, to + by / 8, depth, bytes)
            }
            Op::Call(call) => {
                let (size, _) = load_shape(&call.function)?;
                for number in 0..size {
                    let slot = bytes.get_mut((to + number) as usize)?;
                    if slot.is_some() {
                        return None;
                    }
                    *slot = Some(StoredByte { of: id, number, stored: size });
                }
                Some(())
            }
            _ => None,
        }
    }
}

/// Number of bytes for the next store: those of a number that was stored whole, or as many single
/// bytes as fit an access.
fn next_store_size(rest: &[StoredByte]) -> usize {
    let whole = |at: usize, size: usize| {
        let Some(bytes) = rest.get(at..at + size) else { return false };
        bytes.iter().zip(0..).all(|(byte, number)| *byte == StoredByte { of: bytes[0].of, number, stored: size as u32 })
    };
    if whole(0, 4) {
        return 4;
    }
    // Do not split a whole word that starts further on.
    let until = (1..rest.len()).find(|&at| rest[at].stored == 4 && rest[at].number == 0).unwrap_or(rest.len());
    match until {
        4.. => 4,
        2..4 => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The live packet accesses in order, with their constant offsets.
    fn accesses(code: &BlockCode, asked: &[Id]) -> Vec<String> {
        let mut needed = vec![false; code.ops.len()];
        let stays = (0..code.ops.len()).filter(|&id| BlockCode::has_side_effect(&code.ops[id]));
        let mut work: Vec<Id> = stays.map(|id| id as Id).chain(asked.iter().copied()).collect();
        while let Some(id) = work.pop() {
            if !std::mem::replace(&mut needed[id as usize], true) {
                work.extend(BlockCode::operands(&code.ops[id as usize]));
            }
        }
        let calls = code.ops.iter().zip(&needed).filter(|(_, needed)| **needed);
        calls
            .filter_map(|(op, _)| match op {
                Op::Call(call) => {
                    let Argument::Value(at) = call.arguments[1] else { panic!("an offset comes behind the packet") };
                    Some(format!("{} {}", call.function, code.as_constant(at).expect("offsets are known here")))
                }
                _ => None,
            })
            .collect()
    }

    fn load(code: &mut BlockCode, at: u32) -> Id {
        let at = code.constant(at);
        code.load_packet(at, 1)
    }

    fn store(code: &mut BlockCode, at: u32, value: Id) {
        let at = code.constant(at);
        code.store_packet(at, 1, value);
    }

    /// `a | b << 8`, by offset.
    fn pair(code: &mut BlockCode, low: u32, high: u32) -> Id {
        let (low, high) = (load(code, low), load(code, high));
        let high = code.binary_const(Shl, high, 8);
        code.binary(Or, low, high)
    }

    #[test]
    fn combined_adjacent_bytes_become_one_load() {
        let code = &mut BlockCode::default();
        let (low, high) = (pair(code, 12, 13), pair(code, 14, 15));
        let high = code.binary_const(Shl, high, 16);
        let all = code.binary(Or, low, high);
        assert_eq!(accesses(code, &[all]), ["load_le32 12"]);
        let network = pair(code, 13, 12);
        assert_eq!(accesses(code, &[network]), ["load_be16 12"]);
        let host = code.swap16(network);
        assert_eq!(accesses(code, &[host]), ["load_le16 12"]);
        // Three bytes, bytes that are not adjacent, and the same byte twice.
        let third = load(code, 14);
        let third = code.binary_const(Shl, third, 16);
        let three = code.binary(Or, low, third);
        assert_eq!(accesses(code, &[three]), ["load_le16 12", "load_u8 14"]);
        let (apart, twice) = (pair(code, 20, 22), pair(code, 30, 30));
        assert_eq!(accesses(code, &[apart]), ["load_u8 20", "load_u8 22"]);
        assert_eq!(accesses(code, &[twice]), ["load_u8 30"]);
    }

    #[test]
    fn bytes_with_a_store_between_their_loads_are_not_combined() {
        let code = &mut BlockCode::default();
        let first = load(code, 0);
        let value = code.constant(7);
        store(code, 0, value);
        code.flush();
        let second = load(code, 1);
        let second = code.binary_const(Shl, second, 8);
        let all = code.binary(Or, first, second);
        assert_eq!(accesses(code, &[all]), ["load_u8 0", "store_u8 0", "load_u8 1"]);
        // A pending store does not change what was loaded before it.
        let code = &mut BlockCode::default();
        let (first, second) = (load(code, 0), load(code, 1));
        let value = code.constant(7);
        store(code, 0, value);
        let second = code.binary_const(Shl, second, 8);
        let all = code.binary(Or, first, second);
        code.flush();
        assert_eq!(accesses(code, &[all]), ["load_le16 0", "store_u8 0"]);
    }

    #[test]
    fn bytewise_copies_and_swaps_of_addresses_use_words() {
        let code = &mut BlockCode::default();
        for byte in [5, 4, 3, 2, 1, 0] {
            let it = load(code, byte);
            store(code, 6 + byte, it);
        }
        code.flush();
        assert_eq!(accesses(code, &[]), ["load_le32 0", "load_le16 4", "store_le32 6", "store_le16 10"]);
        let code = &mut BlockCode::default();
        for byte in 0..4 {
            let (one, other) = (load(code, byte), load(code, 4 + byte));
            store(code, byte, other);
            store(code, 4 + byte, one);
        }
        code.flush();
        assert_eq!(accesses(code, &[]), ["load_le32 4", "load_le32 0", "store_le32 0", "store_le32 4"]);
    }

    #[test]
    fn a_load_flushes_pending_stores_that_it_may_read() {
        let code = &mut BlockCode::default();
        let (one, two) = (code.constant(1), code.constant(2));
        store(code, 0, one);
        store(code, 1, two);
        let elsewhere = load(code, 2);
        let there = load(code, 1);
        assert_eq!(accesses(code, &[elsewhere, there]), ["load_u8 2", "store_le16 0", "load_u8 1"]);
        // At an unknown distance, the pending byte may be any.
        let code = &mut BlockCode::default();
        let somewhere = code.variable(crate::ir::Variable::Stack { frame: 0, word: 0 });
        store(code, 0, somewhere);
        code.load_packet(somewhere, 1);
        let stored = code.ops.iter().filter(|op| BlockCode::has_side_effect(op)).count();
        assert_eq!(stored, 1);
    }

    #[test]
    fn word_stores_are_not_split_beside_single_bytes() {
        let code = &mut BlockCode::default();
        let (at, word) = (code.constant(4), code.variable(crate::ir::Variable::Stack { frame: 0, word: 0 }));
        for byte in 1..4 {
            store(code, byte, word);
        }
        code.store_packet(at, 4, word);
        code.flush();
        assert_eq!(accesses(code, &[]), ["store_le16 1", "store_u8 3", "store_le32 4"]);
        // Bytes of one word are stored as that word.
        let code = &mut BlockCode::default();
        let word = code.variable(crate::ir::Variable::Stack { frame: 0, word: 0 });
        for byte in 0..4 {
            let it = code.binary_const(Shr, word, 8 * byte);
            let it = code.binary_const(And, it, 0xff);
            store(code, byte, it);
        }
        code.flush();
        assert_eq!(accesses(code, &[]), ["store_le32 0"]);
        let Some(Op::Call(call)) = code.ops.last() else { panic!("the last is the store") };
        assert_eq!(call.arguments[2], Argument::Value(word));
    }
}
