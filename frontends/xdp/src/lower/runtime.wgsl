// Runtime functions of XDP programs, besides the prelude. 64-bit numbers are pairs of words, the
// low one first.

fn x_adjust_head(pkt: u32, delta: u32) -> bool {
    return adjust_head(pkt, bitcast<i32>(delta));
}

fn x_adjust_tail(pkt: u32, delta: u32) -> bool {
    return adjust_tail(pkt, bitcast<i32>(delta));
}

// Mask of the bits of a prefix within its word, of which `before` bits come earlier; in network
// byte order.
fn x_prefix_mask(length: u32, before: u32) -> u32 {
    let bits = min(max(length, before) - before, 32u);
    if bits == 0u { return 0u; }
    let mask = 0xffffffffu << (32u - bits);
    return (mask >> 24u) | ((mask >> 8u) & 0xff00u) | ((mask << 8u) & 0xff0000u) | (mask << 24u);
}

fn x_sdiv32(a: u32, b: u32) -> u32 {
    return select(bitcast<u32>(bitcast<i32>(a) / bitcast<i32>(b)), 0u, b == 0u);
}

fn x_srem32(a: u32, b: u32) -> u32 {
    return select(bitcast<u32>(bitcast<i32>(a) % bitcast<i32>(b)), a, b == 0u);
}

fn x_div64(al: u32, ah: u32, bl: u32, bh: u32) -> vec2<u32> {
    if (bl | bh) == 0u { return vec2<u32>(0u, 0u); }
    let quotient = ((u64(ah) << 32u) | u64(al)) / ((u64(bh) << 32u) | u64(bl));
    return vec2<u32>(u32(quotient), u32(quotient >> 32u));
}

fn x_rem64(al: u32, ah: u32, bl: u32, bh: u32) -> vec2<u32> {
    if (bl | bh) == 0u { return vec2<u32>(al, ah); }
    let rest = ((u64(ah) << 32u) | u64(al)) % ((u64(bh) << 32u) | u64(bl));
    return vec2<u32>(u32(rest), u32(rest >> 32u));
}

fn x_sdiv64(al: u32, ah: u32, bl: u32, bh: u32) -> vec2<u32> {
    if (bl | bh) == 0u { return vec2<u32>(0u, 0u); }
    let quotient = bitcast<u64>(bitcast<i64>((u64(ah) << 32u) | u64(al)) / bitcast<i64>((u64(bh) << 32u) | u64(bl)));
    return vec2<u32>(u32(quotient), u32(quotient >> 32u));
}

fn x_srem64(al: u32, ah: u32, bl: u32, bh: u32) -> vec2<u32> {
    if (bl | bh) == 0u { return vec2<u32>(al, ah); }
    let rest = bitcast<u64>(bitcast<i64>((u64(ah) << 32u) | u64(al)) % bitcast<i64>((u64(bh) << 32u) | u64(bl)));
    return vec2<u32>(u32(rest), u32(rest >> 32u));
}

// Shifts by a count modulo 64. Bits that cross halves are shifted by 31 - n and once more, which
// gives zero for n = 0.
fn x_shl64(low: u32, high: u32, by: u32) -> vec2<u32> {
    let n = by & 31u;
    let up = (high << n) | ((low >> (31u - n)) >> 1u);
    return select(vec2<u32>(low << n, up), vec2<u32>(0u, low << n), (by & 32u) != 0u);
}

fn x_shr64(low: u32, high: u32, by: u32) -> vec2<u32> {
    let n = by & 31u;
    let down = (low >> n) | ((high << (31u - n)) << 1u);
    return select(vec2<u32>(down, high >> n), vec2<u32>(high >> n, 0u), (by & 32u) != 0u);
}

fn x_sar64(low: u32, high: u32, by: u32) -> vec2<u32> {
    let n = by & 31u;
    let down = (low >> n) | ((high << (31u - n)) << 1u);
    let top = bitcast<u32>(bitcast<i32>(high) >> n);
    let sign = bitcast<u32>(bitcast<i32>(high) >> 31u);
    return select(vec2<u32>(down, top), vec2<u32>(top, sign), (by & 32u) != 0u);
}

// Mixes a word into a hash; a bijection in either argument.
fn x_mix(hash: u32, word: u32) -> u32 {
    let h = (hash ^ word) * 0x9e3779b1u;
    return ((h << 15u) | (h >> 17u)) + 0x68e31da4u;
}

// Hash of seed, arrival time, port, lengths and the first 64 bytes of a packet.
fn x_hash_packet(pkt: u32, seed: u32) -> u32 {
    let time = pkt_time(pkt);
    var h = x_mix(seed, time.x);
    h = x_mix(h, time.y);
    h = x_mix(h, pkt_port(pkt));
    h = x_mix(h, pkt_len(pkt));
    h = x_mix(h, pkt_wire_len(pkt));
    h = x_mix(h, load_le32(pkt, 0u));
    h = x_mix(h, load_le32(pkt, 4u));
    h = x_mix(h, load_le32(pkt, 8u));
    h = x_mix(h, load_le32(pkt, 12u));
    h = x_mix(h, load_le32(pkt, 16u));
    h = x_mix(h, load_le32(pkt, 20u));
    h = x_mix(h, load_le32(pkt, 24u));
    h = x_mix(h, load_le32(pkt, 28u));
    h = x_mix(h, load_le32(pkt, 32u));
    h = x_mix(h, load_le32(pkt, 36u));
    h = x_mix(h, load_le32(pkt, 40u));
    h = x_mix(h, load_le32(pkt, 44u));
    h = x_mix(h, load_le32(pkt, 48u));
    h = x_mix(h, load_le32(pkt, 52u));
    h = x_mix(h, load_le32(pkt, 56u));
    h = x_mix(h, load_le32(pkt, 60u));
    return h;
}

// The random number at a position of the packet's sequence. The finaliser is lowbias32 (Chris
// Wellons, Prospecting for Hash Functions, 2018): every bit depends on all others.
fn x_random(packet: u32, place: u32) -> u32 {
    var h = x_mix(packet, place);
    h = (h ^ (h >> 16u)) * 0x7feb352du;
    h = (h ^ (h >> 15u)) * 0x846ca68bu;
    return h ^ (h >> 16u);
}

// Four bytes of the packet; zeros past its end.
fn x_bytes(pkt: u32, at: u32) -> u32 {
    let length = pkt_len(pkt);
    if length >= 4u && at <= length - 4u { return load_le32(pkt, at); }
    return load_u8(pkt, at) | (load_u8(pkt, at + 1u) << 8u) | (load_u8(pkt, at + 2u) << 16u);
}

// Mask of the bits, in the word that starts at byte `at`, that belong to the first `count` bytes.
fn x_counting(count: u32, at: u32) -> u32 {
    if count <= at { return 0u; }
    if count - at >= 4u { return 0xffffffffu; }
    return (1u << (8u * (count - at))) - 1u;
}

// Stores those of the word's four bytes, the first of which is byte `at`, that belong to the first
// `count` bytes.
fn x_store_counting(pkt: u32, to: u32, word: u32, count: u32, at: u32) {
    if count <= at { return; }
    let left = count - at;
    if left >= 4u {
        store_le32(pkt, to, word);
        return;
    }
    store_u8(pkt, to, word & 0xffu);
    if left > 1u { store_u8(pkt, to + 1u, (word >> 8u) & 0xffu); }
    if left > 2u { store_u8(pkt, to + 2u, (word >> 16u) & 0xffu); }
}
