// Walks IPv6's extension headers to the transport header. Drops packets with a routing header of
// type 0 (RFC 5095), fragments other than the first, and chains of more than MAX_HEADERS; writes
// the number of headers to the flow label's low byte.

#include <portcullis.h>

#ifndef MAX_HEADERS
#define MAX_HEADERS 6
#endif

struct ethhdr {
    uchar h_dest[6];
    uchar h_source[6];
    ushort h_proto;
} __attribute__((packed));

struct ipv6hdr {
    uint version_class_label;
    ushort payload_len;
    uchar nexthdr;
    uchar hop_limit;
    uint saddr[4], daddr[4];
} __attribute__((packed));

struct ipv6_opt_hdr {
    uchar nexthdr;
    uchar hdrlen;
} __attribute__((packed));

struct frag_hdr {
    uchar nexthdr;
    uchar reserved;
    ushort frag_off;
    uint identification;
} __attribute__((packed));

enum walk { FOUND, LATER_FRAGMENT, SOURCE_ROUTED, TOO_LONG, CUT_OFF };

typedef struct {
    uint protocol, offset, count;
} transport_t;

static inline bool is_extension(uint protocol)
{
    return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING || protocol == IPPROTO_FRAGMENT
        || protocol == IPPROTO_DSTOPTS || protocol == IPPROTO_AH;
}

static enum walk walk(const __global uchar *first, const __global uchar *end, uint protocol, transport_t *out)
{
    const __global uchar *at = first;

    for (out->count = 0; is_extension(protocol); out->count++) {
        const __global struct ipv6_opt_hdr *opt = (const __global struct ipv6_opt_hdr *)at;

        if (out->count == MAX_HEADERS)
            return TOO_LONG;
        if (at + 8 > end)
            return CUT_OFF;
        switch (protocol) {
        case IPPROTO_FRAGMENT: {
            const __global struct frag_hdr *frag = (const __global struct frag_hdr *)at;

            if (ntohs(frag->frag_off) & ~7)
                return LATER_FRAGMENT;
            at += sizeof(*frag);
            break;
        }
        case IPPROTO_AH:
            at += (opt->hdrlen + 2) << 2;
            break;
        case IPPROTO_ROUTING:
            if (at[2] == 0)
                return SOURCE_ROUTED;
            // fall through
        default:
            at += (opt->hdrlen + 1) << 3;
        }
        protocol = opt->nexthdr;
    }
    out->protocol = protocol;
    out->offset = at - first;
    return FOUND;
}

uint xdp_filter(__global uchar *pkt, uint len)
{
    __global struct ethhdr *eth = (__global struct ethhdr *)pkt;
    __global struct ipv6hdr *ip6 = (__global struct ipv6hdr *)(eth + 1);
    __global uchar *end = pkt + len;
    transport_t transport = {};

    if ((__global uchar *)(ip6 + 1) > end || eth->h_proto != htons(ETH_P_IPV6))
        return XDP_PASS;
    switch (walk((__global uchar *)(ip6 + 1), end, ip6->nexthdr, &transport)) {
    case FOUND:
        ip6->version_class_label = (ip6->version_class_label & htonl(0xffffff00)) | htonl(transport.count);
        return transport.offset > 128 ? XDP_DROP : XDP_PASS;
    case CUT_OFF:
        return XDP_PASS;
    default:
        return XDP_DROP;
    }
}
