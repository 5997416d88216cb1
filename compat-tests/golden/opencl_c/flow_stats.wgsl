struct flow {
    source: array<u32, 4>,
    destination: array<u32, 4>,
    source_port: u32,
    destination_port: u32,
    protocol: u32,
}

const MAP_NONE: u32 = 4294967295u;

const MAP_FULL: u32 = 4294967294u;

fn flow_of(pkt_19: u32, at_4: u32, end: u32, ethertype: u32, flow_1: ptr<function, flow>, flow_2: u32) -> bool {
    var has_ports: bool;
    var local_26: bool;
    var local_27: bool;
    var ports: u32;
    var local_28: bool;
    var i_1: i32;

    has_ports = true;
    if ((ethertype == 2048u) && ((at_4 + 20u) <= end)) {
        let _e17 = load_u8_(pkt_19, at_4);
        local_26 = (_e17 >= 69u);
    } else {
        local_26 = false;
    }
    let _e21 = local_26;
    if _e21 {
        let _e23 = load_u8_(pkt_19, at_4);
        local_27 = (_e23 <= 79u);
    } else {
        local_27 = false;
    }
    let _e26 = local_27;
    if _e26 {
        (*flow_1).destination[2] = 65535u;
        (*flow_1).source[2] = 65535u;
        let _e38 = load_be32_(pkt_19, (at_4 + 12u));
        (*flow_1).source[3] = _e38;
        let _e43 = load_be32_(pkt_19, (at_4 + 16u));
        (*flow_1).destination[3] = _e43;
        let _e47 = load_u8_(pkt_19, (at_4 + 9u));
        (*flow_1).protocol = _e47;
        let _e48 = load_u8_(pkt_19, at_4);
        ports = (at_4 + u32(((i32(_e48) & 15i) * 4i)));
        let _e59 = load_be16_(pkt_19, (at_4 + 6u));
        has_ports = ((i32(_e59) & 8191i) == 0i);
    } else {
        if ((ethertype == 34525u) && ((at_4 + 40u) <= end)) {
            let _e72 = load_u8_(pkt_19, at_4);
            local_28 = ((i32(_e72) >> 4u) == 6i);
        } else {
            local_28 = false;
        }
        let _e78 = local_28;
        if _e78 {
            i_1 = 0i;
            loop {
                let _e80 = i_1;
                if (_e80 < 4i) {
                } else {
                    break;
                }
                let _e83 = i_1;
                let _e86 = i_1;
                let _e92 = load_be32_(pkt_19, ((at_4 + (u32(_e86) * 4u)) + 8u));
                (*flow_1).source[u32(_e83)] = _e92;
                let _e94 = i_1;
                let _e97 = i_1;
                let _e103 = load_be32_(pkt_19, ((at_4 + (u32((4i + _e97)) * 4u)) + 8u));
                (*flow_1).destination[u32(_e94)] = _e103;
                continuing {
                    let _e104 = i_1;
                    i_1 = (_e104 + 1i);
                }
            }
            let _e109 = load_u8_(pkt_19, (at_4 + 6u));
            (*flow_1).protocol = _e109;
            ports = (at_4 + 40u);
        } else {
            return false;
        }
    }
    let _e112 = (*flow_1).protocol;
    switch _e112 {
        case 6u, 17u, 132u: {
            let _e113 = has_ports;
            if _e113 {
                let _e115 = ports;
                let _e116 = load_be16_(pkt_19, _e115);
                (*flow_1).source_port = _e116;
                let _e118 = ports;
                let _e120 = load_be16_(pkt_19, (_e118 + 2u));
                (*flow_1).destination_port = _e120;
            }
        }
        default: {
        }
    }
    return true;
}

fn add_bytes(flow_3: u32, count_1: u32) {
    let _e3 = flows_add(flow_3, 1u, count_1);
    if ((_e3 + count_1) < _e3) {
        let _e7 = flows_add(flow_3, 2u, 1u);
    }
    return;
}

fn note_first(flow_4: u32, now: u32) {
    var first_1: u32;
    var was_1: u32;

    let _e4 = flows_read(flow_4, 3u);
    first_1 = _e4;
    loop {
        let _e6 = first_1;
        let _e9 = first_1;
        if ((_e6 == 0u) || (now < _e9)) {
        } else {
            break;
        }
        let _e12 = first_1;
        let _e13 = flows_compare_exchange(flow_4, 3u, _e12, now);
        was_1 = _e13;
        let _e14 = was_1;
        let _e15 = first_1;
        if (_e14 == _e15) {
            return;
        }
        continuing {
            let _e17 = was_1;
            first_1 = _e17;
        }
    }
    return;
}

fn note_last(flow_5: u32, now_1: u32) {
    var last: u32;
    var was_2: u32;

    let _e4 = flows_read(flow_5, 4u);
    last = _e4;
    loop {
        let _e6 = last;
        if (now_1 > _e6) {
        } else {
            break;
        }
        let _e8 = last;
        let _e9 = flows_compare_exchange(flow_5, 4u, _e8, now_1);
        was_2 = _e9;
        let _e10 = was_2;
        let _e11 = last;
        if (_e10 == _e11) {
            return;
        }
        continuing {
            let _e13 = was_2;
            last = _e13;
        }
    }
    return;
}

fn xdp_filter(pkt_20: u32) -> u32 {
    var flow_6: flow;
    var at_5: u32;
    var ethertype_1: u32;

    let _e2 = pkt_len(pkt_20);
    flow_6.protocol = 0u;
    at_5 = 14u;
    let _e8 = at_5;
    let _e11 = load_be16_(pkt_20, (_e8 + 4294967294u));
    ethertype_1 = _e11;
    let _e12 = ethertype_1;
    let _e15 = ethertype_1;
    if ((_e12 == 33024u) || (_e15 == 34984u)) {
        let _e19 = at_5;
        at_5 = (_e19 + 4u);
        let _e22 = at_5;
        let _e24 = load_be16_(pkt_20, (_e22 + 4294967294u));
        ethertype_1 = _e24;
    }
    let _e25 = at_5;
    let _e26 = ethertype_1;
    let _e27 = flow_of(pkt_20, _e25, _e2, _e26, (&flow_6), 0u);
    if !(_e27) {
        return 2u;
    }
    let _e32 = flow_6.source[0];
    let _e34 = flow_6.source[1];
    let _e36 = flow_6.source[2];
    let _e38 = flow_6.source[3];
    let _e41 = flow_6.destination[0];
    let _e43 = flow_6.destination[1];
    let _e45 = flow_6.destination[2];
    let _e47 = flow_6.destination[3];
    let _e49 = flow_6.source_port;
    let _e51 = flow_6.destination_port;
    let _e53 = flow_6.protocol;
    let _e55 = flows_insert(array<u32, 11>(_e32, _e34, _e36, _e38, _e41, _e43, _e45, _e47, _e49, _e51, _e53));
    if (_e55 == 4294967294u) {
        missed_add(0u, 1u);
        return 2u;
    }
    let _e58 = flows_add(_e55, 0u, 1u);
    let _e59 = pkt_wire_len(pkt_20);
    let _e60 = at_5;
    add_bytes(_e55, (_e59 - u32(i32((_e60 - 0u)))));
    let _e65 = pkt_time(pkt_20);
    let now_2 = max(u32((((u64(_e65.y) << 32u) | u64(_e65.x)) / 1000000000lu)), 1u);
    note_first(_e55, now_2);
    note_last(_e55, now_2);
    return 2u;
}
