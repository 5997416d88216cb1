const MAP_NONE: u32 = 4294967295u;

const MAP_FULL: u32 = 4294967294u;

fn is_unicast(address_1: u32) -> bool {
    let network = (address_1 >> 24u);
    return (((network != 0u) && (network != 127u)) && (network < 224u));
}

fn xdp_filter(pkt_19: u32) -> u32 {
    var local_9: bool;
    var local_10: bool;
    var local_11: bool;
    var local_12: bool;
    var local_13: bool;

    let _e2 = pkt_len(pkt_19);
    if !((34u > _e2)) {
        let _e11 = load_be16_(pkt_19, 12u);
        local_9 = (_e11 != 2048u);
    } else {
        local_9 = true;
    }
    let _e15 = local_9;
    if !(_e15) {
        let _e18 = load_u8_(pkt_19, 14u);
        local_10 = (_e18 != 69u);
    } else {
        local_10 = true;
    }
    let _e21 = local_10;
    if _e21 {
        return 2u;
    }
    let _e23 = load_u8_(pkt_19, 0u);
    if !(((i32(_e23) & 1i) != 0i)) {
        let _e33 = load_u8_(pkt_19, 22u);
        local_11 = (_e33 <= 1u);
    } else {
        local_11 = true;
    }
    let _e35 = local_11;
    if !(_e35) {
        let _e39 = load_be32_(pkt_19, 26u);
        let _e40 = is_unicast(_e39);
        local_12 = !(_e40);
    } else {
        local_12 = true;
    }
    let _e42 = local_12;
    if !(_e42) {
        let _e47 = load_be32_(pkt_19, 30u);
        let _e48 = is_unicast(_e47);
        local_13 = !(_e48);
    } else {
        local_13 = true;
    }
    let _e50 = local_13;
    if _e50 {
        return 2u;
    }
    let _e51 = load_be32_(pkt_19, 30u);
    let _e52 = routes_find(_e51);
    if (_e52 == 4294967295u) {
        return 2u;
    }
    let _e55 = routes_read(_e52, 0u);
    let _e56 = next_hops_read(_e55, 1u);
    let _e57 = next_hops_read(_e55, 2u);
    if ((_e56 | _e57) == 0u) {
        return 2u;
    }
    let _e60 = load_be16_(pkt_19, 22u);
    let _e61 = load_u8_(pkt_19, 22u);
    store_u8_(pkt_19, 22u, (u32((i32(_e61) - 1i)) & 255u));
    let _e69 = load_be16_(pkt_19, 24u);
    let _e72 = csum_replace16_(_e69, _e60, (_e60 - 256u));
    let _e74 = (_e72 & 65535u);
    store_be16_(pkt_19, 24u, _e74);
    store_be16_(pkt_19, 0u, _e56);
    store_be32_(pkt_19, 2u, _e57);
    let _e82 = next_hops_read(_e55, 3u);
    store_be16_(pkt_19, 6u, _e82);
    let _e84 = next_hops_read(_e55, 4u);
    store_be32_(pkt_19, 8u, _e84);
    let _e85 = next_hops_read(_e55, 0u);
    let _e86 = redirect(_e85);
    return _e86;
}
