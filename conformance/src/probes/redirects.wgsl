// Redirect targets of 24 bits and more.
// probe:

fn xdp_filter(pkt: u32) -> u32 {
    switch load_u8(pkt, 0u) % 9u {
        case 0u: { return redirect(0u); }
        case 1u: { return redirect(1u); }
        case 2u: { return redirect(0xffffffu); }
        case 3u: { return redirect(0x1000000u); }
        case 4u: { return redirect(0xffffffffu); }
        case 5u: { return XDP_REDIRECT; }
        case 6u: { return XDP_REDIRECT | (77u << 8u); }
        case 7u: { return redirect(load_be32(pkt, 1u)); }
        default: { return redirect(load_be16(pkt, 1u)); }
    }
}
