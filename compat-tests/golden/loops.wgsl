// Every kind of loop: for, while, loop with continuing and break if, nested, in a helper, in a
// continuing block.
fn walk(pkt: u32, from_byte: u32) -> u32 {
    var at = from_byte;
    while load_u8(pkt, at) != 0u {
        at = at + 1u;
    }
    return at;
}

fn xdp_filter(pkt: u32) -> u32 {
    var sum = 0u;
    for (var i = 0u; i < pkt_len(pkt); i++) {
        for (var j = 0u; j < 4u; j++) {
            if load_u8(pkt, j) == 7u { continue; }
            sum = sum + j;
        }
    }
    var round = 0u;
    loop {
        switch round {
            case 3u: { store_u8(pkt, 0u, round); }
            case 4u: { return walk(pkt, round); }
            default: { round = round + sum; }
        }
        continuing {
            var k = 3u;
            while k > 0u { k = k - 1u; }
            round = round + 1u;
            break if round > 9u;
        }
    }
    return XDP_PASS;
}
