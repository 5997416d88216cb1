// Moves both ends by distances from the packet, with loads and stores in between; the results are
// written to the packet.
// probe:

fn xdp_filter(pkt: u32) -> u32 {
    var answers = 0u;
    for (var i = 0u; i < 6u; i++) {
        let delta = i32(load_u8(pkt, 3u * i + 1u)) - 128i;
        if (load_u8(pkt, i) & 1u) == 0u {
            answers |= select(0u, 1u, adjust_head(pkt, delta)) << i;
        } else {
            answers |= select(0u, 1u, adjust_tail(pkt, delta)) << i;
        }
        store_u8(pkt, i, 0x30u + i);
        store_be16(pkt, pkt_len(pkt) - 2u, 0x4142u + i);
    }
    store_be32(pkt, 8u, pkt_len(pkt));
    store_u8(pkt, 12u, answers);
    return select(XDP_TX, XDP_PASS, answers == 63u);
}
