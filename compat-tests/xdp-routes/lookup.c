/* Lookups whose arguments the packet holds; the results are written to the packet, so that packets
 * can test any combination. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

enum { AF_INET = 2, AF_INET6 = 10 };

struct question {
    struct ethhdr eth;
    __u16 pad;
    __u32 flags;
    __u32 length;
    __s32 result;
    __u32 more;
    struct bpf_fib_lookup params;
};

static __always_inline struct question *question_of(struct xdp_md *ctx)
{
    struct question *q = (void *)(long)ctx->data;

    return (void *)(q + 1) > (void *)(long)ctx->data_end ? (void *)0 : q;
}

static __always_inline int ask(struct xdp_md *ctx, __u8 family, __u32 flags, int length)
{
    struct question *q = question_of(ctx);
    struct bpf_fib_lookup params;

    if (!q)
        return XDP_DROP;
    __builtin_memcpy(&params, &q->params, sizeof(params));
    if (family)
        params.family = family;
    q->result = bpf_fib_lookup(ctx, &params, length, flags == -1U ? q->flags : flags);
    __builtin_memcpy(&q->params, &params, sizeof(params));
    return XDP_PASS;
}

SEC("xdp")
int lookup_any(struct xdp_md *ctx)
{
    return ask(ctx, 0, -1, sizeof(struct bpf_fib_lookup));
}

SEC("xdp")
int lookup_v4(struct xdp_md *ctx)
{
    return ask(ctx, AF_INET, 0, sizeof(struct bpf_fib_lookup));
}

SEC("xdp")
int lookup_v4_flags(struct xdp_md *ctx)
{
    return ask(ctx, AF_INET, -1, sizeof(struct bpf_fib_lookup));
}

SEC("xdp")
int lookup_v6(struct xdp_md *ctx)
{
    return ask(ctx, AF_INET6, 0, sizeof(struct bpf_fib_lookup));
}

SEC("xdp")
int lookup_v6_flags(struct xdp_md *ctx)
{
    return ask(ctx, AF_INET6, -1, sizeof(struct bpf_fib_lookup));
}

/* The packet is shorter than the structure. */
SEC("xdp")
int lookup_short(struct xdp_md *ctx)
{
    return ask(ctx, 0, 0, sizeof(struct bpf_fib_lookup) - 1);
}

/* An invalid flag. */
SEC("xdp")
int lookup_wrong(struct xdp_md *ctx)
{
    return ask(ctx, 0, 64, sizeof(struct bpf_fib_lookup));
}

/* For any interface, with a given length. */
SEC("xdp")
int mtu_any(struct xdp_md *ctx)
{
    struct question *q = question_of(ctx);
    __u32 length;

    if (!q)
        return XDP_DROP;
    length = q->length;
    q->result = bpf_check_mtu(ctx, q->params.ifindex, &length, (__s32)q->more, q->flags);
    q->length = length;
    return XDP_PASS;
}

/* For the receiving interface, with the packet's own length and some bytes more. */
SEC("xdp")
int mtu_here(struct xdp_md *ctx)
{
    struct question *q = question_of(ctx);
    __u32 length = 0;

    if (!q)
        return XDP_DROP;
    if (bpf_check_mtu(ctx, 0, &length, (__s32)q->more, 0))
        return XDP_DROP;
    q->length = length;
    return XDP_PASS;
}
