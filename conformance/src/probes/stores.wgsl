// Stores at every boundary: a store with any byte outside the packet does nothing, and no store
// changes other bytes than its own.
// probe:

fn xdp_filter(pkt: u32) -> u32 {
    let length = pkt_len(pkt);
    // Towards and across the end: the next loads read each store that still fits.
    for (var i = 0u; i < 9u; i++) {
        let off = length - 8u + i;
        let seen = load_le32(pkt, off);
        if (i & 1u) == 0u {
            store_be32(pkt, off, 0xa1b2c3d4u + seen);
        } else {
            store_le32(pkt, off, 0x51627384u ^ seen);
        }
        store_be16(pkt, off + 3u, 0x10fedcbau + i);
        store_le16(pkt, off + 5u, 0xffff7654u - i);
        store_u8(pkt, off + 7u, 0xfffffe00u + i);
    }
    // Around the largest offset, where offset + size wraps to a byte inside the packet.
    for (var i = 1u; i < 5u; i++) {
        store_be32(pkt, 0u - i, 0xdeadbeefu);
        store_le32(pkt, 0u - i, 0xdeadbeefu);
        store_be16(pkt, 0u - i, 0xdeadu);
        store_le16(pkt, 0u - i, 0xdeadu);
        store_u8(pkt, 0u - i, 0xdeu);
    }
    // At each alignment near the start.
    store_be32(pkt, 1u, load_be32(pkt, 2u) + 0x01020304u);
    store_le16(pkt, 3u, load_be16(pkt, 5u));
    store_u8(pkt, 7u, load_u8(pkt, 0u));
    store_le32(pkt, 10u, load_le32(pkt, 7u));
    return select(XDP_TX, XDP_PASS, (length & 1u) == 0u);
}
