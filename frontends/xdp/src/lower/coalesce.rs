//! Bytes of the packet side by side as one access. Fields of C's packed structures come as single bytes, and so does what
//! `memcpy` makes of a MAC address; a device has a load or a store for each.
//!
//! **Loads.** Where bytes that were loaded are put together to a word (`a | b << 8`), that is a load of the word. Each byte is in
//! the packet, or the packet has been aborted before, so that the word is in it too; and nothing was written since they were
//! loaded, or the load is left as it is.
//!
//! **Stores** wait in [`Pending`] until something may look at what they write, or the block ends. Then those that lie side by side
//! become words. All of them are at known distances from one place, so that it is known which bytes they are.

use std::collections::BTreeMap;

use crate::lower::ir::Binary::{Add, And, Or, Shl, Shr};
use crate::lower::ir::{Argument, Call, Code, Effect, Id, Op};

/// A place in the packet: a known distance from what is known only when the packet is there, or from the first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    base: Option<Id>,
    off: u32,
}

/// A byte of a number, from the lowest on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Byte {
    of: Id,
    number: u32,
    /// How many bytes of the number were stored.
    stored: u32,
}

/// Stores that wait: bytes by their distance from the same place.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pending {
    base: Option<Id>,
    bytes: BTreeMap<u32, Byte>,
}

impl Pending {
    /// Whether some of these bytes are waiting, or may be.
    fn meets(&self, at: Place, size: u32) -> bool {
        if self.bytes.is_empty() {
            return false;
        }
        self.base != at.base || (0..size).any(|byte| self.bytes.contains_key(&at.off.wrapping_add(byte)))
    }
}

/// How many bytes a function loads, and whether the first is the highest.
fn loaded(function: &str) -> Option<(u32, bool)> {
    Some(match function {
        "load_u8" => (1, false),
        "load_le16" => (2, false),
        "load_le32" => (4, false),
        "load_be16" => (2, true),
        "load_be32" => (4, true),
        _ => return None,
    })
}

impl Code {
    fn place(&self, at: Id) -> Place {
        match self.ops[at as usize] {
            Op::Known(off) => Place { base: None, off },
            Op::Binary(Add, base, by) => match self.value(by) {
                Some(off) => Place { base: Some(base), off },
                None => Place { base: Some(at), off: 0 },
            },
            _ => Place { base: Some(at), off: 0 },
        }
    }

    /// How far it is from one offset to another, where that is known.
    pub(crate) fn distance(&self, from: Id, to: Id) -> Option<u32> {
        let (from, to) = (self.place(from), self.place(to));
        (from.base == to.base).then(|| to.off.wrapping_sub(from.off))
    }

    fn at(&mut self, place: Place) -> Id {
        match place.base {
            None => self.known(place.off),
            Some(base) => self.by(Add, base, place.off),
        }
    }

    /// Has stores carried out that a call may look at. Those of the packet's length, its time or its port do not look at its bytes.
    pub(crate) fn before_call(&mut self, call: &Call) {
        if !call.arguments.contains(&Argument::Packet) || call.function.starts_with("pkt_") {
            return;
        }
        let apart = match (loaded(&call.function), call.arguments.get(1)) {
            (Some((size, _)), Some(&Argument::One(at))) => !self.pending.meets(self.place(at), size),
            _ => false,
        };
        if !apart {
            self.flush();
        }
    }

    /// A number of 1, 2 or 4 bytes out of the packet, the first byte the lowest.
    pub(crate) fn load_packet(&mut self, at: Id, size: u32) -> Id {
        let load = |code: &mut Code, name| code.call(name, vec![Argument::Packet, Argument::One(at)], Effect::Reads);
        let (little, big) = match size {
            1 => return load(self, "load_u8"),
            2 => ("load_le16", "load_be16"),
            _ => ("load_le32", "load_be32"),
        };
        let (id, twin) = (load(self, little), load(self, big));
        // What is exchanged behind the load is another load, and nobody asks for this one.
        self.twins.insert(id, (twin, size));
        self.twins.insert(twin, (id, size));
        id
    }

    /// Stores a number of 1, 2 or 4 bytes in the packet, the first byte the lowest: sooner or later.
    pub(crate) fn store_packet(&mut self, at: Id, size: u32, value: Id) {
        let place = self.place(at);
        if self.pending.base != place.base {
            self.flush();
        }
        self.pending.base = place.base;
        for number in 0..size {
            let byte = Byte { of: value, number, stored: size };
            self.pending.bytes.insert(place.off.wrapping_add(number), byte);
        }
    }

    /// Carries out the stores that wait.
    pub fn flush(&mut self) {
        let Pending { base, bytes } = std::mem::take(&mut self.pending);
        let mut stores = Vec::new();
        let all: Vec<(u32, Byte)> = bytes.into_iter().collect();
        let mut at = 0;
        while at < all.len() {
            let (off, _) = all[at];
            let rest = all[at..].iter().zip(0..4).take_while(|((there, _), by)| *there == off.wrapping_add(*by));
            let rest: Vec<Byte> = rest.map(|((_, byte), _)| *byte).collect();
            let size = piece(&rest);
            // Before any of them is carried out: what they store may be what is there now.
            let value = self.together(&rest[..size]);
            stores.push((Place { base, off }, size as u32, value));
            at += size;
        }
        for (place, size, value) in stores {
            let at = self.at(place);
            self.store_now(at, size, value);
        }
    }

    fn store_now(&mut self, at: Id, size: u32, value: Id) {
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
        let arguments = vec![Argument::Packet, Argument::One(at), Argument::One(value)];
        self.call(name, arguments, Effect::Writes);
    }

    /// Up to four bytes as a number.
    fn together(&mut self, bytes: &[Byte]) -> Id {
        let whole = |byte: &Byte| bytes[0].of == byte.of && bytes[0].number == 0;
        if bytes.iter().zip(0..).all(|(byte, number)| whole(byte) && byte.number == number) {
            return bytes[0].of;
        }
        let places: Option<Vec<Place>> = bytes.iter().map(|byte| self.origin(*byte)).collect();
        if let Some(load) = places.and_then(|places| self.joined(&places)) {
            return load;
        }
        if let [a, b, c, d] = *bytes {
            let (low, high) = (self.together(&[a, b]), self.together(&[c, d]));
            let is_load = |code: &Code, id: Id| matches!(&code.ops[id as usize], Op::Call(_));
            if is_load(self, low) || is_load(self, high) {
                let high = self.by(Shl, high, 16);
                // The lower one may have more bits than its bytes.
                let low = self.by(And, low, 0xffff);
                return self.binary(Or, low, high);
            }
        }
        let mut all = self.known(0);
        for (byte, to) in bytes.iter().zip(0..) {
            let it = self.by(Shr, byte.of, 8 * byte.number);
            let it = self.by(And, it, 0xff);
            let it = self.by(Shl, it, 8 * to);
            all = self.binary(Or, all, it);
        }
        all
    }

    /// Where a byte of a number was loaded from, if it still is what is there.
    fn origin(&self, byte: Byte) -> Option<Place> {
        let Op::Call(call) = &self.ops[byte.of as usize] else { return None };
        let (size, big) = loaded(&call.function)?;
        let Some(&Argument::One(at)) = call.arguments.get(1) else { return None };
        if byte.number >= size || !self.is_current(byte.of) {
            return None;
        }
        let Place { base, off } = self.place(at);
        let number = if big { size - 1 - byte.number } else { byte.number };
        Some(Place { base, off: off.wrapping_add(number) })
    }

    /// A load of bytes that lie side by side, in either order; what was loaded singly is what is there now.
    fn joined(&mut self, places: &[Place]) -> Option<Id> {
        let size = places.len() as u32;
        let first = *places.first().filter(|_| matches!(size, 2 | 4))?;
        let from = |first: Place| (0..).map(move |by| Place { off: first.off.wrapping_add(by), ..first });
        let (lowest, big) = if places.iter().copied().eq(from(first).take(places.len())) {
            (first, false)
        } else if places.iter().rev().copied().eq(from(*places.last()?).take(places.len())) {
            (*places.last()?, true)
        } else {
            return None;
        };
        // What waits to be stored does not count: it was not there when these were loaded.
        let pending = std::mem::take(&mut self.pending);
        let at = self.at(lowest);
        let load = self.load_packet(at, size);
        self.pending = pending;
        Some(if big { self.twins.get(&load).map_or(load, |&(twin, _)| twin) } else { load })
    }

    /// `a | b` as a load, where that is what it is.
    pub(crate) fn joined_or(&mut self, a: Id, b: Id) -> Option<Id> {
        let mut bytes = [None; 4];
        // As many as `a | b << 8 | c << 16 | d << 24` has.
        self.taken_apart(a, 0, 4, &mut bytes)?;
        self.taken_apart(b, 0, 4, &mut bytes)?;
        let count = bytes.iter().take_while(|byte| byte.is_some()).count();
        if bytes[count..].iter().any(Option::is_some) {
            return None;
        }
        let places: Option<Vec<Place>> = bytes[..count].iter().flatten().map(|byte| self.origin(*byte)).collect();
        self.joined(&places?)
    }

    /// The bytes that a number of loads put together has, from the byte `to` on.
    fn taken_apart(&self, id: Id, to: u32, depth: u32, bytes: &mut [Option<Byte>; 4]) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match &self.ops[id as usize] {
            Op::Binary(Or, a, b) => {
                self.taken_apart(*a, to, depth, bytes)?;
                self.taken_apart(*b, to, depth, bytes)
            }
            Op::Binary(Shl, inner, by) => {
                let by = self.value(*by).filter(|by| by % 8 == 0)?;
                self.taken_apart(*inner, to + by / 8, depth, bytes)
            }
            Op::Call(call) => {
                let (size, _) = loaded(&call.function)?;
                for number in 0..size {
                    let slot = bytes.get_mut((to + number) as usize)?;
                    if slot.is_some() {
                        return None;
                    }
                    *slot = Some(Byte { of: id, number, stored: size });
                }
                Some(())
            }
            _ => None,
        }
    }
}

/// How many of the next bytes are stored at once: those of a number that was stored whole, or as many single ones as a word has.
fn piece(rest: &[Byte]) -> usize {
    let whole = |at: usize, size: usize| {
        let Some(bytes) = rest.get(at..at + size) else { return false };
        bytes.iter().zip(0..).all(|(byte, number)| *byte == Byte { of: bytes[0].of, number, stored: size as u32 })
    };
    if whole(0, 4) {
        return 4;
    }
    // A word that begins behind the first byte stays a word.
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

    /// What is asked of the packet, in order, of those that somebody asks for: stores, what they store, and these.
    fn accesses(code: &Code, asked: &[Id]) -> Vec<String> {
        let mut needed = vec![false; code.ops.len()];
        let stays = (0..code.ops.len()).filter(|&id| Code::stays(&code.ops[id]));
        let mut work: Vec<Id> = stays.map(|id| id as Id).chain(asked.iter().copied()).collect();
        while let Some(id) = work.pop() {
            if !std::mem::replace(&mut needed[id as usize], true) {
                work.extend(Code::operands(&code.ops[id as usize]));
            }
        }
        let calls = code.ops.iter().zip(&needed).filter(|(_, needed)| **needed);
        calls
            .filter_map(|(op, _)| match op {
                Op::Call(call) => {
                    let Argument::One(at) = call.arguments[1] else { panic!("an offset comes behind the packet") };
                    Some(format!("{} {}", call.function, code.value(at).expect("offsets are known here")))
                }
                _ => None,
            })
            .collect()
    }

    fn load(code: &mut Code, at: u32) -> Id {
        let at = code.known(at);
        code.load_packet(at, 1)
    }

    fn store(code: &mut Code, at: u32, value: Id) {
        let at = code.known(at);
        code.store_packet(at, 1, value);
    }

    /// `a | b << 8`, by offsets.
    fn pair(code: &mut Code, low: u32, high: u32) -> Id {
        let (low, high) = (load(code, low), load(code, high));
        let high = code.by(Shl, high, 8);
        code.binary(Or, low, high)
    }

    #[test]
    fn bytes_put_together_are_one_load() {
        let code = &mut Code::default();
        let (low, high) = (pair(code, 12, 13), pair(code, 14, 15));
        let high = code.by(Shl, high, 16);
        let all = code.binary(Or, low, high);
        assert_eq!(accesses(code, &[all]), ["load_le32 12"]);
        let network = pair(code, 13, 12);
        assert_eq!(accesses(code, &[network]), ["load_be16 12"]);
        let host = code.swap16(network);
        assert_eq!(accesses(code, &[host]), ["load_le16 12"]);
        // Three bytes, bytes apart, and one twice.
        let third = load(code, 14);
        let third = code.by(Shl, third, 16);
        let three = code.binary(Or, low, third);
        assert_eq!(accesses(code, &[three]), ["load_le16 12", "load_u8 14"]);
        let (apart, twice) = (pair(code, 20, 22), pair(code, 30, 30));
        assert_eq!(accesses(code, &[apart]), ["load_u8 20", "load_u8 22"]);
        assert_eq!(accesses(code, &[twice]), ["load_u8 30"]);
    }

    #[test]
    fn bytes_of_which_one_was_written_meanwhile_stay_apart() {
        let code = &mut Code::default();
        let first = load(code, 0);
        let value = code.known(7);
        store(code, 0, value);
        code.flush();
        let second = load(code, 1);
        let second = code.by(Shl, second, 8);
        let all = code.binary(Or, first, second);
        assert_eq!(accesses(code, &[all]), ["load_u8 0", "store_u8 0", "load_u8 1"]);
        // What waits to be written is not what was loaded.
        let code = &mut Code::default();
        let (first, second) = (load(code, 0), load(code, 1));
        let value = code.known(7);
        store(code, 0, value);
        let second = code.by(Shl, second, 8);
        let all = code.binary(Or, first, second);
        code.flush();
        assert_eq!(accesses(code, &[all]), ["load_le16 0", "store_u8 0"]);
    }

    #[test]
    fn addresses_that_are_copied_and_exchanged_bytewise_are_words() {
        let code = &mut Code::default();
        for byte in [5, 4, 3, 2, 1, 0] {
            let it = load(code, byte);
            store(code, 6 + byte, it);
        }
        code.flush();
        assert_eq!(accesses(code, &[]), ["load_le32 0", "load_le16 4", "store_le32 6", "store_le16 10"]);
        let code = &mut Code::default();
        for byte in 0..4 {
            let (one, other) = (load(code, byte), load(code, 4 + byte));
            store(code, byte, other);
            store(code, 4 + byte, one);
        }
        code.flush();
        assert_eq!(accesses(code, &[]), ["load_le32 4", "load_le32 0", "store_le32 0", "store_le32 4"]);
    }

    #[test]
    fn a_load_of_what_waits_has_it_stored() {
        let code = &mut Code::default();
        let (one, two) = (code.known(1), code.known(2));
        store(code, 0, one);
        store(code, 1, two);
        let elsewhere = load(code, 2);
        let there = load(code, 1);
        assert_eq!(accesses(code, &[elsewhere, there]), ["load_u8 2", "store_le16 0", "load_u8 1"]);
        // At a distance that is known only when the packet is there, it may be any.
        let code = &mut Code::default();
        let somewhere = code.var(crate::lower::ir::Var::Stack { frame: 0, word: 0 });
        store(code, 0, somewhere);
        code.load_packet(somewhere, 1);
        let stored = code.ops.iter().filter(|op| Code::stays(op)).count();
        assert_eq!(stored, 1);
    }

    #[test]
    fn words_stay_words_beside_single_bytes() {
        let code = &mut Code::default();
        let (at, word) = (code.known(4), code.var(crate::lower::ir::Var::Stack { frame: 0, word: 0 }));
        for byte in 1..4 {
            store(code, byte, word);
        }
        code.store_packet(at, 4, word);
        code.flush();
        assert_eq!(accesses(code, &[]), ["store_le16 1", "store_u8 3", "store_le32 4"]);
        // Bytes of a word of something else's are that word's, moved.
        let code = &mut Code::default();
        let word = code.var(crate::lower::ir::Var::Stack { frame: 0, word: 0 });
        for byte in 0..4 {
            let it = code.by(Shr, word, 8 * byte);
            let it = code.by(And, it, 0xff);
            store(code, byte, it);
        }
        code.flush();
        assert_eq!(accesses(code, &[]), ["store_le32 0"]);
        let Some(Op::Call(call)) = code.ops.last() else { panic!("the last is the store") };
        assert_eq!(call.arguments[2], Argument::One(word));
    }
}
