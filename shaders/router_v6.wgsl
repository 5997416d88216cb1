// router_v6: forwards IPv6 packets by the longest prefix that fits their destination.
//
// REDIRECT  to the port of the route's next hop: the hop limit one less, MAC addresses those of the
//           next hop and of the port
// PASS      what the host's own stack has to see: everything but IPv6 right behind the addresses; a
//           frame to many stations; hop-by-hop options (RFC 8200, section 4.3); a hop limit that
//           ends here; a source or destination that no router forwards (0::/8 with :: and ::1,
//           fe80::/10, ff00::/8; RFC 4291, section 2.5); no route; a next hop that has no MAC
//           address yet
//
// The host fills the maps. A MAC address is two words: its first 2 bytes, then its last 4.
//
// Reads bytes 0-53; writes 0-11 and 21.

//! map routes: lpm key=4 value=1 entries=200000 fields=prefix,next_hop
//! map next_hops: array value=5 entries=4096 fields=next_hop,port,destination:mac,source:mac

// Whether a packet may be forwarded to and from what begins with this.
fn is_forwarded(first: u32) -> bool {
    return (first >> 24u) != 0u && (first >> 22u) != 0x3fau && (first >> 24u) != 0xffu;
}

fn xdp_filter(pkt: u32) -> u32 {
    let destination = vec4<u32>(load_be32(pkt, 38u), load_be32(pkt, 42u), load_be32(pkt, 46u), load_be32(pkt, 50u));
    let hop_limit = load_u8(pkt, 21u);
    if pkt_len(pkt) < 54u || load_be16(pkt, 12u) != ETH_P_IPV6 || (load_u8(pkt, 14u) >> 4u) != 6u
        || (load_u8(pkt, 0u) & 1u) != 0u || load_u8(pkt, 20u) == IPPROTO_HOPOPTS || hop_limit <= 1u
        || !is_forwarded(load_be32(pkt, 22u)) || !is_forwarded(destination.x) {
        return XDP_PASS;
    }
    let route = routes_find(destination);
    if route == MAP_NONE {
        return XDP_PASS;
    }
    let next_hop = routes_read(route, 0u);
    let destination_0 = next_hops_read(next_hop, 1u);
    let destination_2 = next_hops_read(next_hop, 2u);
    if (destination_0 | destination_2) == 0u {
        return XDP_PASS;
    }
    store_u8(pkt, 21u, hop_limit - 1u);
    store_be16(pkt, 0u, destination_0);
    store_be32(pkt, 2u, destination_2);
    store_be16(pkt, 6u, next_hops_read(next_hop, 3u));
    store_be32(pkt, 8u, next_hops_read(next_hop, 4u));
    return redirect(next_hops_read(next_hop, 0u));
}
