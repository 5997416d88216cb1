/* Tail calls: a chain that ends at an empty slot, an index outside the map, and the limit of 33.
 * Exercises: bpf_tail_call, its limit, a map of programs, the packet changed on the way. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

int chain_vlan(struct xdp_md *ctx);
int chain_ipv4(struct xdp_md *ctx);
int chain_udp(struct xdp_md *ctx);
int chain_turn(struct xdp_md *ctx);

struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, 8);
    __uint(key_size, sizeof(__u32));
    __array(values, int(struct xdp_md *));
} chain SEC(".maps") = {
    .values = { [1] = &chain_vlan, [2] = &chain_ipv4, [5] = &chain_udp, [6] = &chain_turn },
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 64);
    __type(key, __u32);
    __type(value, __u32);
} turns SEC(".maps");

static __always_inline __u16 ethertype(struct xdp_md *ctx, int at)
{
    void *data = (void *)(long)ctx->data;

    if (data + at + 2 > (void *)(long)ctx->data_end)
        return 0;
    return bpf_ntohs(*(__be16 *)(data + at));
}

SEC("xdp")
int chain_begin(struct xdp_md *ctx)
{
    switch (ethertype(ctx, 12)) {
    case ETH_P_8021Q:
        bpf_tail_call(ctx, &chain, 1);
        break;
    case ETH_P_IP:
        bpf_tail_call(ctx, &chain, 2);
        break;
    case ETH_P_IPV6:
        /* This slot is empty. */
        bpf_tail_call(ctx, &chain, 3);
        return XDP_TX;
    default:
        bpf_tail_call(ctx, &chain, 99);
        return XDP_DROP;
    }
    return XDP_ABORTED;
}

SEC("xdp")
int chain_vlan(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_ABORTED;
    eth->h_dest[5] = 1;
    if (ethertype(ctx, 16) == ETH_P_IP)
        bpf_tail_call(ctx, &chain, 2);
    return XDP_DROP;
}

SEC("xdp")
int chain_ipv4(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    struct ethhdr *eth;
    struct iphdr *ip;

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return XDP_ABORTED;
    ip = take_ipv4(&c);
    if (!ip)
        return XDP_DROP;
    eth->h_source[0] = ip->protocol;
    bpf_tail_call(ctx, &chain, ip->protocol == IPPROTO_UDP ? 5 : ip->protocol & 7);
    return XDP_PASS;
}

SEC("xdp")
int chain_udp(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_ABORTED;
    eth->h_source[5] = 17;
    return XDP_TX;
}

/* Calls itself until the limit. */
SEC("xdp")
int chain_turn(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    __u32 key = 0, *count;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    key = eth->h_source[5] & 63;
    count = bpf_map_lookup_elem(&turns, &key);
    if (count)
        *count += 1;
    eth->h_dest[0]++;
    bpf_tail_call(ctx, &chain, 6);
    eth->h_dest[1]++;
    return XDP_TX;
}
