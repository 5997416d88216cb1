// syn_flood: drops the SYNs of sources that send too many.
//
// DROP  a SYN (without ACK) of a source that has sent more than `limit` in the last `window`
//       milliseconds, as estimated
// PASS  everything else: also TCP in later fragments and behind IPv6 extension headers
//
// Sources belong to groups by their network, /24 in IPv4 and /64 in IPv6: to one of 4096, by the
// network's hash. Each group has a count-min sketch of its own (Cormode and Muthukrishnan 2005): 4
// rows of 32 counters, of which a source's SYN counts one up in each row, also when it is dropped.
// There are two such sketches, for the window that is now and the one before, of which as much
// counts as still lies in the last `window` milliseconds. The smallest sum of a source's counters
// is the estimate; it is never too small.
//
// Groups share nothing, and packets of a group come in order. Hashes begin at 0 and take in word
// after word: exclusive or, then MurmurHash3's finaliser. Words are the IPv6 address's
// (::ffff:a.b.c.d for IPv4); of an IPv6 network its two, of an IPv4 network 0 and its 24 bits. A
// group is a hash's lowest 12 bits; a column in row r (0 to 3) is the highest 5 bits of the
// finaliser of the source's hash plus r.
//
// Reads, behind an Ethernet header and one VLAN tag or none, the headers of IP and TCP; the
// packet's time.

// Up to 1000000000.
override window: u32 = 1000u;
override limit: u32 = 100u;

// Of each group four entries, for its rows: 32 counters of one window, then those of the other.
//! map sketches: array value=64 entries=16384
// When the group's window began, and which half of its rows counts it: 1 or 2, 0 where there has
// been no SYN.
//! map windows: array value=2 entries=4096 fields=group,begun,side
//! map dropped: counter entries=4096 fields=group,packets:u64

const GROUPS: u32 = 4096u;
const ROWS: u32 = 4u;
const COLUMNS: u32 = 32u;

// Words of a group's window.
const BEGUN: u32 = 0u;
const SIDE: u32 = 1u;

const SYN: u32 = 2u;
const ACK: u32 = 16u;

// https://github.com/aappleby/smhasher, fmix32
fn mix(word: u32) -> u32 {
    var h = (word ^ (word >> 16u)) * 0x85ebca6bu;
    h = (h ^ (h >> 13u)) * 0xc2b2ae35u;
    return h ^ (h >> 16u);
}

fn hash_of(address: vec4<u32>) -> u32 {
    return mix(mix(mix(mix(address.x) ^ address.y) ^ address.z) ^ address.w);
}

struct Syn {
    is_syn: bool,
    source: vec4<u32>,
    group: u32,
}

fn syn_of(pkt: u32) -> Syn {
    var syn: Syn;
    let outer = load_be16(pkt, 12u);
    let ip = select(14u, 18u, outer == ETH_P_8021Q || outer == ETH_P_8021AD);
    let ethertype = load_be16(pkt, ip - 2u);
    let version_ihl = load_u8(pkt, ip);
    var flags = 0u;
    if ethertype == ETH_P_IP && version_ihl - 0x45u <= 10u && load_u8(pkt, ip + 9u) == IPPROTO_TCP
        && (load_be16(pkt, ip + 6u) & 0x1fffu) == 0u {
        flags = load_u8(pkt, ip + (version_ihl & 0xfu) * 4u + 13u);
        syn.source = vec4<u32>(0u, 0u, 0xffffu, load_be32(pkt, ip + 12u));
        syn.group = mix(mix(0u) ^ (syn.source.w >> 8u)) % GROUPS;
    } else if ethertype == ETH_P_IPV6 && (version_ihl >> 4u) == 6u && load_u8(pkt, ip + 6u) == IPPROTO_TCP {
        flags = load_u8(pkt, ip + 53u);
        for (var i = 0u; i < 4u; i++) {
            syn.source[i] = load_be32(pkt, ip + 8u + i * 4u);
        }
        syn.group = mix(mix(syn.source.x) ^ syn.source.y) % GROUPS;
    }
    syn.is_syn = (flags & (SYN | ACK)) == SYN;
    return syn;
}

// SYNs of a group come one at a time, in the order of their arrival. All else may come in any.
fn xdp_flow(pkt: u32) -> u32 {
    let syn = syn_of(pkt);
    return select(pkt_time(pkt).x, syn.group, syn.is_syn);
}

fn clear(group: u32, side: u32) {
    for (var row = 0u; row < ROWS; row++) {
        for (var column = 0u; column < COLUMNS; column++) {
            sketches_write(group * ROWS + row, side * COLUMNS + column, 0u);
        }
    }
}

// Milliseconds since the group's window began, after windows that have passed are left behind.
fn turn_to(group: u32, now: u32) -> u32 {
    let side = windows_read(group, SIDE);
    let begun = windows_read(group, BEGUN);
    // Where a clock goes back, time stands still.
    let elapsed = u32(max(i32(now - begun), 0i));
    if side != 0u && elapsed < window {
        return elapsed;
    }
    if side != 0u && elapsed < 2u * window {
        windows_write(group, SIDE, 3u - side);
        windows_write(group, BEGUN, begun + window);
        clear(group, 2u - side);
        return elapsed - window;
    }
    windows_write(group, SIDE, 1u);
    windows_write(group, BEGUN, now);
    clear(group, 0u);
    clear(group, 1u);
    return 0u;
}

// Counts a SYN; how many there were of the source in the last window, times a window's
// milliseconds.
fn count(syn: Syn, elapsed: u32) -> u64 {
    let side = windows_read(syn.group, SIDE) - 1u;
    let hash = hash_of(syn.source);
    var least = 0xfffffffffffffffflu;
    for (var row = 0u; row < ROWS; row++) {
        let entry = syn.group * ROWS + row;
        let column = mix(hash + row) >> 27u;
        let now = sketches_add(entry, side * COLUMNS + column, 1u) + 1u;
        let before = sketches_read(entry, (1u - side) * COLUMNS + column);
        least = min(least, u64(now) * u64(window) + u64(before) * u64(window - elapsed));
    }
    return least;
}

fn xdp_filter(pkt: u32) -> u32 {
    let syn = syn_of(pkt);
    if !syn.is_syn {
        return XDP_PASS;
    }
    if count(syn, turn_to(syn.group, pkt_time_ms(pkt))) <= u64(limit) * u64(window) {
        return XDP_PASS;
    }
    dropped_add(syn.group, 1u);
    return XDP_DROP;
}
