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

// For other compilers.
#ifndef PORTCULLIS
PORTCULLIS_PREFIXES(routes, const uint *)
PORTCULLIS_VALUES(routes)
PORTCULLIS_VALUES(next_hops)
#endif

struct ethhdr {
    uchar destination[6], source[6];
    ushort type;
} __attribute__((packed));

struct ip6hdr {
    uint version_class_flow;
    ushort length;
    uchar next, hop_limit;
    uint source[4], destination[4];
} __attribute__((packed));

enum next_hop { PORT, DESTINATION_0, DESTINATION_2, SOURCE_0, SOURCE_2 };

// Whether a packet may be forwarded to and from what begins with this.
bool is_forwarded(uint first)
{
    return first >> 24 != 0 && first >> 22 != 0x3fa && first >> 24 != 0xff;
}

uint xdp_filter(__global uchar *pkt, uint len)
{
    __global struct ethhdr *eth = (__global struct ethhdr *)pkt;
    __global struct ip6hdr *ip6 = (__global struct ip6hdr *)(eth + 1);

    if ((__global uchar *)(ip6 + 1) > pkt + len || ntohs(eth->type) != ETH_P_IPV6 || pkt[14] >> 4 != 6)
        return XDP_PASS;
    if ((eth->destination[0] & 1) != 0 || ip6->next == IPPROTO_HOPOPTS || ip6->hop_limit <= 1)
        return XDP_PASS;
    uint destination[4] = {
        ntohl(ip6->destination[0]), ntohl(ip6->destination[1]), ntohl(ip6->destination[2]), ntohl(ip6->destination[3]),
    };
    if (!is_forwarded(ntohl(ip6->source[0])) || !is_forwarded(destination[0]))
        return XDP_PASS;
    uint route = routes_find(destination);
    if (route == MAP_NONE)
        return XDP_PASS;
    uint next_hop = routes_read(route, 0);
    uint destination_0 = next_hops_read(next_hop, DESTINATION_0), destination_2 = next_hops_read(next_hop, DESTINATION_2);
    if ((destination_0 | destination_2) == 0)
        return XDP_PASS;

    ip6->hop_limit--;
    store_be16(pkt, 0, destination_0);
    store_be32(pkt, 2, destination_2);
    store_be16(pkt, 6, next_hops_read(next_hop, SOURCE_0));
    store_be32(pkt, 8, next_hops_read(next_hop, SOURCE_2));
    return redirect(next_hops_read(next_hop, PORT));
}
