// The last unit of fuel: packets whose first byte asks for just enough, and for one more. What was
// done before the fuel ran out stays done.
// probe: fuel=100

fn xdp_filter(pkt: u32) -> u32 {
    let rounds = 90u + load_u8(pkt, 0u) % 20u;
    for (var i = 0u; i < rounds; i++) {
        store_u8(pkt, 6u, i);
    }
    store_u8(pkt, 7u, 0xffu);
    return XDP_PASS;
}
