/* The value of one processor in per-CPU maps. The kernel's test runs on the first processor.
 * Exercises: bpf_map_lookup_percpu_elem of an array, a hash and an LRU hash, hits and misses. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 16);
    __type(key, __u32);
    __type(value, __u64);
} sums SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_HASH);
    __uint(max_entries, 4096);
    __type(key, __u32);
    __type(value, __u32);
} sources SEC(".maps");

SEC("xdp")
int percpu_sum(struct xdp_md *ctx)
{
    __u32 key = (ctx->data_end - ctx->data) % 20;
    __u64 *own = bpf_map_lookup_elem(&sums, &key), *first;

    if (own)
        *own += ctx->data_end - ctx->data;
    first = bpf_map_lookup_percpu_elem(&sums, &key, 0);
    if (!first)
        return own ? XDP_ABORTED : XDP_DROP;
    /* No such processor exists. */
    if (bpf_map_lookup_percpu_elem(&sums, &key, 1 << 20))
        return XDP_ABORTED;
    return *first > 5000 ? XDP_TX : XDP_PASS;
}

SEC("xdp")
int percpu_sources(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    __u32 key, one = 1, *first;
    struct ethhdr *eth;
    struct iphdr *ip;

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    ip = take_ipv4(&c);
    if (!ip)
        return XDP_DROP;
    key = ip->saddr;
    first = bpf_map_lookup_percpu_elem(&sources, &key, bpf_get_smp_processor_id());
    if (first) {
        *first += 1;
        return *first > 3 ? XDP_TX : XDP_PASS;
    }
    return bpf_map_update_elem(&sources, &key, &one, BPF_ANY) ? XDP_ABORTED : XDP_PASS;
}
