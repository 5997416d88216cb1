// gtpu_decap: takes user packets out of GTP-U tunnels (3GPP TS 29.281) and sends each to the port
// of its tunnel's slice.
//
// REDIRECT  the packet in a G-PDU of a known tunnel, over IPv4 or IPv6, to the slice's port, with a
//           new Ethernet header
// PASS      everything else that is not such a G-PDU: also GTP-U's other messages, a tunnel that is
//           not known (whose sender is due an Error Indication) and fragments, which are put
//           together first
// DROP      a G-PDU of a known tunnel that is broken: no whole IPv4 or IPv6 header in it, an
//           extension header of length 0, more than 4 of those; a slice that has no MAC address yet
//
// The host fills the maps. A MAC address is two words: its first 2 bytes, then its last 4.
//
// Reads, behind an Ethernet header and one VLAN tag or none, the headers of IP, UDP and GTP; moves
// the packet's head to 14 bytes before the inner header, and writes those.

//! map tunnels: hash key=1 value=1 entries=65536 fields=teid,slice
//! map slices: array value=5 entries=256 fields=slice,port,destination:mac,source:mac

// For other compilers.
#ifndef PORTCULLIS
PORTCULLIS_KEYS(tunnels, uint)
PORTCULLIS_VALUES(tunnels)
PORTCULLIS_VALUES(slices)
#endif

#define ETH_HLEN 14
#define VLAN_HLEN 4

#define GTPU_PORT 2152
#define GTPU_VERSION_MASK 0xf0
#define GTPU_VERSION 0x30 // version 1, and GTP rather than GTP'
#define GTPU_E 4
#define GTPU_E_S_PN 7
#define G_PDU 255
#define MAX_EXTENSION_HEADERS 4

typedef __global uchar *bytes;

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

struct udphdr {
    ushort source, destination, length, checksum;
} __attribute__((packed));

struct gtphdr {
    uchar flags, type;
    ushort length;
    uint teid;
} __attribute__((packed));

enum slice { PORT, DESTINATION_0, DESTINATION_2, SOURCE_0, SOURCE_2 };

bool is_ipv4(uint version_ihl)
{
    return version_ihl >= 0x45 && version_ihl <= 0x4f;
}

// The GTP header in a UDP packet that is no fragment; the packet itself where there is none. What
// is cut off has no port of GTP-U's.
bytes gtp_header(bytes pkt)
{
    bytes at = pkt + ETH_HLEN;
    uint ethertype = load_be16(at, -2);
    if (ethertype == ETH_P_8021Q || ethertype == ETH_P_8021AD) {
        at += VLAN_HLEN;
        ethertype = load_be16(at, -2);
    }
    __global struct iphdr *ip = (__global struct iphdr *)at;
    __global struct ip6hdr *ip6 = (__global struct ip6hdr *)at;
    __global struct udphdr *udp;

    if (ethertype == ETH_P_IP && is_ipv4(at[0]) && ip->protocol == IPPROTO_UDP && !(ntohs(ip->fragment) & 0x3fff))
        udp = (__global struct udphdr *)(at + (ip->version_ihl & 0xf) * 4);
    else if (ethertype == ETH_P_IPV6 && at[0] >> 4 == 6 && ip6->next == IPPROTO_UDP)
        udp = (__global struct udphdr *)(ip6 + 1);
    else
        return pkt;
    return ntohs(udp->destination) == GTPU_PORT ? (bytes)(udp + 1) : pkt;
}

// What is in a G-PDU; the packet itself where its extension headers make no sense (section 5.2.1).
bytes user_packet(bytes pkt, __global struct gtphdr *gtp)
{
    bytes at = (bytes)(gtp + 1);
    uint flags = gtp->flags, next = 0;

    // With any of E, S and PN all of their fields are there; that of E is the type of the first
    // extension header.
    if (flags & GTPU_E_S_PN)
        at += 4;
    if (flags & GTPU_E)
        next = at[-1];
    for (int i = 0; i < MAX_EXTENSION_HEADERS && next != 0; i++) {
        // It begins with its length in units of 4 bytes, and ends with the next one's type. A
        // length of 0 leads nowhere, until there are too many.
        at += at[0] * 4;
        next = at[-1];
    }
    return next == 0 ? at : pkt;
}

uint xdp_filter(bytes pkt, uint len)
{
    bytes end = pkt + len;
    __global struct gtphdr *gtp = (__global struct gtphdr *)gtp_header(pkt);

    if ((bytes)gtp == pkt || (bytes)(gtp + 1) > end)
        return XDP_PASS;
    if ((gtp->flags & GTPU_VERSION_MASK) != GTPU_VERSION || gtp->type != G_PDU)
        return XDP_PASS;
    uint tunnel = tunnels_find(ntohl(gtp->teid));
    if (tunnel == MAP_NONE)
        return XDP_PASS;

    bytes inner = user_packet(pkt, gtp);
    uint ethertype = 0;
    if (is_ipv4(inner[0]) && inner + sizeof(struct iphdr) <= end)
        ethertype = ETH_P_IP;
    else if (inner[0] >> 4 == 6 && inner + sizeof(struct ip6hdr) <= end)
        ethertype = ETH_P_IPV6;
    uint slice = tunnels_read(tunnel, 0);
    uint destination_0 = slices_read(slice, DESTINATION_0), destination_2 = slices_read(slice, DESTINATION_2);
    if (inner == pkt || ethertype == 0 || (destination_0 | destination_2) == 0)
        return XDP_DROP;

    // At least 34 bytes are left, so this cannot fail.
    adjust_head(pkt, (int)(inner - ETH_HLEN - pkt));
    store_be16(pkt, 0, destination_0);
    store_be32(pkt, 2, destination_2);
    store_be16(pkt, 6, slices_read(slice, SOURCE_0));
    store_be32(pkt, 8, slices_read(slice, SOURCE_2));
    store_be16(pkt, 12, ethertype);
    return redirect(slices_read(slice, PORT));
}
