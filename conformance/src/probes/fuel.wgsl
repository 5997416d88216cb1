// The last unit of fuel: the first byte selects a number of iterations that just fits, or one more.
// Stores before the fuel ran out remain.
// probe: fuel=100

fn xdp_filter(pkt: u32) -> u32 {
    let rounds = 90u + load_u8(pkt, 0u) % 20u;
    for (var i = 0u; i < rounds; i++) {
        store_u8(pkt, 6u, i);
    }
    store_u8(pkt, 7u, 0xffu);
    return XDP_PASS;
}
