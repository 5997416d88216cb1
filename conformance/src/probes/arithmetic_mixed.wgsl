// Every integer operation on values from the packet; the results are written to it.
// probe:

fn mix(a: u32, b: u32) -> u32 {
    let x = i32(a);
    let y = i32(b);
    var h = a + b;
    h = h * 31u + (a - b);
    h = h * 31u + a * b;
    h = h * 31u + a / b;
    h = h * 31u + a % b;
    h = h * 31u + u32(x / y);
    h = h * 31u + u32(x % y);
    h = h * 31u + (a << b);
    h = h * 31u + (a >> b);
    h = h * 31u + u32(x >> b);
    h = h * 31u + ((a & b) ^ (a | ~b));
    h = h * 31u + u32(-x) + u32(abs(y));
    h = h * 31u + min(a, b) * 3u + max(a, b);
    h = h * 31u + u32(min(x, y)) * 3u + u32(max(x, y));
    h = h * 31u + select(1u, 2u, a < b) + select(4u, 8u, x < y) + select(16u, 32u, a == b);
    h = h * 31u + select(1u, 2u, a <= b) + select(4u, 8u, x >= y) + select(16u, 32u, x != y);
    h = h * 31u + countOneBits(a) + countLeadingZeros(b) + reverseBits(a) + countTrailingZeros(a);
    h = h * 31u + u32(firstLeadingBit(x)) + firstTrailingBit(b) + extractBits(a, b & 31u, 5u);
    h = h * 31u + insertBits(a, b, b & 31u, a & 31u) + clamp(a, 10u, 1000000u);
    return h;
}

fn xdp_filter(pkt: u32) -> u32 {
    var hash = pkt_len(pkt);
    var last = 0u;
    for (var off = 0u; off < 40u; off += 5u) {
        let a = load_be32(pkt, off);
        let b = load_le32(pkt, off + 3u);
        hash ^= mix(a, b);
        // Small operands reach special cases more often.
        hash += mix(a & 3u, (b & 7u) - 3u);
        hash = (hash << 7u) | (hash >> 25u);
        last = a;
    }
    store_be32(pkt, 0u, hash);
    store_le32(pkt, 8u, hash * 2654435761u + last);
    return select(XDP_DROP, XDP_PASS, (hash & 1u) == 1u);
}
