//! Suggestions for types and functions of other C dialects (Linux, eBPF, GCC built-ins), for errors
//! about unknown names.

/// Suggests a replacement for another dialect's type or specifier.
pub(super) fn suggest_type(name: &str) -> Option<String> {
    let bare = name.strip_suffix("_t").unwrap_or(name).trim_start_matches('_');
    let type_of = |bits: &str, signed: bool| {
        let name = match (bits, signed) {
            ("8", true) => "char",
            ("8", false) => "uchar",
            ("16", true) => "short",
            ("16", false) => "ushort",
            ("32", true) => "int",
            ("32", false) => "uint",
            ("64", true) => "long",
            ("64", false) => "ulong",
            _ => return None,
        };
        Some(format!("in OpenCL C that is `{name}`"))
    };
    for (prefix, signed) in [
        ("u_int", false),
        ("uint", false),
        ("int", true),
        ("be", false),
        ("le", false),
        ("sum", false),
        ("u", false),
        ("s", true),
    ] {
        if let Some(bits) = bare.strip_prefix(prefix) {
            return type_of(bits, signed);
        }
    }
    matches!(bare, "always_inline" | "noinline" | "forceinline")
        .then(|| "leave it out: like `static` and `inline`, it has no effect here".into())
}

/// Suggests a replacement for a call of another dialect's function.
pub(super) fn suggest_function(name: &str) -> Option<&'static str> {
    let bare = name.trim_start_matches("__").trim_start_matches("builtin_").trim_start_matches("bpf_");
    Some(match bare.trim_start_matches("constant_") {
        "memcpy" | "memmove" => "assign a structure: `*(__global struct s *)to = *(__global struct s *)from`",
        "memset" | "memcmp" => "use a loop, or a structure of that size",
        "expect" | "likely" | "unlikely" => "leave it out and write the condition alone",
        "ntohs" | "be16_to_cpu" => "`ntohs` does that",
        "htons" | "cpu_to_be16" => "`htons` does that",
        "ntohl" | "be32_to_cpu" => "`ntohl` does that",
        "htonl" | "cpu_to_be32" => "`htonl` does that",
        "bswap16" => "`ntohs` does that",
        "bswap32" => "`ntohl` does that",
        "xdp_adjust_head" => "`adjust_head(pkt, delta)` does that",
        "xdp_adjust_tail" => "`adjust_tail(pkt, delta)` does that",
        "redirect" => "`redirect(port)` does that",
        "ktime_get_ns" => "`pkt_time(pkt)` is the packet's arrival time",
        "map_lookup_elem" => {
            "a map `flows` has `flows_find(key)`, which returns an entry, and `flows_read(entry, word)`"
        }
        "map_update_elem" => {
            "a map `flows` has `flows_insert(key)`, which returns an entry, and `flows_write(entry, word, value)`"
        }
        "map_delete_elem" => "a map `flows` has `flows_remove(key)`",
        "sync_fetch_and_add" => {
            "a map `flows` has `flows_add(entry, word, amount)`; for data of the packet use `x += 1`"
        }
        "popcountll" | "popcountl" => "`popcount` does that",
        "clzll" | "clzl" => "`clz` does that",
        _ => return None,
    })
}
