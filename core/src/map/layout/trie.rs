//! Layout of a prefix map's lookup structure (`lpm`).

use super::super::declaration::Declaration;
use super::HEADER_WORDS;

/// Address bits that a node resolves.
pub const NODE_BITS: u32 = 5;

/// Words of a node: the bit vector, then the index of the word before the node's first.
pub const NODE_WORDS: u32 = 2;

/// Address bits that a group resolves.
pub const GROUP_BITS: u32 = NODE_BITS + 1;

/// Words of a group, which consists of two nodes.
pub const GROUP_WORDS: u32 = 2 * NODE_WORDS;

/// Words from one root node to the next: a cache line, which most nodes' words fit in as well.
pub const ROOT_NODE_STRIDE: u32 = 16;

/// Set in a slot's word that refers to a group or a list rather than an entry.
pub const INNER_FLAG: u32 = 0x8000_0000;

/// Set, in addition, if it refers to a list. Groups and lists start at multiples of four words, so
/// the low bits are free.
pub const LIST_FLAG: u32 = 1;

/// Number of bit strings in a list.
pub const LIST_PREFIXES: u32 = 3;

/// Words of a list: the lengths of the bit strings, 8 bits each; the bit strings, left-aligned; a
/// word for each; and the word for addresses that match none. Shorter strings come first, and the
/// last match wins.
pub const LIST_WORDS: u32 = 2 + 2 * LIST_PREFIXES;

/// Maximum length of a bit string in a list.
pub const LIST_MAX_BITS: u32 = 31;

/// Where a prefix map's parts are, behind its values. Word indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrieLayout {
    /// Number of address bits that index the root nodes.
    pub root_bits: u32,
    /// Maximum number of groups and lists that a search visits below the root.
    pub levels: u32,
    /// The first prefix: the address's words, then the length plus one, or zero if there is none.
    pub prefixes: u64,
    /// The first root node.
    pub root: u64,
    /// The first group or list, or word that does not fit into the root.
    pub heap: u64,
    /// End of the memory.
    pub end: u64,
}

impl TrieLayout {
    /// The layout of a declared map.
    pub fn of(map: &Declaration) -> TrieLayout {
        let (entries, bits) = (u64::from(map.entries), address_bits(map));
        // IPv4 routes are spread over more of the first bits than IPv6 routes.
        let nodes = if bits == 32 { 8 * entries } else { 2 * entries };
        let root_bits = [19, 13].into_iter().find(|root_bits| 1 << root_bits <= nodes).unwrap_or(7);
        let told_apart = root_bits + NODE_BITS;
        let levels = (bits - told_apart).div_ceil(GROUP_BITS);
        let prefixes = u64::from(HEADER_WORDS) + entries * u64::from(map.value);
        let root = (prefixes + entries * u64::from(map.key + 1)).next_multiple_of(ROOT_NODE_STRIDE.into());
        let heap = root + (u64::from(ROOT_NODE_STRIDE) << root_bits);
        // Each group or list exists for a longer prefix, and each except a prefix's last takes it
        // at least six bits further. A group has a word for each node, and at most two for each
        // prefix that ends in it or continues below it. Padded to a multiple of four words, that is
        // at most four for each of these and four for its nodes. A list in which prefixes end takes
        // eight words instead of theirs; any other list takes the words of the group or list below
        // it.
        let inner = entries * u64::from(levels);
        TrieLayout { root_bits, levels, prefixes, root, heap, end: heap + 8 * inner + 4 * entries }
    }
}

/// Number of bits of an address.
pub fn address_bits(map: &Declaration) -> u32 {
    32 * map.key
}
