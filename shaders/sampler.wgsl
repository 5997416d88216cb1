// sampler: picks one packet in `rate`, by a hash of what stays the same on a packet's way (RFC
// 5475, section 6.2). So every place that it passes picks the same packets, as long as `rate` and
// `seed` are the same there.
//
// PASS  a packet that is picked
// DROP  the others; what is neither IPv4 nor IPv6, or has its fixed header cut off
//
// The hash is MurmurHash3 of 32 bits over words in network order: both addresses; the protocol (of
// IPv6 the next header), with IPv4's identification above it; and the first 8 bytes behind the IP
// header, ports and sequence number for example. A word that is not there counts as 0. TTL, DSCP,
// checksums, MAC addresses and a VLAN tag do not count.
//
// Reads, behind an Ethernet header and one VLAN tag or none: version and IHL, identification,
// protocol, addresses; then 8 bytes where the IHL says.

// 0 and 1 pick all.
override rate: u32 = 100u;
override seed: u32 = 0u;

// https://github.com/aappleby/smhasher, MurmurHash3_x86_32
fn mix(hash: u32, word: u32) -> u32 {
    var k = word * 0xcc9e2d51u;
    k = ((k << 15u) | (k >> 17u)) * 0x1b873593u;
    let h = hash ^ k;
    return ((h << 13u) | (h >> 19u)) * 5u + 0xe6546b64u;
}

fn finish(hash: u32, bytes: u32) -> u32 {
    var h = hash ^ bytes;
    h = (h ^ (h >> 16u)) * 0x85ebca6bu;
    h = (h ^ (h >> 13u)) * 0xc2b2ae35u;
    return h ^ (h >> 16u);
}

fn xdp_filter(pkt: u32) -> u32 {
    let outer = load_be16(pkt, 12u);
    let ip = select(14u, 18u, outer == ETH_P_8021Q || outer == ETH_P_8021AD);
    let ethertype = load_be16(pkt, ip - 2u);
    let version_ihl = load_u8(pkt, ip);
    var addresses: u32;
    var payload: u32;
    var protocol: u32;
    if ethertype == ETH_P_IP && version_ihl - 0x45u <= 10u && pkt_len(pkt) >= ip + 20u {
        addresses = ip + 12u;
        payload = ip + (version_ihl & 0xfu) * 4u;
        protocol = (load_be16(pkt, ip + 4u) << 16u) | load_u8(pkt, ip + 9u);
    } else if ethertype == ETH_P_IPV6 && (version_ihl >> 4u) == 6u && pkt_len(pkt) >= ip + 40u {
        addresses = ip + 8u;
        payload = ip + 40u;
        protocol = load_u8(pkt, ip + 6u);
    } else {
        return XDP_DROP;
    }
    let end = select(ip + 40u, ip + 20u, ethertype == ETH_P_IP);
    var hash = seed;
    for (var at = addresses; at < end; at += 4u) {
        hash = mix(hash, load_be32(pkt, at));
    }
    hash = mix(hash, protocol);
    hash = mix(hash, load_be32(pkt, payload));
    hash = mix(hash, load_be32(pkt, payload + 4u));
    return select(XDP_DROP, XDP_PASS, finish(hash, end - addresses + 12u) % rate == 0u);
}
