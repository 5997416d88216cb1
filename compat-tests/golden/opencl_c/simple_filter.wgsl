fn xdp_filter(pkt_19: u32) -> u32 {
    var local: bool;
    var local_1: bool;
    var local_2: bool;

    let _e2 = pkt_len(pkt_19);
    if !((_e2 < 34u)) {
        let _e8 = load_be16_(pkt_19, 12u);
        local = (_e8 != 2048u);
    } else {
        local = true;
    }
    let _e12 = local;
    if _e12 {
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
    let _e25 = load_u8_(pkt_19, 23u);
    if (_e25 != 6u) {
        let _e29 = load_u8_(pkt_19, 23u);
        local_2 = (_e29 != 17u);
    } else {
        local_2 = false;
    }
    let _e33 = local_2;
    if _e33 {
        return 1u;
    }
    let _e35 = load_be32_(pkt_19, 26u);
    return select(2u, 1u, (_e35 == 3232235521u));
}
