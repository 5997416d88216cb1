// Drops DNS queries over IPv4 for names at or below one domain, ignoring case.

#include <portcullis.h>

#ifndef DNS_PORT
#define DNS_PORT 53
#endif
#define MAX_LABELS 16
#define TOLOWER(c) ((c) >= 'A' && (c) <= 'Z' ? (c) + ('a' - 'A') : (c))

typedef __global uchar *ptr;

struct iphdr {
    uchar ihl_version, tos;
    ushort tot_len, id, frag_off;
    uchar ttl, protocol;
    ushort check;
    uint saddr, daddr;
} __attribute__((packed));

struct udphdr {
    ushort source, dest, len, check;
} __attribute__((packed));

struct dnshdr {
    ushort id, flags, qdcount, ancount, nscount, arcount;
} __attribute__((packed));

// "example.com" in wire format.
__constant char domain[] = "\007example\003com";

// Whether the name that begins here ends with the domain.
bool matches(ptr name, ptr end)
{
    for (int label = 0; label < MAX_LABELS; label++) {
        bool same = true;

        for (uint i = 0; i < sizeof(domain) && same; i++)
            same = name + i < end && TOLOWER(name[i]) == domain[i];
        if (same)
            return true;
        // The end of the name, or a compressed name, which queries do not have.
        if (name >= end || *name == 0 || *name > 63)
            return false;
        name += *name + 1;
    }
    return false;
}

uint xdp_filter(ptr pkt, uint len)
{
    ptr end = pkt + len;
    __global struct iphdr *ip = (__global struct iphdr *)(pkt + 14);

    if (len < 14 + sizeof *ip || load_be16(pkt, 12) != ETH_P_IP)
        return XDP_PASS;
    if (ip->ihl_version >> 4 != 4 || ip->protocol != IPPROTO_UDP || (ip->frag_off & htons(0x1fff)))
        return XDP_PASS;
    __global struct udphdr *udp = (__global struct udphdr *)((ptr)ip + (ip->ihl_version & 0xf) * 4);
    __global struct dnshdr *dns = (__global struct dnshdr *)&udp[1];
    if ((ptr)(dns + 1) > end || (udp->dest != htons(DNS_PORT) && ntohs(udp->source) != DNS_PORT))
        return XDP_PASS;
    ushort flags = ntohs(dns->flags);
    if ((flags & 0x8000) != 0 || dns->qdcount == 0)
        return XDP_PASS;
    return matches((ptr)(dns + 1), end) ? XDP_DROP : XDP_PASS;
}
