//! Operands for expressions, and WGSL text that loads them from a packet and stores the result.
//! Tests here compare with Rust; `compat-tests/src/operators.rs` includes this file to compare
//! every device with the interpreter.

/// Boundary values of 32-bit and 64-bit integers.
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

/// Every pair of [`EDGES`], with a third operand.
pub fn pairs() -> Vec<[u64; 3]> {
    let third = |i: usize| EDGES[(i * 7 + 3) % EDGES.len()];
    EDGES.iter().flat_map(|&a| EDGES.iter().enumerate().map(move |(i, &b)| [a, b, third(i)])).collect()
}

/// WGSL that loads a value of type `ty` from the 8 little-endian bytes at `at`: the low bytes for a
/// narrower type; a bool is whether the low 32 bits are not zero.
pub fn load(ty: &str, at: usize) -> String {
    let low = format!("load_le32(pkt, {at}u)");
    match ty {
        "u64" | "i64" => format!("{ty}(u64({low}) | (u64(load_le32(pkt, {}u)) << 32u))", at + 4),
        "bool" => format!("({low} != 0u)"),
        "f32" => format!("bitcast<f32>({low})"),
        _ => format!("{ty}({low})"),
    }
}

/// WGSL that stores the variable `name` of type `ty` at `at`: 8 bytes for 64-bit types, 4
/// otherwise.
pub fn store(name: &str, ty: &str, at: usize) -> String {
    match ty {
        "u64" | "i64" => {
            format!("store_le32(pkt, {at}u, u32(u64({name}))); store_le32(pkt, {}u, u32(u64({name}) >> 32u));", at + 4)
        }
        "f32" => format!("store_le32(pkt, {at}u, bitcast<u32>({name}));"),
        _ => format!("store_le32(pkt, {at}u, u32({name}));"),
    }
}
