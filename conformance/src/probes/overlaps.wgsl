// Reads stores of each size back by loads of every other size.
// probe: expect=pass

fn xdp_filter(pkt: u32) -> u32 {
    if pkt_len(pkt) < 12u { return XDP_PASS; }
    for (var at = 0u; at < 5u; at++) {
        store_be32(pkt, at, 0x11223344u);
        if load_u8(pkt, at) != 0x11u || load_u8(pkt, at + 3u) != 0x44u { return redirect(1u); }
        if load_le32(pkt, at) != 0x44332211u || load_be16(pkt, at + 1u) != 0x2233u { return redirect(2u); }
        store_le16(pkt, at + 2u, 0xabcdeeffu);
        if load_be32(pkt, at) != 0x1122ffeeu { return redirect(3u); }
        store_be16(pkt, at + 1u, 0x99887766u);
        if load_be32(pkt, at) != 0x117766eeu { return redirect(4u); }
        store_u8(pkt, at, 0x1ffu);
        store_le32(pkt, at + 4u, 0x0badcafeu);
        if load_be32(pkt, at + 2u) != 0x66eefecau || load_be32(pkt, at) != 0xff7766eeu { return redirect(5u); }
    }
    return XDP_PASS;
}
