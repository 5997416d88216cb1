/* Functions that clang does not inline. Exercises: static noinline functions, nested and with five
 * arguments, pointers to the caller's stack, the packet and a map value as arguments, loops in
 * functions. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

struct tuple {
    __u32 source;
    __u32 target;
    __u16 ports[2];
    __u8 protocol;
    __u8 filled[3];
};

struct record {
    __u32 packets;
    __u32 bytes;
    __u64 last;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 4096);
    __type(key, struct tuple);
    __type(value, struct record);
} records SEC(".maps");

static __noinline int read_ports(struct tuple *tuple, struct cursor *c)
{
    __u16 *ports = c->pos;

    if ((void *)(ports + 2) > c->end)
        return -1;
    tuple->ports[0] = ports[0];
    tuple->ports[1] = ports[1];
    return 0;
}

static __noinline int read_tuple(struct xdp_md *ctx, struct tuple *tuple)
{
    struct cursor c = cursor_of(ctx);
    struct ethhdr *eth;
    struct iphdr *ip;

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return 1;
    ip = take_ipv4(&c);
    if (!ip)
        return 2;
    tuple->source = ip->saddr;
    tuple->target = ip->daddr;
    tuple->protocol = ip->protocol;
    if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
        return 0;
    return read_ports(tuple, &c) ? 3 : 0;
}

static __noinline void count(struct record *record, __u32 length, __u64 mark)
{
    record->packets++;
    record->bytes += length;
    record->last = mark;
}

SEC("xdp")
int calls_tuple(struct xdp_md *ctx)
{
    struct tuple tuple = {};
    struct record fresh = {}, *record;
    __u32 length = ctx->data_end - ctx->data;

    switch (read_tuple(ctx, &tuple)) {
    case 1:
        return XDP_PASS;
    case 2:
        return XDP_DROP;
    case 3:
        return XDP_TX;
    }
    record = bpf_map_lookup_elem(&records, &tuple);
    if (record) {
        count(record, length, 2);
        return XDP_TX;
    }
    /* Calls the same function with another kind of memory. */
    count(&fresh, length, 1);
    bpf_map_update_elem(&records, &tuple, &fresh, BPF_ANY);
    return XDP_PASS;
}

static __noinline __u32 mixed(__u32 a, __u32 b, __u32 c, __u64 d, int e)
{
    return (a << 3 ^ b) + (c ^ (d >> 5)) * (e < 0 ? -e : e);
}

static __noinline __u32 mixed_twice(__u32 a, __u32 b)
{
    __u32 first = mixed(a, b, a + b, (__u64)a * b, -7);

    return mixed(first, a, b, (__u64)first << 7, 5) + first;
}

static __noinline __u32 sum_of(const __u8 *bytes, __u32 count)
{
    __u32 sum = 0;

    for (__u32 i = 0; i < count && i < 14; i++)
        sum = sum * 31 + bytes[i];
    return sum;
}

SEC("xdp")
int calls_numbers(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    __u8 head[14];
    __u32 mix;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    __builtin_memcpy(head, eth, sizeof(head));
    mix = mixed_twice(sum_of(head, 6), sum_of(head + 6, 6));
    mix = mixed_twice(mix, sum_of(head, 14));
    *(__u32 *)eth->h_dest = mix;
    *(__u32 *)eth->h_source = mixed(mix, 1, 2, 3, -4);
    return mix & 1 ? XDP_TX : XDP_PASS;
}
