/* Helpers with lengths that depend on the packet. Exercises: csum_diff, xdp_load_bytes and
 * xdp_store_bytes with lengths in registers; buffers on the stack, in a map value and in a
 * ring-buffer record. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

#define MOST 23

struct window {
    __u32 length;
    __u8 bytes[MOST];
    __u8 behind;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 4096);
    __type(key, __u64);
    __type(value, struct window);
} windows SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 65536);
} told SEC(".maps");

/* A number from 1 to MOST, from a byte unknown to the compiler. */
static __always_inline __u64 length_of(__u8 byte)
{
    __u64 length = byte;

    asm volatile("%0 &= 31\n\tif %0 < 23 goto +1\n\t%0 = 22\n\t%0 += 1" : "+r"(length));
    return length;
}

#define FIRST(ctx, bytes, most)                                                                              \
    __u8 *bytes = (void *)(long)(ctx)->data;                                                                 \
                                                                                                             \
    if ((void *)(bytes + (most)) > (void *)(long)(ctx)->data_end)                                            \
        return XDP_DROP

/* Sums over the packet, the stack and both, with lengths that may be 0. */
SEC("xdp")
int lengths_summed(struct xdp_md *ctx)
{
    FIRST(ctx, bytes, 60);
    __u64 in_packet = length_of(bytes[11]), on_stack = length_of(bytes[10]) - 1;
    __u8 copy[24];
    __s64 sums[4];

    _Pragma("unroll") for (__u32 at = 0; at < sizeof(copy); at++)((volatile __u8 *)copy)[at] = bytes[at];
    sums[0] = bpf_csum_diff(0, 0, (__be32 *)(bytes + 20), in_packet, bytes[30]);
    sums[1] = bpf_csum_diff((__be32 *)copy, on_stack, 0, 0, bytes[31]);
    sums[2] = bpf_csum_diff((__be32 *)copy, on_stack, (__be32 *)(bytes + 26), in_packet, 1);
    sums[3] = bpf_csum_diff((__be32 *)copy, on_stack, (__be32 *)(copy + 1), on_stack, bytes[33]);
    _Pragma("unroll") for (__u32 at = 0; at < 4; at++)((volatile __u16 *)(bytes + 34))[at] = sums[at];
    return XDP_PASS;
}

/* Copies to the stack, and from there to another offset of the packet with another length. */
SEC("xdp")
int lengths_copied(struct xdp_md *ctx)
{
    FIRST(ctx, bytes, 16);
    __u64 length = length_of(bytes[11]), other = length_of(bytes[5]);
    __u32 from = bytes[10] & 63, to = bytes[9] & 63;
    __u8 copy[MOST + 1];
    long loaded, stored;

    _Pragma("unroll") for (__u32 at = 0; at < sizeof(copy); at++)((volatile __u8 *)copy)[at] = 0xa0 + at;
    loaded = bpf_xdp_load_bytes(ctx, from, copy, length);
    stored = bpf_xdp_store_bytes(ctx, to, copy, other);
    if (loaded && stored)
        return XDP_ABORTED;
    return loaded ? XDP_DROP : stored ? XDP_PASS : XDP_TX;
}

/* Copies to this packet's map value, over its previous contents. */
SEC("xdp")
int lengths_to_value(struct xdp_md *ctx)
{
    FIRST(ctx, bytes, 16);
    __u64 length = length_of(bytes[11]), key = *(__u64 *)(bytes + 6);
    struct window fresh = { .length = 7, .behind = 9 }, *window;
    __u32 from = bytes[10] & 63;

    __builtin_memset(fresh.bytes, 0x55, sizeof(fresh.bytes));
    bpf_map_update_elem(&windows, &key, &fresh, BPF_ANY);
    window = bpf_map_lookup_elem(&windows, &key);
    if (!window)
        return XDP_ABORTED;
    if (bpf_xdp_load_bytes(ctx, from, window->bytes, length))
        return XDP_DROP;
    /* Six bytes again, at an odd offset with a constant length. */
    bpf_xdp_load_bytes(ctx, 0, window->bytes + 17, 6);
    if (bpf_xdp_store_bytes(ctx, 2, window->bytes + 1, length))
        return XDP_TX;
    return XDP_PASS;
}

/* Copies to a record. */
SEC("xdp")
int lengths_to_record(struct xdp_md *ctx)
{
    FIRST(ctx, bytes, 16);
    __u64 length = length_of(bytes[11]);
    __u32 from = bytes[10] & 63;
    struct window *record = bpf_ringbuf_reserve(&told, sizeof(*record), 0);

    if (!record)
        return XDP_ABORTED;
    __builtin_memset(record, 0x66, sizeof(*record));
    record->length = length;
    if (bpf_xdp_load_bytes(ctx, from, record->bytes, length)) {
        bpf_ringbuf_discard(record, 0);
        return XDP_DROP;
    }
    bpf_ringbuf_submit(record, 0);
    return XDP_PASS;
}
