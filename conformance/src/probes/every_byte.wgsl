// Reads all bytes of a packet of any length, byte by byte and word by word.
// probe:

fn xdp_filter(pkt: u32) -> u32 {
    let length = pkt_len(pkt);
    var a = 1u;
    var b = 0u;
    // Adler-32 (RFC 1950, section 8.2)
    for (var i = 0u; i < length; i++) {
        a = (a + load_u8(pkt, i)) % 65521u;
        b = (b + a) % 65521u;
    }
    var sum = 0u;
    for (var i = 0u; i + 1u < length; i += 2u) {
        sum = csum_add(sum, load_be16(pkt, i));
    }
    for (var i = 0u; i < length; i += 3u) {
        store_u8(pkt, i, load_u8(pkt, i) ^ (b + i));
    }
    store_be32(pkt, length - 4u, (b << 16u) | a);
    store_be16(pkt, length - 6u, csum_fold(sum));
    return select(XDP_DROP, redirect(a & 0xffu), (a & 1u) == 0u);
}
