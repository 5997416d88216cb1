// A packet's metadata: wire length, port, time. Changing the packet's length does not change it.
// probe:

fn xdp_filter(pkt: u32) -> u32 {
    let wire = pkt_wire_len(pkt);
    let cut = adjust_tail(pkt, -2i);
    let time = pkt_time(pkt);
    store_be32(pkt, 0u, wire ^ (pkt_wire_len(pkt) << 16u));
    store_be32(pkt, 4u, pkt_port(pkt));
    store_be32(pkt, 8u, time.x);
    store_be16(pkt, 12u, time.y);
    store_u8(pkt, 14u, time.y >> 16u);
    store_be32(pkt, 16u, pkt_time_ms(pkt));
    return select(XDP_TX, redirect(pkt_port(pkt)), cut && pkt_len(pkt) < wire);
}
