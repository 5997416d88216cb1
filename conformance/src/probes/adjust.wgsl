// Limits of adjust_head and adjust_tail: each end grows by at most 128 bytes, the length never
// drops below 14 bytes, and a distance whose negative overflows is refused. Added bytes are zero; a
// refused call changes nothing.
// probe: expect=pass

fn xdp_filter(pkt: u32) -> u32 {
    let length = pkt_len(pkt);
    let first = load_u8(pkt, 0u);
    let last = load_u8(pkt, length - 1u);
    if adjust_head(pkt, -2147483647i - 1i) || adjust_tail(pkt, -2147483647i - 1i) { return redirect(1u); }
    if adjust_head(pkt, 2147483647i) || adjust_tail(pkt, 2147483647i) { return redirect(2u); }
    if adjust_head(pkt, -129i) || adjust_tail(pkt, 129i) || pkt_len(pkt) != length { return redirect(3u); }
    // Calls that leave the packet shorter than 14 bytes are refused, even if they move nothing.
    if adjust_head(pkt, 0i) != (length >= 14u) || adjust_tail(pkt, 0i) != (length >= 14u) { return redirect(4u); }

    if !adjust_head(pkt, -128i) || pkt_len(pkt) != length + 128u { return redirect(5u); }
    if adjust_head(pkt, -1i) { return redirect(6u); }
    for (var i = 0u; i < 128u; i += 4u) {
        if load_be32(pkt, i) != 0u { return redirect(7u); }
    }
    if load_u8(pkt, 128u) != first { return redirect(8u); }

    if !adjust_tail(pkt, 128i) || pkt_len(pkt) != length + 256u { return redirect(9u); }
    if adjust_tail(pkt, 1i) { return redirect(10u); }
    for (var i = 0u; i < 128u; i += 4u) {
        if load_be32(pkt, 128u + length + i) != 0u { return redirect(11u); }
    }
    if length > 0u && load_u8(pkt, 127u + length) != last { return redirect(12u); }

    // Shrink to 14 bytes, the minimum.
    let spare = i32(pkt_len(pkt)) - 14i;
    if adjust_tail(pkt, -spare - 1i) || adjust_head(pkt, spare + 1i) { return redirect(13u); }
    if !adjust_head(pkt, spare) || pkt_len(pkt) != 14u { return redirect(14u); }
    if adjust_head(pkt, 1i) || adjust_tail(pkt, -1i) { return redirect(15u); }
    // Grow again: the bytes that were cut off are zeros now.
    if !adjust_head(pkt, -spare) || pkt_len(pkt) != length + 256u { return redirect(16u); }
    for (var i = 0u; i < min(length, 64u); i += 5u) {
        if load_u8(pkt, 128u + i) != 0u { return redirect(17u); }
    }
    if load_u8(pkt, length + 256u) != 0u || load_u8(pkt, length + 255u) != 0u { return redirect(18u); }
    return XDP_PASS;
}
