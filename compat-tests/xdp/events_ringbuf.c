/* Records for a ring buffer: written at once, or reserved and filled in place. Exercises:
 * bpf_ringbuf_output, bpf_ringbuf_reserve, bpf_ringbuf_submit, bpf_ringbuf_discard,
 * bpf_ringbuf_query, bpf_xdp_load_bytes into a record, records of several sizes, members of 1 to 8
 * bytes, packed ones, an array filled in a loop, several records per packet. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "outcomes.h"

char LICENSE[] SEC("license") = "GPL";

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 64 * 1024);
} events SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096);
} alarms SEC(".maps");

struct seen {
    __u64 bytes;
    __u32 length;
    __u16 proto;
    __u8 dst[6];
    __u8 first;
};

struct flow {
    __u32 src, dst;
    __u16 sport, dport;
    __u8 proto;
} __attribute__((packed));

/* One record per packet, from the stack. */
SEC("xdp")
int ring_output(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct seen seen = {};

    if ((void *)(eth + 1) > end)
        return XDP_DROP;
    seen.bytes = 0x0123456789abcdefULL ^ ((__u64)(end - data) << 33);
    seen.length = end - data;
    seen.proto = eth->h_proto;
    __builtin_memcpy(seen.dst, eth->h_dest, sizeof(seen.dst));
    seen.first = eth->h_source[0];
    note(0, bpf_ringbuf_output(&events, &seen, sizeof(seen), 0));
    return seen.length & 1 ? XDP_PASS : XDP_TX;
}

/* A copy of the packet: as many bytes as it requests, at most 63. With valid and invalid flags. */
SEC("xdp")
int ring_output_part(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    __u8 copy[64] = {};
    __u32 length;

    if (data + sizeof(*eth) > end)
        return XDP_DROP;
    length = eth->h_dest[5] & 63;
    for (int i = 0; i < 14; i++)
        copy[i] = ((__u8 *)data)[i];
    copy[20] = length;
    copy[63] = 0x7f;
    note(0, bpf_ringbuf_output(&events, copy, length, BPF_RB_NO_WAKEUP));
    note(1, bpf_ringbuf_output(&events, copy, sizeof(*eth), BPF_RB_FORCE_WAKEUP));
    note(2, bpf_ringbuf_output(&events, copy, 8, 1 << 4));
    note(3, bpf_ringbuf_output(&events, copy, 8, length & 4 ? 0 : 1ULL << 40));
    return XDP_PASS;
}

/* Reserved, filled, and submitted or discarded. */
SEC("xdp")
int ring_reserve(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct iphdr *ip = data + sizeof(*eth);
    struct udphdr *udp = (void *)(ip + 1);
    struct flow *flow;

    if ((void *)(udp + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    flow = bpf_ringbuf_reserve(&events, sizeof(*flow), 0);
    if (!flow)
        return XDP_ABORTED;
    flow->src = ip->saddr;
    flow->dst = ip->daddr;
    flow->proto = ip->protocol;
    if (ip->protocol != 6 && ip->protocol != 17) {
        bpf_ringbuf_discard(flow, 0);
        return XDP_TX;
    }
    flow->sport = udp->source;
    flow->dport = udp->dest;
    /* Reads back what it has written to the record. */
    if (flow->dport == bpf_htons(53))
        flow->proto |= 0x80;
    bpf_ringbuf_submit(flow, 0);
    return XDP_DROP;
}

struct burst {
    __u32 number;
    __u8 bytes[27];
    __u8 last;
    __u64 sum;
};

struct burst_state {
    struct xdp_md *ctx;
    __u32 done;
};

static long one_of_burst(__u32 i, struct burst_state *state)
{
    void *data = (void *)(long)state->ctx->data, *end = (void *)(long)state->ctx->data_end;
    struct burst *burst;

    if (data + 14 > end)
        return 1;
    burst = bpf_ringbuf_reserve(&events, sizeof(*burst), 0);
    if (!burst)
        return 1;
    burst->number = i;
    burst->sum = 0;
    burst->last = ~i;
    for (int at = 0; at < 27; at++) {
        burst->bytes[at] = at < 14 ? ((__u8 *)data)[at] + i : at;
        burst->sum += burst->bytes[at];
    }
    if (i == 2)
        bpf_ringbuf_discard(burst, BPF_RB_NO_WAKEUP);
    else
        bpf_ringbuf_submit(burst, BPF_RB_NO_WAKEUP);
    state->done++;
    return 0;
}

/* Up to seven records per packet. */
SEC("xdp")
int ring_burst(struct xdp_md *ctx)
{
    struct burst_state state = { .ctx = ctx };

    bpf_loop((ctx->data_end - ctx->data) & 7, one_of_burst, &state, 0);
    return state.done > 3 ? XDP_DROP : XDP_PASS;
}

struct snapshot {
    __u32 length;
    __u8 head[43];
    __u8 outcome;
};

/* The kernel copies the packet's beginning into the record: all of it or nothing. */
SEC("xdp")
int ring_snapshot(struct xdp_md *ctx)
{
    struct snapshot *snapshot = bpf_ringbuf_reserve(&events, sizeof(*snapshot), 0);
    long copied;

    if (!snapshot)
        return XDP_ABORTED;
    snapshot->length = ctx->data_end - ctx->data;
    __builtin_memset(snapshot->head, 0x55, sizeof(snapshot->head));
    copied = bpf_xdp_load_bytes(ctx, 3, snapshot->head, sizeof(snapshot->head));
    snapshot->outcome = copied;
    bpf_ringbuf_submit(snapshot, 0);
    return copied ? XDP_DROP : XDP_PASS;
}

/* Records that never fit, lengths with flag bits, and the ring's own statistics. */
SEC("xdp")
int ring_limits(struct xdp_md *ctx)
{
    __u64 *record;
    __u64 length = ctx->data_end - ctx->data;

    note(0, bpf_ringbuf_query(&alarms, BPF_RB_RING_SIZE));
    note(1, bpf_ringbuf_query(&alarms, 17));
    record = bpf_ringbuf_reserve(&alarms, 4096, 0);
    if (record) {
        bpf_ringbuf_discard(record, 0);
        return XDP_ABORTED;
    }
    record = bpf_ringbuf_reserve(&alarms, sizeof(*record), length & 1);
    if (!record)
        return XDP_PASS;
    *record = length << 32 | 7;
    bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
    return XDP_TX;
}
