/* Edge cases of pointers and helpers. Exercises: pointers that are NULL on one path, then moved and
 * compared with NULL and with the packet's end; pointers moved far beyond the packet; bpf_loop at
 * and above its maximum; bpf_xdp_load_bytes and bpf_xdp_store_bytes at offsets outside every
 * packet. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

/* Hides a value's origin from clang's optimiser. */
#define FORGET(value) asm volatile("" : "+r"(value))

/* Moves a pointer, which clang would not do if it may be NULL. */
#define MOVE(pointer, bytes) asm volatile("%0 += %1" : "+r"(pointer) : "i"(bytes))

#define MAX_LOOPS (1 << 23)
#define ROOM 56

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 4);
    __type(key, __u32);
    __type(value, __u64[4]);
} values SEC(".maps");

/* Whether byte 15 is odd, which all programs here test; negative if the packet is too short. */
static __always_inline int is_odd(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

    return data + 16 > end ? -1 : *(__u8 *)(data + 15) & 1;
}

/* Compares a packet pointer or NULL, after moving it, with the packet's end. */
SEC("xdp")
int corners_end(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    void *place = NULL;

    if (data + 16 > end)
        return XDP_DROP;
    if (*(__u8 *)(data + 15) & 1)
        place = data + 14;
    FORGET(place);
    place += 100;
    FORGET(place);
    return place > end ? XDP_TX : XDP_PASS;
}

/* NULL plus an offset is not NULL. */
SEC("xdp")
int corners_moved(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    void *place = NULL;

    if (data + 16 > end)
        return XDP_DROP;
    if (*(__u8 *)(data + 15) & 1)
        place = data;
    MOVE(place, 4);
    return place ? XDP_PASS : XDP_TX;
}

/* The same with a map value, one of whose counters is incremented if it exists. */
SEC("xdp")
int corners_value(struct xdp_md *ctx)
{
    __u64 *value, *part = NULL;
    int odd = is_odd(ctx);
    __u32 key = 1;

    if (odd < 0)
        return XDP_DROP;
    value = bpf_map_lookup_elem(&values, &key);
    if (!value)
        return XDP_ABORTED;
    if (odd)
        part = value;
    MOVE(part, 8);
    if (part == (void *)8)
        return XDP_TX;
    if (!part)
        return XDP_ABORTED;
    __sync_fetch_and_add(part, 1);
    return XDP_PASS;
}

/* The address of a member, from a value or from NULL, without moving it: stays NULL. */
SEC("xdp")
int corners_member(struct xdp_md *ctx)
{
    __u64 *value, *part = NULL;
    int odd = is_odd(ctx);
    __u32 key = 2;

    if (odd < 0)
        return XDP_DROP;
    value = bpf_map_lookup_elem(&values, &key);
    if (!value)
        return XDP_ABORTED;
    if (odd)
        part = value + 2;
    FORGET(part);
    if (!part)
        return XDP_TX;
    __sync_fetch_and_add(part, 3);
    return XDP_PASS;
}

/* Eight times the largest offset that the verifier allows, which exceeds 32 bits. */
SEC("xdp")
int corners_far(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end, *place = data;
    __u64 far;

    if (data + 16 > end)
        return XDP_DROP;
    far = *(__u32 *)(data + 12) & 0x1fffffff;
    asm volatile("%0 += %1\n%0 += %1\n%0 += %1\n%0 += %1\n%0 += %1\n%0 += %1\n%0 += %1\n%0 += %1\n%0 += 10"
                 : "+r"(place)
                 : "r"(far));
    return place > end ? XDP_TX : XDP_PASS;
}

struct tally {
    __u64 rounds;
};

static long tell(__u32 round, void *context)
{
    struct tally *tally = context;

    tally->rounds += round + 1;
    return 0;
}

/* A small number of iterations, or more than allowed: in 32 bits and more. */
SEC("xdp")
int corners_rounds(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct tally tally = { 0 };
    __u32 rounds;
    __u8 which;
    long gave;

    if (data + ROOM > end)
        return XDP_DROP;
    which = *(__u8 *)(data + 15);
    rounds = which & 7;
    if (which & 8)
        rounds |= MAX_LOOPS;
    if (which & 16)
        rounds |= 0x80000000;
    if ((rounds & 0x00ffffff) == MAX_LOOPS)
        rounds++;
    gave = bpf_loop(rounds, tell, &tally, 0);
    data = (void *)(long)ctx->data;
    end = (void *)(long)ctx->data_end;
    if (data + ROOM > end)
        return XDP_DROP;
    *(__u64 *)(data + 40) = tally.rounds;
    *(__u64 *)(data + 48) = gave;
    return gave > 8 ? XDP_TX : XDP_PASS;
}

/* Offsets of 16 bits and more, for which the kernel returns different errors. */
SEC("xdp")
int corners_offset(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    __u64 bytes = 0;
    __u32 off;
    __u8 which;
    long loaded, stored;

    if (data + ROOM > end)
        return XDP_DROP;
    which = *(__u8 *)(data + 15);
    off = *(__u32 *)(data + 10);
    if (which & 1)
        off &= 0x3f;
    else if (which & 2)
        off = (off & 1) + 0xffff;
    loaded = bpf_xdp_load_bytes(ctx, off, &bytes, sizeof(bytes));
    stored = bpf_xdp_store_bytes(ctx, off + 1, &bytes, 4);
    data = (void *)(long)ctx->data;
    end = (void *)(long)ctx->data_end;
    if (data + ROOM > end)
        return XDP_DROP;
    *(__u64 *)(data + 24) = bytes;
    *(__u64 *)(data + 32) = loaded;
    *(__u64 *)(data + 40) = stored;
    return loaded ? XDP_TX : XDP_PASS;
}
