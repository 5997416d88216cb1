/* Packet rate limits per source: a fixed window and a token bucket. Exercises: bpf_ktime_get_ns,
 * 64-bit division, .rodata parameters. As built, the window never ends and the bucket never
 * refills, so that the verdict depends on a source's packets so far but not on the clock. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

const volatile __u64 window_ns = 1ULL << 62;
const volatile __u32 window_packets = 5;
const volatile __u64 tokens_per_ms = 0;
const volatile __u64 burst = 1600;

struct window {
    __u64 number;
    __u32 packets;
    __u32 dropped;
};

struct bucket {
    __u64 last;
    __u64 tokens;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 16384);
    __type(key, __u32);
    __type(value, struct window);
} windows SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 16384);
    __type(key, __u32);
    __type(value, struct bucket);
} buckets SEC(".maps");

static __always_inline int source_of(struct xdp_md *ctx, __u32 *source)
{
    struct cursor c = cursor_of(ctx);
    struct ethhdr *eth;
    struct iphdr *ip;

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return -1;
    ip = take_ipv4(&c);
    if (!ip)
        return -1;
    *source = bpf_ntohl(ip->saddr) & 0xff00001f;
    return 0;
}

SEC("xdp")
int limit_window(struct xdp_md *ctx)
{
    struct window *window, fresh = {};
    __u32 source;
    __u64 number;

    if (source_of(ctx, &source))
        return XDP_PASS;
    number = bpf_ktime_get_ns() / window_ns;
    window = bpf_map_lookup_elem(&windows, &source);
    if (!window) {
        fresh.number = number;
        fresh.packets = 1;
        bpf_map_update_elem(&windows, &source, &fresh, BPF_ANY);
        return XDP_TX;
    }
    if (window->number != number) {
        window->number = number;
        window->packets = 0;
    }
    if (window->packets >= window_packets) {
        window->dropped++;
        return XDP_DROP;
    }
    window->packets++;
    return XDP_TX;
}

SEC("xdp")
int limit_bucket(struct xdp_md *ctx)
{
    __u64 length = ctx->data_end - ctx->data;
    struct bucket *bucket, fresh = {};
    __u64 now, tokens;
    __u32 source;

    if (source_of(ctx, &source))
        return XDP_PASS;
    now = bpf_ktime_get_ns();
    bucket = bpf_map_lookup_elem(&buckets, &source);
    if (!bucket) {
        fresh.tokens = burst - length;
        bpf_map_update_elem(&buckets, &source, &fresh, BPF_ANY);
        return XDP_TX;
    }
    tokens = bucket->tokens;
    if (tokens_per_ms) {
        if (now > bucket->last)
            tokens += (now - bucket->last) / 1000000 * tokens_per_ms;
        if (tokens > burst)
            tokens = burst;
        bucket->last = now;
    }
    if (tokens < length) {
        bucket->tokens = tokens;
        return XDP_DROP;
    }
    bucket->tokens = tokens - length;
    return XDP_TX;
}
