/* A router: forwards IPv4 and IPv6 packets by the kernel's routes, sets the next link's MAC
 * addresses and decrements the hop limit. Counts the results of the lookups. */
#include "../xdp/parse.h"

char LICENSE[] SEC("license") = "GPL";

enum { AF_INET = 2, AF_INET6 = 10 };

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 16);
    __type(key, __u32);
    __type(value, __u64);
} outcomes SEC(".maps");

/* Indexed by interface. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 64);
    __type(key, __u32);
    __type(value, __u64);
} sent SEC(".maps");

static __always_inline int forward(struct xdp_md *ctx, int with_v4, int with_v6, int checks)
{
    struct cursor c = cursor_of(ctx);
    struct bpf_fib_lookup params = {};
    struct ipv6hdr *ip6 = NULL;
    struct iphdr *ip = NULL;
    struct ethhdr *eth = take_eth(&c);
    __u64 *count;
    __u32 key, length = 0;

    if (!eth)
        return XDP_DROP;
    if (with_v4 && eth->h_proto == bpf_htons(ETH_P_IP)) {
        ip = take_ipv4(&c);
        if (!ip)
            return XDP_DROP;
        if (ip->ttl <= 1)
            return XDP_PASS;
        params.family = AF_INET;
        params.tos = ip->tos;
        params.l4_protocol = ip->protocol;
        params.tot_len = bpf_ntohs(ip->tot_len);
        params.ipv4_src = ip->saddr;
        params.ipv4_dst = ip->daddr;
    } else if (with_v6 && eth->h_proto == bpf_htons(ETH_P_IPV6)) {
        ip6 = take_ipv6(&c);
        if (!ip6)
            return XDP_DROP;
        if (ip6->hop_limit <= 1)
            return XDP_PASS;
        params.family = AF_INET6;
        params.l4_protocol = ip6->nexthdr;
        params.tot_len = bpf_ntohs(ip6->payload_len) + sizeof(*ip6);
        __builtin_memcpy(params.ipv6_src, &ip6->saddr, 16);
        __builtin_memcpy(params.ipv6_dst, &ip6->daddr, 16);
    } else {
        return XDP_PASS;
    }
    params.ifindex = ctx->ingress_ifindex;
    key = bpf_fib_lookup(ctx, &params, sizeof(params), 0);
    count = bpf_map_lookup_elem(&outcomes, &key);
    if (count)
        __sync_fetch_and_add(count, 1);
    switch (key) {
    case BPF_FIB_LKUP_RET_SUCCESS:
        break;
    case BPF_FIB_LKUP_RET_BLACKHOLE:
    case BPF_FIB_LKUP_RET_UNREACHABLE:
    case BPF_FIB_LKUP_RET_PROHIBIT:
        return XDP_DROP;
    default:
        return XDP_PASS;
    }
    if (checks && bpf_check_mtu(ctx, params.ifindex, &length, 0, 0))
        return XDP_PASS;
    if (ip) {
        __u32 sum = ip->check + bpf_htons(0x0100);

        ip->check = sum + (sum >= 0xffff);
        ip->ttl--;
    } else if (ip6) {
        ip6->hop_limit--;
    }
    __builtin_memcpy(eth->h_dest, params.dmac, ETH_ALEN);
    __builtin_memcpy(eth->h_source, params.smac, ETH_ALEN);
    key = params.ifindex;
    count = bpf_map_lookup_elem(&sent, &key);
    if (count)
        __sync_fetch_and_add(count, 1);
    return bpf_redirect(params.ifindex, 0);
}

SEC("xdp")
int forward_v4(struct xdp_md *ctx)
{
    return forward(ctx, 1, 0, 0);
}

SEC("xdp")
int forward_v6(struct xdp_md *ctx)
{
    return forward(ctx, 0, 1, 0);
}

SEC("xdp")
int forward_both(struct xdp_md *ctx)
{
    return forward(ctx, 1, 1, 1);
}
