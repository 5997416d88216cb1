// 64-bit integer operations on extreme values and on values from the packet.
// probe:

fn signed(zero: i64) -> u32 {
    let highest = zero + 9223372036854775807li;
    let lowest = highest + 1li;
    let minus = zero - 1li;
    if !(lowest < zero) || lowest - 1li != highest { return 1u; }
    if lowest / minus != lowest || lowest % minus != zero { return 2u; }
    if (zero + 7li) / zero != 7li || (zero + 7li) % zero != 0li { return 3u; }
    if (zero - 7li) / 2li != -3li || (zero - 7li) % 2li != -1li { return 4u; }
    if (zero - 10000000000li) / 3000000000li != -3li || (zero - 10000000000li) % 3000000000li != -1000000000li { return 5u; }
    if minus >> 63u != -1li || (zero - 4294967296li) >> 32u != -1li { return 6u; }
    if minus * minus != 1li || -lowest != lowest { return 7u; }
    if i32(zero + 4294967299li) != 3i { return 8u; }
    if i64(-1i + i32(zero)) != minus { return 9u; }
    return 0u;
}

fn unsigned(zero: u64) -> u32 {
    let ones = zero - 1lu;
    if ones + 1lu != zero || ones >> 63u != 1lu || ones >> 32u != 4294967295lu { return 31u; }
    if (zero + 9lu) / zero != 9lu || (zero + 9lu) % zero != 0lu { return 32u; }
    if ones / 10lu != 1844674407370955161lu || ones % 10lu != 5lu { return 33u; }
    if ones / (zero + 4294967296lu) != 4294967295lu { return 34u; }
    if ones * ones != 1lu { return 35u; }
    if (zero + 4294967297lu) * (zero + 4294967297lu) != 8589934593lu { return 36u; }
    if (zero + 1lu) << 32u != 4294967296lu || (zero + 1lu) << 63u != 9223372036854775808lu { return 37u; }
    if ((zero + 4294967296lu) | 1lu) != 4294967297lu || ~zero != ones { return 38u; }
    if !(zero + 4294967296lu > 4294967295lu) { return 39u; }
    if u32(zero + 4294967299lu) != 3u || u64(0xffffffffu) != 4294967295lu { return 40u; }
    return 0u;
}

fn xdp_filter(pkt: u32) -> u32 {
    let zero = load_u8(pkt, 0xffffffffu);
    var wrong = signed(i64(zero));
    if wrong == 0u { wrong = unsigned(u64(zero)); }
    if wrong != 0u { return redirect(wrong); }
    var hash = 14695981039346656037lu;
    for (var off = 0u; off < 32u; off += 4u) {
        let a = (u64(load_be32(pkt, off)) << 32u) | u64(load_be32(pkt, off + 4u));
        let b = u64(load_le32(pkt, off + 2u)) - 70000lu;
        hash = (hash ^ a) * 1099511628211lu;
        hash += a / b + a % b;
        hash ^= u64(i64(a) / i64(b) + i64(a) % (i64(b) >> 40u));
        hash += a << (load_u8(pkt, off) & 63u);
        hash ^= a >> (load_u8(pkt, off + 1u) & 63u);
        hash += u64(i64(a) >> (load_u8(pkt, off + 2u) & 63u));
        hash ^= select(a, b, a < b) + select(7lu, 9lu, i64(a) < i64(b));
    }
    store_be32(pkt, 0u, u32(hash >> 32u));
    store_be32(pkt, 4u, u32(hash));
    return XDP_PASS;
}
