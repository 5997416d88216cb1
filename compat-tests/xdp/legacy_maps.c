/* Map definitions before BTF: `struct bpf_map_def` in the section `maps`, some with more members
 * than every loader knew. Exercises: legacy array, hash and per-CPU array, legacy maps beside
 * others. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

struct bpf_map_def {
    unsigned int type;
    unsigned int key_size;
    unsigned int value_size;
    unsigned int max_entries;
    unsigned int map_flags;
};

struct bpf_map_def SEC("maps") protocols = {
    .type = BPF_MAP_TYPE_PERCPU_ARRAY,
    .key_size = sizeof(__u32),
    .value_size = sizeof(__u64),
    .max_entries = 256,
};

struct bpf_map_def SEC("maps") sources = {
    .type = BPF_MAP_TYPE_HASH,
    .key_size = sizeof(__u32),
    .value_size = 2 * sizeof(__u32),
    .max_entries = 8192,
};

struct bpf_map_def SEC("maps") totals = {
    .type = BPF_MAP_TYPE_ARRAY,
    .key_size = sizeof(__u32),
    .value_size = sizeof(__u32),
    .max_entries = 4,
};

/* iproute2's definition. */
struct bpf_elf_map {
    __u32 type;
    __u32 size_key;
    __u32 size_value;
    __u32 max_elem;
    __u32 flags;
    __u32 id;
    __u32 pinning;
    __u32 inner_id;
    __u32 inner_idx;
};

struct bpf_elf_map SEC("maps") lengths = {
    .type = BPF_MAP_TYPE_HASH,
    .size_key = sizeof(__u16),
    .size_value = sizeof(__u64),
    .max_elem = 2048,
};

SEC("xdp_lengths")
int legacy_lengths(struct xdp_md *ctx)
{
    __u64 one = 1, *count;
    __u16 key = ctx->data_end - ctx->data;

    count = bpf_map_lookup_elem(&lengths, &key);
    if (!count)
        return bpf_map_update_elem(&lengths, &key, &one, BPF_ANY) ? XDP_ABORTED : XDP_PASS;
    *count += 1;
    return XDP_TX;
}

SEC("xdp_protocols")
int legacy_protocols(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    struct ethhdr *eth;
    struct iphdr *ip;
    __u64 *packets;
    __u32 key = 255, *total, kind;

    if (take_link_layer(&c, &eth) == bpf_htons(ETH_P_IP)) {
        ip = take_ipv4(&c);
        if (!ip)
            return XDP_DROP;
        key = ip->protocol;
    }
    packets = bpf_map_lookup_elem(&protocols, &key);
    if (packets)
        *packets += 1;
    kind = key == IPPROTO_TCP ? 0 : key == IPPROTO_UDP ? 1 : 5;
    total = bpf_map_lookup_elem(&totals, &kind);
    if (!total)
        return XDP_PASS;
    __sync_fetch_and_add(total, 1);
    return XDP_TX;
}

SEC("xdp_sources")
int legacy_sources(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    __u32 first[2] = { 1, 0 }, *known, source;
    struct ethhdr *eth;
    struct iphdr *ip;

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    ip = take_ipv4(&c);
    if (!ip)
        return XDP_DROP;
    source = ip->saddr;
    known = bpf_map_lookup_elem(&sources, &source);
    if (known) {
        known[0]++;
        known[1] += bpf_ntohs(ip->tot_len);
        return XDP_TX;
    }
    first[1] = bpf_ntohs(ip->tot_len);
    bpf_map_update_elem(&sources, &source, first, BPF_NOEXIST);
    return XDP_PASS;
}
