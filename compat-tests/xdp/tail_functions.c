/* Tail calls from functions: the called program runs instead of the rest of the function, and its
 * result is returned to the function's caller. Exercises: a tail call one and two functions deep, a
 * miss, a called program that changes the packet and has functions itself, values that callers keep
 * across the call. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

int step_mark(struct xdp_md *ctx);
int step_count(struct xdp_md *ctx);
int step_further(struct xdp_md *ctx);

struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, 5);
    __uint(key_size, sizeof(__u32));
    __array(values, int(struct xdp_md *));
} steps SEC(".maps") = {
    .values = { [0] = &step_mark, [1] = &step_count, [3] = &step_further },
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 8);
    __type(key, __u32);
    __type(value, __u64);
} counts SEC(".maps");

static __noinline int count(__u32 index)
{
    __u64 *sum = bpf_map_lookup_elem(&counts, &index);

    if (!sum)
        return 0;
    __sync_fetch_and_add(sum, 1);
    return 1;
}

static __noinline int dispatch(struct xdp_md *ctx, __u32 step)
{
    bpf_tail_call(ctx, &steps, step);
    count(7);
    return 77;
}

/* This function's stack is intact after the tail-called program has returned. */
static __noinline int through(struct xdp_md *ctx, __u32 step, __u32 seed)
{
    volatile __u32 kept = seed * 3;
    int got = dispatch(ctx, step);

    return got * 256 + (kept & 0xff);
}

SEC("xdp")
int step_mark(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return 5;
    eth->h_dest[0] ^= 0x80;
    return 10;
}

SEC("xdp")
int step_count(struct xdp_md *ctx)
{
    return 20 + count((ctx->data_end - ctx->data) & 3);
}

SEC("xdp")
int step_further(struct xdp_md *ctx)
{
    return dispatch(ctx, (ctx->data_end - ctx->data) & 1) + 1;
}

SEC("xdp")
int function_tail(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    __u32 step;
    int got;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    step = eth->h_source[5] % 7;
    got = dispatch(ctx, step);
    eth = (void *)(long)ctx->data;
    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_ABORTED;
    eth->h_source[0] = got;
    return got == 77 ? XDP_PASS : XDP_TX;
}

SEC("xdp")
int function_tail_nested(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    __u32 step, seed;
    int got;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    step = eth->h_source[5] & 3;
    seed = eth->h_source[4];
    got = through(ctx, step, seed);
    if ((got & 0xff) != ((seed * 3) & 0xff))
        return XDP_ABORTED;
    got += through(ctx, step ^ 1, seed + 1);
    eth = (void *)(long)ctx->data;
    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_ABORTED;
    eth->h_source[0] = got >> 8;
    eth->h_source[1] = got;
    return XDP_TX;
}
