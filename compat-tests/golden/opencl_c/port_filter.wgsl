fn xdp_filter(pkt_19: u32) -> u32 {
    var local: bool;
    var local_1: bool;
    var local_2: bool;

    let _e2 = pkt_len(pkt_19);
    if !((_e2 < 34u)) {
        let _e9 = load_be16_(pkt_19, 12u);
        local = (_e9 != 2048u);
    } else {
        local = true;
    }
    let _e13 = local;
    if _e13 {
        return 1u;
    }
    let _e15 = load_u8_(pkt_19, 14u);
    if !((_e15 < 69u)) {
        let _e20 = load_u8_(pkt_19, 14u);
        local_1 = (_e20 > 79u);
    } else {
        local_1 = true;
    }
    let _e23 = local_1;
    if _e23 {
        return 1u;
    }
    let _e26 = load_be16_(pkt_19, 20u);
    if ((i32(_e26) & 8191i) != 0i) {
        return 1u;
    }
    let _e34 = load_u8_(pkt_19, 23u);
    if (_e34 != 6u) {
        let _e37 = load_u8_(pkt_19, 23u);
        local_2 = (_e37 != 17u);
    } else {
        local_2 = false;
    }
    let _e41 = local_2;
    if _e41 {
        return 1u;
    }
    let _e42 = load_u8_(pkt_19, 14u);
    let _e49 = (14u + u32(((i32(_e42) & 15i) * 4i)));
    let _e52 = load_be16_(pkt_19, (_e49 + 2u));
    switch i32(_e52) {
        case 80, 443: {
            return 2u;
        }
        default: {
            let _e55 = load_be16_(pkt_19, (_e49 + 2u));
            return select(1u, 2u, (_e55 >= 1024u));
        }
    }
    return u32();
}
