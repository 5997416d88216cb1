/* Cuts and grows the end of a packet: to a snap length, to the length in the IP header, by a
 * trailer with a sum. Exercises: bpf_xdp_adjust_tail in both directions, pointers read again, new
 * bytes that are zero, failures. */
#include "parse.h"
#include "checksum.h"

char LICENSE[] SEC("license") = "GPL";

const volatile __u16 snap_length = 96;

struct trailer {
    __be32 magic;
    __be16 length;
    __be16 sum;
};

SEC("xdp")
int tail_snap(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    long excess = end - data - snap_length;

    if (excess <= 0)
        return XDP_PASS;
    return bpf_xdp_adjust_tail(ctx, -excess) ? XDP_ABORTED : XDP_TX;
}

/* Removes padding after the IP packet, but leaves at least 14 bytes. */
SEC("xdp")
int tail_trim(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct iphdr *ip = data + sizeof(*eth);
    int claimed, length = end - data;

    if ((void *)(ip + 1) > end)
        return XDP_DROP;
    if (eth->h_proto != bpf_htons(ETH_P_IP))
        /* Fails below the minimum length. */
        return bpf_xdp_adjust_tail(ctx, 13 - length) ? XDP_PASS : XDP_ABORTED;
    claimed = bpf_ntohs(ip->tot_len) + sizeof(*eth);
    if (claimed >= length)
        return XDP_PASS;
    if (bpf_xdp_adjust_tail(ctx, claimed - length))
        return XDP_DROP;
    data = (void *)(long)ctx->data;
    end = (void *)(long)ctx->data_end;
    return end - data == claimed ? XDP_TX : XDP_ABORTED;
}

SEC("xdp")
int tail_append(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    struct trailer *trailer;
    __u64 length = end - data;
    __u32 sum = 0;

    if (length > 1500)
        return XDP_DROP;
    if (bpf_xdp_adjust_tail(ctx, sizeof(*trailer) + 4))
        return XDP_ABORTED;
    data = (void *)(long)ctx->data;
    end = (void *)(long)ctx->data_end;
    if (data + 14 > end)
        return XDP_ABORTED;
#pragma unroll
    for (int i = 0; i < 7; i++)
        sum += ((__u16 *)data)[i];
    /* Four bytes remain unchanged. */
    trailer = data + length + 4;
    if ((void *)(trailer + 1) > end)
        return XDP_ABORTED;
    trailer->magic = bpf_htonl(0x50434c53);
    trailer->length = bpf_htons(length);
    trailer->sum = csum_fold(sum);
    return sum & 1 ? XDP_TX : XDP_PASS;
}

/* Pads short frames with zeros to Ethernet's minimum length. */
SEC("xdp")
int tail_pad(struct xdp_md *ctx)
{
    int length = ctx->data_end - ctx->data;
    __u8 *last;

    if (length >= 60)
        return XDP_PASS;
    if (bpf_xdp_adjust_tail(ctx, 60 - length))
        return XDP_ABORTED;
    last = (void *)(long)ctx->data + 59;
    if ((void *)(last + 1) > (void *)(long)ctx->data_end)
        return XDP_ABORTED;
    if (*last)
        return XDP_DROP;
    *last = length;
    return XDP_TX;
}
