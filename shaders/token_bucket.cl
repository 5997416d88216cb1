// token_bucket: lets every source send so many packets a second, and so many at once.
//
// PASS  a packet for which its source's bucket has a token left; of a source without a limit; of
//       one that there is no room for; what is neither IPv4 nor IPv6, or has its fixed header cut
//       off
// DROP  the others
//
// The host sets limits by source: `rate`, in packets a second, and `burst`, the tokens that a
// bucket holds and has at first (4294967 at the most). The limit of :: is that of all sources that
// have none of their own.
//
// A packet takes a token. Buckets are counted in thousandths of one: at a rate of r, each
// millisecond brings r of them.
//
// Reads, behind an Ethernet header and one VLAN tag or none: version and IHL, source address; the
// packet's time.

//! map limits: hash key=4 value=2 entries=65536 fields=srcaddr:ip,rate,burst
//! map buckets: lru_hash key=4 value=2 entries=65536 fields=srcaddr:ip,thousandths,last

// For other compilers.
#ifndef PORTCULLIS
PORTCULLIS_KEYS(limits, uint4)
PORTCULLIS_VALUES(limits)
PORTCULLIS_KEYS(buckets, uint4)
PORTCULLIS_VALUES(buckets)
#endif

// Words of a limit, and of a bucket.
enum { RATE, BURST };
enum { THOUSANDTHS, LAST };

#define TOKEN 1000u
#define MOST 4294967u

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

// Where an IP header is: behind the Ethernet header and one VLAN tag or none.
bytes ip_header(bytes pkt)
{
    uint outer = load_be16(pkt, 12);
    return pkt + ETH_HLEN + (outer == ETH_P_8021Q || outer == ETH_P_8021AD ? VLAN_HLEN : 0);
}

// Whether there is an IP header as a whole, and the packet's source; that of IPv4 as IPv6 has it:
// ::ffff:a.b.c.d.
bool source_of(bytes at, bytes end, uint4 *source)
{
    __global struct iphdr *ip = (__global struct iphdr *)at;
    __global struct ip6hdr *ip6 = (__global struct ip6hdr *)at;
    uint ethertype = load_be16(at, -2);

    if (ethertype == ETH_P_IP && (bytes)(ip + 1) <= end && at[0] >= 0x45 && at[0] <= 0x4f) {
        *source = (uint4)(0, 0, 0xffff, ntohl(ip->source));
        return true;
    }
    if (ethertype == ETH_P_IPV6 && (bytes)(ip6 + 1) <= end && at[0] >> 4 == 6) {
        *source = (uint4)(ntohl(ip6->source[0]), ntohl(ip6->source[1]), ntohl(ip6->source[2]), ntohl(ip6->source[3]));
        return true;
    }
    return false;
}

// https://github.com/aappleby/smhasher, fmix32
uint mix(uint word)
{
    uint h = (word ^ word >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

uint hash_of(uint4 address)
{
    return mix(mix(mix(mix(address.x) ^ address.y) ^ address.z) ^ address.w);
}

// Packets of a source come one at a time, in the order of their arrival. What has none may come in
// any.
uint xdp_flow(bytes pkt, uint len)
{
    uint4 source;
    return source_of(ip_header(pkt), pkt + len, &source) ? hash_of(source) : (uint)pkt_time(pkt);
}

uint xdp_filter(bytes pkt, uint len)
{
    uint4 source;
    if (!source_of(ip_header(pkt), pkt + len, &source))
        return XDP_PASS;
    uint limit = limits_find(source);
    if (limit == MAP_NONE)
        limit = limits_find((uint4)(0));
    if (limit == MAP_NONE)
        return XDP_PASS;
    uint bucket = buckets_insert(source);
    if (bucket == MAP_FULL)
        return XDP_PASS;

    uint now = pkt_time_ms(pkt), last = now;
    uint full = min(limits_read(limit, BURST), MOST) * TOKEN, there = full;
    if (!map_is_new(bucket)) {
        // Where a clock goes back, time stands still.
        last = buckets_read(bucket, LAST);
        uint elapsed = max((int)(now - last), 0);
        last += elapsed;
        ulong brought = (ulong)elapsed * limits_read(limit, RATE);
        there = (uint)min(buckets_read(bucket, THOUSANDTHS) + brought, (ulong)full);
    }
    bool passes = there >= TOKEN;
    buckets_write(bucket, THOUSANDTHS, passes ? there - TOKEN : there);
    buckets_write(bucket, LAST, last);
    return passes ? XDP_PASS : XDP_DROP;
}
