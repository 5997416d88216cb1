struct murmur {
    hash: u32,
    length: u32,
}

fn mix_(m: ptr<function, murmur>, m_1: u32, word: u32) {
    let _e4 = (*m).hash;
    let _e6 = (word * 3432918353u);
    let _e9 = (15u & 31u);
    (*m).hash = (_e4 ^ (((_e6 << _e9) | (_e6 >> ((0u - _e9) & 31u))) * 461845907u));
    let _e21 = (*m).hash;
    let _e23 = (13u & 31u);
    (*m).hash = ((((_e21 << _e23) | (_e21 >> ((0u - _e23) & 31u))) * 5u) + 3864292196u);
    let _e34 = (*m).length;
    (*m).length = (_e34 + 4u);
    return;
}

fn finish(m_2: murmur) -> u32 {
    var h: u32;

    h = (m_2.hash ^ m_2.length);
    let _e5 = h;
    let _e6 = h;
    h = ((_e5 ^ (_e6 >> 16u)) * 2246822507u);
    let _e12 = h;
    let _e13 = h;
    h = ((_e12 ^ (_e13 >> 13u)) * 3266489909u);
    let _e19 = h;
    let _e20 = h;
    return (_e19 ^ (_e20 >> 16u));
}

fn xdp_filter(pkt_19: u32) -> u32 {
    var m_3: murmur;
    var at_3: u32;
    var ethertype: u32;
    var local: bool;
    var local_1: bool;
    var payload: u32;
    var local_2: bool;
    var i_1: i32;
    var i_2: i32;

    let _e2 = pkt_len(pkt_19);
    m_3.hash = 0u;
    at_3 = 14u;
    let _e8 = at_3;
    let _e11 = load_be16_(pkt_19, (_e8 + 4294967294u));
    ethertype = _e11;
    let _e12 = ethertype;
    let _e15 = ethertype;
    if ((_e12 == 33024u) || (_e15 == 34984u)) {
        let _e19 = at_3;
        at_3 = (_e19 + 4u);
        let _e22 = at_3;
        let _e24 = load_be16_(pkt_19, (_e22 + 4294967294u));
        ethertype = _e24;
    }
    let _e25 = at_3;
    let _e26 = at_3;
    let _e27 = ethertype;
    if ((_e27 == 2048u) && ((_e25 + 20u) <= _e2)) {
        let _e36 = load_u8_(pkt_19, _e25);
        local = (_e36 >= 69u);
    } else {
        local = false;
    }
    let _e40 = local;
    if _e40 {
        let _e42 = load_u8_(pkt_19, _e25);
        local_1 = (_e42 <= 79u);
    } else {
        local_1 = false;
    }
    let _e45 = local_1;
    if _e45 {
        let _e46 = at_3;
        let _e47 = load_u8_(pkt_19, _e25);
        payload = (_e46 + u32(((i32(_e47) & 15i) * 4i)));
        let _e58 = load_be32_(pkt_19, (_e25 + 12u));
        mix_((&m_3), 0u, _e58);
        let _e61 = load_be32_(pkt_19, (_e25 + 16u));
        mix_((&m_3), 0u, _e61);
        let _e63 = load_be16_(pkt_19, (_e25 + 4u));
        let _e67 = load_u8_(pkt_19, (_e25 + 9u));
        mix_((&m_3), 0u, ((_e63 << 16u) | _e67));
    } else {
        let _e69 = ethertype;
        if ((_e69 == 34525u) && ((_e26 + 40u) <= _e2)) {
            let _e77 = at_3;
            let _e78 = load_u8_(pkt_19, _e77);
            local_2 = ((i32(_e78) >> 4u) == 6i);
        } else {
            local_2 = false;
        }
        let _e83 = local_2;
        if _e83 {
            payload = (_e26 + 40u);
            i_1 = 0i;
            loop {
                let _e87 = i_1;
                if (_e87 < 4i) {
                } else {
                    break;
                }
                let _e89 = i_1;
                let _e95 = load_be32_(pkt_19, ((_e26 + (u32(_e89) * 4u)) + 8u));
                mix_((&m_3), 0u, _e95);
                continuing {
                    let _e96 = i_1;
                    i_1 = (_e96 + 1i);
                }
            }
            i_2 = 0i;
            loop {
                let _e100 = i_2;
                if (_e100 < 4i) {
                } else {
                    break;
                }
                let _e102 = i_2;
                let _e108 = load_be32_(pkt_19, ((_e26 + (u32(_e102) * 4u)) + 24u));
                mix_((&m_3), 0u, _e108);
                continuing {
                    let _e109 = i_2;
                    i_2 = (_e109 + 1i);
                }
            }
            let _e113 = load_u8_(pkt_19, (_e26 + 6u));
            mix_((&m_3), 0u, _e113);
        } else {
            return 1u;
        }
    }
    let _e114 = payload;
    let _e115 = load_be32_(pkt_19, _e114);
    mix_((&m_3), 0u, _e115);
    let _e116 = payload;
    let _e118 = load_be32_(pkt_19, (_e116 + 4u));
    mix_((&m_3), 0u, _e118);
    let _e119 = m_3;
    let _e120 = finish(_e119);
    return select(1u, 2u, ((_e120 % 100u) == 0u));
}
