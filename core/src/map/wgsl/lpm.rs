//! Longest-prefix match in WGSL, over the structure that `map::lpm` describes.
//!
//! The number of steps is bounded by the trie's depth, and every index read from memory is clamped
//! to the memory's end. So a search terminates and stays in bounds whatever the memory contains.

use crate::map::declaration::Declaration;
use crate::map::lpm::{
    GROUP_BITS, INNER_FLAG, LIST_FLAG, LIST_PREFIXES, LIST_WORDS, NODE_BITS, ROOT_NODE_STRIDE, TrieLayout,
};

/// The word of a node's slot: a population count up to and including the slot's bit.
const NODE_TEXT: &str = "
fn pc_in_NAME_leaf(node: u32, slot: u32) -> u32 {
    let bits = atomicLoad(&pc_map_NAME[node]) & (0xffffffffu >> (31u - slot));
    let at = atomicLoad(&pc_map_NAME[node + 1u]) + countOneBits(bits);
    return atomicLoad(&pc_map_NAME[min(at, LASTu)]);
}
";

/// The word of the last matching bit string in a list, and the string's length.
const LIST_TEXT: &str = "
fn pc_in_NAME_listed(list: u32, rest: u32) -> vec2<u32> {
    let lengths = atomicLoad(&pc_map_NAME[list]);
    var found = vec2<u32>(atomicLoad(&pc_map_NAME[list + NONEu]), 1u);
BEGINNINGS
    return found;
}
";

/// One bit string of a list.
const LIST_ENTRY_TEXT: &str = "    let lengthI = max((lengths >> SHIFTu) & 31u, 1u);
    let fitsI = ((rest ^ atomicLoad(&pc_map_NAME[list + BITSu])) >> (32u - lengthI)) == 0u;
    found = select(found, vec2<u32>(atomicLoad(&pc_map_NAME[list + WORDu]), lengthI), fitsI);";

const IPV4_TEXT: &str = "
fn NAME_find(address: u32) -> u32 {
    var leaf = pc_in_NAME_leaf(ROOTu + (address >> OTHER_BITSu) * LINEu, (address << ROOT_BITSu) >> 27u);
    var rest = address << TOLD_APARTu;
    for (var level = 0u; level < LEVELSu; level = level + 1u) {
        if leaf < INNERu { break; }
        let at = min(leaf & 0x7ffffffcu, LAST_STARTu);
        if (leaf & LISTEDu) != 0u {
            let found = pc_in_NAME_listed(at, rest);
            leaf = found.x;
            rest = rest << found.y;
        } else {
            leaf = pc_in_NAME_leaf(at + (rest >> 31u) * 2u, (rest >> 26u) & 31u);
            rest = rest << STEPu;
        }
    }
    return leaf - 1u;
}
";

const IPV6_TEXT: &str = "
fn pc_in_NAME_behind(address: vec4<u32>, bits: u32) -> vec4<u32> {
    let more = 32u - bits;
    return vec4<u32>(
        (address.x << bits) | (address.y >> more),
        (address.y << bits) | (address.z >> more),
        (address.z << bits) | (address.w >> more),
        address.w << bits,
    );
}

fn NAME_find(address: vec4<u32>) -> u32 {
    var leaf = pc_in_NAME_leaf(ROOTu + (address.x >> OTHER_BITSu) * LINEu, (address.x << ROOT_BITSu) >> 27u);
    if leaf < INNERu { return leaf - 1u; }
    var rest = pc_in_NAME_behind(address, TOLD_APARTu);
    for (var level = 0u; level < LEVELSu; level = level + 1u) {
        if leaf < INNERu { break; }
        let at = min(leaf & 0x7ffffffcu, LAST_STARTu);
        if (leaf & LISTEDu) != 0u {
            let found = pc_in_NAME_listed(at, rest.x);
            leaf = found.x;
            rest = pc_in_NAME_behind(rest, found.y);
        } else {
            leaf = pc_in_NAME_leaf(at + (rest.x >> 31u) * 2u, (rest.x >> 26u) & 31u);
            rest = pc_in_NAME_behind(rest, STEPu);
        }
    }
    return leaf - 1u;
}
";

/// Source of `NAME_find`, in which the map's name is still to be filled in.
pub(super) fn find(map: &Declaration) -> String {
    let TrieLayout { root_bits, levels, root, end, .. } = TrieLayout::of(map);
    let numbers = [
        ("ROOT", root as u32),
        ("ROOT_BITS", root_bits),
        ("TOLD_APART", root_bits + NODE_BITS),
        ("OTHER_BITS", 32 - root_bits),
        ("LINE", ROOT_NODE_STRIDE),
        ("LEVELS", levels),
        ("STEP", GROUP_BITS),
        ("INNER", INNER_FLAG),
        ("LISTED", LIST_FLAG),
        ("NONE", LIST_WORDS - 1),
        ("LAST", end as u32 - 1),
        ("LAST_START", end as u32 - LIST_WORDS),
    ];
    let beginning = |number: u32| {
        let numbers = [("SHIFTu", 8 * number), ("BITSu", 1 + number), ("WORDu", 1 + LIST_PREFIXES + number)];
        let text =
            numbers.iter().fold(LIST_ENTRY_TEXT.to_owned(), |text, (name, n)| text.replace(name, &format!("{n}u")));
        text.replace("lengthI", &format!("length{number}")).replace("fitsI", &format!("fits{number}"))
    };
    let listed = LIST_TEXT.replace("BEGINNINGS", &(0..LIST_PREFIXES).map(beginning).collect::<Vec<_>>().join("\n"));
    let text = format!("{NODE_TEXT}{listed}{}", if map.key == 1 { IPV4_TEXT } else { IPV6_TEXT });
    numbers.iter().fold(text, |text, (name, number)| text.replace(&format!("{name}u"), &format!("{number}u")))
}
