/* Longest-prefix match for IPv4 and IPv6: an access list with counters and actions, and IPv6 routes
 * through a table of next hops. Exercises: LPM tries of 4 and 16 bytes, shorter lookups, values
 * written, hits and misses. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

struct prefix4 {
    __u32 length;
    __u8 address[4];
};

struct prefix6 {
    __u32 length;
    struct in6_addr address;
};

struct rule {
    __u32 action;
    __u32 packets;
};

struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(max_entries, 1024);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct prefix4);
    __type(value, struct rule);
} rules4 SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(max_entries, 1024);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct prefix6);
    __type(value, struct rule);
} rules6 SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(max_entries, 1024);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct prefix6);
    __type(value, __u8);
} routes6 SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 16);
    __type(key, __u32);
    __type(value, __u8[ETH_ALEN]);
} neighbours SEC(".maps");

SEC("xdp")
int lpm_rules(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    struct rule *rule = NULL;
    struct prefix4 key4;
    struct prefix6 key6;
    struct ipv6hdr *ip6;
    struct ethhdr *eth;
    struct iphdr *ip;

    switch (take_link_layer(&c, &eth)) {
    case bpf_htons(ETH_P_IP):
        ip = take_ipv4(&c);
        if (!ip)
            return XDP_DROP;
        key4.length = 32;
        __builtin_memcpy(key4.address, &ip->saddr, sizeof(key4.address));
        rule = bpf_map_lookup_elem(&rules4, &key4);
        break;
    case bpf_htons(ETH_P_IPV6):
        ip6 = take_ipv6(&c);
        if (!ip6)
            return XDP_DROP;
        key6.length = 128;
        key6.address = ip6->saddr;
        rule = bpf_map_lookup_elem(&rules6, &key6);
        break;
    case 0:
        return XDP_DROP;
    }
    if (!rule)
        return XDP_PASS;
    __sync_fetch_and_add(&rule->packets, 1);
    return rule->action;
}

/* Looks up networks: at most 24 bits of the address. */
SEC("xdp")
int lpm_networks(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    struct iphdr *ip = (void *)(eth + 1);
    struct prefix4 key;
    struct rule *rule;
    __u32 source = 0, target = 0;

    if ((void *)(ip + 1) > (void *)(long)ctx->data_end || eth->h_proto != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    key.length = 24;
    *(__be32 *)key.address = ip->saddr;
    rule = bpf_map_lookup_elem(&rules4, &key);
    if (rule)
        source = rule->action;
    key.length = ip->ttl & 0x1f;
    *(__be32 *)key.address = ip->daddr;
    rule = bpf_map_lookup_elem(&rules4, &key);
    if (rule)
        target = rule->action;
    return source < target ? XDP_TX : source > target ? XDP_DROP : XDP_PASS;
}

SEC("xdp")
int lpm_forward6(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    struct ipv6hdr *ip6;
    struct prefix6 key = { .length = 128 };
    struct ethhdr *eth;
    __u8 *index, *mac;
    __u32 neighbour;

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IPV6))
        return XDP_PASS;
    ip6 = take_ipv6(&c);
    if (!ip6 || ip6->hop_limit <= 1)
        return XDP_DROP;
    __builtin_memcpy(&key.address, &ip6->daddr, sizeof(key.address));
    index = bpf_map_lookup_elem(&routes6, &key);
    if (!index)
        return XDP_PASS;
    neighbour = *index;
    mac = bpf_map_lookup_elem(&neighbours, &neighbour);
    if (!mac)
        return XDP_DROP;
    ip6->hop_limit--;
    __builtin_memcpy(eth->h_dest, mac, ETH_ALEN);
    return XDP_TX;
}
