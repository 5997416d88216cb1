// port_filter: decides by the destination port of TCP and UDP over IPv4.
//
// DROP  port 22 or 23, or another below 1024; no port to be read: neither TCP nor UDP, a later
//       fragment, not IPv4, cut off before the port's end
// PASS  port 80, 443, or 1024 and above
//
// Reads bytes 12-23: EtherType, version and IHL, fragment offset, protocol; then the destination
// port, where the IHL says it is.

#define ETH_HLEN 14
#define FRAGMENT_OFFSET 0x1fff

struct iphdr {
    uchar version_ihl, tos;
    ushort length, id, fragment;
    uchar ttl, protocol;
    ushort checksum;
    uint source, destination;
} __attribute__((packed));

struct ports {
    ushort source, destination;
} __attribute__((packed));

uint xdp_filter(__global uchar *pkt, uint len)
{
    __global struct iphdr *ip = (__global struct iphdr *)(pkt + ETH_HLEN);

    // One check for the Ethernet header and the fixed part of the IPv4 header.
    if (len < ETH_HLEN + sizeof(*ip) || load_be16(pkt, 12) != ETH_P_IP)
        return XDP_DROP;
    // Version 4 and an IHL of 5 to 15.
    if (ip->version_ihl < 0x45 || ip->version_ihl > 0x4f)
        return XDP_DROP;
    // The port is in the first fragment only.
    if (ntohs(ip->fragment) & FRAGMENT_OFFSET)
        return XDP_DROP;
    if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
        return XDP_DROP;

    // A port that lies outside the packet reads as 0, which drops: no check of its own. 22 and 23
    // need no line either, being neither of the two nor above 1023.
    __global uchar *behind = (__global uchar *)ip + (ip->version_ihl & 0xf) * 4;
    switch (ntohs(((__global struct ports *)behind)->destination)) {
    case 80:
    case 443:
        return XDP_PASS;
    default:
        return ntohs(((__global struct ports *)behind)->destination) >= 1024 ? XDP_PASS : XDP_DROP;
    }
}
