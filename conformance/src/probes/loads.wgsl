// Loads at every boundary: near both ends of the packet, and at offsets for which offset + size
// wraps.
// probe: expect=pass

// Whether the bytes off .. off + size are inside the packet, by counting up to its end.
fn inside(pkt: u32, off: u32, size: u32) -> bool {
    let length = pkt_len(pkt);
    return off < length && size <= length - off;
}

// Returns 0, or the number of the load whose result at `off` is wrong.
fn wrong_at(pkt: u32, off: u32) -> u32 {
    let a = load_u8(pkt, off);
    let b = load_u8(pkt, off + 1u);
    let c = load_u8(pkt, off + 2u);
    let d = load_u8(pkt, off + 3u);
    if a > 255u || (a != 0u && !inside(pkt, off, 1u)) { return 1u; }
    let two = inside(pkt, off, 2u);
    if load_be16(pkt, off) != select(0u, (a << 8u) | b, two) { return 2u; }
    if load_le16(pkt, off) != select(0u, (b << 8u) | a, two) { return 3u; }
    let four = inside(pkt, off, 4u);
    if load_be32(pkt, off) != select(0u, (a << 24u) | (b << 16u) | (c << 8u) | d, four) { return 4u; }
    if load_le32(pkt, off) != select(0u, (d << 24u) | (c << 16u) | (b << 8u) | a, four) { return 5u; }
    return 0u;
}

fn xdp_filter(pkt: u32) -> u32 {
    for (var i = 0u; i < 12u; i++) {
        // From the start; around the packet's end; around the largest offset; around half of it.
        var wrong = wrong_at(pkt, i);
        if wrong != 0u { return redirect(wrong); }
        wrong = wrong_at(pkt, pkt_len(pkt) - 6u + i);
        if wrong != 0u { return redirect(10u + wrong); }
        wrong = wrong_at(pkt, 0u - i);
        if wrong != 0u { return redirect(20u + wrong); }
        wrong = wrong_at(pkt, 0x7ffffffau + i);
        if wrong != 0u { return redirect(30u + wrong); }
    }
    // Constant offsets, as in most filters.
    if load_be16(pkt, 12u) != ((load_u8(pkt, 12u) << 8u) | load_u8(pkt, 13u)) && pkt_len(pkt) != 13u { return redirect(41u); }
    if load_be32(pkt, 0xffffffffu) != 0u || load_be32(pkt, 0xfffffffcu) != 0u || load_u8(pkt, 0xffffffffu) != 0u {
        return redirect(42u);
    }
    return XDP_PASS;
}
