/* Counters of 8, 16, 32 and 64 bits in arrays and per-CPU arrays. Exercises: *v += 1, (*v)++,
 * __sync_fetch_and_add without its result, adding lengths, u8 and u16 that wrap. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "GPL";

#define COUNTERS(name, kind, width)                                                                          \
    struct {                                                                                                 \
        __uint(type, kind);                                                                                  \
        __uint(max_entries, 16);                                                                             \
        __type(key, __u32);                                                                                  \
        __type(value, width);                                                                                \
    } name SEC(".maps")

COUNTERS(shared8, BPF_MAP_TYPE_ARRAY, __u8);
COUNTERS(shared16, BPF_MAP_TYPE_ARRAY, __u16);
COUNTERS(shared32, BPF_MAP_TYPE_ARRAY, __u32);
COUNTERS(shared64, BPF_MAP_TYPE_ARRAY, __u64);
COUNTERS(own8, BPF_MAP_TYPE_PERCPU_ARRAY, __u8);
COUNTERS(own16, BPF_MAP_TYPE_PERCPU_ARRAY, __u16);
COUNTERS(own32, BPF_MAP_TYPE_PERCPU_ARRAY, __u32);
COUNTERS(own64, BPF_MAP_TYPE_PERCPU_ARRAY, __u64);

/* 0 to 15, or 16, which is outside every array. */
static __always_inline __u32 slot_of(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;

    if ((void *)(eth + 1) > end)
        return 16;
    switch (bpf_ntohs(eth->h_proto)) {
    case ETH_P_IP:
        return 0 + (eth->h_source[5] & 3);
    case ETH_P_IPV6:
        return 4 + (eth->h_source[5] & 3);
    case ETH_P_ARP:
        return 8;
    case ETH_P_8021Q:
        return 9;
    case ETH_P_8021AD:
        return 10;
    default:
        return eth->h_dest[0] & 1 ? 16 : 11;
    }
}

SEC("xdp")
int count_shared(struct xdp_md *ctx)
{
    __u32 length = ctx->data_end - ctx->data;
    __u32 slot = slot_of(ctx);
    __u64 *v64 = bpf_map_lookup_elem(&shared64, &slot);
    __u32 *v32 = bpf_map_lookup_elem(&shared32, &slot);
    __u16 *v16 = bpf_map_lookup_elem(&shared16, &slot);
    __u8 *v8 = bpf_map_lookup_elem(&shared8, &slot);

    if (!v64 || !v32 || !v16 || !v8)
        return XDP_DROP;
    *v64 += length;
    *v32 += 1;
    (*v16)++;
    *v8 = *v8 + 1;
    return XDP_PASS;
}

SEC("xdp")
int count_shared_atomic(struct xdp_md *ctx)
{
    __u64 length = ctx->data_end - ctx->data;
    __u32 slot = slot_of(ctx);
    __u64 *v64;
    __u32 *v32;

    v64 = bpf_map_lookup_elem(&shared64, &slot);
    if (!v64)
        return XDP_DROP;
    __sync_fetch_and_add(v64, length << 20);
    v32 = bpf_map_lookup_elem(&shared32, &slot);
    if (v32)
        __sync_fetch_and_add(v32, 0x10000);
    return length > 100 ? XDP_TX : XDP_PASS;
}

SEC("xdp")
int count_own(struct xdp_md *ctx)
{
    __u16 length = ctx->data_end - ctx->data;
    __u32 slot = slot_of(ctx);
    __u64 *v64;
    __u32 *v32;
    __u16 *v16;
    __u8 *v8;

    v8 = bpf_map_lookup_elem(&own8, &slot);
    if (!v8)
        goto unknown;
    *v8 += 3;
    v16 = bpf_map_lookup_elem(&own16, &slot);
    if (!v16)
        goto unknown;
    *v16 += length;
    v32 = bpf_map_lookup_elem(&own32, &slot);
    if (!v32)
        goto unknown;
    *v32 += length;
    v64 = bpf_map_lookup_elem(&own64, &slot);
    if (!v64)
        goto unknown;
    *v64 += 1;
    return XDP_PASS;
unknown:
    slot = 15;
    v64 = bpf_map_lookup_elem(&own64, &slot);
    if (v64)
        *v64 -= 1;
    return XDP_DROP;
}
