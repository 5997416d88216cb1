//! LPM tries that need more than `map::lpm` offers: searched for prefixes shorter than an address,
//! changed by programs, or with keys other than IPv4 and IPv6 addresses.
//!
//! They are hashes keyed by prefix length and masked bits. A search tries the longest prefix of the
//! key first, then ever shorter ones: at most one probe per bit, where `map::lpm` takes five but
//! only the host can change it.

/// WGSL functions of such a map: `key` is the type of its keys, which have so many words and
/// address bits.
pub(crate) fn runtime_text(key: &str, words: u32, bits: u32) -> String {
    let masked: Vec<String> =
        (1..words).map(|it| format!("key[{it}] & x_prefix_mask(length, {}u)", 32 * (it - 1))).collect();
    let masked = format!("{key}(length, {})", masked.join(", "));
    FUNCTIONS.replace("MASKED", &masked).replace("BITS", &bits.to_string())
}

const FUNCTIONS: &str = "
// The entry with the longest prefix of the key that is not longer than it (`trie_lookup_elem`).
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

// 0 if the prefix was removed, 1 if it was not there, 2 if its length is invalid.
fn x_NAME_prefix_remove(key: KEY) -> u32 {
    let length = key[0];
    if length > BITSu { return 2u; }
    return select(1u, 0u, NAME_remove(MASKED));
}
";
