/* Arrays on the stack, indexed by what the packet says. Exercises: bytes that a branch asks for where the stack is indexed behind
 * it, halves of 64-bit constants, unions. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

/* A table of which some entries are known, one of these asked for before it is indexed. */
SEC("xdp")
int stack_table(struct xdp_md *ctx)
{
    struct cursor c = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
    struct ethhdr *eth = take_eth(&c);
    volatile __u8 marks[16];

    if (!eth)
        return XDP_DROP;
    marks[5] = eth->h_dest[4];
    marks[6] = eth->h_dest[5];
    marks[7] = 1;
    marks[4] = 5;
    if (marks[4] != 5)
        eth->h_source[1] = 1;
    eth->h_source[0] = marks[4 + (eth->h_dest[0] & 3)];
    return XDP_TX;
}

/* The same of the upper half of a constant. */
SEC("xdp")
int stack_halves(struct xdp_md *ctx)
{
    struct cursor c = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
    struct ethhdr *eth = take_eth(&c);
    volatile union {
        __u64 whole[2];
        __u32 halves[4];
        __u8 bytes[16];
    } mixed;

    if (!eth)
        return XDP_DROP;
    mixed.whole[0] = 5;
    mixed.whole[1] = *(__u32 *)eth->h_dest;
    if (mixed.halves[1])
        eth->h_source[1] = 1;
    eth->h_source[0] = mixed.bytes[eth->h_dest[0] & 15];
    return XDP_TX;
}
