/* Redirects to a target given by an index or key from the packet, through a map selected by
 * another. Exercises: devmap, devmap_hash and cpumap with few or no entries, default actions, a
 * hash of maps. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

struct {
    __uint(type, BPF_MAP_TYPE_DEVMAP);
    __uint(max_entries, 8);
    __type(key, __u32);
    __type(value, __u32);
} ports SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
    __uint(max_entries, 8);
    __type(key, __u32);
    __type(value, __u32);
} stations SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_CPUMAP);
    __uint(max_entries, 4);
    __type(key, __u32);
    __type(value, __u32);
} processors SEC(".maps");

struct sizes {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 8);
    __type(key, __u32);
    __type(value, __u64);
};

struct sizes of_ipv4 SEC(".maps"), of_ipv6 SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
    __uint(max_entries, 8);
    __type(key, __u32);
    __array(values, struct sizes);
} by_type SEC(".maps") = {
    .values = { [ETH_P_IP] = &of_ipv4, [ETH_P_IPV6] = &of_ipv6 },
};

SEC("xdp")
int whole_targets(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_ABORTED;
    switch (eth->h_dest[5] & 3) {
    case 0:
        return bpf_redirect_map(&ports, eth->h_source[5] & 15, XDP_DROP);
    case 1:
        return bpf_redirect_map(&stations, eth->h_source[5] & 15, XDP_TX);
    case 2:
        return bpf_redirect_map(&processors, eth->h_source[5] & 7, XDP_PASS);
    default:
        return XDP_PASS;
    }
}

SEC("xdp")
int whole_types(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    __u32 key, size;
    __u64 *packets;
    void *sizes;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_ABORTED;
    key = bpf_ntohs(eth->h_proto);
    sizes = bpf_map_lookup_elem(&by_type, &key);
    if (!sizes)
        return XDP_DROP;
    size = (ctx->data_end - ctx->data) >> 8;
    packets = bpf_map_lookup_elem(sizes, &size);
    if (!packets)
        return XDP_TX;
    __sync_fetch_and_add(packets, 1);
    return XDP_PASS;
}
