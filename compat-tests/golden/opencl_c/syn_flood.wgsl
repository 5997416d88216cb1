struct syn {
    source: vec4<u32>,
    group: u32,
}

const MAP_NONE: u32 = 4294967295u;

const MAP_FULL: u32 = 4294967294u;

fn mix_(word_10: u32) -> u32 {
    var h: u32;

    h = ((word_10 ^ (word_10 >> 16u)) * 2246822507u);
    let _e7 = h;
    let _e8 = h;
    h = ((_e7 ^ (_e8 >> 13u)) * 3266489909u);
    let _e14 = h;
    let _e15 = h;
    return (_e14 ^ (_e15 >> 16u));
}

fn syn_of(pkt_19: u32, pkt_20: u32, syn_1: ptr<function, syn>, syn_2: u32) -> bool {
    var at_3: u32;
    var ethertype: u32;
    var local_5: bool;
    var local_6: bool;
    var local_7: bool;
    var local_8: bool;
    var tcp: u32;
    var local_9: bool;
    var local_10: bool;

    at_3 = (pkt_20 + 14u);
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
    if (_e27 == 2048u) {
        let _e31 = at_3;
        let _e33 = load_u8_(pkt_19, _e31);
        local_5 = (_e33 >= 69u);
    } else {
        local_5 = false;
    }
    let _e37 = local_5;
    if _e37 {
        let _e39 = at_3;
        let _e40 = load_u8_(pkt_19, _e39);
        local_6 = (_e40 <= 79u);
    } else {
        local_6 = false;
    }
    let _e43 = local_6;
    if _e43 {
        let _e47 = load_u8_(pkt_19, (_e25 + 9u));
        local_7 = (_e47 == 6u);
    } else {
        local_7 = false;
    }
    let _e50 = local_7;
    if _e50 {
        let _e53 = load_be16_(pkt_19, (_e25 + 6u));
        local_8 = !(((i32(_e53) & 8191i) != 0i));
    } else {
        local_8 = false;
    }
    let _e60 = local_8;
    if _e60 {
        let _e61 = at_3;
        let _e62 = load_u8_(pkt_19, _e25);
        tcp = (_e61 + u32(((i32(_e62) & 15i) * 4i)));
        let _e75 = load_be32_(pkt_19, (_e25 + 12u));
        (*syn_1).source = vec4<u32>(0u, 0u, 65535u, _e75);
        let _e78 = mix_(0u);
        let _e81 = (*syn_1).source.w;
        let _e85 = mix_((_e78 ^ (_e81 >> 8u)));
        (*syn_1).group = (_e85 % 4096u);
    } else {
        let _e88 = ethertype;
        if (_e88 == 34525u) {
            let _e92 = at_3;
            let _e93 = load_u8_(pkt_19, _e92);
            local_9 = ((i32(_e93) >> 4u) == 6i);
        } else {
            local_9 = false;
        }
        let _e98 = local_9;
        if _e98 {
            let _e101 = load_u8_(pkt_19, (_e26 + 6u));
            local_10 = (_e101 == 6u);
        } else {
            local_10 = false;
        }
        let _e103 = local_10;
        if _e103 {
            tcp = (_e26 + 40u);
            let _e109 = load_be32_(pkt_19, (_e26 + 8u));
            let _e111 = load_be32_(pkt_19, (_e26 + 12u));
            let _e115 = load_be32_(pkt_19, (_e26 + 16u));
            let _e119 = load_be32_(pkt_19, (_e26 + 20u));
            (*syn_1).source = vec4<u32>(_e109, _e111, _e115, _e119);
            let _e124 = (*syn_1).source.x;
            let _e125 = mix_(_e124);
            let _e128 = (*syn_1).source.y;
            let _e130 = mix_((_e125 ^ _e128));
            (*syn_1).group = (_e130 % 4096u);
        } else {
            return false;
        }
    }
    let _e132 = tcp;
    let _e135 = load_u8_(pkt_19, (_e132 + 13u));
    return ((i32(_e135) & 18i) == 2i);
}

fn clear(group: u32, side: u32) {
    var row: u32;
    var column: u32;

    row = 0u;
    loop {
        let _e4 = row;
        if (_e4 < 4u) {
        } else {
            break;
        }
        column = 0u;
        loop {
            let _e8 = column;
            if (_e8 < 32u) {
            } else {
                break;
            }
            let _e12 = row;
            let _e15 = column;
            sketches_write(((group * 4u) + _e12), ((side * 32u) + _e15), 0u);
            continuing {
                let _e17 = column;
                column = (_e17 + 1u);
            }
        }
        continuing {
            let _e20 = row;
            row = (_e20 + 1u);
        }
    }
    return;
}

fn turn_to(group_1: u32, now: u32) -> u32 {
    let _e3 = windows_read(group_1, 1u);
    let _e5 = windows_read(group_1, 0u);
    let elapsed_1 = u32(max(i32((now - _e5)), 0i));
    if ((_e3 != 0u) && (elapsed_1 < 1000u)) {
        return elapsed_1;
    }
    if ((_e3 != 0u) && (elapsed_1 < 2000u)) {
        windows_write(group_1, 1u, (3u - _e3));
        windows_write(group_1, 0u, (_e5 + 1000u));
        clear(group_1, (2u - _e3));
        return (elapsed_1 - 1000u);
    }
    windows_write(group_1, 1u, 1u);
    windows_write(group_1, 0u, now);
    clear(group_1, 0u);
    clear(group_1, 1u);
    return 0u;
}

fn hash_of(address: vec4<u32>) -> u32 {
    let _e2 = mix_(address.x);
    let _e5 = mix_((_e2 ^ address.y));
    let _e8 = mix_((_e5 ^ address.z));
    let _e11 = mix_((_e8 ^ address.w));
    return _e11;
}

fn count_1(syn_3: syn, elapsed: u32) -> u64 {
    var least: u64;
    var row_1: u32;

    let _e4 = windows_read(syn_3.group, 1u);
    let side_1 = (_e4 - 1u);
    let _e7 = hash_of(syn_3.source);
    least = 18446744073709551615lu;
    row_1 = 0u;
    loop {
        let _e12 = row_1;
        if (_e12 < 4u) {
        } else {
            break;
        }
        let _e17 = row_1;
        let entry_11 = ((syn_3.group * 4u) + _e17);
        let _e19 = row_1;
        let _e21 = mix_((_e7 + _e19));
        let column_1 = (_e21 >> 27u);
        let _e27 = sketches_add(entry_11, ((side_1 * 32u) + column_1), 1u);
        let now_1 = (_e27 + 1u);
        let _e32 = sketches_read(entry_11, (((1u - side_1) * 32u) + column_1));
        let _e33 = least;
        least = min(_e33, ((u64(now_1) * 1000lu) + (u64(_e32) * u64((1000u - elapsed)))));
        continuing {
            let _e44 = row_1;
            row_1 = (_e44 + 1u);
        }
    }
    let _e46 = least;
    return _e46;
}

fn xdp_filter(pkt_21: u32) -> u32 {
    var syn_4: syn;

    let _e3 = syn_of(pkt_21, 0u, (&syn_4), 0u);
    if !(_e3) {
        return 2u;
    }
    let _e6 = syn_4;
    let _e8 = syn_4.group;
    let _e9 = pkt_time_ms(pkt_21);
    let _e10 = turn_to(_e8, _e9);
    let _e11 = count_1(_e6, _e10);
    if (_e11 <= 100000lu) {
        return 2u;
    }
    let _e15 = syn_4.group;
    dropped_add(_e15, 1u);
    return 1u;
}

fn xdp_flow(pkt_22: u32) -> u32 {
    var syn_5: syn;
    var local_11: u32;

    let _e3 = syn_of(pkt_22, 0u, (&syn_5), 0u);
    if _e3 {
        let _e5 = syn_5.group;
        local_11 = _e5;
    } else {
        let _e7 = pkt_time(pkt_22);
        local_11 = u32(((u64(_e7.y) << 32u) | u64(_e7.x)));
    }
    let _e16 = local_11;
    return _e16;
}
