struct mac {
    head: u32,
    tail: u32,
}

fn xdp_filter(pkt_19: u32) -> u32 {
    let _e2 = pkt_len(pkt_19);
    if (_e2 < 14u) {
        return 1u;
    }
    let _e6 = load_le32_(pkt_19, 0u);
    let _e8 = load_le16_(pkt_19, 4u);
    let destination = mac(_e6, _e8);
    let _e11 = load_le32_(pkt_19, 6u);
    let _e13 = load_le16_(pkt_19, 10u);
    let _e14 = mac(_e11, _e13);
    store_le32_(pkt_19, 0u, _e14.head);
    store_le16_(pkt_19, 4u, _e14.tail);
    store_le32_(pkt_19, 6u, destination.head);
    store_le16_(pkt_19, 10u, destination.tail);
    return 3u;
}
