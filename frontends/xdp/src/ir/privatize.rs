//! Privatization of map values: per-packet copies of words that a program uses as scratch memory.
//!
//! The only entry of a per-CPU array serves programs as memory beyond their stack, and hands state
//! to tail calls; global variables are used likewise on a single queue. In the kernel no other
//! packet runs in between. Here packets run side by side on one value, so what one packet has
//! stored another might load.
//!
//! So each packet gets its own copy of the words that it may load after having stored them: such a
//! load gives what this packet stored. Every store is done to the map as well, and the copy starts
//! with what the map holds when the packet begins; so packets that run one after the other see
//! exactly what they would see without copies.
//!
//! A copy consists of variables, a word each, of which only those are initialised that are read
//! before they are set; and of an array, for words that the program indexes by a value known only
//! at run time. The accesses are emitted in `analysis::transfer::private_copy`.

use std::collections::{BTreeMap, BTreeSet};

use crate::decode::maps::{MapInfo, MapUse};

/// Upper bound on the size of a value that is privatized.
const MAX_VALUE_BYTES: u32 = 4096;

/// Upper bound on a copy in an array, which each packet initialises whole.
const MAX_MEMORY_WORDS: usize = 256;

/// Whether a map's value may be privatized: it has a single entry that the host does not declare
/// constant.
pub(crate) fn can_privatize(map: &MapInfo) -> bool {
    let of = &map.definition;
    map.has_single_value() && map.used_as == MapUse::Array && !of.read_only && of.value_size <= MAX_VALUE_BYTES
}

/// A set of byte offsets, as a bit set without trailing zero words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ByteSet(Vec<u64>);

impl ByteSet {
    /// Splits the byte range `first..end` into masks of the bit set's words.
    fn masks((first, end): (u32, u32)) -> impl Iterator<Item = (usize, u64)> {
        (first / 64..end.div_ceil(64)).map(move |at| {
            let (low, high) = (first.max(64 * at) - 64 * at, end.min(64 * at + 64) - 64 * at);
            (at as usize, (u64::MAX >> (64 - (high - low))) << low)
        })
    }

    fn insert(&mut self, bytes: (u32, u32)) {
        for (at, mask) in ByteSet::masks(bytes) {
            if at >= self.0.len() {
                self.0.resize(at + 1, 0);
            }
            self.0[at] |= mask;
        }
    }

    fn word(&self, at: usize) -> u64 {
        self.0.get(at).copied().unwrap_or(0)
    }

    fn contains_all(&self, bytes: (u32, u32)) -> bool {
        ByteSet::masks(bytes).all(|(at, mask)| self.word(at) & mask == mask)
    }

    fn intersects(&self, bytes: (u32, u32)) -> bool {
        ByteSet::masks(bytes).any(|(at, mask)| self.word(at) & mask != 0)
    }

    fn union_with(&mut self, other: &ByteSet) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(all, it)| *all |= it);
    }

    fn intersect_with(&mut self, other: &ByteSet) {
        self.0.truncate(other.0.len());
        self.0.iter_mut().zip(&other.0).for_each(|(all, it)| *all &= it);
        let end = self.0.iter().rposition(|&bits| bits != 0).map_or(0, |last| last + 1);
        self.0.truncate(end);
    }
}

/// How certainly an access stores bytes; each level includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StoreCertainty {
    /// The bytes were updated from what the map held, by an addition for example.
    Updated,
    /// The bytes may have been stored.
    Maybe,
    /// The bytes were stored.
    Definite,
}

/// What a packet has done to the bytes of one value: the bytes that are updated or stored at all,
/// that are stored maybe or definitely, and that are stored definitely.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct StoreEffects {
    changed: ByteSet,
    maybe: ByteSet,
    definite: ByteSet,
}

/// What the packet has stored in values that may be privatized, by map. Part of the abstract state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StoredBytes(BTreeMap<u16, StoreEffects>);

impl StoredBytes {
    pub fn record(&mut self, map: u16, bytes: (u32, u32), certainty: StoreCertainty) {
        let StoreEffects { changed, maybe, definite } = self.0.entry(map).or_default();
        changed.insert(bytes);
        if certainty >= StoreCertainty::Maybe {
            maybe.insert(bytes);
        }
        if certainty == StoreCertainty::Definite {
            definite.insert(bytes);
        }
    }

    /// Whether all of these bytes have been stored on every path.
    pub fn definitely_stored(&self, map: u16, bytes: (u32, u32)) -> bool {
        self.0.get(&map).is_some_and(|effects| effects.definite.contains_all(bytes))
    }

    /// Whether some of these bytes may have been stored.
    pub fn may_be_stored(&self, map: u16, bytes: (u32, u32)) -> bool {
        self.0.get(&map).is_some_and(|effects| effects.maybe.intersects(bytes))
    }

    /// Whether some of these bytes may have been stored or updated.
    pub fn may_be_changed(&self, map: u16, bytes: (u32, u32)) -> bool {
        self.0.get(&map).is_some_and(|effects| effects.changed.intersects(bytes))
    }

    /// Lattice join: unites the may-sets, intersects the must-set. Returns whether `self` changed.
    pub fn join(&mut self, other: &StoredBytes) -> bool {
        if self == other {
            return false;
        }
        let before = self.clone();
        let none = StoreEffects::default();
        for (map, StoreEffects { changed, maybe, definite }) in &mut self.0 {
            let theirs = other.0.get(map).unwrap_or(&none);
            changed.union_with(&theirs.changed);
            maybe.union_with(&theirs.maybe);
            definite.intersect_with(&theirs.definite);
        }
        for (map, theirs) in &other.0 {
            self.0.entry(*map).or_insert_with(|| StoreEffects { definite: ByteSet::default(), ..theirs.clone() });
        }
        before != *self
    }
}

/// The words of a map's value that each packet has a copy of.
#[derive(Debug, Clone, Default)]
pub(crate) struct PrivateCopy {
    /// Words that are a variable each.
    pub variables: BTreeSet<u16>,
    /// Words in an array.
    pub memory: BTreeSet<u16>,
}

/// How a program accesses the words of a value.
#[derive(Debug, Clone, Default)]
struct WordAccesses {
    /// Words that are loaded after they may have been stored.
    reloaded: BTreeSet<u16>,
    /// Words that may be accessed at an index known only at run time.
    indexed: BTreeSet<u16>,
}

/// Words of map values, by map.
pub(crate) type MapWords = BTreeMap<u16, BTreeSet<u16>>;

/// Decides which words of which maps are privatized, from the accesses that the analysis reports.
#[derive(Debug, Default)]
pub(crate) struct Privatization {
    accesses: BTreeMap<u16, WordAccesses>,
    /// Words that are not privatized because their copy would be too large.
    pub excluded: MapWords,
    /// The copies, once decided.
    copies: BTreeMap<u16, PrivateCopy>,
}

/// The words that overlap a byte range.
fn words((first, end): (u32, u32)) -> std::ops::Range<u16> {
    (first / 4) as u16..end.div_ceil(4) as u16
}

impl Privatization {
    /// Whether none of these bytes is excluded.
    pub fn may_privatize(&self, map: u16, bytes: (u32, u32)) -> bool {
        self.excluded.get(&map).is_none_or(|all| all.range(words(bytes)).next().is_none())
    }

    /// Records a load of bytes that may have been stored before.
    pub fn record_reload(&mut self, map: u16, bytes: (u32, u32)) {
        self.accesses.entry(map).or_default().reloaded.extend(words(bytes));
    }

    /// Records a load or store at an unknown place within these bytes.
    pub fn record_indexed(&mut self, map: u16, bytes: (u32, u32)) {
        self.accesses.entry(map).or_default().indexed.extend(words(bytes));
    }

    /// Decides the copies from the recorded accesses. Returns false if a copy is too large; its
    /// words are excluded then, and the program must be analysed again.
    pub fn decide(&mut self) -> bool {
        let mut fits = true;
        for (&map, WordAccesses { reloaded, indexed }) in &self.accesses {
            let mut copy = PrivateCopy { variables: reloaded - indexed, memory: BTreeSet::new() };
            if !reloaded.is_disjoint(indexed) {
                // An indexed access may hit a reloaded word, so all indexed accesses use the copy.
                copy.memory = indexed.clone();
            }
            // If some indexed words of the map are excluded already, an access cannot be told to be
            // of the others.
            let is_left = self.excluded.contains_key(&map) && !copy.memory.is_empty();
            if is_left || copy.memory.len() > MAX_MEMORY_WORDS {
                self.excluded.entry(map).or_default().extend(indexed);
                fits = false;
            } else if !reloaded.is_empty() {
                self.copies.insert(map, copy);
            }
        }
        fits
    }

    pub fn copy_of(&self, map: u16) -> Option<&PrivateCopy> {
        self.copies.get(&map)
    }

    /// The words of each map that are copied to an array.
    pub fn memory_copies(&self) -> impl Iterator<Item = (u16, &BTreeSet<u16>)> {
        self.copies.iter().filter(|(_, copy)| !copy.memory.is_empty()).map(|(map, copy)| (*map, &copy.memory))
    }

    /// Drops the array of a map, which no load reads.
    pub fn drop_memory_copy(&mut self, map: u16) {
        if let Some(copy) = self.copies.get_mut(&map) {
            copy.memory.clear();
        }
    }
}

/// Number of the first indexed frame that holds a copy of a map's value.
pub(crate) const FIRST_COPY_FRAME: u16 = 1 << 15;

/// The number of the indexed frame that holds the copy of a map's value.
pub(crate) fn copy_frame(map: u16) -> u16 {
    FIRST_COPY_FRAME + map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stored_on_one_path_may_be_stored_after_the_join() {
        let (mut one, mut other) = (StoredBytes::default(), StoredBytes::default());
        one.record(1, (0, 8), StoreCertainty::Definite);
        one.record(1, (60, 70), StoreCertainty::Definite);
        one.record(2, (4, 5), StoreCertainty::Maybe);
        one.record(2, (8, 10), StoreCertainty::Updated);
        other.record(1, (4, 66), StoreCertainty::Definite);
        other.record(3, (0, 1), StoreCertainty::Definite);
        let mut both = one.clone();
        assert!(both.join(&other) && !both.join(&other) && !both.join(&one));
        assert!(
            both.definitely_stored(1, (4, 8))
                && both.definitely_stored(1, (60, 66))
                && !both.definitely_stored(1, (3, 5))
        );
        assert!(both.may_be_stored(1, (0, 1)) && both.may_be_stored(1, (69, 70)) && !both.may_be_stored(1, (70, 90)));
        assert!(both.may_be_stored(2, (4, 5)) && !both.definitely_stored(2, (4, 5)));
        assert!(!both.may_be_stored(2, (5, 16)) && both.may_be_changed(2, (9, 10)) && both.may_be_changed(2, (4, 5)));
        assert!(both.may_be_stored(3, (0, 4)) && !both.definitely_stored(3, (0, 1)));
        assert_ne!(one, both);
        let mut same = StoredBytes::default();
        assert!(same.join(&one) && !same.definitely_stored(1, (0, 8)));
    }

    #[test]
    fn byte_ranges_cross_word_boundaries_of_the_bit_set() {
        for bytes in [(0, 1), (0, 64), (63, 65), (5, 200), (128, 192), (190, 191)] {
            let mut all = ByteSet::default();
            all.insert(bytes);
            for byte in 0..260 {
                let is_in = (bytes.0..bytes.1).contains(&byte);
                assert_eq!(
                    (all.contains_all((byte, byte + 1)), all.intersects((byte, byte + 1))),
                    (is_in, is_in),
                    "{bytes:?} {byte}"
                );
            }
            assert!(all.contains_all(bytes) && !all.contains_all((bytes.0, bytes.1 + 1)) && all.intersects((0, 300)));
        }
    }

    #[test]
    fn indexed_words_share_one_array_and_too_large_copies_are_excluded() {
        let mut privatization = Privatization::default();
        privatization.record_reload(1, (6, 9));
        privatization.record_indexed(1, (16, 32));
        privatization.record_reload(2, (0, 4));
        privatization.record_reload(2, (20, 22));
        privatization.record_indexed(2, (2, 14));
        privatization.record_indexed(3, (0, 64));
        privatization.record_reload(4, (0, 12));
        privatization.record_indexed(4, (8, 4096));
        assert!(!privatization.decide());
        let all = |privatization: &Privatization, map| {
            let list = |words: &BTreeSet<u16>| words.iter().copied().collect::<Vec<_>>();
            privatization.copy_of(map).map(|copy| (list(&copy.variables), list(&copy.memory)))
        };
        assert_eq!(all(&privatization, 1), Some((vec![1, 2], vec![])));
        assert_eq!(all(&privatization, 2), Some((vec![5], vec![0, 1, 2, 3])));
        assert_eq!((all(&privatization, 3), all(&privatization, 4)), (None, None));
        assert!(
            privatization.may_privatize(4, (0, 8))
                && !privatization.may_privatize(4, (4, 9))
                && privatization.may_privatize(1, (16, 32))
        );
        privatization.drop_memory_copy(2);
        assert_eq!(all(&privatization, 2), Some((vec![5], vec![])));
        // Without the excluded words the rest fits.
        let mut again = Privatization { excluded: privatization.excluded, ..Privatization::default() };
        again.record_reload(4, (0, 8));
        assert!(again.decide());
        assert_eq!(all(&again, 4), Some((vec![0, 1], vec![])));
    }
}
