const MAP_NONE: u32 = 4294967295u;

const MAP_FULL: u32 = 4294967294u;

fn xdp_filter(pkt_19: u32) -> u32 {
    var at_3: u32;
    var ethertype: u32;
    var local_9: bool;
    var local_10: bool;
    var local_11: bool;
    var source: array<u32, 4>;

    let _e2 = pkt_len(pkt_19);
    at_3 = 14u;
    let _e6 = at_3;
    let _e9 = load_be16_(pkt_19, (_e6 + 4294967294u));
    ethertype = _e9;
    let _e10 = ethertype;
    let _e13 = ethertype;
    if ((_e10 == 33024u) || (_e13 == 34984u)) {
        let _e17 = at_3;
        at_3 = (_e17 + 4u);
        let _e20 = at_3;
        let _e22 = load_be16_(pkt_19, (_e20 + 4294967294u));
        ethertype = _e22;
    }
    let _e23 = at_3;
    let _e24 = at_3;
    let _e25 = ethertype;
    if (_e25 == 2048u) {
        let _e29 = at_3;
        let _e30 = load_u8_(pkt_19, _e29);
        local_9 = (_e30 >= 69u);
    } else {
        local_9 = false;
    }
    let _e34 = local_9;
    if _e34 {
        let _e36 = at_3;
        let _e37 = load_u8_(pkt_19, _e36);
        local_10 = (_e37 <= 79u);
    } else {
        local_10 = false;
    }
    let _e40 = local_10;
    let _e41 = at_3;
    if (_e40 && ((_e41 + 20u) <= _e2)) {
        let _e48 = load_be32_(pkt_19, (_e23 + 12u));
        let _e49 = blocked_v4_find(_e48);
        if (_e49 != 4294967295u) {
            let _e53 = blocked_v4_add(_e49, 0u, 1u);
            return 1u;
        }
    }
    let _e54 = ethertype;
    if (_e54 == 34525u) {
        let _e58 = at_3;
        let _e59 = load_u8_(pkt_19, _e58);
        local_11 = ((i32(_e59) >> 4u) == 6i);
    } else {
        local_11 = false;
    }
    let _e64 = local_11;
    let _e65 = at_3;
    if (_e64 && ((_e65 + 40u) <= _e2)) {
        let _e73 = load_be32_(pkt_19, (_e24 + 8u));
        source[0] = _e73;
        let _e76 = load_be32_(pkt_19, (_e24 + 12u));
        source[1] = _e76;
        let _e81 = load_be32_(pkt_19, (_e24 + 16u));
        source[2] = _e81;
        let _e85 = load_be32_(pkt_19, (_e24 + 20u));
        source[3] = _e85;
        let _e88 = source[0];
        let _e90 = source[1];
        let _e92 = source[2];
        let _e94 = source[3];
        let _e96 = blocked_v6_find(vec4<u32>(_e88, _e90, _e92, _e94));
        if (_e96 != 4294967295u) {
            let _e98 = blocked_v6_add(_e96, 0u, 1u);
            return 1u;
        }
    }
    return 2u;
}
