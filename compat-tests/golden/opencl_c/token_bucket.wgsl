const MAP_NONE: u32 = 4294967295u;

const MAP_FULL: u32 = 4294967294u;

fn ip_header(pkt_19: u32, pkt_20: u32) -> u32 {
    let _e4 = load_be16_(pkt_19, (pkt_20 + 12u));
    return ((pkt_20 + 14u) + u32(select(0i, 4i, ((_e4 == 33024u) || (_e4 == 34984u)))));
}

fn source_of(pkt_21: u32, at_5: u32, end: u32, source: ptr<function, vec4<u32>>, source_1: u32) -> bool {
    var local_23: bool;
    var local_24: bool;
    var local_25: bool;

    let _e7 = load_be16_(pkt_21, (at_5 + 4294967294u));
    if ((_e7 == 2048u) && ((at_5 + 20u) <= end)) {
        let _e17 = load_u8_(pkt_21, at_5);
        local_23 = (_e17 >= 69u);
    } else {
        local_23 = false;
    }
    let _e21 = local_23;
    if _e21 {
        let _e23 = load_u8_(pkt_21, at_5);
        local_24 = (_e23 <= 79u);
    } else {
        local_24 = false;
    }
    let _e26 = local_24;
    if _e26 {
        let _e30 = load_be32_(pkt_21, (at_5 + 12u));
        (*source) = vec4<u32>(0u, 0u, 65535u, _e30);
        return true;
    }
    if ((_e7 == 34525u) && ((at_5 + 40u) <= end)) {
        let _e40 = load_u8_(pkt_21, at_5);
        local_25 = ((i32(_e40) >> 4u) == 6i);
    } else {
        local_25 = false;
    }
    let _e46 = local_25;
    if _e46 {
        let _e49 = load_be32_(pkt_21, (at_5 + 8u));
        let _e51 = load_be32_(pkt_21, (at_5 + 12u));
        let _e55 = load_be32_(pkt_21, (at_5 + 16u));
        let _e58 = load_be32_(pkt_21, (at_5 + 20u));
        (*source) = vec4<u32>(_e49, _e51, _e55, _e58);
        return true;
    }
    return false;
}

fn xdp_filter(pkt_22: u32) -> u32 {
    var source_2: vec4<u32>;
    var limit: u32;
    var last: u32;
    var there: u32;

    let _e2 = pkt_len(pkt_22);
    let _e4 = ip_header(pkt_22, 0u);
    let _e5 = source_of(pkt_22, _e4, _e2, (&source_2), 0u);
    if !(_e5) {
        return 2u;
    }
    let _e9 = source_2;
    let _e10 = limits_find(_e9);
    limit = _e10;
    let _e11 = limit;
    if (_e11 == 4294967295u) {
        let _e15 = limits_find(vec4(0u));
        limit = _e15;
    }
    let _e16 = limit;
    if (_e16 == 4294967295u) {
        return 2u;
    }
    let _e18 = source_2;
    let _e19 = buckets_insert(_e18);
    if (_e19 == 4294967294u) {
        return 2u;
    }
    let _e22 = pkt_time_ms(pkt_22);
    last = _e22;
    let _e24 = limit;
    let _e26 = limits_read(_e24, 1u);
    let full = (min(_e26, 4294967u) * 1000u);
    there = full;
    let _e32 = map_is_new(_e19);
    if !(_e32) {
        let _e34 = buckets_read(_e19, 1u);
        last = _e34;
        let _e35 = last;
        let elapsed = u32(max(i32((_e22 - _e35)), 0i));
        let _e41 = last;
        last = (_e41 + elapsed);
        let _e44 = limit;
        let _e45 = limits_read(_e44, 0u);
        let brought = (u64(elapsed) * u64(_e45));
        let _e48 = buckets_read(_e19, 0u);
        there = u32(min((u64(_e48) + brought), u64(full)));
    }
    let _e54 = there;
    let passes = (_e54 >= 1000u);
    let _e56 = there;
    let _e58 = there;
    buckets_write(_e19, 0u, select(_e58, (_e56 - 1000u), passes));
    let _e60 = last;
    buckets_write(_e19, 1u, _e60);
    return select(1u, 2u, passes);
}

fn mix_(word_14: u32) -> u32 {
    var h_2: u32;

    h_2 = ((word_14 ^ (word_14 >> 16u)) * 2246822507u);
    let _e7 = h_2;
    let _e8 = h_2;
    h_2 = ((_e7 ^ (_e8 >> 13u)) * 3266489909u);
    let _e14 = h_2;
    let _e15 = h_2;
    return (_e14 ^ (_e15 >> 16u));
}

fn hash_of(address: vec4<u32>) -> u32 {
    let _e2 = mix_(address.x);
    let _e5 = mix_((_e2 ^ address.y));
    let _e8 = mix_((_e5 ^ address.z));
    let _e11 = mix_((_e8 ^ address.w));
    return _e11;
}

fn xdp_flow(pkt_23: u32) -> u32 {
    var source_3: vec4<u32>;
    var local_26: u32;

    let _e2 = pkt_len(pkt_23);
    let _e4 = ip_header(pkt_23, 0u);
    let _e5 = source_of(pkt_23, _e4, _e2, (&source_3), 0u);
    if _e5 {
        let _e6 = source_3;
        let _e7 = hash_of(_e6);
        local_26 = _e7;
    } else {
        let _e9 = pkt_time(pkt_23);
        local_26 = u32(((u64(_e9.y) << 32u) | u64(_e9.x)));
    }
    let _e18 = local_26;
    return _e18;
}
