/* Helper buffers at variable stack offsets: keys and values of maps, sums, copies into the packet.
 * Exercises: unaligned buffers of helpers. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

#define BYTES 40

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 4096);
    __type(key, __u8[6]);
    __type(value, __u64);
} seen SEC(".maps");

/* A window of the packet's first bytes, at an offset given by one of them. */
#define WINDOW(ctx, bytes, copy, from, mask)                                                                 \
    __u8 *bytes = (void *)(long)(ctx)->data;                                                                 \
    __u8 copy[BYTES];                                                                                        \
    __u32 from;                                                                                              \
                                                                                                             \
    if ((void *)(bytes + BYTES) > (void *)(long)(ctx)->data_end)                                             \
        return XDP_DROP;                                                                                     \
    _Pragma("unroll") for (__u32 at = 0; at < BYTES; at++)((volatile __u8 *)copy)[at] = bytes[at] & (mask);  \
    from = bytes[11] & 15;                                                                                   \
    asm volatile("" : "+r"(from))

SEC("xdp")
int window_as_key(struct xdp_md *ctx)
{
    WINDOW(ctx, bytes, copy, from, 3);
    __u64 *count;

    bpf_map_update_elem(&seen, copy + from, copy + from + 7, BPF_NOEXIST);
    count = bpf_map_lookup_elem(&seen, copy + from);
    if (!count)
        return XDP_ABORTED;
    *(volatile __u64 *)(bytes + 16) = *count;
    *count += 1;
    return XDP_PASS;
}

SEC("xdp")
int window_as_buffer(struct xdp_md *ctx)
{
    WINDOW(ctx, bytes, copy, from, 255);
    __s64 sum = bpf_csum_diff(0, 0, (__be32 *)(copy + from), 12, 0);

    *(volatile __u64 *)(bytes + 16) = sum;
    if (bpf_xdp_store_bytes(ctx, 30, copy + from, 7))
        return XDP_ABORTED;
    return XDP_TX;
}
