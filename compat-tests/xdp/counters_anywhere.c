/* Counters that a pointer leads to by more than a constant: at an index out of the packet, in a loop's turn, put away on a
 * stack that is indexed, and with what is added known only behind a branch. Exercises: alignment that is known across
 * blocks, additions of which the load is in another block than the store, atomics at offsets that are not known. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

#define LANES 48
#define barrier() asm volatile("" ::: "memory")

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64[LANES]);
} lanes SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u32[2 * LANES]);
} halves SEC(".maps");

static __always_inline void *only_value(void *map)
{
    __u32 first = 0;

    return bpf_map_lookup_elem(map, &first);
}

/* The first bytes of a packet that has as many as there are lanes. */
static __always_inline __u8 *bytes_of(struct xdp_md *ctx)
{
    __u8 *bytes = (void *)(long)ctx->data;

    return (void *)(bytes + LANES) > (void *)(long)ctx->data_end ? 0 : bytes;
}

/* Between the index and the addition there is a branch, so that they are in different blocks. */
SEC("xdp")
int lane_by_byte(struct xdp_md *ctx)
{
    __u8 *bytes = bytes_of(ctx);
    __u64 *counts = only_value(&lanes);
    __u32 *small = only_value(&halves);

    if (!bytes || !counts || !small)
        return XDP_DROP;
    counts += bytes[11] & 7;
    small += 2 + (bytes[5] & 15);
    if (bytes[12] == 8)
        bytes[0] ^= 2;
    *counts += 1;
    small[1] += 3;
    return XDP_PASS;
}

SEC("xdp")
int lane_in_turn(struct xdp_md *ctx)
{
    __u8 *bytes = bytes_of(ctx);
    __u64 *counts = only_value(&lanes);

    if (!bytes || !counts)
        return XDP_DROP;
#pragma clang loop unroll(disable)
    for (__u32 lane = 0; lane < LANES; lane++)
        counts[lane] += bytes[lane] & 1;
    return XDP_PASS;
}

/* As clang does it when it runs out of registers. */
SEC("xdp")
int lane_put_away(struct xdp_md *ctx)
{
    __u8 *bytes = bytes_of(ctx);
    __u64 *counts = only_value(&lanes);
    __u64 *volatile kept = counts;
    volatile __u8 copy[32];
    __u8 picked;

    if (!bytes || !counts)
        return XDP_DROP;
#pragma unroll
    for (__u32 at = 0; at < 32; at++)
        copy[at] = bytes[at];
    picked = copy[bytes[11] & 31];
    counts = kept;
    if (!counts)
        return XDP_DROP;
    counts[0]++;
    counts[1] += picked;
    return XDP_PASS;
}

/* Where both ways begin with the same load, clang makes it before the branch, and stores on each. */
SEC("xdp")
int lane_by_turns(struct xdp_md *ctx)
{
    __u8 *bytes = bytes_of(ctx);
    __u64 *counts = only_value(&lanes);

    if (!bytes || !counts)
        return XDP_DROP;
    counts += bytes[5] & 7;
    if (bytes[12] == 8) {
        *counts += 100;
        bytes[0] ^= 2;
    } else if (bytes[13] & 1) {
        *counts -= bytes[14];
        bytes[1] ^= 2;
    } else {
        *counts += 1;
    }
    return XDP_PASS;
}

SEC("xdp")
int half_by_turns(struct xdp_md *ctx)
{
    __u8 *bytes = bytes_of(ctx);
    __u32 *small = only_value(&halves);

    if (!bytes || !small)
        return XDP_DROP;
    small += bytes[11] & 7;
    if (bytes[12] == 8) {
        small[8] += 7;
        bytes[0] ^= 2;
    } else {
        small[8] -= 1 + bytes[14];
    }
    return XDP_PASS;
}

/* What is added is gathered on the way, and what was stored is added to again. */
SEC("xdp")
int lane_bit_by_bit(struct xdp_md *ctx)
{
    __u8 *bytes = bytes_of(ctx);
    __u64 *counts = only_value(&lanes);
    __u64 count;

    if (!bytes || !counts)
        return XDP_DROP;
    counts += bytes[5] & 7;
    count = *counts;
    if (bytes[12] == 8) {
        count += 1000;
        bytes[0] ^= 2;
    }
    barrier();
    if (bytes[13] & 1) {
        count += bytes[14];
        bytes[1] ^= 2;
    }
    *counts = count;
    barrier();
    if (bytes[11] & 1) {
        *counts = count + 3;
        bytes[2] ^= 2;
    }
    return XDP_PASS;
}

/* One sum for all turns: clang keeps it in a register, and stores it behind the loop. */
SEC("xdp")
int lane_of_sums(struct xdp_md *ctx)
{
    __u8 *bytes = bytes_of(ctx);
    __u64 *counts = only_value(&lanes);

    if (!bytes || !counts)
        return XDP_DROP;
#pragma clang loop unroll(disable)
    for (__u32 at = 0; at < LANES; at++)
        counts[LANES - 1] += bytes[at];
    return XDP_PASS;
}

SEC("xdp")
int lane_atomically(struct xdp_md *ctx)
{
    __u8 *bytes = bytes_of(ctx);
    __u64 *counts = only_value(&lanes);
    __u32 *small = only_value(&halves);

    if (!bytes || !counts || !small)
        return XDP_DROP;
    counts += bytes[11] & 7;
    small += bytes[5] & 7;
    if (bytes[12] == 8) {
        __sync_fetch_and_add(counts, 100);
        __sync_fetch_and_add(small, 3);
        bytes[0] ^= 2;
    } else {
        __sync_fetch_and_add(counts, 1);
    }
    return XDP_PASS;
}

/* What another pointer to the same counter gives before it is added to is what was there before. */
SEC("xdp")
int lane_seen_twice(struct xdp_md *ctx)
{
    __u8 *bytes = bytes_of(ctx);
    __u64 *counts = only_value(&lanes);
    __u64 *same = only_value(&lanes);
    volatile __u8 copy[16];
    __u64 first, second;
    __u8 picked;

    if (!bytes || !counts || !same)
        return XDP_DROP;
#pragma unroll
    for (__u32 at = 0; at < 16; at++)
        copy[at] = bytes[at];
    first = *(volatile __u64 *)counts;
    picked = copy[first & 15];
    second = *(volatile __u64 *)same;
    *(volatile __u64 *)counts = first + 1;
    *(volatile __u64 *)(bytes + 16) = first;
    *(volatile __u64 *)(bytes + 24) = second;
    bytes[32] = picked;
    return XDP_PASS;
}
