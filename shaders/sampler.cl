// sampler: picks one packet in RATE, by a hash of what stays the same on a packet's way (RFC 5475,
// section 6.2). So every place that it passes picks the same packets, as long as RATE and SEED are
// the same there.
//
// PASS  a packet that is picked
// DROP  the others; what is neither IPv4 nor IPv6, or has its fixed header cut off
//
// The hash is MurmurHash3 of 32 bits over words in network order: both addresses; the protocol (of
// IPv6 the next header), with IPv4's identification above it; and the first 8 bytes behind the IP
// header, ports and sequence number for example. A word that is not there counts as 0. TTL, DSCP,
// checksums, MAC addresses and a VLAN tag do not count.
//
// Reads, behind an Ethernet header and one VLAN tag or none: version and IHL, identification,
// protocol, addresses; then 8 bytes where the IHL says.

// 0 and 1 pick all.
#ifndef RATE
#define RATE 100u
#endif
#ifndef SEED
#define SEED 0u
#endif

#define ETH_HLEN 14
#define VLAN_HLEN 4

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

// https://github.com/aappleby/smhasher, MurmurHash3_x86_32
struct murmur {
    uint hash, length;
};

void mix(struct murmur *m, uint word)
{
    m->hash ^= rotate(word * 0xcc9e2d51u, 15u) * 0x1b873593u;
    m->hash = rotate(m->hash, 13u) * 5 + 0xe6546b64u;
    m->length += 4;
}

uint finish(struct murmur m)
{
    uint h = m.hash ^ m.length;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

uint xdp_filter(bytes pkt, uint len)
{
    struct murmur m = {.hash = SEED};
    bytes payload, end = pkt + len, at = pkt + ETH_HLEN;
    uint ethertype = load_be16(at, -2);
    if (ethertype == ETH_P_8021Q || ethertype == ETH_P_8021AD) {
        at += VLAN_HLEN;
        ethertype = load_be16(at, -2);
    }
    __global struct iphdr *ip = (__global struct iphdr *)at;
    __global struct ip6hdr *ip6 = (__global struct ip6hdr *)at;

    if (ethertype == ETH_P_IP && (bytes)(ip + 1) <= end && ip->version_ihl >= 0x45 && ip->version_ihl <= 0x4f) {
        payload = at + (ip->version_ihl & 0xf) * 4;
        mix(&m, ntohl(ip->source));
        mix(&m, ntohl(ip->destination));
        mix(&m, (uint)ntohs(ip->id) << 16 | ip->protocol);
    } else if (ethertype == ETH_P_IPV6 && (bytes)(ip6 + 1) <= end && at[0] >> 4 == 6) {
        payload = (bytes)(ip6 + 1);
        for (int i = 0; i < 4; i++)
            mix(&m, ntohl(ip6->source[i]));
        for (int i = 0; i < 4; i++)
            mix(&m, ntohl(ip6->destination[i]));
        mix(&m, ip6->next);
    } else {
        return XDP_DROP;
    }
    mix(&m, load_be32(payload, 0));
    mix(&m, load_be32(payload, 4));
    return finish(m) % RATE == 0 ? XDP_PASS : XDP_DROP;
}
