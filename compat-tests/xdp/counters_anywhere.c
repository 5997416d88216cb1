/* Counters at variable offsets: at an index from the packet, in a loop, through a pointer spilled
 * to an indexed stack array, and with addends that depend on a branch. Exercises: alignment tracked
 * across blocks, additions whose load and store are in different blocks, atomics at variable
 * offsets. */
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

/* Reads the first bytes of a packet with at least one byte per lane. */
static __always_inline __u8 *bytes_of(struct xdp_md *ctx)
{
    __u8 *bytes = (void *)(long)ctx->data;

    return (void *)(bytes + LANES) > (void *)(long)ctx->data_end ? 0 : bytes;
}

/* A branch between computing the address and adding, so that they are in different blocks. */
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

/* Spills the pointer, as clang does when it runs out of registers. */
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

/* Both branches begin with the same load: clang hoists it above the branch, and stores in each. */
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

/* The addend is accumulated along the way, and the stored sum is added to again. */
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

/* One sum for all iterations: clang keeps it in a register and stores it after the loop. */
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

/* The value read through another pointer to the same counter before the addition is the old one. */
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
