fn is_private(network: u32) -> bool {
    switch i32(network) {
        case 2560, 44048, 49320: {
            return true;
        }
        default: {
            return false;
        }
    }
    return bool();
}

fn xdp_filter(pkt_19: u32) -> u32 {
    var local: bool;
    var local_1: bool;

    let _e2 = pkt_len(pkt_19);
    if ((_e2 < 64u) || (_e2 > 1500u)) {
        return 1u;
    }
    let _e11 = load_be16_(pkt_19, 12u);
    if !((_e11 != 2048u)) {
        let _e16 = load_u8_(pkt_19, 14u);
        local = (_e16 < 69u);
    } else {
        local = true;
    }
    let _e20 = local;
    if !(_e20) {
        let _e23 = load_u8_(pkt_19, 14u);
        local_1 = (_e23 > 79u);
    } else {
        local_1 = true;
    }
    let _e26 = local_1;
    if _e26 {
        return 2u;
    }
    let _e30 = load_u8_(pkt_19, 23u);
    switch i32(_e30) {
        case 1: {
            return 1u;
        }
        case 6, 17: {
            break;
        }
        default: {
            return 2u;
        }
    }
    let _e32 = load_u8_(pkt_19, 14u);
    let _e39 = (14u + u32(((i32(_e32) & 15i) * 4i)));
    let _e42 = load_be16_(pkt_19, 20u);
    let first_fragment = ((i32(_e42) & 8191i) == 0i);
    let _e49 = load_be16_(pkt_19, 26u);
    let _e52 = is_private((_e49 & 65535u));
    if ((!(_e52) || !(first_fragment)) || ((_e39 + 4u) > _e2)) {
        return 2u;
    }
    let _e61 = load_be16_(pkt_19, (_e39 + 2u));
    return select(2u, 1u, (((_e61 < 1024u) && (_e61 != 80u)) && (_e61 != 443u)));
}
