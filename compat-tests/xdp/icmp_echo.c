/* Answers ICMP and ICMPv6 echo requests in place, and updates the checksum for the type alone.
 * Exercises: ICMP parsers, address swaps by struct copies, rewriting, XDP_TX. */
#include "parse.h"
#include "checksum.h"
#include <linux/icmpv6.h>

char LICENSE[] SEC("license") = "GPL";

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 256);
    __type(key, __u32);
    __type(value, __u64);
} types_seen SEC(".maps");

static __always_inline void swap_mac(struct ethhdr *eth)
{
    __u8 address[ETH_ALEN];

    __builtin_memcpy(address, eth->h_source, ETH_ALEN);
    __builtin_memcpy(eth->h_source, eth->h_dest, ETH_ALEN);
    __builtin_memcpy(eth->h_dest, address, ETH_ALEN);
}

static __always_inline void see_type(__u32 type)
{
    __u64 *count = bpf_map_lookup_elem(&types_seen, &type);

    if (count)
        (*count)++;
}

SEC("xdp")
int echo_v4(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    struct icmphdr *icmp;
    struct ethhdr *eth;
    struct iphdr *ip;
    __be32 address;

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    ip = take_ipv4(&c);
    if (!ip || ip->protocol != IPPROTO_ICMP)
        return XDP_PASS;
    icmp = take_icmp(&c);
    if (!icmp)
        return XDP_DROP;
    see_type(icmp->type);
    if (icmp->type != ICMP_ECHO || icmp->code != 0)
        return XDP_PASS;

    swap_mac(eth);
    address = ip->saddr;
    ip->saddr = ip->daddr;
    ip->daddr = address;
    icmp->type = ICMP_ECHOREPLY;
    csum_replace2(&icmp->checksum, bpf_htons(ICMP_ECHO << 8), bpf_htons(ICMP_ECHOREPLY << 8));
    return XDP_TX;
}

SEC("xdp")
int echo_v6(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    struct in6_addr address;
    struct icmp6hdr *icmp;
    struct ipv6hdr *ip6;
    struct ethhdr *eth;

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IPV6))
        return XDP_PASS;
    ip6 = take_ipv6(&c);
    if (!ip6 || take_extensions(&c, ip6->nexthdr) != IPPROTO_ICMPV6)
        return XDP_PASS;
    icmp = c.pos;
    if ((void *)(icmp + 1) > c.end)
        return XDP_DROP;
    see_type(icmp->icmp6_type);
    if (icmp->icmp6_type != ICMPV6_ECHO_REQUEST)
        return XDP_PASS;

    swap_mac(eth);
    address = ip6->saddr;
    ip6->saddr = ip6->daddr;
    ip6->daddr = address;
    icmp->icmp6_type = ICMPV6_ECHO_REPLY;
    csum_replace2(&icmp->icmp6_cksum, bpf_htons(ICMPV6_ECHO_REQUEST << 8),
                  bpf_htons(ICMPV6_ECHO_REPLY << 8));
    return XDP_TX;
}
