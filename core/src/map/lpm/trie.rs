//! The trie over a map's prefixes: all of it at once, from prefixes in order.

use std::collections::HashMap;

use super::super::declaration::Declaration;
use super::super::layout::{HEADER_CLAIMED, Layout};
use super::prefix_table::FoldHashBuilder;
use super::{
    GROUP_BITS, GROUP_WORDS, HEADER_END, INNER_FLAG, LIST_FLAG, LIST_MAX_BITS, LIST_PREFIXES, LIST_WORDS, NODE_BITS,
    NODE_WORDS, Prefix, ROOT_NODE_STRIDE, TrieLayout, mask,
};

/// Slots of a node.
const SLOTS: usize = 1 << NODE_BITS;

/// A map's memory with these entries, up to where it is used. There are no more than the map has, each prefix once.
///
/// Places are numbered from the shortest prefix on: what most addresses meet lies together.
pub(super) fn image(map: &Declaration, mut entries: Vec<(Prefix, &[u32])>) -> Vec<u32> {
    let (layout, parts) = (Layout::of(map), TrieLayout::of(map));
    let mut words = vec![0; layout.words()];
    entries.sort_unstable_by_key(|(prefix, _)| (prefix.length, prefix.address));
    for (place, (prefix, value)) in (0..).zip(&entries) {
        let at = layout.slot_offset(place);
        words[at..at + value.len()].copy_from_slice(value);
        prefix.write(map, &mut words, place);
    }
    let mut leaves = leaves(map, &entries);
    leaves.sort_unstable_by_key(|leaf| leaf.prefix);
    let mut trie = Trie { words, end: parts.heap as usize };
    trie.root(&parts, &leaves);
    let Trie { mut words, end } = trie;
    (words[HEADER_CLAIMED as usize], words[HEADER_END as usize]) = (leaves.len() as u32, end as u32);
    words.truncate(end);
    words
}

/// The prefixes as the trie has them. Where no filter tells entries of equal values apart, the first of these stands for
/// all: there are few in most tables, so that what is read of them is in the cache.
fn leaves(map: &Declaration, entries: &[(Prefix, &[u32])]) -> Vec<Leaf> {
    let mut firsts: HashMap<&[u32], u32, FoldHashBuilder> = HashMap::default();
    let mut word_of = |word, value| if map.read_only { *firsts.entry(value).or_insert(word) } else { word };
    (1..).zip(entries).map(|(word, (prefix, value))| Leaf { prefix: *prefix, word: word_of(word, *value) }).collect()
}

/// A prefix and the word of the slots that it is the longest of.
struct Leaf {
    prefix: Prefix,
    word: u32,
}

impl Leaf {
    /// Some bits of the address, `depth` bits into it.
    fn bits(&self, depth: u32, count: u32) -> usize {
        (self.prefix.address << depth >> (128 - count)) as usize
    }
}

struct Trie {
    words: Vec<u32>,
    /// Where the next group goes.
    end: usize,
}

/// What lies behind a slot.
struct Inner<'a> {
    slot: usize,
    /// The word where none of its prefixes fits.
    shorter: u32,
    /// Its prefixes.
    leaves: &'a [Leaf],
}

impl Trie {
    fn root(&mut self, parts: &TrieLayout, leaves: &[Leaf]) {
        let bits = parts.root_bits;
        let mut shorter = vec![0; 1 << bits];
        for leaf in leaves.iter().filter(|leaf| leaf.prefix.length <= bits) {
            // Those that it lies in came before it.
            let first = leaf.bits(0, bits);
            shorter[first..first + (1 << (bits - leaf.prefix.length))].fill(leaf.word);
        }
        let mut rest = leaves;
        for (number, word) in shorter.into_iter().enumerate() {
            let count = rest.iter().take_while(|leaf| leaf.bits(0, bits) == number).count();
            let (own, others) = rest.split_at(count);
            rest = others;
            let longer = own.iter().position(|leaf| leaf.prefix.length > bits).unwrap_or(own.len());
            self.nodes(&own[longer..], bits, word, Some(parts.root as usize + number * ROOT_NODE_STRIDE as usize));
        }
    }

    /// Writes a node of the root, or a group wherever there is room, and all behind it; gives where it is. Its prefixes
    /// are in order and longer than `depth`, where its slots' bits begin.
    fn nodes(&mut self, leaves: &[Leaf], depth: u32, shorter: u32, in_root: Option<usize>) -> usize {
        let step = if in_root.is_some() { NODE_BITS } else { GROUP_BITS };
        let (slots, inner) = slots(leaves, depth, step, shorter);
        // A word serves all slots from its own on, to the end of its node at the most.
        let is_new = |slot: usize| slot.is_multiple_of(SLOTS) || slots[slot] != slots[slot - 1];
        let count = (0..1 << step).filter(|slot| is_new(*slot)).count();
        let (at, mut next) = match in_root {
            Some(at) if count <= (ROOT_NODE_STRIDE - NODE_WORDS) as usize => (at, at + NODE_WORDS as usize),
            Some(at) => (at, self.take(count)),
            None => {
                let at = self.take(GROUP_WORDS as usize + count);
                (at, at + GROUP_WORDS as usize)
            }
        };
        let mut of_inner = inner.iter().peekable();
        let mut found = Vec::with_capacity(inner.len());
        for first in (0..1 << step).step_by(SLOTS) {
            let node = at + first / SLOTS * NODE_WORDS as usize;
            // Counting includes the slot's own bit, so that it begins at one.
            self.words[node + 1] = next as u32 - 1;
            for slot in (first..first + SLOTS).filter(|slot| is_new(*slot)) {
                self.words[node] |= 1 << (slot % SLOTS);
                self.words[next] = slots[slot];
                found.extend(of_inner.next_if(|inner| inner.slot == slot).map(|inner| (next, inner)));
                next += 1;
            }
        }
        for (word, inner) in found {
            self.words[word] = self.behind(inner.leaves, depth + step, inner.shorter);
        }
        at
    }

    /// Writes what tells longer prefixes apart, and gives the word for it.
    fn behind(&mut self, leaves: &[Leaf], depth: u32, shorter: u32) -> u32 {
        let ends_in_list = |leaf: &Leaf| leaf.prefix.length <= depth + LIST_MAX_BITS;
        if leaves.len() <= LIST_PREFIXES as usize && leaves.iter().all(ends_in_list) {
            let mut all: Vec<(Prefix, u32)> = leaves.iter().map(|leaf| (leaf.prefix, leaf.word)).collect();
            all.sort_unstable_by_key(|(prefix, _)| prefix.length);
            let at = self.take(LIST_WORDS as usize);
            return self.list(at, &all, depth, shorter);
        }
        // In order, the first and the last have in common what all have.
        let (first, last) = (leaves[0].prefix.address, leaves[leaves.len() - 1].prefix.address);
        let shortest = leaves.iter().map(|leaf| leaf.prefix.length).min().expect("there are some");
        let length = shortest.min((first ^ last).leading_zeros()).min(depth + LIST_MAX_BITS);
        if length < depth + GROUP_BITS {
            return INNER_FLAG | self.nodes(leaves, depth, shorter, None) as u32;
        }
        // The one of this length came before those that lie in it.
        let (own, longer) = leaves.split_at(usize::from(leaves[0].prefix.length == length));
        let at = self.take(LIST_WORDS as usize);
        let word = self.behind(longer, length, own.first().map_or(shorter, |leaf| leaf.word));
        self.list(at, &[(Prefix { address: first & mask(length), length }, word)], depth, shorter)
    }

    /// Writes a list of up to three beginnings, of which the shorter come first, and gives the word for it.
    fn list(&mut self, at: usize, beginnings: &[(Prefix, u32)], depth: u32, none: u32) -> u32 {
        for number in 0..LIST_PREFIXES as usize {
            // Where they are fewer the last is there again.
            let (prefix, word) = beginnings[number.min(beginnings.len() - 1)];
            self.words[at] |= (prefix.length - depth) << (8 * number);
            self.words[at + 1 + number] = (prefix.address << depth >> 96) as u32;
            self.words[at + 1 + LIST_PREFIXES as usize + number] = word;
        }
        self.words[at + LIST_WORDS as usize - 1] = none;
        INNER_FLAG | LIST_FLAG | at as u32
    }

    /// Room for so many words.
    fn take(&mut self, count: usize) -> usize {
        let at = self.end;
        self.end += count.next_multiple_of(GROUP_WORDS as usize);
        at
    }
}

/// The words of the slots of one node or two, in which all that lies behind a slot has a word of its own, and that.
fn slots(leaves: &[Leaf], depth: u32, step: u32, shorter: u32) -> ([u32; 2 * SLOTS], Vec<Inner<'_>>) {
    let (mut words, mut inner) = ([shorter; 2 * SLOTS], Vec::new());
    let mut rest = leaves;
    while let Some(leaf) = rest.first() {
        let slot = leaf.bits(depth, step);
        if let Some(more) = (depth + step).checked_sub(leaf.prefix.length) {
            words[slot..slot + (1 << more)].fill(leaf.word);
            rest = &rest[1..];
            continue;
        }
        // All of the slot's that are left are longer: one as long as the slot came before them.
        let count = rest.iter().take_while(|leaf| leaf.bits(depth, step) == slot).count();
        let (leaves, others) = rest.split_at(count);
        inner.push(Inner { slot, shorter: words[slot], leaves });
        words[slot] = INNER_FLAG | slot as u32;
        rest = others;
    }
    (words, inner)
}
