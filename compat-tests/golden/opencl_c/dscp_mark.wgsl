fn xdp_filter(pkt_19: u32) -> u32 {
    let _e2 = pkt_len(pkt_19);
    if (_e2 < 34u) {
        return 2u;
    }
    let _e8 = load_be16_(pkt_19, 12u);
    let ethertype = (_e8 & 65535u);
    let _e11 = load_be16_(pkt_19, 14u);
    if (((ethertype == 2048u) && ((i32(_e11) >> 8u) >= 69i)) && ((i32(_e11) >> 8u) <= 79i)) {
        let after = (u32(((i32(_e11) & 65283i) | 184i)) & 65535u);
        if (after != _e11) {
            store_be16_(pkt_19, 14u, after);
            let _e41 = load_be16_(pkt_19, 24u);
            let _e42 = csum_replace16_(_e41, _e11, after);
            let _e43 = (_e42 & 65535u);
            store_be16_(pkt_19, 24u, _e43);
        }
    }
    if (((ethertype == 34525u) && (_e2 >= 54u)) && ((i32(_e11) >> 12u) == 6i)) {
        let after_1 = (u32(((i32(_e11) & 61503i) | 2944i)) & 65535u);
        if (after_1 != _e11) {
            store_be16_(pkt_19, 14u, after_1);
        }
    }
    return 2u;
}
