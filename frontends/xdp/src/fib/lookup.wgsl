// `bpf_fib_lookup` (net/core/filter.c: bpf_ipv4_fib_lookup, bpf_ipv6_fib_lookup), from tables that
// the host fills. FIB_V4, FIB_V6, FIB_OTHERS, NEIGHBOURS and INTERFACES stand for the names of
// these maps; `mod.rs` names their words.

fn x_fib_swapped(word: u32) -> u32 {
    return (word >> 24u) | ((word >> 8u) & 0xff00u) | ((word << 8u) & 0xff0000u) | (word << 24u);
}

// A word of a route: in the IPv4 or IPv6 table, or for 0 in that of fallback routes.
fn x_fib_read(family: u32, route: u32, word: u32) -> u32 {
    if family == 2u { return x_fib_read4(route, word); }
    if family == 10u { return x_fib_read6(route, word); }
    return FIB_OTHERS_read(route, word);
}

// Whether an address is never forwarded (rt6_need_strict): multicast, link-local or loopback.
fn x_fib_stays(first: u32, second: u32, third: u32, fourth: u32) -> bool {
    let is_loopback = (first | second | third) == 0u && fourth == 1u;
    return is_loopback || (first & 0xff000000u) == 0xff000000u || (first & 0xffc00000u) == 0xfe800000u;
}

// Takes the words of `struct bpf_fib_lookup` (linux/bpf.h) after an unused one; returns them as
// updated, after the helper's result.
fn x_fib_lookup(given: array<u32, 17>, flags: u32) -> array<u32, 17> {
    var it = given;
    let family = it[1] & 0xffu;
    let is_six = family == 10u;
    if (flags & 0xffffffc0u) != 0u {
        // -EINVAL
        it[0] = 0xffffffeau;
        return it;
    }
    if family != 2u && !is_six {
        // -EAFNOSUPPORT
        it[0] = 0xffffff9fu;
        return it;
    }
    var to = vec4<u32>(0u, 0u, 0xffffu, x_fib_swapped(it[9]));
    if is_six {
        to = vec4<u32>(x_fib_swapped(it[9]), x_fib_swapped(it[10]), x_fib_swapped(it[11]), x_fib_swapped(it[12]));
        let stays = x_fib_stays(to.x, to.y, to.z, to.w)
            || x_fib_stays(x_fib_swapped(it[5]), x_fib_swapped(it[6]), x_fib_swapped(it[7]), x_fib_swapped(it[8]));
        if stays {
            it[0] = 4u;
            return it;
        }
    }
    let device = INTERFACES_find(it[3]);
    if device == MAP_NONE {
        // -ENODEV
        it[0] = 0xffffffedu;
        return it;
    }
    if INTERFACES_read(device, select(5u, 6u, is_six)) == 0u {
        // BPF_FIB_LKUP_RET_FWD_DISABLED
        it[0] = 5u;
        return it;
    }
    // BPF_FIB_LOOKUP_DIRECT: one table only, the main one or, with BPF_FIB_LOOKUP_TBID, another.
    let is_direct = (flags & 1u) != 0u;
    var table = 254u;
    if is_direct && (flags & 8u) != 0u {
        table = select(it[13], 254u, it[13] == 0u);
        it[13] = 0u;
    }
    let is_out = (flags & 2u) != 0u;
    // Try the route of the longest prefix, then its fallbacks in order.
    var which = family;
    var route = MAP_NONE;
    if is_six { route = x_fib_find6(to); } else { route = x_fib_find4(to.w); }
    var kind = 0u;
    for (var tries = 0u; tries < MAX_ROUTE_TRIES; tries = tries + 1u) {
        if route == MAP_NONE { break; }
        let there = x_fib_read(which, route, 1u);
        // Without rules the kernel merges the local and the main table of IPv4.
        let is_of_rules = there == 254u || there == 255u || (there == 253u && !is_six);
        let is_same = there == table || (!is_six && (there | 1u) == 255u && (table | 1u) == 255u);
        let type_of = x_fib_read(which, route, 0u);
        let tos = x_fib_read(which, route, 5u);
        // Rejecting routes have no interface; for IPv6 the interface is a preference only.
        let leads = !is_out || is_six || (type_of >= 6u && type_of <= 9u) || x_fib_read(which, route, 2u) == it[3];
        if select(is_of_rules, is_same, is_direct) && leads && (tos == 0u || tos == (it[4] & 0x1cu)) {
            kind = type_of;
            break;
        }
        let next = x_fib_read(which, route, 15u);
        which = 0u;
        route = select(FIB_OTHERS_find(next), MAP_NONE, next == 0u);
    }
    if kind != 1u {
        // Only unicast is forwarded: BPF_FIB_LKUP_RET_BLACKHOLE, _UNREACHABLE, _PROHIBIT,
        // _NOT_FWDED.
        it[0] = select(4u, kind - 5u, kind >= 6u && kind <= 8u);
        return it;
    }
    let number = x_fib_read(which, route, 2u);
    let out = INTERFACES_find(number);
    if out == MAP_NONE {
        it[0] = 4u;
        return it;
    }
    var mtu = x_fib_read(which, route, 4u);
    if mtu == 0u {
        // IP_MAX_MTU; IPV6_MIN_MTU and IP6_MAX_MTU
        let any = INTERFACES_read(out, 2u);
        let of_six = INTERFACES_read(out, 3u);
        mtu = min(any, 65520u);
        if is_six { mtu = min(max(select(of_six, any, of_six == 0u), 1280u), 65575u); }
    }
    let with_mtu = (it[2] & 0xffffu) | (mtu << 16u);
    if (it[2] >> 16u) > mtu {
        // BPF_FIB_LKUP_RET_FRAG_NEEDED
        it[2] = with_mtu;
        it[0] = 8u;
        return it;
    }
    if x_fib_read(which, route, 6u) != 0u {
        // BPF_FIB_LKUP_RET_UNSUPP_LWT
        it[0] = 6u;
        return it;
    }
    it[3] = number;
    it[4] = x_fib_read(which, route, 3u);
    let gateway = vec4<u32>(
        x_fib_read(which, route, 11u), x_fib_read(which, route, 12u), x_fib_read(which, route, 13u), x_fib_read(which, route, 14u));
    if (gateway.x | gateway.y | gateway.z | gateway.w) != 0u {
        to = gateway;
        if !is_six && (gateway.x | gateway.y) == 0u && gateway.z == 0xffffu {
            it[9] = x_fib_swapped(gateway.w);
        } else {
            // An IPv6 gateway, which IPv4 routes may have as well.
            it[1] = (it[1] & 0xffffff00u) | 10u;
            it[9] = x_fib_swapped(gateway.x);
            it[10] = x_fib_swapped(gateway.y);
            it[11] = x_fib_swapped(gateway.z);
            it[12] = x_fib_swapped(gateway.w);
        }
    }
    // BPF_FIB_LOOKUP_SRC
    if (flags & 16u) != 0u {
        let source = vec4<u32>(
            x_fib_read(which, route, 7u), x_fib_read(which, route, 8u), x_fib_read(which, route, 9u), x_fib_read(which, route, 10u));
        if is_six {
            if (source.x | source.y | source.z | source.w) == 0u {
                // BPF_FIB_LKUP_RET_NO_SRC_ADDR
                it[0] = 9u;
                return it;
            }
            it[6] = x_fib_swapped(source.y);
            it[7] = x_fib_swapped(source.z);
            it[8] = x_fib_swapped(source.w);
        }
        it[5] = x_fib_swapped(select(source.w, source.x, is_six));
    }
    // BPF_FIB_LOOKUP_SKIP_NEIGH
    if (flags & 4u) == 0u {
        let neighbour = NEIGHBOURS_find(array<u32, 5>(number, to.x, to.y, to.z, to.w));
        if neighbour == MAP_NONE {
            // BPF_FIB_LKUP_RET_NO_NEIGH
            it[0] = 7u;
            return it;
        }
        // Bytes 52 to 57 are the source MAC, 58 to 63 the destination MAC.
        let source = x_fib_swapped(INTERFACES_read(out, 1u));
        it[14] = (x_fib_swapped(INTERFACES_read(out, 0u)) >> 16u) | (source << 16u);
        it[15] = (source >> 16u) | (x_fib_swapped(NEIGHBOURS_read(neighbour, 0u)) & 0xffff0000u);
        it[16] = x_fib_swapped(NEIGHBOURS_read(neighbour, 1u));
    }
    it[13] = 0u;
    it[2] = with_mtu;
    it[0] = 0u;
    return it;
}
