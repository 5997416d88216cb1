/* Callbacks over a map's entries. Exercises: bpf_for_each_map_elem over an array with early exit,
 * over a hash whose entries are summed, changed and deleted, keys of several words, nested
 * iteration, an empty hash. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

struct pair {
    __u32 source;
    __u16 ports[3];
    __u16 more;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 24);
    __type(key, __u32);
    __type(value, __u64);
} lengths SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 6);
    __type(key, __u32);
    __type(value, __u32);
} kinds SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 256);
    __type(key, struct pair);
    __type(value, __u32);
} pairs SEC(".maps");

struct sum {
    __u64 values;
    __u32 keys;
    __u32 limit;
    __u32 old;
};

static long add_length(void *map, __u32 *key, __u64 *value, struct sum *sum)
{
    sum->values += *value * (*key + 1);
    sum->keys += *key;
    return sum->values > 20000;
}

/* Stops when the sum is large. */
SEC("xdp")
int each_of_array(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    __u32 length = ctx->data_end - ctx->data, key = length % 24;
    struct sum sum = {};
    __u64 *value;
    long count;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    value = bpf_map_lookup_elem(&lengths, &key);
    if (value)
        *value = length & 0xff;
    count = bpf_for_each_map_elem(&lengths, add_length, &sum, 0);
    *(__u64 *)eth->h_dest = sum.values;
    eth->h_source[2] = sum.keys;
    eth->h_source[3] = count;
    return count == 24 ? XDP_PASS : XDP_TX;
}

static long add_pair(void *map, struct pair *key, __u32 *value, struct sum *sum)
{
    sum->values += (__u64)key->source * key->ports[0] + *value;
    sum->keys += key->ports[1] ^ key->ports[2];
    *value += 1;
    sum->old += *value / 10;
    if (*value > 9)
        bpf_map_delete_elem(map, key);
    return 0;
}

/* Every packet inserts a pair, and ages all pairs until they are deleted. */
SEC("xdp")
int each_of_hash(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    struct sum sum = {};
    struct pair pair = {};
    __u32 zero = 0;
    long count;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    pair.source = *(__u32 *)(eth->h_source + 2);
    pair.ports[0] = *(__u16 *)eth->h_source;
    pair.ports[1] = eth->h_proto;
    pair.ports[2] = *(__u16 *)(eth->h_dest + 4);
    if (eth->h_source[5] & 3)
        bpf_map_update_elem(&pairs, &pair, &zero, BPF_ANY);
    count = bpf_for_each_map_elem(&pairs, add_pair, &sum, 0);
    *(__u32 *)eth->h_dest = sum.values;
    *(__u16 *)(eth->h_dest + 4) = sum.values >> 32;
    *(__u16 *)eth->h_source = sum.keys;
    eth->h_source[2] = count;
    eth->h_source[3] = sum.old;
    return sum.old ? XDP_TX : XDP_PASS;
}

static long add_kind(void *map, __u32 *key, __u32 *value, struct sum *sum)
{
    sum->keys += *value * *key;
    return 0;
}

static long with_kinds(void *map, __u32 *key, __u64 *value, struct sum *sum)
{
    if (*key >= sum->limit)
        return 1;
    sum->old += bpf_for_each_map_elem(&kinds, add_kind, sum, 0);
    sum->values += *value;
    return 0;
}

/* Nested iteration. */
SEC("xdp")
int each_in_each(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    __u32 key, *kind;
    struct sum sum = {};
    long count;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    key = eth->h_source[5] % 7;
    kind = bpf_map_lookup_elem(&kinds, &key);
    if (kind)
        *kind += 1;
    sum.limit = eth->h_source[4] & 7;
    count = bpf_for_each_map_elem(&lengths, with_kinds, &sum, 0);
    *(__u32 *)eth->h_dest = sum.keys;
    eth->h_dest[4] = count;
    eth->h_dest[5] = sum.old;
    return sum.keys & 1 ? XDP_TX : XDP_PASS;
}
