// Endless loops, with and without a body, before and after stores; fuel ends them.
// probe: fuel=150

fn xdp_filter(pkt: u32) -> u32 {
    let kind = load_u8(pkt, 0u) % 4u;
    store_u8(pkt, 1u, 0x5au);
    var count = 0u;
    switch kind {
        case 0u: {
            loop { count += load_u8(pkt, 0xffffffffu); if count == 1u { break; } }
        }
        case 1u: {
            while true { store_u8(pkt, 2u, count); count++; if count == 0u { break; } }
        }
        case 2u: {
            loop {
                continuing { count++; store_u8(pkt, 2u, count); break if count > 400u; }
            }
        }
        default: {
            loop { count++; if count > 100u { return XDP_PASS; } }
        }
    }
    store_u8(pkt, 1u, 0xa5u);
    return XDP_DROP;
}
