// Return values that are verdicts, and others, which abort the packet.
// probe:

fn xdp_filter(pkt: u32) -> u32 {
    let byte = load_u8(pkt, 0u);
    switch load_u8(pkt, 1u) % 8u {
        case 0u: { return byte; }
        case 1u: { return byte % 6u; }
        case 2u: { return 0x100u | (byte % 5u); }
        case 3u: { return 0x80000000u + byte % 5u; }
        case 4u: { return 0xffffffffu - byte; }
        case 5u: { return (byte << 8u) | XDP_REDIRECT; }
        case 6u: { return load_be32(pkt, 2u); }
        default: { return (byte % 5u) << 8u; }
    }
}
