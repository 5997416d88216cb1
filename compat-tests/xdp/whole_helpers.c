/* Helpers that copy and sum bytes, and rarely used maps. Exercises: xdp_get_buff_len,
 * xdp_load_bytes and xdp_store_bytes inside the packet and across its end, csum_diff with both
 * buffers, with one, and with lengths that are not a multiple of four, get_smp_processor_id,
 * lru_percpu_hash, bpf_ringbuf_query, bpf_trace_vprintk. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

struct tally {
    __u64 packets;
    __u64 bytes;
};

struct {
    __uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
    __uint(max_entries, 1024);
    __type(key, __u32);
    __type(value, struct tally);
} by_sum SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 4);
    __type(key, __u32);
    __type(value, struct tally);
} by_processor SEC(".maps");

static __always_inline void count(void *map, __u32 key, __u64 bytes)
{
    struct tally *tally = bpf_map_lookup_elem(map, &key);
    struct tally fresh = { 1, bytes };

    if (tally) {
        __sync_fetch_and_add(&tally->packets, 1);
        __sync_fetch_and_add(&tally->bytes, bytes);
    } else {
        bpf_map_update_elem(map, &key, &fresh, BPF_ANY);
    }
}

/* Swaps the addresses, and writes the checksum difference of a new source after them, if they fit.
 * */
SEC("xdp")
int whole_swap(struct xdp_md *ctx)
{
    __u64 length = bpf_xdp_get_buff_len(ctx);
    __u8 macs[12], swapped[12];
    __s64 sum;

    if (bpf_xdp_load_bytes(ctx, 0, macs, sizeof(macs)))
        return XDP_ABORTED;
    __builtin_memcpy(swapped, macs + 6, 6);
    __builtin_memcpy(swapped + 6, macs, 6);
    swapped[11] ^= 1;
    if (bpf_xdp_store_bytes(ctx, 0, swapped, sizeof(swapped)))
        return XDP_ABORTED;
    sum = bpf_csum_diff((__be32 *)macs, sizeof(macs), (__be32 *)swapped, sizeof(swapped), length);
    count(&by_processor, bpf_get_smp_processor_id(), length);
    if (bpf_xdp_store_bytes(ctx, 40, &sum, 2))
        return XDP_DROP;
    return XDP_TX;
}

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 64 * 1024);
} records SEC(".maps");

/* Reports the ring's size, and for every other length what kind it is. */
SEC("xdp")
int whole_tells(struct xdp_md *ctx)
{
    __u32 length = ctx->data_end - ctx->data;
    __u64 record[2] = { bpf_ringbuf_query(&records, BPF_RB_RING_SIZE), length };

    if (length & 1)
        bpf_printk("%u bytes: %u, %u and %u", length, length / 3, length % 3, length >> 1);
    return bpf_ringbuf_output(&records, record, sizeof(record), 0) ? XDP_ABORTED : XDP_PASS;
}

/* Sums the bytes at an offset from the packet in every way that csum_diff has, and counts by the
 * sum. */
SEC("xdp")
int whole_sums(struct xdp_md *ctx)
{
    __u8 bytes[16] = {};
    __u8 at = 0;
    __u32 key;

    if (bpf_xdp_load_bytes(ctx, 13, &at, 1))
        return XDP_ABORTED;
    /* Often outside the packet: the bytes then stay zero. */
    bpf_xdp_load_bytes(ctx, at, bytes, 14);
    key = bpf_csum_diff(NULL, 0, (__be32 *)bytes, 16, at);
    key += bpf_csum_diff((__be32 *)bytes, 8, NULL, 0, 7) << 1;
    key ^= bpf_csum_diff((__be32 *)bytes, 4, (__be32 *)(bytes + 4), 12, 0);
    /* Writes the bytes back one byte after their source. */
    bpf_xdp_store_bytes(ctx, at + 1, bytes, 3);
    count(&by_sum, key & 255, bpf_xdp_get_buff_len(ctx) + bpf_get_smp_processor_id());
    return XDP_PASS;
}
