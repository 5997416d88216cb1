/* Samples for a perf buffer: the program's data followed by the beginning of the packet. Exercises:
 * bpf_perf_event_output with BPF_F_CURRENT_CPU and an index, constant and variable lengths of the
 * packet's part in the flags, longer than the packet, and invalid flags. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "outcomes.h"

char LICENSE[] SEC("license") = "GPL";

#define SAMPLE 96
#define min(a, b) ((a) < (b) ? (a) : (b))

struct {
    __uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
    __uint(key_size, sizeof(int));
    __uint(value_size, sizeof(int));
} samples SEC(".maps");

/* Same layout as in libbpf's XDP samples. */
struct sample {
    __u16 cookie;
    __u16 length;
} __attribute__((packed));

SEC("xdp")
int perf_sample(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct sample sample;
    __u64 flags = BPF_F_CURRENT_CPU;
    __u16 size;

    if (data >= end)
        return XDP_PASS;
    sample.cookie = 0xdead;
    sample.length = (__u16)(end - data);
    size = min(sample.length, SAMPLE);
    flags |= (__u64)size << 32;
    note(0, bpf_perf_event_output(ctx, &samples, flags, &sample, sizeof(sample)));
    return XDP_PASS;
}

/* No packet bytes, an odd size, and only for some packets. */
SEC("xdp")
int perf_plain(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct {
        __u8 macs[12];
        __be16 proto;
        __u8 more;
    } __attribute__((packed)) said;

    if ((void *)(eth + 1) > end)
        return XDP_DROP;
    if (eth->h_proto == bpf_htons(ETH_P_IPV6))
        return XDP_PASS;
    __builtin_memcpy(said.macs, eth, 12);
    said.proto = eth->h_proto;
    said.more = 0x99;
    note(0, bpf_perf_event_output(ctx, &samples, 0, &said, sizeof(said)));
    return XDP_TX;
}

/* The whole packet, twenty bytes of it, and more than it has. */
SEC("xdp")
int perf_lengths(struct xdp_md *ctx)
{
    __u64 length = ctx->data_end - ctx->data;
    __u32 number = length;

    note(0, bpf_perf_event_output(ctx, &samples, length << 32 | BPF_F_CURRENT_CPU, &number, sizeof(number)));
    note(1, bpf_perf_event_output(ctx, &samples, 20ULL << 32 | BPF_F_CURRENT_CPU, &number, sizeof(number)));
    note(2, bpf_perf_event_output(ctx, &samples, (length + 1) << 32 | BPF_F_CURRENT_CPU, &number, 2));
    note(3, bpf_perf_event_output(ctx, &samples, 1ULL << 52 | BPF_F_CURRENT_CPU, &number, sizeof(number)));
    /* Another processor's buffer, which this one cannot write to. */
    if (bpf_perf_event_output(ctx, &samples, 1, &number, sizeof(number)) == 0)
        return XDP_ABORTED;
    return XDP_PASS;
}
