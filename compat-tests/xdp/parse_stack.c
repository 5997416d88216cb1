/* Parses Ethernet, up to four VLAN tags, IPv4 with options or IPv6 with extension headers, and TCP,
 * UDP or ICMP; counts packets and bytes of each kind. Exercises: parsers, enums, switch, u64
 * counters in a struct. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

enum kind {
    KIND_MALFORMED,
    KIND_OTHER_LINK,
    KIND_ARP,
    KIND_TCP4,
    KIND_UDP4,
    KIND_ICMP4,
    KIND_OTHER4,
    KIND_TCP6,
    KIND_UDP6,
    KIND_ICMP6,
    KIND_OTHER6,
    KIND_FRAGMENT,
    KIND_COUNT,
};

struct volume {
    __u64 packets;
    __u64 bytes;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, KIND_COUNT);
    __type(key, __u32);
    __type(value, struct volume);
} volumes SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 64);
    __type(key, __u32);
    __type(value, __u32);
} hop_limits SEC(".maps");

static __always_inline int kind_of_transport(struct cursor *c, int protocol, int v6)
{
    struct tcphdr *tcp;
    struct udphdr *udp;

    switch (protocol) {
    case IPPROTO_TCP:
        tcp = take_tcp(c);
        if (!tcp || tcp->doff < 5)
            return KIND_MALFORMED;
        return v6 ? KIND_TCP6 : KIND_TCP4;
    case IPPROTO_UDP:
        udp = take_udp(c);
        if (!udp || bpf_ntohs(udp->len) < sizeof(*udp))
            return KIND_MALFORMED;
        return v6 ? KIND_UDP6 : KIND_UDP4;
    case IPPROTO_ICMP:
        if (v6)
            return KIND_OTHER6;
        return take_icmp(c) ? KIND_ICMP4 : KIND_MALFORMED;
    case IPPROTO_ICMPV6:
        if (!v6)
            return KIND_OTHER4;
        return take_icmp(c) ? KIND_ICMP6 : KIND_MALFORMED;
    case -1:
        return KIND_MALFORMED;
    default:
        return v6 ? KIND_OTHER6 : KIND_OTHER4;
    }
}

static __always_inline int kind_of(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    struct ipv6hdr *ip6;
    struct ethhdr *eth;
    struct iphdr *ip;
    __be16 proto = take_link_layer(&c, &eth);

    switch (proto) {
    case bpf_htons(ETH_P_IP):
        ip = take_ipv4(&c);
        if (!ip)
            return KIND_MALFORMED;
        if (ip->frag_off & bpf_htons(0x1fff))
            return KIND_FRAGMENT;
        return kind_of_transport(&c, ip->protocol, 0);
    case bpf_htons(ETH_P_IPV6):
        ip6 = take_ipv6(&c);
        if (!ip6 || ip6->version != 6)
            return KIND_MALFORMED;
        return kind_of_transport(&c, take_extensions(&c, ip6->nexthdr), 1);
    case bpf_htons(ETH_P_ARP):
        return KIND_ARP;
    case 0:
        return KIND_MALFORMED;
    default:
        return KIND_OTHER_LINK;
    }
}

SEC("xdp")
int parse_stack(struct xdp_md *ctx)
{
    __u32 kind = kind_of(ctx);
    struct volume *volume = bpf_map_lookup_elem(&volumes, &kind);

    if (!volume)
        return XDP_ABORTED;
    __sync_fetch_and_add(&volume->packets, 1);
    __sync_fetch_and_add(&volume->bytes, ctx->data_end - ctx->data);

    switch (kind) {
    case KIND_MALFORMED:
        return XDP_DROP;
    case KIND_TCP4:
    case KIND_TCP6:
        return XDP_TX;
    case KIND_FRAGMENT:
        return XDP_ABORTED;
    default:
        return XDP_PASS;
    }
}

/* Drops packets that contradict the lengths in their headers. */
SEC("xdp")
int parse_strict(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    struct ethhdr *eth;
    __be16 proto = take_link_layer(&c, &eth);
    __u32 left, bucket;
    __u32 *count;

    left = c.end - c.pos;
    if (proto == bpf_htons(ETH_P_IP)) {
        void *start = c.pos;
        struct iphdr *ip = take_ipv4(&c);

        if (!ip)
            return XDP_DROP;
        if (bpf_ntohs(ip->tot_len) > left || bpf_ntohs(ip->tot_len) < c.pos - start)
            return XDP_DROP;
        bucket = ip->ttl >> 2;
    } else if (proto == bpf_htons(ETH_P_IPV6)) {
        struct ipv6hdr *ip6 = take_ipv6(&c);

        if (!ip6 || ip6->version != 6)
            return XDP_DROP;
        if (bpf_ntohs(ip6->payload_len) + sizeof(*ip6) > left)
            return XDP_DROP;
        bucket = ip6->hop_limit >> 2;
    } else {
        return proto ? XDP_PASS : XDP_DROP;
    }

    count = bpf_map_lookup_elem(&hop_limits, &bucket);
    if (count)
        *count += 1;
    return bucket ? XDP_TX : XDP_DROP;
}
