//! Searches for prefixes, made ahead of the filter: step by step, each for many packets at a time.
//!
//! In a large table each step of such a search waits for memory to which the one before has led, and how many there will
//! be is guessed wrong where that matters. So a step is made for a group of packets, and what it leads to is fetched
//! while other groups make theirs. The filter then searches again, where everything is at hand. So nothing but time depends
//! on what is found here, and memory that makes no sense is no harm as long as what is read lies in it.

use std::sync::atomic::{AtomicU32, Ordering};

use portcullis_core::map::layout::{HEADER_WORDS, Layout};
use portcullis_core::map::lpm::{
    GROUP_BITS, GROUP_WORDS, INNER_FLAG, LIST_FLAG, LIST_PREFIXES, LIST_WORDS, NODE_BITS, NODE_WORDS, ROOT_NODE_STRIDE,
    TrieLayout,
};
use portcullis_core::map::{Declaration, MapKind};

/// Steps that are made ahead: enough for IPv6 prefixes of 48 bits below a root of 19.
pub(crate) const STEPS: usize = 5;

/// Bytes of a group or a list that are fetched: all of most.
pub(crate) const FETCHED: usize = 32;

/// Where a packet's first search leads. Code that runs ahead writes it, all but the word.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Lead {
    /// What will be read next; null, or any address, where that is not known.
    pub place: *const u8,
    /// Of a search for a prefix the map's number and one.
    pub map: u32,
    /// The word that the last step has found.
    word: u32,
    /// The bits of the address that are left, the first the highest of the first.
    key: [u64; 2],
}

/// Where [`Lead`]'s fields are, in bytes.
pub(crate) mod lead_offset {
    use std::mem::offset_of;

    use super::Lead;

    pub const PLACE: i32 = offset_of!(Lead, place) as i32;
    pub const MAP: i32 = offset_of!(Lead, map) as i32;
    pub const KEY: i32 = offset_of!(Lead, key) as i32;
}

impl Lead {
    /// To nowhere.
    pub const NONE: Lead = Lead { place: std::ptr::null(), map: 0, word: 0, key: [0; 2] };
}

/// How a map of prefixes is searched.
#[derive(Debug)]
pub(crate) struct Walk {
    parts: TrieLayout,
    layout: Layout,
}

impl Walk {
    /// In a map of prefixes.
    pub fn of(map: &Declaration) -> Option<Walk> {
        let is_one = map.kind == MapKind::Lpm;
        is_one.then(|| Walk { parts: TrieLayout::of(map), layout: Layout::of(map) })
    }

    /// Makes a step of a search, and says where the next will be, or the value.
    ///
    /// # Safety
    /// The words are the map's.
    #[inline]
    unsafe fn step(&self, words: *const AtomicU32, lead: &mut Lead, is_first: bool) {
        // SAFETY: the caller's promise; every number is one of the map's words.
        let read = |at: u64| unsafe { (*words.add(at as usize)).load(Ordering::Relaxed) };
        let TrieLayout { root_bits, root, end, .. } = self.parts;
        let start = |word: u32| u64::from(word & !INNER_FLAG & !(GROUP_WORDS - 1)).min(end - u64::from(LIST_WORDS));
        let leaf = |node: u64, slot: u32| {
            let before = (read(node) & (u32::MAX >> (31 - slot))).count_ones();
            read(u64::from(read(node + 1).wrapping_add(before)).min(end - 1))
        };
        let key = u128::from(lead.key[0]) << 64 | u128::from(lead.key[1]);
        let first_bits = |count: u32| (key >> (128 - count)) as u32;
        let at = start(lead.word);
        let used = if is_first {
            let node = root + u64::from(ROOT_NODE_STRIDE * first_bits(root_bits));
            lead.word = leaf(node, first_bits(root_bits + NODE_BITS) % (1 << NODE_BITS));
            root_bits + NODE_BITS
        } else if lead.word & LIST_FLAG != 0 {
            let lengths = read(at);
            let none = (read(at + u64::from(LIST_WORDS) - 1), 1);
            let beginning = |found, number: u32| {
                let length = (lengths >> (8 * number) & 31).max(1);
                let there = read(at + u64::from(1 + number));
                let word = read(at + u64::from(1 + LIST_PREFIXES + number));
                if (there ^ first_bits(32)) >> (32 - length) == 0 { (word, length) } else { found }
            };
            let (word, length) = (0..LIST_PREFIXES).fold(none, beginning);
            lead.word = word;
            length
        } else {
            lead.word = leaf(at + u64::from(NODE_WORDS * first_bits(1)), first_bits(GROUP_BITS) % (1 << NODE_BITS));
            GROUP_BITS
        };
        let key = key << used;
        lead.key = [(key >> 64) as u64, key as u64];
        let entry = u64::from(lead.word.wrapping_sub(1));
        let next = if lead.word >= INNER_FLAG {
            Some(start(lead.word))
        } else {
            (entry < u64::from(self.layout.slots))
                .then(|| u64::from(HEADER_WORDS) + entry * u64::from(self.layout.stride))
        };
        lead.place = next.map_or(std::ptr::null(), |next| words.wrapping_add(next as usize).cast());
    }
}

/// Makes the next step of those searches that go on, which may be the first of each; whether any has one more.
///
/// # Safety
/// There is a way for each of the maps, whose words begin where `maps` says.
pub(crate) unsafe fn step(ways: &[Option<Walk>], maps: *const *mut u32, leads: &mut [Lead], is_first: bool) -> bool {
    let mut goes_on = false;
    for lead in leads {
        lead.place = std::ptr::null();
        let number = lead.map.wrapping_sub(1) as usize;
        if let Some(Some(walk)) = ways.get(number)
            && (is_first || lead.word >= INNER_FLAG)
        {
            // SAFETY: there are as many maps as ways, and these words are this one's.
            unsafe { walk.step((*maps.add(number)).cast(), lead, is_first) };
            goes_on |= lead.word >= INNER_FLAG;
        }
    }
    goes_on
}
