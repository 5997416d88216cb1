/* Maps of maps: a table for each protocol, found by index or by key. Exercises: array_of_maps and
 * hash_of_maps with hits and misses, lookups, counters, updates and deletions in inner maps, one
 * map in two slots, two lookups at once. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

struct sums {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 16);
    __type(key, __u32);
    __type(value, __u64);
};

struct sums sums_tcp SEC(".maps"), sums_udp SEC(".maps"), sums_rest SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, 8);
    __type(key, __u32);
    __array(values, struct sums);
} by_number SEC(".maps") = {
    .values = { [0] = &sums_rest, [1] = &sums_tcp, [3] = &sums_udp, [6] = &sums_rest },
};

struct flow {
    __u32 packets;
    __u32 last;
};

struct flows {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 4096);
    __type(key, __u32);
    __type(value, struct flow);
};

struct flows flows_tcp SEC(".maps"), flows_udp SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
    __uint(max_entries, 32);
    __type(key, __u32);
    __array(values, struct flows);
} by_key SEC(".maps") = {
    .values = { [IPPROTO_TCP] = &flows_tcp, [IPPROTO_UDP] = &flows_udp },
};

/* The slot of a packet's protocol; some slots are empty and some outside the map. */
static __always_inline __u32 slot_of(struct xdp_md *ctx, struct iphdr **ip)
{
    struct cursor c = cursor_of(ctx);
    struct ethhdr *eth;

    *ip = NULL;
    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return (ctx->data_end - ctx->data) % 11;
    *ip = take_ipv4(&c);
    if (!*ip)
        return 7;
    switch ((*ip)->protocol) {
    case IPPROTO_TCP:
        return 1;
    case IPPROTO_UDP:
        return 3;
    default:
        return 0;
    }
}

SEC("xdp")
int maps_by_number(struct xdp_md *ctx)
{
    __u32 slot, index = (ctx->data_end - ctx->data) % 18;
    struct iphdr *ip;
    __u64 *sum;
    void *map;

    slot = slot_of(ctx, &ip);
    map = bpf_map_lookup_elem(&by_number, &slot);
    if (!map)
        return XDP_PASS;
    sum = bpf_map_lookup_elem(map, &index);
    if (!sum)
        return XDP_DROP;
    *sum += ctx->data_end - ctx->data;
    return XDP_TX;
}

/* Two inner maps, possibly the same: entries of one are written to the other. */
SEC("xdp")
int maps_two_at_once(struct xdp_md *ctx)
{
    __u32 slot, other, index = (ctx->data_end - ctx->data) & 15;
    struct iphdr *ip;
    void *from, *to;
    __u64 *sum, value;

    slot = slot_of(ctx, &ip);
    other = slot ? slot - 1 : 6;
    from = bpf_map_lookup_elem(&by_number, &slot);
    to = bpf_map_lookup_elem(&by_number, &other);
    if (!from)
        return to ? XDP_TX : XDP_PASS;
    sum = bpf_map_lookup_elem(from, &index);
    if (!sum)
        return XDP_ABORTED;
    *sum += 1;
    value = *sum;
    if (!to)
        return XDP_DROP;
    index = (index + 1) & 15;
    bpf_map_update_elem(to, &index, &value, BPF_ANY);
    return XDP_PASS;
}

SEC("xdp")
int maps_by_key(struct xdp_md *ctx)
{
    struct flow fresh = { .packets = 1 }, *flow;
    __u32 key, source;
    struct iphdr *ip;
    void *map;

    slot_of(ctx, &ip);
    if (!ip)
        return XDP_PASS;
    key = ip->protocol;
    source = ip->saddr;
    map = bpf_map_lookup_elem(&by_key, &key);
    if (!map)
        return XDP_DROP;
    flow = bpf_map_lookup_elem(map, &source);
    if (flow) {
        flow->packets++;
        flow->last = bpf_ntohs(ip->tot_len);
        if (flow->packets == 5)
            bpf_map_delete_elem(map, &source);
        return XDP_TX;
    }
    fresh.last = bpf_ntohs(ip->tot_len);
    return bpf_map_update_elem(map, &source, &fresh, BPF_NOEXIST) ? XDP_ABORTED : XDP_PASS;
}

static __noinline int count_in(void *map, __u32 index)
{
    __u32 slot = index >> 4;
    void *inner = bpf_map_lookup_elem(&by_number, &slot);
    __u64 *sum;

    index &= 15;
    if (!inner)
        return 0;
    sum = bpf_map_lookup_elem(inner, &index);
    if (!sum)
        return -1;
    __sync_fetch_and_add(sum, 3);
    return 1;
}

/* Lookups in a function that is called twice. */
SEC("xdp")
int maps_in_function(struct xdp_md *ctx)
{
    __u32 length = ctx->data_end - ctx->data;
    int hits = count_in(&by_number, length & 0x7f);

    hits += count_in(&by_number, (length * 7) & 0xff);
    return hits == 2 ? XDP_TX : hits == 1 ? XDP_PASS : XDP_DROP;
}

struct widths {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 4);
    __type(key, __u32);
    __type(value, __u32);
};

struct widths widths_short SEC(".maps"), widths_long SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
    __uint(max_entries, 4);
    __type(key, __u32);
    __array(values, struct widths);
} by_kind SEC(".maps") = {
    .values = { [0] = &widths_short, [1] = &widths_long, [5] = &widths_short },
};

/* A map pointer that is live across other lookups, and one from either kind of outer map. */
SEC("xdp")
int maps_kept(struct xdp_md *ctx)
{
    __u32 length = ctx->data_end - ctx->data, kind = length % 7, zero = 0, index = length & 3;
    void *map = bpf_map_lookup_elem(&by_kind, &kind), *sums;
    __u32 *width, *other;
    __u64 *sum;

    sums = bpf_map_lookup_elem(&by_number, &zero);
    if (!map)
        map = bpf_map_lookup_elem(&by_kind, &zero);
    if (!map || !sums)
        return XDP_ABORTED;
    width = bpf_map_lookup_elem(map, &index);
    sum = bpf_map_lookup_elem(sums, &index);
    other = bpf_map_lookup_elem(map, &kind);
    if (!width || !sum)
        return XDP_DROP;
    *width += 1;
    *sum += *width;
    if (!other)
        return XDP_TX;
    return *other > *width ? XDP_DROP : XDP_PASS;
}
