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

// For other compilers.
#ifndef PORTCULLIS
PORTCULLIS_PREFIXES(routes, uint)
PORTCULLIS_VALUES(routes)
PORTCULLIS_VALUES(next_hops)
#endif

struct ethhdr {
    uchar destination[6], source[6];
    ushort type;
} __attribute__((packed));

struct iphdr {
    uchar version_ihl, tos;
    ushort length, id, fragment;
    uchar ttl, protocol;
    ushort checksum;
    uint source, destination;
} __attribute__((packed));

enum next_hop { PORT, DESTINATION_0, DESTINATION_2, SOURCE_0, SOURCE_2 };

// Of which a packet may be sent and received.
bool is_unicast(uint address)
{
    uint network = address >> 24;

    return network != 0 && network != 127 && network < 224;
}

uint xdp_filter(__global uchar *pkt, uint len)
{
    __global struct ethhdr *eth = (__global struct ethhdr *)pkt;
    __global struct iphdr *ip = (__global struct iphdr *)(eth + 1);

    if ((__global uchar *)(ip + 1) > pkt + len || ntohs(eth->type) != ETH_P_IP || ip->version_ihl != 0x45)
        return XDP_PASS;
    if ((eth->destination[0] & 1) != 0 || ip->ttl <= 1 || !is_unicast(ntohl(ip->source)) ||
        !is_unicast(ntohl(ip->destination)))
        return XDP_PASS;
    uint route = routes_find(ntohl(ip->destination));
    if (route == MAP_NONE)
        return XDP_PASS;
    uint next_hop = routes_read(route, 0);
    uint destination_0 = next_hops_read(next_hop, DESTINATION_0), destination_2 = next_hops_read(next_hop, DESTINATION_2);
    if ((destination_0 | destination_2) == 0)
        return XDP_PASS;

    // The TTL shares a word with the protocol, and is the higher byte.
    uint before = load_be16(&ip->ttl, 0);
    ip->ttl--;
    ip->checksum = htons(csum_replace16(ntohs(ip->checksum), before, before - 0x100));
    store_be16(pkt, 0, destination_0);
    store_be32(pkt, 2, destination_2);
    store_be16(pkt, 6, next_hops_read(next_hop, SOURCE_0));
    store_be32(pkt, 8, next_hops_read(next_hop, SOURCE_2));
    return redirect(next_hops_read(next_hop, PORT));
}
