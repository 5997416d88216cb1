/* Passes a different packet to the program after it in each run, by copying the next frame over the
 * packet that the kernel supplies. The time of a run with an empty program is the cost of this. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

#define FRAMES (1 << 20)

struct frame {
    __u64 words[8];
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, FRAMES);
    __type(key, __u32);
    __type(value, struct frame);
} frames SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u32);
} behind SEC(".maps");

__u32 next;

SEC("xdp")
int feeder(struct xdp_md *ctx)
{
    struct frame *packet = (void *)(long)ctx->data, *frame;
    __u32 number = next++ & (FRAMES - 1);

    if ((void *)(packet + 1) > (void *)(long)ctx->data_end)
        return XDP_ABORTED;
    frame = bpf_map_lookup_elem(&frames, &number);
    if (!frame)
        return XDP_ABORTED;
    for (int i = 0; i < 8; i++)
        packet->words[i] = frame->words[i];
    bpf_tail_call(ctx, &behind, 0);
    return XDP_ABORTED;
}

SEC("xdp")
int nothing(struct xdp_md *ctx)
{
    return XDP_PASS;
}
