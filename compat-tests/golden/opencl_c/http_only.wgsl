fn port_of(pkt_19: u32, transport: u32) -> u32 {
    let _e4 = load_be16_(pkt_19, (transport + 2u));
    return _e4;
}

fn port_ipv4_(pkt_20: u32, ip: u32) -> u32 {
    var local: bool;
    var local_1: bool;

    let _e3 = load_u8_(pkt_20, ip);
    if !((_e3 < 69u)) {
        let _e8 = load_u8_(pkt_20, ip);
        local = (_e8 > 79u);
    } else {
        local = true;
    }
    let _e12 = local;
    if !(_e12) {
        let _e17 = load_u8_(pkt_20, (ip + 9u));
        local_1 = (_e17 != 6u);
    } else {
        local_1 = true;
    }
    let _e20 = local_1;
    if _e20 {
        return 0u;
    }
    let _e22 = load_be16_(pkt_20, (ip + 6u));
    if ((i32(_e22) & 8191i) != 0i) {
        return 0u;
    }
    let _e28 = load_u8_(pkt_20, ip);
    let _e36 = port_of(pkt_20, (ip + u32(((i32(_e28) & 15i) * 4i))));
    return _e36;
}

fn port_ipv6_(pkt_21: u32, ip_1: u32) -> u32 {
    var header: u32;
    var at_3: u32;
    var i_1: i32;
    var local_2: u32;

    let _e3 = load_u8_(pkt_21, ip_1);
    if ((i32(_e3) >> 4u) != 6i) {
        return 0u;
    }
    let _e12 = load_u8_(pkt_21, (ip_1 + 6u));
    header = _e12;
    at_3 = (ip_1 + 40u);
    i_1 = 0i;
    loop {
        let _e19 = i_1;
        let _e22 = header;
        if ((_e19 < 8i) && (_e22 != 6u)) {
        } else {
            break;
        }
        let _e25 = at_3;
        let _e26 = load_u8_(pkt_21, _e25);
        let _e27 = at_3;
        let _e29 = load_u8_(pkt_21, (_e27 + 1u));
        let _e30 = header;
        switch _e30 {
            case 0u, 43u, 60u, 135u: {
                let _e31 = at_3;
                at_3 = (_e31 + ((_e29 + 1u) * 8u));
                break;
            }
            case 51u: {
                let _e36 = at_3;
                at_3 = (_e36 + ((_e29 + 2u) * 4u));
                break;
            }
            case 44u: {
                let _e41 = at_3;
                let _e43 = load_be16_(pkt_21, (_e41 + 2u));
                if ((_e43 & 65528u) != 0u) {
                    return 0u;
                }
                let _e47 = at_3;
                at_3 = (_e47 + 8u);
                break;
            }
            default: {
                return 0u;
            }
        }
        header = _e26;
        continuing {
            let _e49 = i_1;
            i_1 = (_e49 + 1i);
        }
    }
    let _e52 = header;
    if (_e52 == 6u) {
        let _e54 = at_3;
        let _e55 = port_of(pkt_21, _e54);
        local_2 = _e55;
    } else {
        local_2 = 0u;
    }
    let _e57 = local_2;
    return _e57;
}

fn xdp_filter(pkt_22: u32) -> u32 {
    var payload: u32;
    var ethertype: u32;
    var port_1: u32;

    let _e2 = pkt_len(pkt_22);
    if (_e2 < 38u) {
        return 1u;
    }
    payload = 14u;
    let _e9 = payload;
    let _e12 = load_be16_(pkt_22, (_e9 + 4294967294u));
    ethertype = _e12;
    let _e13 = ethertype;
    let _e16 = ethertype;
    if ((_e13 == 33024u) || (_e16 == 34984u)) {
        let _e20 = payload;
        payload = (_e20 + 4u);
        let _e23 = payload;
        let _e25 = load_be16_(pkt_22, (_e23 + 4294967294u));
        ethertype = _e25;
    }
    port_1 = 0u;
    let _e27 = ethertype;
    if (_e27 == 2048u) {
        let _e30 = payload;
        let _e31 = port_ipv4_(pkt_22, _e30);
        port_1 = _e31;
    } else {
        let _e32 = ethertype;
        if (_e32 == 34525u) {
            let _e35 = payload;
            let _e36 = port_ipv6_(pkt_22, _e35);
            port_1 = _e36;
        }
    }
    let _e37 = port_1;
    let _e39 = port_1;
    let _e42 = port_1;
    return select(1u, 2u, ((_e37 != 0u) && ((_e39 == 80u) || (_e42 == 443u))));
}
