// http_only: passes TCP to two ports, over IPv4 and IPv6, with or without one VLAN tag.
//
// PASS  TCP to port HTTP or HTTPS
// DROP  everything else: also a later fragment, a packet cut off before the port's end, more than
//       one VLAN tag, more than 8 IPv6 extension headers
//
// Reads bytes 12-13, the EtherType (16-17 behind a tag); of IPv4 the version, IHL, fragment offset
// and protocol; of IPv6 the version and the chain of headers; then the destination port.

// The two ports. 0 is none: then only the other passes.
#ifndef HTTP
#define HTTP 80
#endif
#ifndef HTTPS
#define HTTPS 443
#endif

// Extension headers that are looked past.
#define MAX_EXTENSION_HEADERS 8

typedef __global uchar *bytes;

struct iphdr {
    uchar version_ihl, tos;
    ushort length, id, fragment;
    uchar ttl, protocol;
    ushort checksum;
    uint source, destination;
} __attribute__((packed));

struct ip6hdr {
    uchar version_class, class_flow;
    ushort flow, length;
    uchar next, hop_limit;
    uchar source[16], destination[16];
} __attribute__((packed));

struct tcphdr {
    ushort source, destination;
} __attribute__((packed));

// The loads below make no length check of their own. What lies outside the packet reads as 0, and
// where that misleads the way to the port (a next header of 0 is a hop-by-hop header), the port
// lies still further out and reads as 0 too, which is no port.

uint port_of(bytes transport)
{
    return ntohs(((__global struct tcphdr *)transport)->destination);
}

// The TCP destination port of the IPv4 packet; 0 where there is none.
uint port_ipv4(__global struct iphdr *ip)
{
    // Version 4 and an IHL of 5 to 15.
    if (ip->version_ihl < 0x45 || ip->version_ihl > 0x4f || ip->protocol != IPPROTO_TCP)
        return 0;
    // The port is in the first fragment only.
    if (ntohs(ip->fragment) & 0x1fff)
        return 0;
    return port_of((bytes)ip + (ip->version_ihl & 0xf) * 4);
}

// The TCP destination port of the IPv6 packet; 0 where there is none.
uint port_ipv6(__global struct ip6hdr *ip)
{
    if (ip->version_class >> 4 != 6)
        return 0;
    uint header = ip->next;
    bytes at = (bytes)(ip + 1);
    for (int i = 0; i < MAX_EXTENSION_HEADERS && header != IPPROTO_TCP; i++) {
        // Every extension header begins with the number of the next one and, but for the fragment
        // header, its own length.
        uint next = at[0], length = at[1];
        switch (header) {
        case IPPROTO_HOPOPTS:
        case IPPROTO_ROUTING:
        case IPPROTO_DSTOPTS:
        case IPPROTO_MH:
            // In units of 8 bytes, the first not counted (RFC 8200, section 4.3).
            at += (length + 1) * 8;
            break;
        case IPPROTO_AH:
            // In units of 4 bytes, the first two not counted (RFC 4302, section 2.2).
            at += (length + 2) * 4;
            break;
        case IPPROTO_FRAGMENT:
            // The port is in the first fragment only (RFC 8200, section 4.5).
            if (load_be16(at, 2) & 0xfff8)
                return 0;
            at += 8;
            break;
        default:
            return 0;
        }
        header = next;
    }
    return header == IPPROTO_TCP ? port_of(at) : 0;
}

uint xdp_filter(bytes pkt, uint len)
{
    // No packet that passes is shorter: Ethernet, IPv4 and the ports.
    if (len < 38)
        return XDP_DROP;
    bytes payload = pkt + 14;
    uint ethertype = load_be16(payload, -2);
    if (ethertype == ETH_P_8021Q || ethertype == ETH_P_8021AD) {
        payload += 4;
        ethertype = load_be16(payload, -2);
    }
    uint port = 0;
    if (ethertype == ETH_P_IP)
        port = port_ipv4((__global struct iphdr *)payload);
    else if (ethertype == ETH_P_IPV6)
        port = port_ipv6((__global struct ip6hdr *)payload);
    return port != 0 && (port == HTTP || port == HTTPS) ? XDP_PASS : XDP_DROP;
}
