//! Operands for expressions, and how a filter takes them from its packet and stores what comes of
//! them. Here they are computed with by Rust as well; `compat-tests/src/operators.rs` takes this
//! file in and compares every device with the interpreter.

/// Values at which integers of 32 and 64 bits are peculiar.
const EDGES: &[u64] = &[
    0,
    1,
    2,
    7,
    31,
    32,
    33,
    63,
    64,
    0x7fff_ffff,
    0x8000_0000,
    0x8000_0001,
    0xffff_fffe,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_ffff_fffe,
    0xffff_ffff_ffff_ffff,
    0x0123_4567_89ab_cdef,
    0xdead_beef_0bad_f00d,
];

/// Every pair of [`EDGES`] with a third number.
pub fn pairs() -> Vec<[u64; 3]> {
    let third = |i: usize| EDGES[(i * 7 + 3) % EDGES.len()];
    EDGES.iter().flat_map(|&a| EDGES.iter().enumerate().map(move |(i, &b)| [a, b, third(i)])).collect()
}

/// The 8 bytes from `at` on, little-endian, as a value of type `ty`: of a narrower type the lowest
/// bytes; a bool is whether the lowest 32 bits are not zero.
pub fn load(ty: &str, at: usize) -> String {
    let low = format!("load_le32(pkt, {at}u)");
    match ty {
        "u64" | "i64" => format!("{ty}(u64({low}) | (u64(load_le32(pkt, {}u)) << 32u))", at + 4),
        "bool" => format!("({low} != 0u)"),
        "f32" => format!("bitcast<f32>({low})"),
        _ => format!("{ty}({low})"),
    }
}

/// Stores the value of a name, of type `ty`, from `at` on: 8 bytes of 64 bits, 4 of all else.
pub fn store(name: &str, ty: &str, at: usize) -> String {
    match ty {
        "u64" | "i64" => {
            format!("store_le32(pkt, {at}u, u32(u64({name}))); store_le32(pkt, {}u, u32(u64({name}) >> 32u));", at + 4)
        }
        "f32" => format!("store_le32(pkt, {at}u, bitcast<u32>({name}));"),
        _ => format!("store_le32(pkt, {at}u, u32({name}));"),
    }
}
