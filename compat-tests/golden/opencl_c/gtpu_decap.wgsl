const MAP_NONE: u32 = 4294967295u;

const MAP_FULL: u32 = 4294967294u;

fn is_ipv4_(version_ihl: u32) -> bool {
    return ((version_ihl >= 69u) && (version_ihl <= 79u));
}

fn gtp_header(pkt_19: u32, pkt_20: u32) -> u32 {
    var at_4: u32;
    var ethertype: u32;
    var local_8: bool;
    var local_9: bool;
    var local_10: bool;
    var udp: u32;
    var local_11: bool;
    var local_12: bool;

    at_4 = (pkt_20 + 14u);
    let _e6 = at_4;
    let _e9 = load_be16_(pkt_19, (_e6 + 4294967294u));
    ethertype = _e9;
    let _e10 = ethertype;
    let _e13 = ethertype;
    if ((_e10 == 33024u) || (_e13 == 34984u)) {
        let _e17 = at_4;
        at_4 = (_e17 + 4u);
        let _e20 = at_4;
        let _e22 = load_be16_(pkt_19, (_e20 + 4294967294u));
        ethertype = _e22;
    }
    let _e23 = at_4;
    let _e24 = at_4;
    let _e25 = ethertype;
    if (_e25 == 2048u) {
        let _e29 = at_4;
        let _e31 = load_u8_(pkt_19, _e29);
        let _e32 = is_ipv4_(_e31);
        local_8 = _e32;
    } else {
        local_8 = false;
    }
    let _e34 = local_8;
    if _e34 {
        let _e38 = load_u8_(pkt_19, (_e23 + 9u));
        local_9 = (_e38 == 17u);
    } else {
        local_9 = false;
    }
    let _e41 = local_9;
    if _e41 {
        let _e45 = load_be16_(pkt_19, (_e23 + 6u));
        local_10 = !(((i32(_e45) & 16383i) != 0i));
    } else {
        local_10 = false;
    }
    let _e52 = local_10;
    if _e52 {
        let _e53 = at_4;
        let _e54 = load_u8_(pkt_19, _e23);
        udp = (_e53 + u32(((i32(_e54) & 15i) * 4i)));
    } else {
        let _e63 = ethertype;
        if (_e63 == 34525u) {
            let _e67 = at_4;
            let _e68 = load_u8_(pkt_19, _e67);
            local_11 = ((i32(_e68) >> 4u) == 6i);
        } else {
            local_11 = false;
        }
        let _e73 = local_11;
        if _e73 {
            let _e76 = load_u8_(pkt_19, (_e24 + 6u));
            local_12 = (_e76 == 17u);
        } else {
            local_12 = false;
        }
        let _e78 = local_12;
        if _e78 {
            udp = (_e24 + 40u);
        } else {
            return pkt_20;
        }
    }
    let _e82 = udp;
    let _e85 = load_be16_(pkt_19, (_e82 + 2u));
    let _e88 = udp;
    return select(pkt_20, (_e88 + 8u), (_e85 == 2152u));
}

fn user_packet(pkt_21: u32, pkt_22: u32, gtp: u32) -> u32 {
    var at_5: u32;
    var next: u32;
    var i_1: i32;

    at_5 = (gtp + 8u);
    let _e8 = load_u8_(pkt_21, gtp);
    next = 0u;
    if ((_e8 & 7u) != 0u) {
        let _e13 = at_5;
        at_5 = (_e13 + 4u);
    }
    if ((_e8 & 4u) != 0u) {
        let _e18 = at_5;
        let _e21 = load_u8_(pkt_21, (_e18 + 4294967295u));
        next = _e21;
    }
    i_1 = 0i;
    loop {
        let _e24 = i_1;
        let _e27 = next;
        if ((_e24 < 4i) && (_e27 != 0u)) {
        } else {
            break;
        }
        let _e30 = at_5;
        let _e31 = at_5;
        let _e32 = load_u8_(pkt_21, _e31);
        at_5 = (_e30 + u32((i32(_e32) * 4i)));
        let _e37 = at_5;
        let _e39 = load_u8_(pkt_21, (_e37 + 4294967295u));
        next = _e39;
        continuing {
            let _e40 = i_1;
            i_1 = (_e40 + 1i);
        }
    }
    let _e43 = next;
    let _e45 = at_5;
    return select(pkt_22, _e45, (_e43 == 0u));
}

fn xdp_filter(pkt_23: u32) -> u32 {
    var local_13: bool;
    var ethertype_1: u32;

    let _e2 = pkt_len(pkt_23);
    let _e3 = gtp_header(pkt_23, 0u);
    if ((_e3 == 0u) || ((_e3 + 8u) > _e2)) {
        return 2u;
    }
    let _e11 = load_u8_(pkt_23, _e3);
    if !(((i32(_e11) & 240i) != 48i)) {
        let _e20 = load_u8_(pkt_23, (_e3 + 1u));
        local_13 = (_e20 != 255u);
    } else {
        local_13 = true;
    }
    let _e24 = local_13;
    if _e24 {
        return 2u;
    }
    let _e27 = load_be32_(pkt_23, (_e3 + 4u));
    let _e28 = tunnels_find(_e27);
    if (_e28 == 4294967295u) {
        return 2u;
    }
    let _e31 = user_packet(pkt_23, 0u, _e3);
    ethertype_1 = 0u;
    let _e33 = load_u8_(pkt_23, _e31);
    let _e34 = is_ipv4_(_e33);
    if (_e34 && ((_e31 + 20u) <= _e2)) {
        ethertype_1 = 2048u;
    } else {
        let _e40 = load_u8_(pkt_23, _e31);
        if (((i32(_e40) >> 4u) == 6i) && ((_e31 + 40u) <= _e2)) {
            ethertype_1 = 34525u;
        }
    }
    let _e50 = tunnels_read(_e28, 0u);
    let _e51 = slices_read(_e50, 1u);
    let _e52 = slices_read(_e50, 2u);
    let _e54 = ethertype_1;
    if (((_e31 == 0u) || (_e54 == 0u)) || ((_e51 | _e52) == 0u)) {
        return 1u;
    }
    let _e64 = adjust_head(pkt_23, i32(((_e31 + 4294967282u) - 0u)));
    store_be16_(pkt_23, 0u, _e51);
    store_be32_(pkt_23, 2u, _e52);
    let _e67 = slices_read(_e50, 3u);
    store_be16_(pkt_23, 6u, _e67);
    let _e68 = slices_read(_e50, 4u);
    store_be32_(pkt_23, 8u, _e68);
    let _e70 = ethertype_1;
    store_be16_(pkt_23, 12u, _e70);
    let _e71 = slices_read(_e50, 0u);
    let _e72 = redirect(_e71);
    return _e72;
}
