// blacklist: drops what comes from a network on a list.
//
// DROP  an IPv4 or IPv6 packet whose source has a prefix in `blocked_v4` or `blocked_v6`; the
//       longest counts it
// PASS  everything else
//
// The host fills the maps; a file that `--watch-map` watches may be a list. An entry's value is the
// number of packets that it dropped, for as long as the prefix stays in the list.
//
// Reads, behind an Ethernet header and one VLAN tag or none, the IP header up to the source.

//! map blocked_v4: lpm key=1 value=1 entries=65536 fields=prefix,packets
//! map blocked_v6: lpm key=4 value=1 entries=65536 fields=prefix,packets

fn xdp_filter(pkt: u32) -> u32 {
    let outer = load_be16(pkt, 12u);
    let ip = select(14u, 18u, outer == ETH_P_8021Q || outer == ETH_P_8021AD);
    let ethertype = load_be16(pkt, ip - 2u);
    let version_ihl = load_u8(pkt, ip);
    if ethertype == ETH_P_IP && version_ihl - 0x45u <= 10u && pkt_len(pkt) >= ip + 20u {
        let entry = blocked_v4_find(load_be32(pkt, ip + 12u));
        if entry != MAP_NONE {
            blocked_v4_add(entry, 0u, 1u);
            return XDP_DROP;
        }
    }
    if ethertype == ETH_P_IPV6 && (version_ihl >> 4u) == 6u && pkt_len(pkt) >= ip + 40u {
        let source = vec4<u32>(
            load_be32(pkt, ip + 8u),
            load_be32(pkt, ip + 12u),
            load_be32(pkt, ip + 16u),
            load_be32(pkt, ip + 20u),
        );
        let entry = blocked_v6_find(source);
        if entry != MAP_NONE {
            blocked_v6_add(entry, 0u, 1u);
            return XDP_DROP;
        }
    }
    return XDP_PASS;
}
