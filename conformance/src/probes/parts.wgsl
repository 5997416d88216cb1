// Parts of loaded values, after a length check that proves the loads: each byte extracted from a
// wide load by shifts and masks equals load_u8 of that byte.
// probe: expect=pass

// Whether the bytes of `value`, highest first, are those of the packet from offset `at`.
fn is_big(pkt: u32, value: u32, at: u32) -> bool {
    return value >> 24u == load_u8(pkt, at) && ((value >> 16u) & 0xffu) == load_u8(pkt, at + 1u)
        && ((value >> 8u) & 0xffu) == load_u8(pkt, at + 2u) && (value & 0xffu) == load_u8(pkt, at + 3u);
}

fn xdp_filter(pkt: u32) -> u32 {
    if pkt_len(pkt) < 40u {
        return XDP_PASS;
    }
    if !is_big(pkt, load_be32(pkt, 33u), 33u) || !is_big(pkt, load_be32(pkt, 3u), 3u) {
        return XDP_DROP;
    }
    let little = load_le32(pkt, 29u);
    if little >> 24u != load_u8(pkt, 32u) || ((little >> 8u) & 0xffu) != load_u8(pkt, 30u) {
        return XDP_DROP;
    }
    let half = load_be16(pkt, 12u);
    let high = half >> 8u;
    let gone = high >> 8u;
    if high != load_u8(pkt, 12u) || (half & 0xffu) != load_u8(pkt, 13u) || gone != 0u || ((half >> 16u) & 0xffu) != 0u {
        return XDP_DROP;
    }
    let little_half = load_le16(pkt, 12u);
    let nothing = (little_half >> 16u) >> 8u;
    if little_half >> 8u != load_u8(pkt, 13u) || nothing != 0u || ((little_half >> 24u) & 0xffu) != 0u {
        return XDP_DROP;
    }
    let fragment = load_be16(pkt, 20u) & 0x1fffu;
    if fragment != (((load_u8(pkt, 20u) & 0x1fu) << 8u) | load_u8(pkt, 21u)) {
        return XDP_DROP;
    }
    let first = fragment == 0u;
    if first != (((load_u8(pkt, 20u) & 0x1fu) | load_u8(pkt, 21u)) == 0u) {
        return XDP_DROP;
    }
    return XDP_PASS;
}
