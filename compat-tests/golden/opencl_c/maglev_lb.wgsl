struct flow {
    source: u32,
    destination: u32,
    source_port: u32,
    destination_port: u32,
    protocol: u32,
}

struct mac {
    head: u32,
    tail: u32,
}

const MAP_NONE: u32 = 4294967295u;

const MAP_FULL: u32 = 4294967294u;

fn is_healthy(backend: u32) -> bool {
    var local_20: bool;

    if (backend != 0u) {
        let _e4 = backends_read(backend, 0u);
        local_20 = (_e4 != 0u);
    } else {
        local_20 = false;
    }
    let _e7 = local_20;
    return _e7;
}

fn mix_(word_19: u32) -> u32 {
    var h_2: u32;

    h_2 = ((word_19 ^ (word_19 >> 16u)) * 2246822507u);
    let _e7 = h_2;
    let _e8 = h_2;
    h_2 = ((_e7 ^ (_e8 >> 13u)) * 3266489909u);
    let _e14 = h_2;
    let _e15 = h_2;
    return (_e14 ^ (_e15 >> 16u));
}

fn hash_of(f: flow) -> u32 {
    let _e2 = mix_(f.source);
    let _e5 = mix_((_e2 ^ f.destination));
    let _e8 = mix_((_e5 ^ f.source_port));
    let _e11 = mix_((_e8 ^ f.destination_port));
    let _e14 = mix_((_e11 ^ f.protocol));
    return _e14;
}

fn choose(hash: u32) -> u32 {
    var hash_1: u32;
    var i_1: i32;

    hash_1 = hash;
    i_1 = 0i;
    loop {
        let _e4 = i_1;
        if (_e4 < 64i) {
        } else {
            break;
        }
        let _e7 = hash_1;
        let _e11 = table_read((_e7 % 65537u), 0u);
        let _e12 = is_healthy(_e11);
        if _e12 {
            return _e11;
        }
        continuing {
            let _e13 = i_1;
            i_1 = (_e13 + 1i);
            let _e16 = hash_1;
            let _e19 = mix_((_e16 + 1u));
            hash_1 = _e19;
        }
    }
    return 0u;
}

fn mend(pkt_19: u32, check_2: u32, protocol: u32, old: u32, new_: u32) {
    var after: u32;

    let _e6 = load_be16_(pkt_19, check_2);
    let _e8 = csum_replace32_(_e6, old, new_);
    after = _e8;
    if (protocol == 17u) {
        if (_e6 == 0u) {
            return;
        }
        let _e12 = after;
        if (_e12 == 0u) {
            after = 65535u;
        }
    }
    let _e15 = after;
    store_be16_(pkt_19, check_2, _e15);
    return;
}

fn xdp_filter(pkt_20: u32) -> u32 {
    var at_5: u32;
    var ethertype: u32;
    var local_21: bool;
    var local_22: bool;
    var local_23: bool;
    var flow_1: flow;
    var backend_1: u32;

    let _e2 = pkt_len(pkt_20);
    at_5 = 14u;
    let _e6 = at_5;
    let _e9 = load_be16_(pkt_20, (_e6 + 4294967294u));
    ethertype = _e9;
    let _e10 = ethertype;
    let _e13 = ethertype;
    if ((_e10 == 33024u) || (_e13 == 34984u)) {
        let _e17 = at_5;
        at_5 = (_e17 + 4u);
        let _e20 = at_5;
        let _e22 = load_be16_(pkt_20, (_e20 + 4294967294u));
        ethertype = _e22;
    }
    let _e23 = at_5;
    let _e24 = ethertype;
    if !(((_e24 != 2048u) || ((_e23 + 20u) > _e2))) {
        let _e34 = load_u8_(pkt_20, _e23);
        local_21 = (_e34 < 69u);
    } else {
        local_21 = true;
    }
    let _e38 = local_21;
    if !(_e38) {
        let _e41 = load_u8_(pkt_20, _e23);
        local_22 = (_e41 > 79u);
    } else {
        local_22 = true;
    }
    let _e44 = local_22;
    if _e44 {
        return 2u;
    }
    let _e48 = load_u8_(pkt_20, (_e23 + 9u));
    if (_e48 != 6u) {
        let _e53 = load_u8_(pkt_20, (_e23 + 9u));
        local_23 = (_e53 != 17u);
    } else {
        local_23 = false;
    }
    let _e57 = local_23;
    if _e57 {
        return 2u;
    }
    let _e61 = load_be32_(pkt_20, (_e23 + 12u));
    flow_1.source = _e61;
    let _e65 = load_be32_(pkt_20, (_e23 + 16u));
    flow_1.destination = _e65;
    flow_1.source_port = 0u;
    flow_1.destination_port = 0u;
    let _e70 = load_u8_(pkt_20, (_e23 + 9u));
    flow_1.protocol = _e70;
    let _e73 = flow_1.destination;
    let _e74 = vips_find(_e73);
    if (_e74 == 4294967295u) {
        return 2u;
    }
    let _e77 = at_5;
    let _e78 = load_u8_(pkt_20, _e23);
    let _e85 = (_e77 + u32(((i32(_e78) & 15i) * 4i)));
    let _e87 = load_be16_(pkt_20, (_e23 + 6u));
    if ((_e87 & 16383u) == 0u) {
        let _e92 = load_be16_(pkt_20, _e85);
        flow_1.source_port = _e92;
        let _e95 = load_be16_(pkt_20, (_e85 + 2u));
        flow_1.destination_port = _e95;
    }
    let _e97 = flow_1.source;
    let _e99 = flow_1.destination;
    let _e101 = flow_1.source_port;
    let _e103 = flow_1.destination_port;
    let _e105 = flow_1.protocol;
    let _e107 = flows_insert(array<u32, 5>(_e97, _e99, _e101, _e103, _e105));
    let _e109 = flows_read(_e107, 0u);
    backend_1 = _e109;
    let _e110 = backend_1;
    let _e111 = is_healthy(_e110);
    if !(_e111) {
        let _e113 = flow_1;
        let _e114 = hash_of(_e113);
        let _e115 = choose(_e114);
        backend_1 = _e115;
        let _e116 = backend_1;
        flows_write(_e107, 0u, _e116);
    }
    let _e117 = backend_1;
    if (_e117 == 0u) {
        return 1u;
    }
    let _e119 = backend_1;
    let _e120 = backends_read(_e119, 1u);
    store_be32_(pkt_20, (_e23 + 16u), _e120);
    let _e139 = load_be16_(pkt_20, (_e23 + 10u));
    let _e141 = flow_1.destination;
    let _e142 = csum_replace32_(_e139, _e141, _e120);
    let _e144 = (_e142 & 65535u);
    store_be16_(pkt_20, (_e23 + 10u), _e144);
    if ((_e87 & 8191u) == 0u) {
        let _e155 = flow_1.protocol;
        let _e163 = flow_1.protocol;
        let _e165 = flow_1.destination;
        mend(pkt_20, (_e85 + u32(select(16i, 6i, (_e155 == 17u)))), _e163, _e165, _e120);
    }
    let _e166 = load_le16_(pkt_20, 0u);
    let _e167 = load_le32_(pkt_20, 2u);
    let _e168 = mac(_e166, _e167);
    store_le16_(pkt_20, 6u, _e168.head);
    store_le32_(pkt_20, 8u, _e168.tail);
    let _e171 = backend_1;
    let _e172 = backends_read(_e171, 2u);
    let _e173 = (_e172 & 65535u);
    store_be16_(pkt_20, 0u, _e173);
    let _e179 = backend_1;
    let _e181 = backends_read(_e179, 3u);
    store_be32_(pkt_20, 2u, _e181);
    let _e193 = backend_1;
    let _e194 = backends_read(_e193, 4u);
    let _e195 = redirect(_e194);
    return _e195;
}
