/* Metadata of variable and invalid lengths, and accesses of every width. Exercises:
 * bpf_xdp_adjust_meta and its errors, data_meta compared with and subtracted from data, metadata in
 * a hash key. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

struct wide {
    __u8 a;
    __u8 b;
    __u16 c;
    __u32 d;
    __u64 e;
    __u8 tail[4];
} __attribute__((packed));

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 4096);
    __type(key, __u32);
    __type(value, __u32);
} seen SEC(".maps");

SEC("xdp")
int meta_widths(struct xdp_md *ctx)
{
    struct ethhdr *eth;
    struct wide *wide;
    __u32 one = 1, key;

    if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*wide)))
        return XDP_ABORTED;
    eth = (void *)(long)ctx->data;
    wide = (void *)(long)ctx->data_meta;
    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    if ((void *)(wide + 1) > (void *)eth)
        return XDP_ABORTED;
    __builtin_memset(wide, 0x11, sizeof(*wide));
    wide->a = eth->h_source[5];
    wide->c = eth->h_proto;
    wide->d += eth->h_source[4];
    wide->e = (__u64)wide->d * 0x100000001ull + wide->a;
    wide->tail[1] = wide->e >> 40;
    key = wide->d ^ *(__u32 *)wide->tail;
    bpf_map_update_elem(&seen, &key, &one, BPF_ANY);
    *(__u32 *)eth->h_dest = wide->e >> 16;
    eth->h_dest[4] = wide->tail[0] + wide->tail[1];
    eth->h_dest[5] = (void *)eth - (void *)wide;
    return wide->c == bpf_htons(ETH_P_IP) ? XDP_TX : XDP_PASS;
}

/* The packet gives the length; some lengths are invalid. */
SEC("xdp")
int meta_by_packet(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    __u32 *meta;
    int length;
    long error, again;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    length = eth->h_source[5];
    error = bpf_xdp_adjust_meta(ctx, -length);
    again = bpf_xdp_adjust_meta(ctx, length >> 1);
    eth = (void *)(long)ctx->data;
    meta = (void *)(long)ctx->data_meta;
    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    eth->h_dest[0] = error;
    eth->h_dest[1] = again;
    eth->h_dest[2] = ctx->data - ctx->data_meta;
    if ((void *)(meta + 2) > (void *)eth)
        return XDP_PASS;
    meta[0] = length;
    meta[1] = meta[0] * 3;
    eth->h_dest[3] = meta[1];
    return XDP_TX;
}

/* Invalid metadata: odd lengths, more than fits, and a start after the packet's. */
SEC("xdp")
int meta_errors(struct xdp_md *ctx)
{
    struct ethhdr *eth;
    long errors[5];

    errors[0] = bpf_xdp_adjust_meta(ctx, -6);
    errors[1] = bpf_xdp_adjust_meta(ctx, 4);
    errors[2] = bpf_xdp_adjust_meta(ctx, -300);
    errors[3] = bpf_xdp_adjust_meta(ctx, -216);
    errors[4] = bpf_xdp_adjust_meta(ctx, -4);
    eth = (void *)(long)ctx->data;
    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    eth->h_dest[0] = errors[0];
    eth->h_dest[1] = errors[1];
    eth->h_dest[2] = errors[2];
    eth->h_dest[3] = errors[3];
    eth->h_dest[4] = errors[4];
    return (void *)(long)ctx->data_meta + 216 == (void *)(long)ctx->data ? XDP_TX : XDP_PASS;
}
