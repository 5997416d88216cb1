// policer: a two-rate three-colour marker for every source (RFC 2698), which marks assured
// forwarding (RFC 2597).
//
// PASS  green and yellow packets, with their new DSCP; of a source without a profile, or that there
//       is no room for, and what is neither IPv4 nor IPv6 or has its fixed header cut off: as they
//       are
// DROP  red packets; where `drop_red` is false they pass, marked
//
// The host sets profiles by source: committed and peak rate in bytes a second, committed and peak
// burst in bytes. That of :: is everybody's who has none of their own. What counts are bytes on the
// wire from the IP header on.
//
// Green, yellow and red become AFx1, AFx2 and AFx3, x being `af` (1 to 4). With `aware` a packet's
// own DSCP is its colour before, if it is one of assured forwarding of any class; else it is green.
// ECN bits stay as they are.
//
// Reads, behind an Ethernet header and one VLAN tag or none: version and IHL, DSCP, source address,
// IPv4's checksum; the packet's time and wire length. Writes the DSCP and, for IPv4, the checksum.

override af: u32 = 1u;
override aware: bool = false;
override drop_red: bool = true;

//! map profiles: hash key=4 value=4 entries=65536 fields=srcaddr:ip,cir,cbs,pir,pbs

// The two buckets, in thousandths of bytes.
//! map meters: lru_hash key=4 value=5 entries=65536 fields=srcaddr:ip,committed:u64,peak:u64,last

// Words of a profile, and of a meter, of 64 bits each but for the last.
const CIR: u32 = 0u;
const CBS: u32 = 1u;
const PIR: u32 = 2u;
const PBS: u32 = 3u;
const COMMITTED: u32 = 0u;
const PEAK: u32 = 2u;
const LAST: u32 = 4u;

const GREEN: u32 = 1u;
const YELLOW: u32 = 2u;
const RED: u32 = 3u;

struct Source {
    is_ip: bool,
    // Where the IP header is, and the address; that of IPv4 as IPv6 has it: ::ffff:a.b.c.d.
    ip: u32,
    address: vec4<u32>,
}

fn source_of(pkt: u32) -> Source {
    let outer = load_be16(pkt, 12u);
    let ip = select(14u, 18u, outer == ETH_P_8021Q || outer == ETH_P_8021AD);
    let ethertype = load_be16(pkt, ip - 2u);
    let version_ihl = load_u8(pkt, ip);
    var source = Source(true, ip, vec4<u32>(0u, 0u, 0xffffu, load_be32(pkt, ip + 12u)));
    if ethertype == ETH_P_IP && version_ihl - 0x45u <= 10u && pkt_len(pkt) >= ip + 20u {
        return source;
    }
    for (var i = 0u; i < 4u; i++) {
        source.address[i] = load_be32(pkt, ip + 8u + i * 4u);
    }
    source.is_ip = ethertype == ETH_P_IPV6 && (version_ihl >> 4u) == 6u && pkt_len(pkt) >= ip + 40u;
    return source;
}

// https://github.com/aappleby/smhasher, fmix32
fn mix(word: u32) -> u32 {
    var h = (word ^ (word >> 16u)) * 0x85ebca6bu;
    h = (h ^ (h >> 13u)) * 0xc2b2ae35u;
    return h ^ (h >> 16u);
}

fn hash_of(address: vec4<u32>) -> u32 {
    return mix(mix(mix(mix(address.x) ^ address.y) ^ address.z) ^ address.w);
}

// Packets of a source come one at a time, in the order of their arrival. What has none may come in
// any.
fn xdp_flow(pkt: u32) -> u32 {
    let source = source_of(pkt);
    return select(pkt_time(pkt).x, hash_of(source.address), source.is_ip);
}

fn read64(meter: u32, word: u32) -> u64 {
    return (u64(meters_read(meter, word + 1u)) << 32u) | u64(meters_read(meter, word));
}

fn write64(meter: u32, word: u32, value: u64) {
    meters_write(meter, word, u32(value));
    meters_write(meter, word + 1u, u32(value >> 32u));
}

// A bucket after some milliseconds. At r bytes a second each brings r thousandths.
fn filled(there: u64, elapsed: u32, rate: u32, burst: u32) -> u64 {
    return min(there + u64(elapsed) * u64(rate), u64(burst) * 1000lu);
}

// The colour of a packet of so many bytes that had a colour before (section 3).
fn colour_of(meter: u32, profile: u32, time: u32, bytes: u32, before: u32) -> u32 {
    let committed_burst = profiles_read(profile, CBS);
    let peak_burst = profiles_read(profile, PBS);
    var committed = u64(committed_burst) * 1000lu;
    var peak = u64(peak_burst) * 1000lu;
    var last = time;
    if !map_is_new(meter) {
        // Where a clock goes back, time stands still.
        last = meters_read(meter, LAST);
        let elapsed = u32(max(i32(time - last), 0i));
        last += elapsed;
        committed = filled(read64(meter, COMMITTED), elapsed, profiles_read(profile, CIR), committed_burst);
        peak = filled(read64(meter, PEAK), elapsed, profiles_read(profile, PIR), peak_burst);
    }
    let size = u64(bytes) * 1000lu;
    var colour = before;
    if peak < size {
        colour = RED;
    } else if committed < size {
        colour = max(before, YELLOW);
    }
    if colour == GREEN {
        committed -= size;
    }
    if colour != RED {
        peak -= size;
    }
    write64(meter, COMMITTED, committed);
    write64(meter, PEAK, peak);
    meters_write(meter, LAST, last);
    return colour;
}

fn xdp_filter(pkt: u32) -> u32 {
    let source = source_of(pkt);
    var profile = profiles_find(source.address);
    if profile == MAP_NONE {
        profile = profiles_find(vec4<u32>());
    }
    if !source.is_ip || profile == MAP_NONE {
        return XDP_PASS;
    }
    let meter = meters_insert(source.address);
    if meter == MAP_FULL {
        return XDP_PASS;
    }
    // The DSCP lies in these 16 bits: in IPv4 from bit 2 on, in IPv6 from bit 6.
    let ip = source.ip;
    let head = load_be16(pkt, ip);
    let is_ipv4 = (head >> 12u) == 4u;
    let shift = select(6u, 2u, is_ipv4);
    let dscp = (head >> shift) & 0x3fu;
    // AFxy is 8 x + 2 y.
    let precedence = (dscp & 7u) >> 1u;
    let is_assured = (dscp & 1u) == 0u && precedence != 0u && dscp >= 8u && dscp < 40u;
    let before = select(GREEN, precedence, aware && is_assured);

    let colour = colour_of(meter, profile, pkt_time_ms(pkt), pkt_wire_len(pkt) - ip, before);
    if colour == RED && drop_red {
        return XDP_DROP;
    }
    let marked = (head & ~(0x3fu << shift)) | ((af * 8u + colour * 2u) << shift);
    if marked != head {
        store_be16(pkt, ip, marked);
        if is_ipv4 {
            store_be16(pkt, ip + 10u, csum_replace16(load_be16(pkt, ip + 10u), head, marked));
        }
    }
    return XDP_PASS;
}
