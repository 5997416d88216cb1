//! Finding the longest prefix that an address begins with.
//!
//! Each step is bounded by the depth, and each number that is read out of memory by the memory's end: whatever is in
//! there, a search ends, and stays inside.

use crate::map::declare::Declaration;
use crate::map::lpm::{GROUP, INNER, LINE, Parts, STEP};

/// What is found in a group: bits are counted up to the slot's own, in the half that it lies in.
const LEAF: &str = "
fn pc_NAME_leaf(group: u32, slot: u32) -> u32 {
    let half = group + ((slot >> 4u) & 2u);
    let bits = atomicLoad(&pc_map_NAME[half]) & (0xffffffffu >> (31u - (slot & 31u)));
    let at = atomicLoad(&pc_map_NAME[half + 1u]) + countOneBits(bits);
    return atomicLoad(&pc_map_NAME[min(at, LASTu)]);
}
";

const IPV4: &str = "
fn NAME_find(address: u32) -> u32 {
    var rest = address << ROOT_BITSu;
    var leaf = pc_NAME_leaf(ROOTu + (address >> OTHER_BITSu) * LINEu, rest >> SLOTu);
    for (var level = 0u; level < LEVELSu; level = level + 1u) {
        if leaf < INNERu { break; }
        rest = rest << STEPu;
        leaf = pc_NAME_leaf(min(leaf - INNERu, LAST_GROUPu), rest >> SLOTu);
    }
    return leaf - 1u;
}
";

const IPV6: &str = "
fn pc_NAME_behind(address: vec4<u32>, bits: u32) -> vec4<u32> {
    let more = 32u - bits;
    return vec4<u32>(
        (address.x << bits) | (address.y >> more),
        (address.y << bits) | (address.z >> more),
        (address.z << bits) | (address.w >> more),
        address.w << bits,
    );
}

fn NAME_find(address: vec4<u32>) -> u32 {
    var rest = pc_NAME_behind(address, ROOT_BITSu);
    var leaf = pc_NAME_leaf(ROOTu + (address.x >> OTHER_BITSu) * LINEu, rest.x >> SLOTu);
    for (var level = 0u; level < LEVELSu; level = level + 1u) {
        if leaf < INNERu { break; }
        rest = pc_NAME_behind(rest, STEPu);
        leaf = pc_NAME_leaf(min(leaf - INNERu, LAST_GROUPu), rest.x >> SLOTu);
    }
    return leaf - 1u;
}
";

/// The text of `NAME_find`, in which the map's name is left to be put in.
pub(super) fn find(map: &Declaration) -> String {
    let Parts { root_bits, levels, root, end, .. } = Parts::of(map);
    let numbers = [
        ("ROOT", root as u32),
        ("ROOT_BITS", root_bits),
        ("OTHER_BITS", 32 - root_bits),
        ("LINE", LINE),
        ("LEVELS", levels),
        ("STEP", STEP),
        ("SLOT", 32 - STEP),
        ("INNER", INNER),
        ("LAST", end as u32 - 1),
        ("LAST_GROUP", end as u32 - GROUP),
    ];
    let text = format!("{LEAF}{}", if map.key == 1 { IPV4 } else { IPV6 });
    numbers.iter().fold(text, |text, (name, number)| text.replace(&format!("{name}u"), &format!("{number}u")))
}
