const MAP_NONE: u32 = 4294967295u;

const MAP_FULL: u32 = 4294967294u;

fn is_forwarded(first: u32) -> bool {
    return ((((first >> 24u) != 0u) && ((first >> 22u) != 1018u)) && ((first >> 24u) != 255u));
}

fn xdp_filter(pkt_19: u32) -> u32 {
    var local_9: bool;
    var local_10: bool;
    var local_11: bool;
    var local_12: bool;
    var destination: array<u32, 4>;
    var local_13: bool;

    let _e2 = pkt_len(pkt_19);
    if !((54u > _e2)) {
        let _e11 = load_be16_(pkt_19, 12u);
        local_9 = (_e11 != 34525u);
    } else {
        local_9 = true;
    }
    let _e15 = local_9;
    if !(_e15) {
        let _e18 = load_u8_(pkt_19, 14u);
        local_10 = ((i32(_e18) >> 4u) != 6i);
    } else {
        local_10 = true;
    }
    let _e24 = local_10;
    if _e24 {
        return 2u;
    }
    let _e26 = load_u8_(pkt_19, 0u);
    if !(((i32(_e26) & 1i) != 0i)) {
        let _e36 = load_u8_(pkt_19, 20u);
        local_11 = (_e36 == 0u);
    } else {
        local_11 = true;
    }
    let _e38 = local_11;
    if !(_e38) {
        let _e43 = load_u8_(pkt_19, 21u);
        local_12 = (_e43 <= 1u);
    } else {
        local_12 = true;
    }
    let _e45 = local_12;
    if _e45 {
        return 2u;
    }
    let _e49 = load_be32_(pkt_19, 38u);
    destination[0] = _e49;
    let _e53 = load_be32_(pkt_19, 42u);
    destination[1] = _e53;
    let _e57 = load_be32_(pkt_19, 46u);
    destination[2] = _e57;
    let _e62 = load_be32_(pkt_19, 50u);
    destination[3] = _e62;
    let _e66 = load_be32_(pkt_19, 22u);
    let _e67 = is_forwarded(_e66);
    if !(!(_e67)) {
        let _e72 = destination[0];
        let _e73 = is_forwarded(_e72);
        local_13 = !(_e73);
    } else {
        local_13 = true;
    }
    let _e75 = local_13;
    if _e75 {
        return 2u;
    }
    let _e77 = destination[0];
    let _e79 = destination[1];
    let _e81 = destination[2];
    let _e83 = destination[3];
    let _e85 = routes_find(vec4<u32>(_e77, _e79, _e81, _e83));
    if (_e85 == 4294967295u) {
        return 2u;
    }
    let _e88 = routes_read(_e85, 0u);
    let _e89 = next_hops_read(_e88, 1u);
    let _e90 = next_hops_read(_e88, 2u);
    if ((_e89 | _e90) == 0u) {
        return 2u;
    }
    let _e93 = load_u8_(pkt_19, 21u);
    store_u8_(pkt_19, 21u, (u32((i32(_e93) - 1i)) & 255u));
    store_be16_(pkt_19, 0u, _e89);
    store_be32_(pkt_19, 2u, _e90);
    let _e99 = next_hops_read(_e88, 3u);
    store_be16_(pkt_19, 6u, _e99);
    let _e100 = next_hops_read(_e88, 4u);
    store_be32_(pkt_19, 8u, _e100);
    let _e101 = next_hops_read(_e88, 0u);
    let _e102 = redirect(_e101);
    return _e102;
}
