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

// For other compilers.
#ifndef PORTCULLIS
PORTCULLIS_PREFIXES(blocked_v4, uint)
PORTCULLIS_VALUES(blocked_v4)
PORTCULLIS_PREFIXES(blocked_v6, const uint *)
PORTCULLIS_VALUES(blocked_v6)
#endif

#define ETH_HLEN 14
#define VLAN_HLEN 4

struct iphdr {
    uchar version_ihl, tos;
    ushort length, id, fragment;
    uchar ttl, protocol;
    ushort checksum;
    uint source, destination;
} __attribute__((packed));

struct ip6hdr {
    uint version_class_flow;
    ushort length;
    uchar next, hop_limit;
    uint source[4], destination[4];
} __attribute__((packed));

uint xdp_filter(__global uchar *pkt, uint len)
{
    __global uchar *at = pkt + ETH_HLEN, *end = pkt + len;
    uint ethertype = load_be16(at, -2);

    if (ethertype == ETH_P_8021Q || ethertype == ETH_P_8021AD) {
        at += VLAN_HLEN;
        ethertype = load_be16(at, -2);
    }
    __global struct iphdr *ip = (__global struct iphdr *)at;
    __global struct ip6hdr *ip6 = (__global struct ip6hdr *)at;

    if (ethertype == ETH_P_IP && at[0] >= 0x45 && at[0] <= 0x4f && at + sizeof(struct iphdr) <= end) {
        uint entry = blocked_v4_find(ntohl(ip->source));
        if (entry != MAP_NONE) {
            blocked_v4_add(entry, 0, 1);
            return XDP_DROP;
        }
    }
    if (ethertype == ETH_P_IPV6 && at[0] >> 4 == 6 && at + sizeof(struct ip6hdr) <= end) {
        uint source[4] = {
            ntohl(ip6->source[0]), ntohl(ip6->source[1]), ntohl(ip6->source[2]), ntohl(ip6->source[3]),
        };
        uint entry = blocked_v6_find(source);
        if (entry != MAP_NONE) {
            blocked_v6_add(entry, 0, 1);
            return XDP_DROP;
        }
    }
    return XDP_PASS;
}
