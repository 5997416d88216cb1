/* Metadata in front of the packet: stored, read back, and passed to the next program by a tail
 * call. Exercises: bpf_xdp_adjust_meta, data_meta, tail call, metadata before and after a change of
 * the head. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

struct mark {
    __u32 hash;
    __u16 l3_offset;
    __u8 protocol;
    __u8 kind;
};

int meta_use(struct xdp_md *ctx);

struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, 1);
    __uint(key_size, sizeof(__u32));
    __array(values, int(struct xdp_md *));
} next SEC(".maps") = {
    .values = { [0] = &meta_use },
};

static __always_inline int make_mark(struct xdp_md *ctx)
{
    struct cursor c;
    struct ethhdr *eth;
    struct mark *mark;
    struct iphdr *ip;

    if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*mark)))
        return -1;
    mark = (void *)(long)ctx->data_meta;
    if ((void *)(mark + 1) > (void *)(long)ctx->data)
        return -1;
    __builtin_memset(mark, 0, sizeof(*mark));

    c = cursor_of(ctx);
    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return 0;
    mark->l3_offset = c.pos - (void *)eth;
    ip = take_ipv4(&c);
    if (!ip)
        return 0;
    mark->protocol = ip->protocol;
    mark->hash = (ip->saddr ^ ip->daddr) * 0x9e3779b1;
    mark->kind = 4;
    return 0;
}

SEC("xdp")
int meta_store(struct xdp_md *ctx)
{
    if (make_mark(ctx))
        return XDP_ABORTED;
    bpf_tail_call(ctx, &next, 0);
    return XDP_ABORTED;
}

SEC("xdp")
int meta_use(struct xdp_md *ctx)
{
    struct mark *mark = (void *)(long)ctx->data_meta;
    struct ethhdr *eth = (void *)(long)ctx->data;

    if ((void *)(mark + 1) > (void *)eth)
        return XDP_DROP;
    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_ABORTED;
    if (mark->kind != 4)
        return XDP_PASS;
    eth->h_source[4] = mark->l3_offset;
    eth->h_source[5] = mark->hash >> 24;
    return mark->protocol == IPPROTO_TCP ? XDP_TX : XDP_PASS;
}

/* Stores metadata, moves the head past a tag, reads it again, and removes it. */
SEC("xdp")
int meta_round_trip(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    __u32 *meta, length = ctx->data_end - ctx->data, kept;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    if (bpf_xdp_adjust_meta(ctx, -4))
        return XDP_ABORTED;
    meta = (void *)(long)ctx->data_meta;
    if ((void *)(meta + 1) > (void *)(long)ctx->data)
        return XDP_ABORTED;
    *meta = length * 3;

    if (bpf_xdp_adjust_head(ctx, 4))
        return XDP_DROP;
    meta = (void *)(long)ctx->data_meta;
    if ((void *)(meta + 1) > (void *)(long)ctx->data)
        return XDP_ABORTED;
    kept = *meta;
    if (bpf_xdp_adjust_meta(ctx, 4))
        return XDP_ABORTED;
    if (ctx->data_meta != ctx->data)
        return XDP_ABORTED;
    return kept == length * 3 ? (kept & 1 ? XDP_TX : XDP_PASS) : XDP_DROP;
}
