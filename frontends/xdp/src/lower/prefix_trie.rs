//! LPM tries that are more than tables of addresses: searched for prefixes that are shorter than an address, changed by
//! programs, or with keys of other sizes than IPv4's and IPv6's. They are hashes by prefix: the length, and the bits with zeros
//! behind them. Of a key the longest prefix is looked for, then the next shorter one, and so on down to the shortest: as
//! many searches as it has bits, at most. (`map::lpm`'s takes five, and the host alone can change it.)

/// The functions of such a map, by the type of its keys and how many words and bits those have.
pub(crate) fn runtime_text(key: &str, words: u32, bits: u32) -> String {
    let masked: Vec<String> =
        (1..words).map(|it| format!("key[{it}] & x_prefix_mask(length, {}u)", 32 * (it - 1))).collect();
    let masked = format!("{key}(length, {})", masked.join(", "));
    FUNCTIONS.replace("MASKED", &masked).replace("BITS", &bits.to_string())
}

const FUNCTIONS: &str = "
// The entry of the longest prefix that a key begins with, of those no longer than it (`trie_lookup_elem`).
fn x_NAME_prefix_find(key: KEY) -> u32 {
    if key[0] > BITSu { return MAP_NONE; }
    var length = key[0];
    for (var tries = 0u; tries <= BITSu; tries = tries + 1u) {
        let entry = NAME_find(MASKED);
        if entry != MAP_NONE || length == 0u { return entry; }
        length = length - 1u;
    }
    return MAP_NONE;
}

fn x_NAME_prefix_update(key: KEY, flags: u32) -> u32 {
    let length = key[0];
    if length > BITSu { return 0xfffffffcu; }
    return x_NAME_update(MASKED, flags);
}

// 0 where it was there, 1 where it was not, 2 where there is no such prefix.
fn x_NAME_prefix_remove(key: KEY) -> u32 {
    let length = key[0];
    if length > BITSu { return 2u; }
    return select(1u, 0u, NAME_remove(MASKED));
}
";
