//! Software prefetching of longest-prefix-match searches, step by step for a group of packets.
//!
//! In a large table every step of an LPM search waits for memory that the previous step points to,
//! and the branch predictor guesses the number of steps wrong when it matters most. So one step is
//! made for each packet of a group and the memory that it leads to is prefetched while other groups
//! make theirs; the filter then repeats the search and finds everything in the cache.
//!
//! Results here affect speed only. A table that another thread is changing may lead the search
//! astray, which is harmless: every read stays within the map's words.

use std::sync::atomic::{AtomicU32, Ordering};

use portcullis_core::map::layout::{HEADER_WORDS, Layout};
use portcullis_core::map::lpm::{
    GROUP_BITS, GROUP_WORDS, INNER_FLAG, LIST_FLAG, LIST_PREFIXES, LIST_WORDS, NODE_BITS, NODE_WORDS, ROOT_NODE_STRIDE,
    TrieLayout,
};
use portcullis_core::map::{Declaration, MapKind};

/// Maximum number of steps made ahead: enough for IPv6 prefixes of 48 bits below a root of 19.
pub(super) const MAX_STEPS: usize = 5;

/// Bytes prefetched from where a step leads: enough for most node groups and lists.
pub(super) const STEP_BYTES: usize = 32;

/// Where a packet's first search in a map leads. Prefetch code fills in all fields but `word`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct PrefetchCursor {
    /// Address that the search reads next; null or any address if it is unknown.
    pub address: *const u8,
    /// Address at which the first search in a second map begins, in filters that search two; null
    /// if it is unknown.
    pub second: *const u8,
    /// The map's number plus one in a search for a prefix, 0 in any other.
    pub map: u32,
    /// The word found by the last step.
    word: u32,
    /// The key bits that are left, the next one in the most significant bit of the first element.
    key: [u64; 2],
}

/// Byte offsets of [`PrefetchCursor`]'s fields, for generated code.
pub(super) mod cursor_offset {
    use std::mem::offset_of;

    use super::PrefetchCursor;

    pub const ADDRESS: i32 = offset_of!(PrefetchCursor, address) as i32;
    pub const SECOND: i32 = offset_of!(PrefetchCursor, second) as i32;
    pub const MAP: i32 = offset_of!(PrefetchCursor, map) as i32;
    pub const KEY: i32 = offset_of!(PrefetchCursor, key) as i32;
}

impl PrefetchCursor {
    /// Cursor of a packet without a search.
    pub const NONE: PrefetchCursor =
        PrefetchCursor { address: std::ptr::null(), second: std::ptr::null(), map: 0, word: 0, key: [0; 2] };
}

/// Layout of an LPM map, as far as a search needs it.
#[derive(Debug)]
pub(crate) struct LpmPrefetch {
    trie: TrieLayout,
    layout: Layout,
}

impl LpmPrefetch {
    /// Returns the layout of an LPM map, `None` for any other map.
    pub fn of(map: &Declaration) -> Option<LpmPrefetch> {
        let is_lpm = map.kind == MapKind::Lpm;
        is_lpm.then(|| LpmPrefetch { trie: TrieLayout::of(map), layout: Layout::of(map) })
    }

    /// Makes one step of a search and points the cursor at the next node, or at the value.
    ///
    /// # Safety
    ///
    /// `words` are this map's words.
    #[inline]
    unsafe fn advance(&self, words: *const AtomicU32, cursor: &mut PrefetchCursor, is_first: bool) {
        // SAFETY: the caller's promise; every index is one of the map's words.
        let read = |at: u64| unsafe { (*words.add(at as usize)).load(Ordering::Relaxed) };
        let TrieLayout { root_bits, root, end, .. } = self.trie;
        let start = |word: u32| u64::from(word & !INNER_FLAG & !(GROUP_WORDS - 1)).min(end - u64::from(LIST_WORDS));
        let leaf = |node: u64, slot: u32| {
            let before = (read(node) & (u32::MAX >> (31 - slot))).count_ones();
            read(u64::from(read(node + 1).wrapping_add(before)).min(end - 1))
        };
        let key = u128::from(cursor.key[0]) << 64 | u128::from(cursor.key[1]);
        let first_bits = |count: u32| (key >> (128 - count)) as u32;
        let at = start(cursor.word);
        let used = if is_first {
            let node = root + u64::from(ROOT_NODE_STRIDE * first_bits(root_bits));
            cursor.word = leaf(node, first_bits(root_bits + NODE_BITS) % (1 << NODE_BITS));
            root_bits + NODE_BITS
        } else if cursor.word & LIST_FLAG != 0 {
            let lengths = read(at);
            let none = (read(at + u64::from(LIST_WORDS) - 1), 1);
            let longest_match = |found, number: u32| {
                let length = (lengths >> (8 * number) & 31).max(1);
                let prefix = read(at + u64::from(1 + number));
                let word = read(at + u64::from(1 + LIST_PREFIXES + number));
                if (prefix ^ first_bits(32)) >> (32 - length) == 0 { (word, length) } else { found }
            };
            let (word, length) = (0..LIST_PREFIXES).fold(none, longest_match);
            cursor.word = word;
            length
        } else {
            cursor.word = leaf(at + u64::from(NODE_WORDS * first_bits(1)), first_bits(GROUP_BITS) % (1 << NODE_BITS));
            GROUP_BITS
        };
        let key = key << used;
        cursor.key = [(key >> 64) as u64, key as u64];
        let entry = u64::from(cursor.word.wrapping_sub(1));
        let next = if cursor.word >= INNER_FLAG {
            Some(start(cursor.word))
        } else {
            (entry < u64::from(self.layout.slots))
                .then(|| u64::from(HEADER_WORDS) + entry * u64::from(self.layout.stride))
        };
        cursor.address = next.map_or(std::ptr::null(), |next| words.wrapping_add(next as usize).cast());
    }
}

/// Makes the next step of every search that is not finished, or the first step of all. Returns
/// whether any search has a further step.
///
/// # Safety
///
/// `searches` has an element for each of the maps, and `maps` the addresses of their words.
pub(super) unsafe fn advance_all(
    searches: &[Option<LpmPrefetch>],
    maps: *const *mut u32,
    cursors: &mut [PrefetchCursor],
    is_first: bool,
) -> bool {
    let mut unfinished = false;
    for cursor in cursors {
        cursor.address = std::ptr::null();
        let number = cursor.map.wrapping_sub(1) as usize;
        if let Some(Some(search)) = searches.get(number)
            && (is_first || cursor.word >= INNER_FLAG)
        {
            // SAFETY: `number` is in range for both, and these words are that map's.
            unsafe { search.advance((*maps.add(number)).cast(), cursor, is_first) };
            unfinished |= cursor.word >= INNER_FLAG;
        }
    }
    unfinished
}
