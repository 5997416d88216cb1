struct addresses {
    words: array<u32, 3>,
}

fn xdp_filter(pkt_19: u32) -> u32 {
    let _e2 = pkt_len(pkt_19);
    let _e4 = load_be16_(pkt_19, 12u);
    if ((_e2 < 18u) || ((_e4 != 33024u) && (_e4 != 34984u))) {
        return 2u;
    }
    let _e14 = load_le32_(pkt_19, 0u);
    let _e16 = load_le32_(pkt_19, 4u);
    let _e18 = load_le32_(pkt_19, 8u);
    let addresses_1 = addresses(array<u32, 3>(_e14, _e16, _e18));
    store_le32_(pkt_19, 4u, addresses_1.words[0]);
    store_le32_(pkt_19, 8u, addresses_1.words[1]);
    store_le32_(pkt_19, 12u, addresses_1.words[2]);
    let _e26 = adjust_head(pkt_19, 4i);
    return 2u;
}
