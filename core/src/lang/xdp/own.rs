//! Values that a program may take for its own while it has a packet: the only entry of a per-CPU array, by which programs have more
//! room than their stack and hand on to a tail call what they know; and global variables, on one queue. In the kernel nothing comes
//! between. Here packets run side by side on one value, so that what one has stored another might load.
//!
//! So each packet has its own copy of the words that are loaded where the program may have stored them already: a load gives what
//! this packet has left there. Every store is done to the map as well, and what comes first is what the map holds when the packet
//! begins: packets one after the other see what they would see without copies.
//!
//! A copy is variables, a word each, of which only those are filled that are asked for before they are set; or memory, if the
//! program indexes the value by what is known only when the packet is there. `walk::own` has the accesses.

use std::collections::{BTreeMap, BTreeSet};

use super::maps::{MapInfo, Use};

/// Bytes of a value at most.
const MOST_BYTES: u32 = 4096;

/// Words of a copy in memory at most: each packet fills all of it.
const MOST_IN_MEMORY: usize = 256;

/// Whether a packet may have a copy of a map's values: there is one, which no host says is constant.
pub(super) fn may_be(map: &MapInfo) -> bool {
    let of = &map.definition;
    map.is_one_value() && map.used_as == Use::Array && !of.read_only && of.value_size <= MOST_BYTES
}

/// Bytes, a bit each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Bytes(Vec<u64>);

impl Bytes {
    fn insert(&mut self, first: u32, end: u32) {
        for byte in first..end {
            let at = byte as usize / 64;
            if at >= self.0.len() {
                self.0.resize(at + 1, 0);
            }
            self.0[at] |= 1 << (byte % 64);
        }
    }

    fn contains(&self, byte: u32) -> bool {
        self.0.get(byte as usize / 64).is_some_and(|bits| bits >> (byte % 64) & 1 != 0)
    }

    fn union(&mut self, other: &Bytes) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(all, it)| *all |= it);
    }

    fn meet(&mut self, other: &Bytes) {
        self.0.truncate(other.0.len());
        self.0.iter_mut().zip(&other.0).for_each(|(all, it)| *all &= it);
        let end = self.0.iter().rposition(|&bits| bits != 0).map_or(0, |last| last + 1);
        self.0.truncate(end);
    }
}

/// What this packet has stored in such values, by map.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Stored(BTreeMap<u16, [Bytes; 2]>);

impl Stored {
    /// Bytes that are stored: for certain, or perhaps.
    pub fn insert(&mut self, map: u16, (first, end): (u32, u32), is_certain: bool) {
        let [certain, perhaps] = self.0.entry(map).or_default();
        if is_certain {
            certain.insert(first, end);
        }
        perhaps.insert(first, end);
    }

    /// Whether all of these bytes have been stored for certain.
    pub fn has_all(&self, map: u16, (first, end): (u32, u32)) -> bool {
        self.0.get(&map).is_some_and(|[certain, _]| (first..end).all(|byte| certain.contains(byte)))
    }

    /// Whether some of them may have been.
    pub fn may_have(&self, map: u16, (first, end): (u32, u32)) -> bool {
        self.0.get(&map).is_some_and(|[_, perhaps]| (first..end).any(|byte| perhaps.contains(byte)))
    }

    /// Where ways meet; whether that changed anything.
    pub fn join(&mut self, other: &Stored) -> bool {
        let before = self.clone();
        let none = [Bytes::default(), Bytes::default()];
        for (map, [certain, perhaps]) in &mut self.0 {
            let [theirs, maybe] = other.0.get(map).unwrap_or(&none);
            certain.meet(theirs);
            perhaps.union(maybe);
        }
        for (map, [_, perhaps]) in &other.0 {
            self.0.entry(*map).or_insert_with(|| [Bytes::default(), perhaps.clone()]);
        }
        before != *self
    }
}

/// What of a map's value packets have copies of.
#[derive(Debug, Clone, Default)]
pub(super) struct Copy {
    pub words: BTreeSet<u16>,
    pub is_memory: bool,
}

/// What a program does to such a value.
#[derive(Debug, Clone, Default)]
struct Asked {
    /// Words that are loaded where they may have been stored.
    words: BTreeSet<u16>,
    /// From a word to another, behind the last: where the value is accessed by what is not known.
    anywhere: BTreeSet<(u16, u16)>,
}

/// What packets have copies of, by map.
#[derive(Debug, Default)]
pub(super) struct Copies {
    asked: BTreeMap<u16, Asked>,
    /// Once that is settled.
    of: BTreeMap<u16, Copy>,
}

/// The words that some bytes are in, from the first to behind the last.
fn words((first, end): (u32, u32)) -> (u16, u16) {
    ((first / 4) as u16, end.div_ceil(4) as u16)
}

impl Copies {
    /// A load of what may have been stored.
    pub fn ask(&mut self, map: u16, bytes: (u32, u32)) {
        let (first, end) = words(bytes);
        self.asked.entry(map).or_default().words.extend(first..end);
    }

    /// A load or store somewhere in these bytes.
    pub fn anywhere(&mut self, map: u16, bytes: (u32, u32)) {
        self.asked.entry(map).or_default().anywhere.insert(words(bytes));
    }

    /// Has what was asked for be what there is.
    pub fn settle(&mut self) {
        for (&map, Asked { words, anywhere }) in &self.asked {
            let mut copy = Copy { words: words.clone(), is_memory: false };
            let meets = |&(first, end): &(u16, u16)| words.range(first..end).next().is_some();
            if anywhere.iter().any(meets) {
                // Then all accesses like that are of the copy.
                copy.words.extend(anywhere.iter().flat_map(|&(first, end)| first..end));
                copy.is_memory = true;
            }
            let is_too_large = copy.is_memory && copy.words.len() > MOST_IN_MEMORY;
            if !copy.words.is_empty() && !is_too_large {
                self.of.insert(map, copy);
            }
        }
    }

    pub fn of(&self, map: u16) -> Option<&Copy> {
        self.of.get(&map)
    }

    /// Copies in memory, by map.
    pub fn in_memory(&self) -> impl Iterator<Item = (u16, &BTreeSet<u16>)> {
        self.of.iter().filter(|(_, copy)| copy.is_memory).map(|(map, copy)| (*map, &copy.words))
    }
}

/// Frames of memory from this number on are copies of maps' values.
pub(super) const FIRST_FRAME: u16 = 1 << 15;

/// The frame that is the copy of a map's value.
pub(super) fn frame_of(map: u16) -> u16 {
    FIRST_FRAME + map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_on_one_way_is_stored_perhaps() {
        let (mut one, mut other) = (Stored::default(), Stored::default());
        one.insert(1, (0, 8), true);
        one.insert(1, (60, 70), true);
        one.insert(2, (4, 5), false);
        other.insert(1, (4, 66), true);
        other.insert(3, (0, 1), true);
        let mut both = one.clone();
        assert!(both.join(&other) && !both.join(&other) && !both.join(&one));
        assert!(both.has_all(1, (4, 8)) && both.has_all(1, (60, 66)) && !both.has_all(1, (3, 5)));
        assert!(both.may_have(1, (0, 1)) && both.may_have(1, (69, 70)) && !both.may_have(1, (70, 90)));
        assert!(both.may_have(2, (4, 5)) && !both.has_all(2, (4, 5)));
        assert!(both.may_have(3, (0, 4)) && !both.has_all(3, (0, 1)));
        assert_ne!(one, both);
        let mut same = Stored::default();
        assert!(same.join(&one) && !same.has_all(1, (0, 8)));
    }

    #[test]
    fn copies_have_what_is_accessed_together() {
        let mut copies = Copies::default();
        copies.ask(1, (6, 9));
        copies.anywhere(1, (16, 32));
        copies.ask(2, (0, 4));
        copies.anywhere(2, (2, 14));
        copies.anywhere(3, (0, 64));
        copies.ask(4, (0, 4));
        copies.anywhere(4, (0, 4096));
        copies.settle();
        let all = |map| copies.of(map).map(|copy| (copy.words.iter().copied().collect::<Vec<_>>(), copy.is_memory));
        assert_eq!(all(1), Some((vec![1, 2], false)));
        assert_eq!(all(2), Some((vec![0, 1, 2, 3], true)));
        assert_eq!((all(3), all(4)), (None, None));
    }
}
