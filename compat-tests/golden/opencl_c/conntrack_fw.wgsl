struct endpoint {
    address: array<u32, 4>,
    port: u32,
}

struct ends {
    lower: endpoint,
    upper: endpoint,
}

struct segment {
    ends: ends,
    upper: u32,
    flags: u32,
}

const MAP_NONE: u32 = 4294967295u;

const MAP_FULL: u32 = 4294967294u;

fn is_above(a_1: endpoint, b_1: endpoint) -> bool {
    var i_1: i32;

    i_1 = 0i;
    loop {
        let _e4 = i_1;
        if (_e4 < 4i) {
        } else {
            break;
        }
        let _e8 = i_1;
        let _e12 = i_1;
        if (a_1.address[u32(_e8)] != b_1.address[u32(_e12)]) {
            let _e17 = i_1;
            let _e21 = i_1;
            return (a_1.address[u32(_e17)] > b_1.address[u32(_e21)]);
        }
        continuing {
            let _e25 = i_1;
            i_1 = (_e25 + 1i);
        }
    }
    return (a_1.port > b_1.port);
}

fn segment_of(pkt_19: u32, pkt_20: u32, len: u32, segment_1: ptr<function, segment>, segment_2: u32) -> bool {
    var source: endpoint;
    var destination: endpoint;
    var at_4: u32;
    var ethertype: u32;
    var local_24: bool;
    var local_25: bool;
    var local_26: bool;
    var local_27: bool;
    var tcp: u32;
    var local_28: bool;
    var local_29: bool;
    var i_2: i32;
    var local_30: endpoint;
    var local_31: endpoint;

    source.port = 0u;
    destination.port = 0u;
    at_4 = (pkt_20 + 14u);
    let _e14 = at_4;
    let _e17 = load_be16_(pkt_19, (_e14 + 4294967294u));
    ethertype = _e17;
    let _e18 = ethertype;
    let _e21 = ethertype;
    if ((_e18 == 33024u) || (_e21 == 34984u)) {
        let _e25 = at_4;
        at_4 = (_e25 + 4u);
        let _e28 = at_4;
        let _e30 = load_be16_(pkt_19, (_e28 + 4294967294u));
        ethertype = _e30;
    }
    let _e31 = at_4;
    let _e32 = at_4;
    let _e33 = ethertype;
    if (_e33 == 2048u) {
        let _e37 = at_4;
        let _e38 = load_u8_(pkt_19, _e37);
        local_24 = (_e38 >= 69u);
    } else {
        local_24 = false;
    }
    let _e42 = local_24;
    if _e42 {
        let _e44 = at_4;
        let _e45 = load_u8_(pkt_19, _e44);
        local_25 = (_e45 <= 79u);
    } else {
        local_25 = false;
    }
    let _e48 = local_25;
    if _e48 {
        let _e52 = load_u8_(pkt_19, (_e31 + 9u));
        local_26 = (_e52 == 6u);
    } else {
        local_26 = false;
    }
    let _e55 = local_26;
    if _e55 {
        let _e58 = load_be16_(pkt_19, (_e31 + 6u));
        local_27 = !(((i32(_e58) & 16383i) != 0i));
    } else {
        local_27 = false;
    }
    let _e65 = local_27;
    if _e65 {
        destination.address[2] = 65535u;
        source.address[2] = 65535u;
        let _e77 = load_be32_(pkt_19, (_e31 + 12u));
        source.address[3] = _e77;
        let _e82 = load_be32_(pkt_19, (_e31 + 16u));
        destination.address[3] = _e82;
        let _e83 = at_4;
        let _e84 = load_u8_(pkt_19, _e31);
        tcp = (_e83 + u32(((i32(_e84) & 15i) * 4i)));
    } else {
        let _e93 = ethertype;
        if (_e93 == 34525u) {
            let _e97 = at_4;
            let _e98 = load_u8_(pkt_19, _e97);
            local_28 = ((i32(_e98) >> 4u) == 6i);
        } else {
            local_28 = false;
        }
        let _e103 = local_28;
        if _e103 {
            let _e106 = load_u8_(pkt_19, (_e32 + 6u));
            local_29 = (_e106 == 6u);
        } else {
            local_29 = false;
        }
        let _e108 = local_29;
        if _e108 {
            i_2 = 0i;
            loop {
                let _e110 = i_2;
                if (_e110 < 4i) {
                } else {
                    break;
                }
                let _e113 = i_2;
                let _e116 = i_2;
                let _e122 = load_be32_(pkt_19, ((_e32 + (u32(_e116) * 4u)) + 8u));
                source.address[u32(_e113)] = _e122;
                let _e124 = i_2;
                let _e127 = i_2;
                let _e133 = load_be32_(pkt_19, ((_e32 + (u32(_e127) * 4u)) + 24u));
                destination.address[u32(_e124)] = _e133;
                continuing {
                    let _e134 = i_2;
                    i_2 = (_e134 + 1i);
                }
            }
            tcp = (_e32 + 40u);
        } else {
            return false;
        }
    }
    let _e140 = tcp;
    if (((_e140 + 13u) + 1u) > (pkt_20 + len)) {
        return false;
    }
    let _e147 = tcp;
    let _e148 = load_be16_(pkt_19, _e147);
    source.port = _e148;
    let _e150 = tcp;
    let _e152 = load_be16_(pkt_19, (_e150 + 2u));
    destination.port = _e152;
    let _e154 = tcp;
    let _e156 = load_u8_(pkt_19, (_e154 + 13u));
    (*segment_1).flags = _e156;
    let _e158 = source;
    let _e159 = destination;
    let _e160 = is_above(_e158, _e159);
    (*segment_1).upper = u32(_e160);
    let _e165 = (*segment_1).upper;
    if (_e165 != 0u) {
        let _e167 = destination;
        local_30 = _e167;
    } else {
        let _e169 = source;
        local_30 = _e169;
    }
    let _e170 = local_30;
    (*segment_1).ends.lower = _e170;
    let _e174 = (*segment_1).upper;
    if (_e174 != 0u) {
        let _e176 = source;
        local_31 = _e176;
    } else {
        let _e178 = destination;
        local_31 = _e178;
    }
    let _e179 = local_31;
    (*segment_1).ends.upper = _e179;
    return true;
}

fn is_over(state: u32, last: u32, now: u32) -> bool {
    let is_transitory = (!(((state & 2u) != 0u)) || ((state & 12u) == 12u));
    return (i32((now - last)) > i32((select(7440u, 240u, is_transitory) * 1000u)));
}

fn xdp_filter(pkt_21: u32) -> u32 {
    var segment_3: segment;
    var ends_1: ends;
    var connection: u32;
    var state_1: u32;
    var local_32: bool;

    let _e2 = pkt_len(pkt_21);
    let _e4 = segment_of(pkt_21, 0u, _e2, (&segment_3), 0u);
    if !(_e4) {
        return 1u;
    }
    let _e9 = segment_3.ends;
    ends_1 = _e9;
    let _e10 = pkt_time_ms(pkt_21);
    let flags = segment_3.flags;
    let opens = ((flags & 23u) == 2u);
    let _e21 = ends_1.lower.address[0];
    let _e23 = ends_1.lower.address[1];
    let _e25 = ends_1.lower.address[2];
    let _e27 = ends_1.lower.address[3];
    let _e29 = ends_1.lower.port;
    let _e33 = ends_1.upper.address[0];
    let _e35 = ends_1.upper.address[1];
    let _e37 = ends_1.upper.address[2];
    let _e39 = ends_1.upper.address[3];
    let _e41 = ends_1.upper.port;
    let _e43 = connections_find(array<u32, 10>(_e21, _e23, _e25, _e27, _e29, _e33, _e35, _e37, _e39, _e41));
    connection = _e43;
    let _e45 = connection;
    let _e46 = connections_read(_e45, 0u);
    state_1 = _e46;
    let _e47 = connection;
    if !((_e47 == 4294967295u)) {
        let _e52 = state_1;
        let _e53 = connection;
        let _e54 = connections_read(_e53, 1u);
        let _e55 = is_over(_e52, _e54, _e10);
        local_32 = _e55;
    } else {
        local_32 = true;
    }
    let _e57 = local_32;
    let _e58 = state_1;
    if (_e57 || (opens && ((_e58 & 12u) == 12u))) {
        if !(opens) {
            return 1u;
        }
        let _e68 = ends_1.lower.address[0];
        let _e70 = ends_1.lower.address[1];
        let _e72 = ends_1.lower.address[2];
        let _e74 = ends_1.lower.address[3];
        let _e76 = ends_1.lower.port;
        let _e80 = ends_1.upper.address[0];
        let _e82 = ends_1.upper.address[1];
        let _e84 = ends_1.upper.address[2];
        let _e86 = ends_1.upper.address[3];
        let _e88 = ends_1.upper.port;
        let _e90 = connections_insert(array<u32, 10>(_e68, _e70, _e72, _e74, _e76, _e80, _e82, _e84, _e86, _e88));
        connection = _e90;
        let _e91 = connection;
        if (_e91 == 4294967294u) {
            return 1u;
        }
        let _e95 = segment_3.upper;
        state_1 = u32(select(0i, 1i, (_e95 != 0u)));
    } else {
        if ((flags & 4u) != 0u) {
            let _e107 = ends_1.lower.address[0];
            let _e109 = ends_1.lower.address[1];
            let _e111 = ends_1.lower.address[2];
            let _e113 = ends_1.lower.address[3];
            let _e115 = ends_1.lower.port;
            let _e119 = ends_1.upper.address[0];
            let _e121 = ends_1.upper.address[1];
            let _e123 = ends_1.upper.address[2];
            let _e125 = ends_1.upper.address[3];
            let _e127 = ends_1.upper.port;
            let _e129 = connections_remove(array<u32, 10>(_e107, _e109, _e111, _e113, _e115, _e119, _e121, _e123, _e125, _e127));
            return 2u;
        } else {
            let _e130 = state_1;
            if !(((_e130 & 2u) != 0u)) {
                let _e135 = segment_3.upper;
                let _e136 = state_1;
                let is_answer = (_e135 != (_e136 & 1u));
                if (!(opens) && !((is_answer && ((flags & 3u) == 2u)))) {
                    return 1u;
                }
                if is_answer {
                    let _e146 = state_1;
                    state_1 = (_e146 | 2u);
                }
            } else {
                if ((flags & 1u) != 0u) {
                    let _e150 = state_1;
                    let _e153 = segment_3.upper;
                    state_1 = (_e150 | u32((4i << _e153)));
                }
            }
        }
    }
    let _e157 = connection;
    let _e158 = state_1;
    connections_write(_e157, 0u, _e158);
    let _e159 = connection;
    connections_write(_e159, 1u, _e10);
    return 2u;
}

fn xdp_flow(pkt_22: u32) -> u32 {
    var at_5: u32;
    var ethertype_1: u32;
    var sum_1: u32;
    var tcp_1: u32;
    var i_3: i32;

    at_5 = 14u;
    let _e5 = at_5;
    let _e8 = load_be16_(pkt_22, (_e5 + 4294967294u));
    ethertype_1 = _e8;
    let _e9 = ethertype_1;
    let _e12 = ethertype_1;
    if ((_e9 == 33024u) || (_e12 == 34984u)) {
        let _e16 = at_5;
        at_5 = (_e16 + 4u);
        let _e19 = at_5;
        let _e21 = load_be16_(pkt_22, (_e19 + 4294967294u));
        ethertype_1 = _e21;
    }
    let _e22 = at_5;
    let _e23 = at_5;
    sum_1 = 0u;
    let _e25 = ethertype_1;
    if (_e25 == 2048u) {
        let _e31 = load_be32_(pkt_22, (_e22 + 12u));
        let _e35 = load_be32_(pkt_22, (_e22 + 16u));
        sum_1 = ((4063170u + _e31) + _e35);
        let _e37 = at_5;
        let _e38 = load_u8_(pkt_22, _e22);
        tcp_1 = (_e37 + u32(((i32(_e38) & 15i) * 4i)));
    } else {
        let _e47 = ethertype_1;
        if (_e47 == 34525u) {
            i_3 = 0i;
            loop {
                let _e52 = i_3;
                if (_e52 < 4i) {
                } else {
                    break;
                }
                let _e54 = sum_1;
                let _e57 = i_3;
                let _e63 = load_be32_(pkt_22, ((_e23 + (u32(_e57) * 4u)) + 8u));
                let _e65 = i_3;
                let _e71 = load_be32_(pkt_22, ((_e23 + (u32(_e65) * 4u)) + 24u));
                sum_1 = (((_e54 * 31u) + _e63) + _e71);
                continuing {
                    let _e73 = i_3;
                    i_3 = (_e73 + 1i);
                }
            }
            tcp_1 = (_e23 + 40u);
        } else {
            let _e79 = pkt_time(pkt_22);
            return u32(((u64(_e79.y) << 32u) | u64(_e79.x)));
        }
    }
    let _e88 = sum_1;
    let _e91 = tcp_1;
    let _e92 = load_be16_(pkt_22, _e91);
    let _e94 = tcp_1;
    let _e97 = load_be16_(pkt_22, (_e94 + 2u));
    return (((_e88 * 2654435761u) + _e92) + _e97);
}
