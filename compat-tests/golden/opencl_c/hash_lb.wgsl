struct flow {
    source: u32,
    destination: u32,
    source_port: u32,
    destination_port: u32,
}

fn fnv_byte(hash: ptr<function, u32>, hash_1: u32, byte: u32) {
    let _e3 = (*hash);
    (*hash) = ((_e3 ^ byte) * 16777619u);
    return;
}

fn fnv_16_(hash_2: ptr<function, u32>, hash_3: u32, value_9: u32) {
    fnv_byte(hash_2, hash_3, (value_9 & 255u));
    fnv_byte(hash_2, hash_3, (u32((i32(value_9) >> 8u)) & 255u));
    return;
}

fn fnv_32_(hash_4: ptr<function, u32>, hash_5: u32, value_10: u32) {
    fnv_16_(hash_4, hash_5, (value_10 & 65535u));
    fnv_16_(hash_4, hash_5, ((value_10 >> 16u) & 65535u));
    return;
}

fn hash_of(flow_1: flow) -> u32 {
    var hash_6: u32;

    hash_6 = 2166136261u;
    fnv_32_((&hash_6), 0u, flow_1.source);
    fnv_32_((&hash_6), 0u, flow_1.destination);
    fnv_16_((&hash_6), 0u, flow_1.source_port);
    fnv_16_((&hash_6), 0u, flow_1.destination_port);
    let _e8 = hash_6;
    return _e8;
}

fn xdp_filter(pkt_19: u32) -> u32 {
    var local: bool;
    var local_1: bool;
    var local_2: bool;
    var flow_2: flow;

    let _e2 = pkt_len(pkt_19);
    if !((_e2 < 34u)) {
        let _e9 = load_be16_(pkt_19, 12u);
        local = (_e9 != 2048u);
    } else {
        local = true;
    }
    let _e13 = local;
    if _e13 {
        return 2u;
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
        return 2u;
    }
    let _e26 = load_u8_(pkt_19, 23u);
    if (_e26 != 6u) {
        let _e30 = load_u8_(pkt_19, 23u);
        local_2 = (_e30 != 17u);
    } else {
        local_2 = false;
    }
    let _e34 = local_2;
    if _e34 {
        return 2u;
    }
    let _e37 = load_be32_(pkt_19, 26u);
    flow_2.source = _e37;
    let _e41 = load_be32_(pkt_19, 30u);
    flow_2.destination = _e41;
    let _e44 = load_be16_(pkt_19, 20u);
    if ((i32(_e44) & 8191i) == 0i) {
        let _e50 = load_u8_(pkt_19, 14u);
        let _e57 = (14u + u32(((i32(_e50) & 15i) * 4i)));
        let _e59 = load_be16_(pkt_19, _e57);
        flow_2.source_port = _e59;
        let _e62 = load_be16_(pkt_19, (_e57 + 2u));
        flow_2.destination_port = _e62;
    }
    let _e63 = flow_2;
    let _e64 = hash_of(_e63);
    let _e67 = redirect((_e64 % 8u));
    return _e67;
}
