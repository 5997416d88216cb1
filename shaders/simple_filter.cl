// simple_filter: drops what comes from one IPv4 address, passes the rest of TCP and UDP, drops
// everything else.
//
// DROP  source address BLOCKED; neither TCP nor UDP; not IPv4; IPv4 header cut off
// PASS  TCP and UDP over IPv4 from any other source, fragments included
//
// Reads bytes 12-29: EtherType, version and IHL, protocol, source address.

#ifndef BLOCKED
#define BLOCKED 0xc0a80001 // 192.168.0.1
#endif

struct headers {
    uchar destination[6], source[6];
    ushort ethertype;
    // IPv4
    uchar version_ihl, tos;
    ushort length, id, fragment;
    uchar ttl, protocol;
    ushort checksum;
    uint source_address, destination_address;
} __attribute__((packed));

uint xdp_filter(__global uchar *pkt, uint len)
{
    __global struct headers *h = (__global struct headers *)pkt;

    // One check for the Ethernet header and the fixed part of the IPv4 header.
    if (len < sizeof(*h) || ntohs(h->ethertype) != ETH_P_IP)
        return XDP_DROP;
    // Version 4 and an IHL of 5 to 15.
    if (h->version_ihl < 0x45 || h->version_ihl > 0x4f)
        return XDP_DROP;
    if (h->protocol != IPPROTO_TCP && h->protocol != IPPROTO_UDP)
        return XDP_DROP;
    return ntohl(h->source_address) == BLOCKED ? XDP_DROP : XDP_PASS;
}
