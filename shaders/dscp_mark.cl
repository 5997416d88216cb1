// dscp_mark: sets the DSCP (RFC 2474) of IPv4 and IPv6 packets and leaves their ECN bits alone.
//
// PASS  always; without a change what is neither IPv4 nor IPv6, has its fixed header (20 or 40
//       bytes) cut off, or carries the DSCP already
//
// Reads bytes 12-15 and 24-25 (IPv4's header checksum); writes bytes 14-15 and, for IPv4, 24-25.

// Expedited forwarding, RFC 3246. 0 to 63; higher bits are ignored.
#ifndef DSCP
#define DSCP 46
#endif

#define ETH_HLEN 14

// What IPv4 and IPv6 begin with, and where IPv4 has its checksum.
struct iphdr {
    ushort head;
    ushort unused[4];
    ushort checksum;
} __attribute__((packed));

uint xdp_filter(__global uchar *pkt, uint len)
{
    __global struct iphdr *ip = (__global struct iphdr *)(pkt + ETH_HLEN);

    if (len < ETH_HLEN + 20)
        return XDP_PASS;
    ushort ethertype = load_be16(pkt, 12), before = ntohs(ip->head);
    // IPv4: version and IHL, then the DSCP in the second byte's upper six bits. Version 4 and an
    // IHL of 5 to 15 make the first byte 0x45 to 0x4f.
    if (ethertype == ETH_P_IP && before >> 8 >= 0x45 && before >> 8 <= 0x4f) {
        ushort after = (before & 0xff03) | (DSCP & 0x3f) << 2;
        if (after != before) {
            ip->head = htons(after);
            ip->checksum = htons(csum_replace16(ntohs(ip->checksum), before, after));
        }
    }
    // IPv6: version, then the DSCP in the traffic class's upper six bits. No checksum covers it.
    if (ethertype == ETH_P_IPV6 && len >= ETH_HLEN + 40 && before >> 12 == 6) {
        ushort after = (before & 0xf03f) | (DSCP & 0x3f) << 6;
        if (after != before)
            ip->head = htons(after);
    }
    return XDP_PASS;
}
