// token_bucket: lets every source send so many packets a second, and so many at once.
//
// PASS  a packet for which its source's bucket has a token left; of a source without a limit; of
//       one that there is no room for; what is neither IPv4 nor IPv6, or has its fixed header cut
//       off
// DROP  the others
//
// The host sets limits by source: `rate`, in packets a second, and `burst`, the tokens that a
// bucket holds and has at first (4294967 at the most). The limit of :: is that of all sources that
// have none of their own.
//
// A packet takes a token. Buckets are counted in thousandths of one: at a rate of r, each
// millisecond brings r of them.
//
// Reads, behind an Ethernet header and one VLAN tag or none: version and IHL, source address; the
// packet's time.

//! map limits: hash key=4 value=2 entries=65536 fields=srcaddr:ip,rate,burst
//! map buckets: lru_hash key=4 value=2 entries=65536 fields=srcaddr:ip,thousandths,last

// Words of a limit, and of a bucket.
const RATE: u32 = 0u;
const BURST: u32 = 1u;
const THOUSANDTHS: u32 = 0u;
const LAST: u32 = 1u;

const TOKEN: u32 = 1000u;
const MOST: u32 = 4294967u;

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

fn xdp_filter(pkt: u32) -> u32 {
    let source = source_of(pkt);
    var limit = limits_find(source.address);
    if limit == MAP_NONE {
        limit = limits_find(vec4<u32>());
    }
    if !source.is_ip || limit == MAP_NONE {
        return XDP_PASS;
    }
    let bucket = buckets_insert(source.address);
    if bucket == MAP_FULL {
        return XDP_PASS;
    }
    let full = min(limits_read(limit, BURST), MOST) * TOKEN;
    var there = full;
    var last = pkt_time_ms(pkt);
    if !map_is_new(bucket) {
        // Where a clock goes back, time stands still.
        last = buckets_read(bucket, LAST);
        let elapsed = u32(max(i32(pkt_time_ms(pkt) - last), 0i));
        last += elapsed;
        let brought = u64(elapsed) * u64(limits_read(limit, RATE));
        there = u32(min(u64(buckets_read(bucket, THOUSANDTHS)) + brought, u64(full)));
    }
    let passes = there >= TOKEN;
    buckets_write(bucket, THOUSANDTHS, select(there, there - TOKEN, passes));
    buckets_write(bucket, LAST, last);
    return select(XDP_DROP, XDP_PASS, passes);
}
