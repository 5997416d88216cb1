/* Loops whose bounds depend on the packet, nested loops, early exits, and bpf_loop with callbacks
 * that stop it, that nest, and that accumulate on the caller's stack. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

/* Number and sum of the bytes up to the first that equals the source's last byte. */
SEC("xdp")
int loops_bounded(struct xdp_md *ctx)
{
    __u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = (void *)data;
    __u32 sum = 0, count = 0;
    __u8 wanted;

    if ((void *)(eth + 1) > (void *)end)
        return XDP_DROP;
    wanted = eth->h_source[5];
    for (__u32 i = 14; i < 200; i++) {
        if (data + i + 1 > end || data[i] == wanted)
            break;
        sum += data[i];
        count++;
    }
    eth->h_dest[0] = count;
    *(__u16 *)(eth->h_dest + 2) = sum;
    return sum & 1 ? XDP_TX : XDP_PASS;
}

/* Sorts six bytes: nested loops over the stack. */
SEC("xdp")
int loops_nested(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    __u8 bytes[6];
    __u32 swaps = 0;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    __builtin_memcpy(bytes, eth->h_source, 6);
#pragma clang loop unroll(disable)
    for (int i = 0; i < 5; i++) {
#pragma clang loop unroll(disable)
        for (int j = 0; j < 5; j++) {
            __u8 a = bytes[j], b = bytes[j + 1];

            if (a > b) {
                bytes[j] = b;
                bytes[j + 1] = a;
                swaps++;
            }
        }
    }
    __builtin_memcpy(eth->h_source, bytes, 6);
    eth->h_dest[5] = swaps;
    return swaps & 1 ? XDP_TX : XDP_PASS;
}

struct search {
    struct xdp_md *ctx;
    __u32 sum;
    __u32 rounds;
    __u8 wanted;
    __u8 found;
};

static long look(__u32 index, struct search *search)
{
    __u8 *pos = (void *)(long)search->ctx->data, *end = (void *)(long)search->ctx->data_end;

    search->rounds++;
    if (index > 1500 || pos + index + 1 > end)
        return 1;
    search->sum += pos[index];
    if (pos[index] == search->wanted && index > 12) {
        search->found = index;
        return 1;
    }
    return 0;
}

/* Ends early, by the callback or at the packet's end. */
SEC("xdp")
int loops_by_function(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    struct search search = { .ctx = ctx };
    long rounds;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    search.wanted = eth->h_source[5];
    rounds = bpf_loop(200, look, &search, 0);
    eth = (void *)(long)ctx->data;
    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_ABORTED;
    eth->h_dest[0] = rounds;
    eth->h_dest[1] = search.rounds;
    eth->h_dest[2] = search.found;
    *(__u16 *)(eth->h_dest + 4) = search.sum;
    return search.found ? XDP_TX : XDP_PASS;
}

struct grid {
    __u32 cells;
    __u32 sum;
    __u32 row;
    __u32 width;
};

static long cell(__u32 column, struct grid *grid)
{
    grid->cells++;
    grid->sum += grid->row * column;
    return grid->sum > 4000;
}

static long row(__u32 row, struct grid *grid)
{
    grid->row = row;
    return bpf_loop(grid->width, cell, grid, 0) != grid->width;
}

/* A nested loop; the packet determines both numbers of iterations. */
SEC("xdp")
int loops_in_loops(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    struct grid grid = {};
    long rounds;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    grid.width = eth->h_source[5] & 31;
    rounds = bpf_loop(eth->h_source[4] & 31, row, &grid, 0);
    *(__u32 *)eth->h_dest = grid.sum;
    eth->h_dest[4] = rounds;
    eth->h_dest[5] = grid.cells;
    return grid.sum & 1 ? XDP_TX : XDP_PASS;
}
