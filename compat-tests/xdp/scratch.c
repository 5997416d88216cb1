/* Per-CPU memory used as a larger stack: a packet has it to itself from start to end. Exercises: an
 * entry of a percpu_array and global variables that are filled, read, passed on by a tail call,
 * indexed, summed in, and written by helpers. Programs clear the memory at the end, so that maps do
 * not depend on the packets' order. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

struct flow {
    __u32 source, target;
    __u16 ports[2];
    __u8 protocol, flags;
    __u16 sum;
    __u64 marks;
    __u32 packets;
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct flow);
} scratch SEC(".maps");

struct bytes {
    __u32 length;
    __u8 all[92];
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct bytes);
} scratch_bytes SEC(".maps");

struct numbers {
    __u32 all[16];
    __u32 large[512];
    __u16 m;
    __u8 flag, n;
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct numbers);
} scratch_numbers SEC(".maps");

/* Only these programs use them, so with one queue they are private to a processor, too. */
__u32 scratch_words[4] SEC(".bss.scratch");
__u64 scratch_long SEC(".bss.scratch");

int scratch_reader(struct xdp_md *ctx);

struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, 2);
    __type(key, __u32);
    __type(value, __u32);
    __array(values, int(void *));
} programs SEC(".maps") = { .values = { [1] = (void *)&scratch_reader } };

static __always_inline struct flow *flow_of(void)
{
    __u32 zero = 0;

    return bpf_map_lookup_elem(&scratch, &zero);
}

static __always_inline struct bytes *bytes_of(void)
{
    __u32 zero = 0;

    return bpf_map_lookup_elem(&scratch_bytes, &zero);
}

/* Keeps clang from removing or merging stores. */
#define BARRIER() asm volatile("" ::: "memory")

static __always_inline void clear_flow(struct flow *flow)
{
    flow->source = flow->target = 0;
    flow->ports[0] = flow->ports[1] = 0;
    flow->protocol = flow->flags = 0;
    flow->sum = 0;
    flow->marks = 0;
}

static __always_inline int fill(struct flow *flow, __u8 *bytes, void *end)
{
    if ((void *)(bytes + 38) > end)
        return -1;
    clear_flow(flow);
    BARRIER();
    flow->protocol = bytes[23];
    if (bytes[12] == 8)
        flow->source = *(__u32 *)(bytes + 26);
    flow->target = *(__u32 *)(bytes + 30);
    BARRIER();
    if (flow->protocol == 6 || flow->protocol == 17) {
        flow->ports[0] = *(__u16 *)(bytes + 34);
        flow->ports[1] = *(__u16 *)(bytes + 36);
        flow->flags |= 1;
    }
    flow->marks += flow->target;
    BARRIER();
    flow->marks += (__u64)flow->source << 16;
    flow->packets++;
    return 0;
}

static __always_inline int judge(struct flow *flow, __u8 *bytes, void *end)
{
    if ((void *)(bytes + 14) > end)
        return XDP_ABORTED;
    *(__u32 *)bytes = flow->source ^ flow->target;
    *(__u16 *)(bytes + 4) = flow->ports[1] - flow->ports[0];
    *(__u32 *)(bytes + 6) = flow->marks >> 8;
    return flow->flags & 1 ? (flow->ports[1] & 1 ? XDP_TX : XDP_PASS) : XDP_DROP;
}

/* Filled, then read. */
SEC("xdp")
int scratch_filled(struct xdp_md *ctx)
{
    void *end = (void *)(long)ctx->data_end;
    __u8 *bytes = (void *)(long)ctx->data;
    struct flow *flow = flow_of();
    int verdict;

    if (!flow || fill(flow, bytes, end))
        return XDP_ABORTED;
    BARRIER();
    verdict = judge(flow, bytes, end);
    clear_flow(flow);
    return verdict;
}

/* The same, by two programs. */
SEC("xdp")
int scratch_reader(struct xdp_md *ctx)
{
    void *end = (void *)(long)ctx->data_end;
    __u8 *bytes = (void *)(long)ctx->data;
    struct flow *flow = flow_of();
    int verdict;

    if (!flow)
        return XDP_ABORTED;
    verdict = judge(flow, bytes, end);
    clear_flow(flow);
    return verdict;
}

SEC("xdp")
int scratch_handed_on(struct xdp_md *ctx)
{
    void *end = (void *)(long)ctx->data_end;
    __u8 *bytes = (void *)(long)ctx->data;
    struct flow *flow = flow_of();

    if (!flow || fill(flow, bytes, end))
        return XDP_ABORTED;
    bpf_tail_call(ctx, &programs, 1);
    return XDP_DROP;
}

/* As an array indexed by the packet. */
SEC("xdp")
int scratch_indexed(struct xdp_md *ctx)
{
    void *end = (void *)(long)ctx->data_end;
    __u8 *bytes = (void *)(long)ctx->data;
    struct bytes *copy = bytes_of();
    __u32 sum = 0, at;

    if (!copy || (void *)(bytes + 64) > end)
        return XDP_ABORTED;
    for (at = 0; at < 64; at++) {
        copy->all[at] = bytes[at];
        BARRIER();
    }
    /* So that a packet reads only what it has written itself. */
    for (at = 64; at < 80; at++) {
        copy->all[at] = 0;
        BARRIER();
    }
    copy->length = 64;
    for (at = 0; at < 16; at++) {
        __u32 from = copy->all[at] & 63;

        sum = sum * 3 + copy->all[from] + copy->length;
        copy->all[64 + (from & 15)] = sum;
        BARRIER();
        sum ^= copy->all[64 + at] & (at < (from & 15) ? 0 : 0xff);
    }
    *(__u32 *)bytes = sum;
    __builtin_memset(copy, 0, sizeof(*copy));
    return XDP_TX;
}

/* Written by helpers: by a copy, and by an update. */
SEC("xdp")
int scratch_of_helpers(struct xdp_md *ctx)
{
    struct bytes *copy = bytes_of();
    struct bytes other = { .length = ctx->ingress_ifindex };
    __u32 zero = 0, sum;
    int verdict = XDP_PASS;

    if (!copy)
        return XDP_ABORTED;
    __builtin_memset(copy, 0, sizeof(*copy));
    BARRIER();
    if (bpf_xdp_load_bytes(ctx, 3, copy->all + 1, 40))
        verdict = XDP_DROP;
    sum = bpf_csum_diff(0, 0, (void *)copy, 44, 0);
    other.all[7] = copy->all[9];
    other.all[30] = copy->all[12];
    bpf_map_update_elem(&scratch_bytes, &zero, &other, BPF_ANY);
    BARRIER();
    sum += copy->all[7] * 3 + copy->all[30] + copy->all[12];
    __builtin_memset(copy, 0, sizeof(*copy));
    bpf_xdp_store_bytes(ctx, 0, &sum, sizeof(sum));
    return verdict;
}

/* Global variables: a sum, an exchange, and a bit. */
SEC("xdp")
int scratch_globals(struct xdp_md *ctx)
{
    void *end = (void *)(long)ctx->data_end;
    __u8 *bytes = (void *)(long)ctx->data;
    __u32 at, was;

    if ((void *)(bytes + 32) > end)
        return XDP_ABORTED;
    scratch_words[0] = 0;
    for (at = 0; at < 32; at++) {
        scratch_words[0] += bytes[at];
        BARRIER();
    }
    scratch_words[1] = bytes[11];
    BARRIER();
    __sync_fetch_and_add(&scratch_words[1], scratch_words[0]);
    was = scratch_words[1];
    scratch_words[2] = was * 5;
    BARRIER();
    if (scratch_words[2] & 4)
        scratch_words[3] = scratch_words[2] >> 3;
    else
        scratch_words[3] = 1;
    BARRIER();
    *(__u32 *)bytes = scratch_words[0] + scratch_words[3];
    was = scratch_words[2];
    scratch_words[0] = scratch_words[1] = scratch_words[2] = scratch_words[3] = 0;
    return was & 1 ? XDP_TX : XDP_PASS;
}

/* A 64-bit number that is stored, added to, and read by halves. */
SEC("xdp")
int scratch_halves(struct xdp_md *ctx)
{
    void *end = (void *)(long)ctx->data_end;
    __u8 *bytes = (void *)(long)ctx->data;
    volatile __u32 *halves = (void *)&scratch_long;

    if ((void *)(bytes + 32) > end)
        return XDP_ABORTED;
    scratch_long = *(__u64 *)(bytes + 4);
    BARRIER();
    __sync_fetch_and_add(&scratch_long, *(__u64 *)(bytes + 12));
    BARRIER();
    *(__u32 *)bytes = bytes[3] & 1 ? halves[0] : 7;
    scratch_long = *(__u64 *)(bytes + 4);
    BARRIER();
    __sync_fetch_and_add(&scratch_long, *(__u64 *)(bytes + 20));
    BARRIER();
    *(__u32 *)(bytes + 4) = halves[1];
    scratch_long = 0;
    return XDP_PASS;
}

/* Only the lower half is ever read. */
SEC("xdp")
int scratch_half(struct xdp_md *ctx)
{
    void *end = (void *)(long)ctx->data_end;
    __u8 *bytes = (void *)(long)ctx->data;

    if ((void *)(bytes + 32) > end)
        return XDP_ABORTED;
    scratch_long = *(__u64 *)(bytes + 4);
    BARRIER();
    __sync_fetch_and_add(&scratch_long, *(__u32 *)(bytes + 12));
    BARRIER();
    *(__u32 *)bytes = *(volatile __u32 *)&scratch_long;
    scratch_long = 0;
    return XDP_PASS;
}

/* Together with an indexed array on the stack. */
SEC("xdp")
int scratch_and_stack(struct xdp_md *ctx)
{
    void *end = (void *)(long)ctx->data_end;
    __u8 *bytes = (void *)(long)ctx->data;
    struct bytes *copy = bytes_of();
    volatile __u8 stack[16];
    int verdict = XDP_PASS;
    __u32 first, second;

    if (!copy || (void *)(bytes + 32) > end)
        return XDP_ABORTED;
    __builtin_memset(copy, 0, sizeof(*copy));
    for (int at = 0; at < 16; at++)
        stack[at] = at;
    stack[bytes[2] & 15] = 7;
    BARRIER();
    first = stack[bytes[5] & 15];
    copy->all[bytes[3] & 63] = bytes[4];
    second = stack[bytes[5] & 15];
    if (first != second)
        verdict = XDP_DROP;
    first = *(volatile __u32 *)&copy->all[4];
    stack[bytes[7] & 15] = 9;
    second = *(volatile __u32 *)&copy->all[4];
    if (first != second)
        verdict = XDP_DROP;
    *(__u32 *)bytes = second + copy->all[bytes[1] & 63] + stack[bytes[6] & 15];
    __builtin_memset(copy, 0, sizeof(*copy));
    return verdict;
}

static __always_inline struct numbers *numbers_of(void)
{
    __u32 zero = 0;

    return bpf_map_lookup_elem(&scratch_numbers, &zero);
}

/* A histogram of packet bytes, cleared before. */
SEC("xdp")
int scratch_counted(struct xdp_md *ctx)
{
    void *end = (void *)(long)ctx->data_end;
    __u8 *bytes = (void *)(long)ctx->data;
    struct numbers *numbers = numbers_of();
    __u32 sum = 0;

    if (!numbers || (void *)(bytes + 32) > end)
        return XDP_ABORTED;
    __builtin_memset(numbers->all, 0, sizeof(numbers->all));
    BARRIER();
#pragma clang loop unroll(disable)
    for (int at = 0; at < 32; at++)
        numbers->all[bytes[at] & 15]++;
    for (int at = 0; at < 16; at++) {
        sum = sum * 3 + numbers->all[at];
        BARRIER();
    }
    *(__u32 *)bytes = sum;
    __builtin_memset(numbers->all, 0, sizeof(numbers->all));
    return XDP_TX;
}

/* Stored on one path only, by a helper, or by an update, and then added to. */
SEC("xdp")
int scratch_perhaps(struct xdp_md *ctx)
{
    void *end = (void *)(long)ctx->data_end;
    __u8 *bytes = (void *)(long)ctx->data;
    struct numbers *numbers = numbers_of();
    struct bytes *copy = bytes_of(), other = { .length = ctx->ingress_ifindex };
    __u32 key, sum = 0;

    if (!numbers || !copy || (void *)(bytes + 40) > end)
        return XDP_ABORTED;
    key = bytes[39] & 1;
    if (bytes[12] == 8)
        numbers->all[0] = bytes[20];
    BARRIER();
    numbers->all[0] += bytes[21] + 1;
    BARRIER();
    if (bytes[12] == 8)
        sum = numbers->all[0];
    if (bpf_xdp_load_bytes(ctx, 0, copy->all, 34))
        return XDP_ABORTED;
    copy->all[22]--;
    copy->all[8] += copy->all[9];
    BARRIER();
    sum += copy->all[22] * 3 + copy->all[8];
    other.all[3] = bytes[23];
    if (!bpf_map_update_elem(&scratch_bytes, &key, &other, BPF_ANY)) {
        copy->length += bytes[33];
        BARRIER();
        sum += copy->length * 5 + copy->all[3];
    }
    __builtin_memset(copy, 0, sizeof(*copy));
    numbers->all[0] = 0;
    *(__u32 *)bytes = sum;
    return XDP_PASS;
}

/* Together with an array that is too large to be copied and is only added to. */
SEC("xdp")
int scratch_beside(struct xdp_md *ctx)
{
    void *end = (void *)(long)ctx->data_end;
    __u8 *bytes = (void *)(long)ctx->data;
    struct numbers *numbers = numbers_of();
    __u32 before;

    if (!numbers || (void *)(bytes + 40) > end)
        return XDP_ABORTED;
    numbers->all[1] = *(__u32 *)(bytes + 30);
    numbers->flag = bytes[1];
    BARRIER();
#pragma clang loop unroll(disable)
    for (int at = 0; at < 4; at++)
        numbers->large[*(__u16 *)(bytes + 26 + at) & 511]++;
    BARRIER();
    numbers->m = bytes[2];
    BARRIER();
    numbers->m += bytes[3];
    BARRIER();
    before = numbers->m;
    BARRIER();
    numbers->m = before + 1;
    BARRIER();
    *(__u32 *)bytes = numbers->all[1] + before + numbers->flag * 7 + numbers->m * 3;
    numbers->all[1] = numbers->flag = numbers->m = 0;
    return XDP_TX;
}
