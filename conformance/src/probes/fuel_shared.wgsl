// The filter, its helper functions and nested loops share one fuel counter. If it runs out in a
// helper, the packet is aborted at once, with its current length and bytes.
// probe: fuel=64

fn spend(pkt: u32, rounds: u32) -> u32 {
    var spent = 0u;
    loop {
        if spent >= rounds { return spent; }
        store_u8(pkt, 8u, spent);
        spent++;
    }
    return 1000u;
}

fn xdp_filter(pkt: u32) -> u32 {
    var total = 0u;
    let want = load_u8(pkt, 0u) % 9u;
    let moved = adjust_head(pkt, 2i);
    for (var i = 0u; i < 8u; i++) {
        for (var j = 0u; j < 2u; j++) {
            total += spend(pkt, want);
            store_u8(pkt, 9u, total);
        }
        if (i & 3u) == 3u {
            let grown = adjust_tail(pkt, 4i);
            store_u8(pkt, 10u, select(1u, 2u, grown));
        }
    }
    let back = adjust_head(pkt, -2i);
    store_u8(pkt, 11u, select(3u, 4u, moved && back));
    return select(XDP_DROP, XDP_TX, total > 8u);
}
