//! Values that a program may take for its own while it has a packet: the only entry of a per-CPU array, by which programs have more
//! room than their stack and hand on to a tail call what they know; and global variables, on one queue. In the kernel nothing comes
//! between. Here packets run side by side on one value, so that what one has stored another might load.
//!
//! So each packet has its own copy of the words that are loaded where the program may have stored them already: a load gives what
//! this packet has left there. Every store is done to the map as well, and what comes first is what the map holds when the packet
//! begins: packets one after the other see what they would see without copies.
//!
//! A copy is variables, a word each, of which only those are filled that are asked for before they are set; and memory, for words
//! that the program indexes by what is known only when the packet is there. `walk::own` has the accesses.

use std::collections::{BTreeMap, BTreeSet};

use crate::decode::maps::{MapInfo, Use};

/// Bytes of a value at most.
const MOST_BYTES: u32 = 4096;

/// Words of a copy in memory at most: each packet fills all of it.
const MOST_IN_MEMORY: usize = 256;

/// Whether a packet may have a copy of a map's values: there is one, which no host says is constant.
pub(crate) fn may_be(map: &MapInfo) -> bool {
    let of = &map.definition;
    map.is_one_value() && map.used_as == Use::Array && !of.read_only && of.value_size <= MOST_BYTES
}

/// Bytes, a bit each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Bytes(Vec<u64>);

impl Bytes {
    /// The bits of some bytes, by the words of 64 that they are in.
    fn masks((first, end): (u32, u32)) -> impl Iterator<Item = (usize, u64)> {
        (first / 64..end.div_ceil(64)).map(move |at| {
            let (low, high) = (first.max(64 * at) - 64 * at, end.min(64 * at + 64) - 64 * at);
            (at as usize, (u64::MAX >> (64 - (high - low))) << low)
        })
    }

    fn insert(&mut self, bytes: (u32, u32)) {
        for (at, mask) in Bytes::masks(bytes) {
            if at >= self.0.len() {
                self.0.resize(at + 1, 0);
            }
            self.0[at] |= mask;
        }
    }

    fn of(&self, at: usize) -> u64 {
        self.0.get(at).copied().unwrap_or(0)
    }

    fn has_all(&self, bytes: (u32, u32)) -> bool {
        Bytes::masks(bytes).all(|(at, mask)| self.of(at) & mask == mask)
    }

    fn has_any(&self, bytes: (u32, u32)) -> bool {
        Bytes::masks(bytes).any(|(at, mask)| self.of(at) & mask != 0)
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

/// How bytes come to be what they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum How {
    /// Something was added to what was there, or the like.
    Changed,
    /// They were stored, perhaps.
    Perhaps,
    /// They were stored.
    Stored,
}

/// What a packet has done to bytes of a value: changed, or stored in any way; stored, for certain or perhaps; stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Done {
    changed: Bytes,
    perhaps: Bytes,
    stored: Bytes,
}

/// What this packet has stored in such values, by map.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Stored(BTreeMap<u16, Done>);

impl Stored {
    pub fn insert(&mut self, map: u16, bytes: (u32, u32), how: How) {
        let Done { changed, perhaps, stored } = self.0.entry(map).or_default();
        changed.insert(bytes);
        if how >= How::Perhaps {
            perhaps.insert(bytes);
        }
        if how == How::Stored {
            stored.insert(bytes);
        }
    }

    /// Whether all of these bytes have been stored.
    pub fn has_all(&self, map: u16, bytes: (u32, u32)) -> bool {
        self.0.get(&map).is_some_and(|done| done.stored.has_all(bytes))
    }

    /// Whether some of them may have been.
    pub fn may_have(&self, map: u16, bytes: (u32, u32)) -> bool {
        self.0.get(&map).is_some_and(|done| done.perhaps.has_any(bytes))
    }

    /// Whether some of them may have been stored or changed.
    pub fn may_have_changed(&self, map: u16, bytes: (u32, u32)) -> bool {
        self.0.get(&map).is_some_and(|done| done.changed.has_any(bytes))
    }

    /// Where ways meet; whether that changed anything.
    pub fn join(&mut self, other: &Stored) -> bool {
        if self == other {
            return false;
        }
        let before = self.clone();
        let none = Done::default();
        for (map, Done { changed, perhaps, stored }) in &mut self.0 {
            let theirs = other.0.get(map).unwrap_or(&none);
            changed.union(&theirs.changed);
            perhaps.union(&theirs.perhaps);
            stored.meet(&theirs.stored);
        }
        for (map, theirs) in &other.0 {
            self.0.entry(*map).or_insert_with(|| Done { stored: Bytes::default(), ..theirs.clone() });
        }
        before != *self
    }
}

/// What of a map's value packets have copies of: words that are variables, and words that are memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Copy {
    pub variables: BTreeSet<u16>,
    pub memory: BTreeSet<u16>,
}

/// What a program does to such a value.
#[derive(Debug, Clone, Default)]
struct Asked {
    /// Words that are loaded where they may have been stored.
    words: BTreeSet<u16>,
    /// Words that are accessed by what is not known.
    anywhere: BTreeSet<u16>,
}

/// Words of maps' values, by map.
pub(crate) type Words = BTreeMap<u16, BTreeSet<u16>>;

/// What packets have copies of, by map.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    asked: BTreeMap<u16, Asked>,
    /// What is too much for copies.
    pub left_out: Words,
    /// Once that is settled.
    of: BTreeMap<u16, Copy>,
}

/// The words that some bytes are in.
fn words((first, end): (u32, u32)) -> std::ops::Range<u16> {
    (first / 4) as u16..end.div_ceil(4) as u16
}

impl Copies {
    /// Whether there may be copies of these bytes.
    pub fn may_have(&self, map: u16, bytes: (u32, u32)) -> bool {
        self.left_out.get(&map).is_none_or(|all| all.range(words(bytes)).next().is_none())
    }

    /// A load of what may have been stored.
    pub fn ask(&mut self, map: u16, bytes: (u32, u32)) {
        self.asked.entry(map).or_default().words.extend(words(bytes));
    }

    /// A load or store somewhere in these bytes.
    pub fn anywhere(&mut self, map: u16, bytes: (u32, u32)) {
        self.asked.entry(map).or_default().anywhere.extend(words(bytes));
    }

    /// Has what was asked for be what there is. Whether that can be: if not, more is left out, and the program is to be gone
    /// through again.
    pub fn settle(&mut self) -> bool {
        let mut fits = true;
        for (&map, Asked { words, anywhere }) in &self.asked {
            let mut copy = Copy { variables: words - anywhere, memory: BTreeSet::new() };
            if !words.is_disjoint(anywhere) {
                // Then all accesses like that are of the copy.
                copy.memory = anywhere.clone();
            }
            // Of a map some of whose accesses are left out none is told from these by where it may be.
            let is_left = self.left_out.contains_key(&map) && !copy.memory.is_empty();
            if is_left || copy.memory.len() > MOST_IN_MEMORY {
                self.left_out.entry(map).or_default().extend(anywhere);
                fits = false;
            } else if !words.is_empty() {
                self.of.insert(map, copy);
            }
        }
        fits
    }

    pub fn of(&self, map: u16) -> Option<&Copy> {
        self.of.get(&map)
    }

    /// Copies in memory, by map.
    pub fn in_memory(&self) -> impl Iterator<Item = (u16, &BTreeSet<u16>)> {
        self.of.iter().filter(|(_, copy)| !copy.memory.is_empty()).map(|(map, copy)| (*map, &copy.memory))
    }

    /// Lets go of a copy in memory that nobody looks at.
    pub fn let_go(&mut self, map: u16) {
        if let Some(copy) = self.of.get_mut(&map) {
            copy.memory.clear();
        }
    }
}

/// Frames of memory from this number on are copies of maps' values.
pub(crate) const FIRST_FRAME: u16 = 1 << 15;

/// The frame that is the copy of a map's value.
pub(crate) fn frame_of(map: u16) -> u16 {
    FIRST_FRAME + map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_on_one_way_is_stored_perhaps() {
        let (mut one, mut other) = (Stored::default(), Stored::default());
        one.insert(1, (0, 8), How::Stored);
        one.insert(1, (60, 70), How::Stored);
        one.insert(2, (4, 5), How::Perhaps);
        one.insert(2, (8, 10), How::Changed);
        other.insert(1, (4, 66), How::Stored);
        other.insert(3, (0, 1), How::Stored);
        let mut both = one.clone();
        assert!(both.join(&other) && !both.join(&other) && !both.join(&one));
        assert!(both.has_all(1, (4, 8)) && both.has_all(1, (60, 66)) && !both.has_all(1, (3, 5)));
        assert!(both.may_have(1, (0, 1)) && both.may_have(1, (69, 70)) && !both.may_have(1, (70, 90)));
        assert!(both.may_have(2, (4, 5)) && !both.has_all(2, (4, 5)));
        assert!(!both.may_have(2, (5, 16)) && both.may_have_changed(2, (9, 10)) && both.may_have_changed(2, (4, 5)));
        assert!(both.may_have(3, (0, 4)) && !both.has_all(3, (0, 1)));
        assert_ne!(one, both);
        let mut same = Stored::default();
        assert!(same.join(&one) && !same.has_all(1, (0, 8)));
    }

    #[test]
    fn bytes_are_in_their_words() {
        for bytes in [(0, 1), (0, 64), (63, 65), (5, 200), (128, 192), (190, 191)] {
            let mut all = Bytes::default();
            all.insert(bytes);
            for byte in 0..260 {
                let is_in = (bytes.0..bytes.1).contains(&byte);
                assert_eq!(
                    (all.has_all((byte, byte + 1)), all.has_any((byte, byte + 1))),
                    (is_in, is_in),
                    "{bytes:?} {byte}"
                );
            }
            assert!(all.has_all(bytes) && !all.has_all((bytes.0, bytes.1 + 1)) && all.has_any((0, 300)));
        }
    }

    #[test]
    fn copies_have_what_is_accessed_together() {
        let mut copies = Copies::default();
        copies.ask(1, (6, 9));
        copies.anywhere(1, (16, 32));
        copies.ask(2, (0, 4));
        copies.ask(2, (20, 22));
        copies.anywhere(2, (2, 14));
        copies.anywhere(3, (0, 64));
        copies.ask(4, (0, 12));
        copies.anywhere(4, (8, 4096));
        assert!(!copies.settle());
        let all = |copies: &Copies, map| {
            let list = |words: &BTreeSet<u16>| words.iter().copied().collect::<Vec<_>>();
            copies.of(map).map(|copy| (list(&copy.variables), list(&copy.memory)))
        };
        assert_eq!(all(&copies, 1), Some((vec![1, 2], vec![])));
        assert_eq!(all(&copies, 2), Some((vec![5], vec![0, 1, 2, 3])));
        assert_eq!((all(&copies, 3), all(&copies, 4)), (None, None));
        assert!(copies.may_have(4, (0, 8)) && !copies.may_have(4, (4, 9)) && copies.may_have(1, (16, 32)));
        copies.let_go(2);
        assert_eq!(all(&copies, 2), Some((vec![5], vec![])));
        // Without that, what is left fits.
        let mut again = Copies { left_out: copies.left_out, ..Copies::default() };
        again.ask(4, (0, 8));
        assert!(again.settle());
        assert_eq!(all(&again, 4), Some((vec![0, 1], vec![])));
    }
}
