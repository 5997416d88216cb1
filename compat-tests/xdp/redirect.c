/* bpf_redirect() to an interface from a global, from a map and by a hash. Exercises: redirects
 * without a map, ingress_ifindex and rx_queue_index of the context, the target in a value. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

const volatile __u32 uplink = 1;

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 256);
    __type(key, __u32);
    __type(value, __u32);
} interfaces SEC(".maps");

SEC("xdp")
int redirect_fixed(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    if (eth->h_proto == bpf_htons(ETH_P_ARP))
        return XDP_PASS;
    return bpf_redirect(uplink, 0);
}

SEC("xdp")
int redirect_by_map(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    __u32 *interface, key;
    struct ethhdr *eth;
    struct iphdr *ip;

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    ip = take_ipv4(&c);
    if (!ip)
        return XDP_DROP;
    key = bpf_ntohl(ip->daddr) & 0xff;
    interface = bpf_map_lookup_elem(&interfaces, &key);
    if (!interface || !*interface)
        return XDP_PASS;
    /* Not back to the receiving interface. */
    if (*interface == ctx->ingress_ifindex + 4)
        return XDP_TX;
    return bpf_redirect(*interface, 0);
}

SEC("xdp")
int redirect_by_hash(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    __u32 hash = ctx->rx_queue_index;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
#pragma unroll
    for (int i = 0; i < ETH_ALEN; i++)
        hash = hash * 33 + eth->h_source[i];
    /* Flags are not allowed here, and make it XDP_ABORTED. */
    return bpf_redirect(uplink + (hash & 3), hash % 7 == 0);
}
