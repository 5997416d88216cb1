/* bpf_redirect_map() over every kind of map, with the default action in the low bits of the flags.
 * Exercises: devmap, devmap_hash, xskmap, cpumap, a preceding lookup, broadcast. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

struct {
    __uint(type, BPF_MAP_TYPE_DEVMAP);
    __uint(max_entries, 64);
    __type(key, __u32);
    __type(value, __u32);
} ports SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
    __uint(max_entries, 64);
    __type(key, __u32);
    __type(value, struct bpf_devmap_val);
} neighbours SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, 16);
    __type(key, __u32);
    __type(value, __u32);
} sockets SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_CPUMAP);
    __uint(max_entries, 8);
    __type(key, __u32);
    __type(value, struct bpf_cpumap_val);
} cpus SEC(".maps");

static __always_inline struct ethhdr *ethernet_of(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;

    return (void *)(eth + 1) > (void *)(long)ctx->data_end ? NULL : eth;
}

SEC("xdp")
int redirect_devmap(struct xdp_md *ctx)
{
    struct ethhdr *eth = ethernet_of(ctx);

    if (!eth)
        return XDP_ABORTED;
    return bpf_redirect_map(&ports, eth->h_dest[5], XDP_PASS);
}

/* The packet gives the default action. */
SEC("xdp")
int redirect_devmap_hash(struct xdp_md *ctx)
{
    struct ethhdr *eth = ethernet_of(ctx);
    __u32 key;

    if (!eth)
        return XDP_DROP;
    key = eth->h_source[5] | (eth->h_source[0] << 8);
    return bpf_redirect_map(&neighbours, key, eth->h_dest[5] & 3);
}

SEC("xdp")
int redirect_xskmap(struct xdp_md *ctx)
{
    struct ethhdr *eth = ethernet_of(ctx);
    __u32 queue;

    if (!eth || eth->h_proto == bpf_htons(ETH_P_ARP))
        return XDP_PASS;
    queue = ctx->rx_queue_index + (eth->h_source[5] & 7);
    return bpf_redirect_map(&sockets, queue, XDP_DROP);
}

/* A lookup before the redirect, as before flags could hold a default action. */
SEC("xdp")
int redirect_xskmap_looked_up(struct xdp_md *ctx)
{
    struct ethhdr *eth = ethernet_of(ctx);
    __u32 queue;

    if (!eth)
        return XDP_ABORTED;
    queue = eth->h_dest[5] & 15;
    if (bpf_map_lookup_elem(&sockets, &queue))
        return bpf_redirect_map(&sockets, queue, 0);
    return XDP_PASS;
}

SEC("xdp")
int redirect_cpumap(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    struct ethhdr *eth;
    struct iphdr *ip;
    __u32 cpu;

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    ip = take_ipv4(&c);
    if (!ip)
        return XDP_DROP;
    cpu = (ip->saddr ^ ip->daddr) * 2654435761u >> 29;
    return bpf_redirect_map(&cpus, cpu, XDP_TX);
}

SEC("xdp")
int redirect_broadcast(struct xdp_md *ctx)
{
    struct ethhdr *eth = ethernet_of(ctx);
    struct bpf_devmap_val *neighbour;
    __u32 key = 2;

    if (!eth)
        return XDP_ABORTED;
    if (eth->h_dest[0] & 1)
        return bpf_redirect_map(&ports, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS);
    neighbour = bpf_map_lookup_elem(&neighbours, &key);
    if (neighbour && neighbour->ifindex == eth->h_dest[5] % 4)
        return bpf_redirect_map(&neighbours, key, XDP_TX);
    return XDP_DROP;
}
