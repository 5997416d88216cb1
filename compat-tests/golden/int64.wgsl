// 64-bit integers: literals, arithmetic, comparisons, vectors, and a loop over them.
const MULTIPLIER = 6364136223846793005lu;

fn load_be64(pkt: u32, off: u32) -> u64 {
    return (u64(load_be32(pkt, off)) << 32u) | u64(load_be32(pkt, off + 4u));
}

fn xdp_filter(pkt: u32) -> u32 {
    var seed = load_be64(pkt, 0u);
    var sums = vec2<i64>(0li, -1li);
    for (var i = 0u; i < 4u; i++) {
        seed = seed * MULTIPLIER + 1lu;
        sums[i & 1u] += i64(seed >> 33u);
    }
    if sums.x < sums.y {
        return XDP_DROP;
    }
    return u32(seed % 5lu);
}
