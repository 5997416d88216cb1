// router_v4: forwards IPv4 packets by the longest prefix that fits their destination (RFC 1812,
// section 5.2).
//
// REDIRECT  to the port of the route's next hop: the TTL one less, the checksum brought up to date
//           (RFC 1624), MAC addresses those of the next hop and of the port
// PASS      what the host's own stack has to see: everything but IPv4 right behind the addresses; a
//           frame to many stations; a header with options; a TTL that ends here; a source or
//           destination that no router forwards (0/8, 127/8, from 224/3 on; section 5.3.7); no
//           route; a next hop that has no MAC address yet
//
// The host fills the maps. A MAC address is two words: its first 2 bytes, then its last 4. A
// checksum that was wrong stays wrong, for the receiver to see.
//
// Reads bytes 0-33; writes 0-11, 22 and 24-25.

//! map routes: lpm key=1 value=1 entries=1048576 fields=prefix,next_hop
//! map next_hops: array value=5 entries=4096 fields=next_hop,port,destination:mac,source:mac

// Of which a packet may be sent and received.
fn is_unicast(address: u32) -> bool {
    let network = address >> 24u;
    return network != 0u && network != 127u && network < 224u;
}

fn xdp_filter(pkt: u32) -> u32 {
    let source = load_be32(pkt, 26u);
    let destination = load_be32(pkt, 30u);
    let ttl = load_u8(pkt, 22u);
    if pkt_len(pkt) < 34u || load_be16(pkt, 12u) != ETH_P_IP || load_u8(pkt, 14u) != 0x45u
        || (load_u8(pkt, 0u) & 1u) != 0u || ttl <= 1u || !is_unicast(source) || !is_unicast(destination) {
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
    // The TTL shares a word with the protocol, and is the higher byte.
    let before = load_be16(pkt, 22u);
    store_u8(pkt, 22u, ttl - 1u);
    store_be16(pkt, 24u, csum_replace16(load_be16(pkt, 24u), before, before - 0x100u));
    store_be16(pkt, 0u, destination_0);
    store_be32(pkt, 2u, destination_2);
    store_be16(pkt, 6u, next_hops_read(next_hop, 3u));
    store_be32(pkt, 8u, next_hops_read(next_hop, 4u));
    return redirect(next_hops_read(next_hop, 0u));
}
