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

fn colour_before(dscp: u32) -> u32 {
    let precedence = ((dscp & 7u) >> 1u);
    let is_assured = (((!(((dscp & 1u) != 0u)) && (precedence != 0u)) && (dscp >= 8u)) && (dscp < 40u));
    return 1u;
}

fn read64_(meter: u32, word_14: u32) -> u64 {
    let _e4 = meters_read(meter, (word_14 + 1u));
    let _e8 = meters_read(meter, word_14);
    return ((u64(_e4) << 32u) | u64(_e8));
}

fn filled(there: u64, elapsed: u32, rate: u32, full: u64) -> u64 {
    return min((there + (u64(elapsed) * u64(rate))), full);
}

fn write64_(meter_1: u32, word_15: u32, value_13: u64) {
    meters_write(meter_1, word_15, u32(value_13));
    meters_write(meter_1, (word_15 + 1u), u32((value_13 >> 32u)));
    return;
}

fn colour_of(meter_2: u32, profile: u32, now: u32, count_1: u32, before: u32) -> u32 {
    var committed: u64;
    var peak: u64;
    var last: u32;
    var colour: u32;

    let size_1 = (u64(count_1) * 1000lu);
    let _e9 = profiles_read(profile, 1u);
    let committed_full = (u64(_e9) * 1000lu);
    committed = committed_full;
    let _e14 = profiles_read(profile, 3u);
    let peak_full = (u64(_e14) * 1000lu);
    peak = peak_full;
    last = now;
    colour = before;
    let _e20 = map_is_new(meter_2);
    if !(_e20) {
        let _e23 = meters_read(meter_2, 4u);
        last = _e23;
        let _e24 = last;
        let elapsed_1 = u32(max(i32((now - _e24)), 0i));
        let _e30 = last;
        last = (_e30 + elapsed_1);
        let _e33 = read64_(meter_2, 0u);
        let _e34 = profiles_read(profile, 0u);
        let _e35 = filled(_e33, elapsed_1, _e34, committed_full);
        committed = _e35;
        let _e37 = read64_(meter_2, 2u);
        let _e38 = profiles_read(profile, 2u);
        let _e39 = filled(_e37, elapsed_1, _e38, peak_full);
        peak = _e39;
    }
    let _e40 = peak;
    if (_e40 < size_1) {
        colour = 3u;
    } else {
        let _e42 = committed;
        if ((_e42 < size_1) && (before == 1u)) {
            colour = 2u;
        }
    }
    let _e46 = colour;
    if (_e46 == 1u) {
        let _e48 = committed;
        committed = (_e48 - size_1);
    }
    let _e50 = colour;
    if (_e50 != 3u) {
        let _e52 = peak;
        peak = (_e52 - size_1);
    }
    let _e54 = committed;
    write64_(meter_2, 0u, _e54);
    let _e55 = peak;
    write64_(meter_2, 2u, _e55);
    let _e56 = last;
    meters_write(meter_2, 4u, _e56);
    let _e57 = colour;
    return _e57;
}

fn xdp_filter(pkt_22: u32) -> u32 {
    var source_2: vec4<u32>;
    var profile_1: u32;

    let _e2 = pkt_len(pkt_22);
    let _e3 = ip_header(pkt_22, 0u);
    let _e5 = source_of(pkt_22, _e3, _e2, (&source_2), 0u);
    if !(_e5) {
        return 2u;
    }
    let _e9 = source_2;
    let _e10 = profiles_find(_e9);
    profile_1 = _e10;
    let _e11 = profile_1;
    if (_e11 == 4294967295u) {
        let _e15 = profiles_find(vec4(0u));
        profile_1 = _e15;
    }
    let _e16 = profile_1;
    if (_e16 == 4294967295u) {
        return 2u;
    }
    let _e18 = source_2;
    let _e19 = meters_insert(_e18);
    if (_e19 == 4294967294u) {
        return 2u;
    }
    let _e22 = load_be16_(pkt_22, _e3);
    let shift_2 = u32(select(6i, 2i, ((_e22 >> 12u) == 4u)));
    let _e34 = colour_before(((_e22 >> shift_2) & 63u));
    let _e35 = profile_1;
    let _e36 = pkt_time_ms(pkt_22);
    let _e37 = pkt_wire_len(pkt_22);
    let _e42 = colour_of(_e19, _e35, _e36, (_e37 - u32(i32((_e3 - 0u)))), _e34);
    if ((_e42 == 3u) && true) {
        return 1u;
    }
    let marked = ((_e22 & ~((63u << shift_2))) | ((8u + (_e42 * 2u)) << shift_2));
    if (marked != _e22) {
        store_be16_(pkt_22, _e3, marked);
        if ((_e22 >> 12u) == 4u) {
            let _e61 = load_be16_(pkt_22, (_e3 + 10u));
            let _e62 = csum_replace16_(_e61, _e22, marked);
            let _e64 = (_e62 & 65535u);
            store_be16_(pkt_22, (_e3 + 10u), _e64);
        }
    }
    return 2u;
}

fn mix_(word_16: u32) -> u32 {
    var h_2: u32;

    h_2 = ((word_16 ^ (word_16 >> 16u)) * 2246822507u);
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
