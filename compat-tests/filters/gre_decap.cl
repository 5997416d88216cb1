// Decapsulates IPv4 from GRE (RFC 2784, RFC 2890) or IPv4 in IPv4: moves the Ethernet header up to
// the inner packet and sets its TTL to the lower of both.

#define GRE_CSUM 0x8000
#define GRE_KEY 0x2000
#define GRE_SEQ 0x1000
#define GRE_VERSION 0x0007

struct ethhdr {
    uchar h_dest[6], h_source[6];
    ushort h_proto;
} __attribute__((packed));

struct iphdr {
    uchar version_ihl, tos;
    ushort tot_len, id, frag_off;
    uchar ttl, protocol;
    ushort check;
    uchar saddr[4], daddr[4];
} __attribute__((packed));

// Length of the GRE header, or 0 if it is not supported.
static uint gre_length(const __global uchar *gre)
{
    uint flags = load_be16(gre, 0), length = 4;

    if (flags & ~(GRE_CSUM | GRE_KEY | GRE_SEQ) || load_be16(gre, 2) != ETH_P_IP)
        return 0;
    const ushort optional[3] = {GRE_CSUM, GRE_KEY, GRE_SEQ};
    for (int i = 0; i < 3; i++)
        length += flags & optional[i] ? 4 : 0;
    return length;
}

uint xdp_filter(__global uchar *pkt, uint len)
{
    __global struct iphdr *outer = (__global struct iphdr *)(pkt + sizeof(struct ethhdr));
    uint skip;

    if (len < sizeof(struct ethhdr) + 2 * sizeof(struct iphdr) || load_be16(pkt, 12) != ETH_P_IP)
        return XDP_PASS;
    if (outer->version_ihl < 0x45 || outer->version_ihl >= 0x50 || load_be16(outer, 6) & 0x3fff)
        return XDP_PASS;
    skip = (outer->version_ihl & 15) * 4;
    if (outer->protocol == IPPROTO_GRE) {
        uint length = gre_length((__global uchar *)outer + skip);
        if (!length)
            return XDP_PASS;
        skip += length;
    } else if (outer->protocol != IPPROTO_IPIP) {
        return XDP_PASS;
    }
    __global struct iphdr *inner = (__global struct iphdr *)((__global uchar *)outer + skip);
    if ((__global uchar *)(inner + 1) > pkt + len || inner->version_ihl >> 4 != 4)
        return XDP_DROP;

    uchar ttl = inner->ttl;
    if (outer->ttl < ttl) {
        // TTL and protocol share one word of the checksum.
        ushort before = load_be16(inner, 8);
        inner->ttl = outer->ttl;
        inner->check = htons(csum_replace16(ntohs(inner->check), before, load_be16(inner, 8)));
    }
    struct ethhdr eth = *(__global struct ethhdr *)pkt;
    if (!adjust_head(pkt, (int)skip))
        return XDP_ABORTED;
    *(__global struct ethhdr *)pkt = eth;
    return XDP_PASS;
}
