//! Builds the trie of a prefix map, all at once, from sorted prefixes.

use std::collections::HashMap;

use super::super::declaration::Declaration;
use super::super::layout::{HEADER_CLAIMED, Layout};
use super::fold_hash::FoldHashBuilder;
use super::{
    GROUP_BITS, GROUP_WORDS, HEADER_END, INNER_FLAG, LIST_FLAG, LIST_MAX_BITS, LIST_PREFIXES, LIST_WORDS, NODE_BITS,
    NODE_WORDS, Prefix, ROOT_NODE_STRIDE, TrieLayout, prefix_mask,
};

/// Slots of a node.
const SLOTS: usize = 1 << NODE_BITS;

/// The memory of a map with these entries, up to the end of its use. There must be at most as many
/// as the map was declared with, and each prefix only once.
///
/// Entries are numbered from the shortest prefix to the longest, so that those that most addresses
/// match are close together.
pub(super) fn build_image(map: &Declaration, mut entries: Vec<(Prefix, &[u32])>) -> Vec<u32> {
    let (layout, parts) = (Layout::of(map), TrieLayout::of(map));
    let mut words = vec![0; layout.words()];
    entries.sort_unstable_by_key(|(prefix, _)| (prefix.length, prefix.address));
    for (entry, (prefix, value)) in (0..).zip(&entries) {
        let at = layout.slot_offset(entry);
        words[at..at + value.len()].copy_from_slice(value);
        prefix.write(map, &mut words, entry);
    }
    let mut leaves = leaves(map, &entries);
    leaves.sort_unstable_by_key(|leaf| leaf.prefix);
    let mut trie = TrieBuilder { words, end: parts.heap as usize };
    trie.write_root(&parts, &leaves);
    let TrieBuilder { mut words, end } = trie;
    (words[HEADER_CLAIMED as usize], words[HEADER_END as usize]) = (leaves.len() as u32, end as u32);
    words.truncate(end);
    words
}

/// The leaves of the trie. If no filter can tell entries with equal values apart, the first such
/// entry stands for all: most tables have few different values, which then stay in the cache.
fn leaves(map: &Declaration, entries: &[(Prefix, &[u32])]) -> Vec<Leaf> {
    let mut firsts: HashMap<&[u32], u32, FoldHashBuilder> = HashMap::default();
    let mut word_of = |word, value| if map.read_only { *firsts.entry(value).or_insert(word) } else { word };
    (1..).zip(entries).map(|(word, (prefix, value))| Leaf { prefix: *prefix, word: word_of(word, *value) }).collect()
}

/// A prefix, and the word for slots of which it is the longest match.
struct Leaf {
    prefix: Prefix,
    word: u32,
}

impl Leaf {
    /// `count` bits of the address, from bit `depth` on.
    fn bits(&self, depth: u32, count: u32) -> usize {
        (self.prefix.address << depth >> (128 - count)) as usize
    }
}

struct TrieBuilder {
    words: Vec<u32>,
    /// Index of the next free word.
    end: usize,
}

/// The longer prefixes below a slot.
struct Subtree<'a> {
    slot: usize,
    /// The word for addresses that match none of them.
    shorter: u32,
    /// The prefixes, sorted.
    leaves: &'a [Leaf],
}

impl TrieBuilder {
    fn write_root(&mut self, parts: &TrieLayout, leaves: &[Leaf]) {
        let bits = parts.root_bits;
        let mut shorter = vec![0; 1 << bits];
        for leaf in leaves.iter().filter(|leaf| leaf.prefix.length <= bits) {
            // Shorter prefixes come first, so longer ones overwrite them.
            let first = leaf.bits(0, bits);
            shorter[first..first + (1 << (bits - leaf.prefix.length))].fill(leaf.word);
        }
        let mut rest = leaves;
        for (number, word) in shorter.into_iter().enumerate() {
            let count = rest.iter().take_while(|leaf| leaf.bits(0, bits) == number).count();
            let (own, others) = rest.split_at(count);
            rest = others;
            let longer = own.iter().position(|leaf| leaf.prefix.length > bits).unwrap_or(own.len());
            self.write_nodes(
                &own[longer..],
                bits,
                word,
                Some(parts.root as usize + number * ROOT_NODE_STRIDE as usize),
            );
        }
    }

    /// Writes a root node at `in_root`, or else a group at the next free words, and everything
    /// below. Returns its index. The prefixes are sorted and longer than `depth`, the number of
    /// bits resolved above.
    fn write_nodes(&mut self, leaves: &[Leaf], depth: u32, shorter: u32, in_root: Option<usize>) -> usize {
        let step = if in_root.is_some() { NODE_BITS } else { GROUP_BITS };
        let (slots, inner) = slots(leaves, depth, step, shorter);
        // A word serves all slots up to the next set bit or the end of the node.
        let is_new = |slot: usize| slot.is_multiple_of(SLOTS) || slots[slot] != slots[slot - 1];
        let count = (0..1 << step).filter(|slot| is_new(*slot)).count();
        let (at, mut next) = match in_root {
            Some(at) if count <= (ROOT_NODE_STRIDE - NODE_WORDS) as usize => (at, at + NODE_WORDS as usize),
            Some(at) => (at, self.allocate(count)),
            None => {
                let at = self.allocate(GROUP_WORDS as usize + count);
                (at, at + GROUP_WORDS as usize)
            }
        };
        let mut of_inner = inner.iter().peekable();
        let mut found = Vec::with_capacity(inner.len());
        for first in (0..1 << step).step_by(SLOTS) {
            let node = at + first / SLOTS * NODE_WORDS as usize;
            // The population count includes the slot's own bit, so counting starts at one.
            self.words[node + 1] = next as u32 - 1;
            for slot in (first..first + SLOTS).filter(|slot| is_new(*slot)) {
                self.words[node] |= 1 << (slot % SLOTS);
                self.words[next] = slots[slot];
                found.extend(of_inner.next_if(|inner| inner.slot == slot).map(|inner| (next, inner)));
                next += 1;
            }
        }
        for (word, inner) in found {
            self.words[word] = self.write_subtree(inner.leaves, depth + step, inner.shorter);
        }
        at
    }

    /// Writes the structure for longer prefixes, and returns the word that refers to it.
    fn write_subtree(&mut self, leaves: &[Leaf], depth: u32, shorter: u32) -> u32 {
        let ends_in_list = |leaf: &Leaf| leaf.prefix.length <= depth + LIST_MAX_BITS;
        if leaves.len() <= LIST_PREFIXES as usize && leaves.iter().all(ends_in_list) {
            let mut all: Vec<(Prefix, u32)> = leaves.iter().map(|leaf| (leaf.prefix, leaf.word)).collect();
            all.sort_unstable_by_key(|(prefix, _)| prefix.length);
            let at = self.allocate(LIST_WORDS as usize);
            return self.write_list(at, &all, depth, shorter);
        }
        // The prefixes are sorted, so the first and the last share what all share.
        let (first, last) = (leaves[0].prefix.address, leaves[leaves.len() - 1].prefix.address);
        let shortest = leaves.iter().map(|leaf| leaf.prefix.length).min().expect("there are some");
        let length = shortest.min((first ^ last).leading_zeros()).min(depth + LIST_MAX_BITS);
        if length < depth + GROUP_BITS {
            return INNER_FLAG | self.write_nodes(leaves, depth, shorter, None) as u32;
        }
        // A prefix of exactly this length comes before those within it.
        let (own, longer) = leaves.split_at(usize::from(leaves[0].prefix.length == length));
        let at = self.allocate(LIST_WORDS as usize);
        let word = self.write_subtree(longer, length, own.first().map_or(shorter, |leaf| leaf.word));
        self.write_list(at, &[(Prefix { address: first & prefix_mask(length), length }, word)], depth, shorter)
    }

    /// Writes a list of up to three bit strings, shorter ones first, and returns the word that
    /// refers to it.
    fn write_list(&mut self, at: usize, beginnings: &[(Prefix, u32)], depth: u32, none: u32) -> u32 {
        for number in 0..LIST_PREFIXES as usize {
            // Unused positions repeat the last string.
            let (prefix, word) = beginnings[number.min(beginnings.len() - 1)];
            self.words[at] |= (prefix.length - depth) << (8 * number);
            self.words[at + 1 + number] = (prefix.address << depth >> 96) as u32;
            self.words[at + 1 + LIST_PREFIXES as usize + number] = word;
        }
        self.words[at + LIST_WORDS as usize - 1] = none;
        INNER_FLAG | LIST_FLAG | at as u32
    }

    /// Allocates `count` words, padded to a multiple of a group's size.
    fn allocate(&mut self, count: usize) -> usize {
        let at = self.end;
        self.end += count.next_multiple_of(GROUP_WORDS as usize);
        at
    }
}

/// The words of the slots of one node or two, and the subtrees; a slot with a subtree has a
/// distinct placeholder.
fn slots(leaves: &[Leaf], depth: u32, step: u32, shorter: u32) -> ([u32; 2 * SLOTS], Vec<Subtree<'_>>) {
    let (mut words, mut inner) = ([shorter; 2 * SLOTS], Vec::new());
    let mut rest = leaves;
    while let Some(leaf) = rest.first() {
        let slot = leaf.bits(depth, step);
        if let Some(more) = (depth + step).checked_sub(leaf.prefix.length) {
            words[slot..slot + (1 << more)].fill(leaf.word);
            rest = &rest[1..];
            continue;
        }
        // The remaining prefixes of the slot are longer: one as long as the slot would have come
        // first.
        let count = rest.iter().take_while(|leaf| leaf.bits(depth, step) == slot).count();
        let (leaves, others) = rest.split_at(count);
        inner.push(Subtree { slot, shorter: words[slot], leaves });
        words[slot] = INNER_FLAG | slot as u32;
        rest = others;
    }
    (words, inner)
}
