/* Pushes, pops, stacks and rewrites VLAN tags. Exercises: bpf_xdp_adjust_head in both directions,
 * data pointers read again, MAC addresses moved through a copy on the stack. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

const volatile __u16 native_vlan = 42;
const volatile __u16 service_vlan = 1000;

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 4096);
    __type(key, __u16);
    __type(value, __u16);
} vlan_map SEC(".maps");

static __always_inline int is_tagged(__be16 proto)
{
    return proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD);
}

static __always_inline int push_tag(struct xdp_md *ctx, __u16 tci, __be16 tpid)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    struct vlan_tag *tag;
    struct ethhdr copy;

    if ((void *)(eth + 1) > end)
        return -1;
    copy = *eth;
    if (bpf_xdp_adjust_head(ctx, -(int)sizeof(*tag)))
        return -1;

    eth = (void *)(long)ctx->data;
    end = (void *)(long)ctx->data_end;
    tag = (void *)(eth + 1);
    if ((void *)(tag + 1) > end)
        return -1;
    __builtin_memcpy(eth, &copy, sizeof(copy));
    eth->h_proto = tpid;
    tag->tci = bpf_htons(tci);
    tag->proto = copy.h_proto;
    return 0;
}

SEC("xdp")
int vlan_push(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;

    if ((void *)(eth + 1) > end)
        return XDP_DROP;
    if (is_tagged(eth->h_proto))
        return XDP_PASS;
    return push_tag(ctx, native_vlan, bpf_htons(ETH_P_8021Q)) ? XDP_ABORTED : XDP_TX;
}

SEC("xdp")
int vlan_pop(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    struct vlan_tag *tag;
    struct ethhdr copy;

    if ((void *)(eth + 1) > end)
        return XDP_DROP;
    if (!is_tagged(eth->h_proto))
        return XDP_PASS;
    tag = (void *)(eth + 1);
    if ((void *)(tag + 1) > end)
        return XDP_DROP;

    __builtin_memcpy(&copy, eth, sizeof(copy));
    copy.h_proto = tag->proto;
    /* Fails if fewer than 14 bytes would remain. */
    if (bpf_xdp_adjust_head(ctx, sizeof(*tag)))
        return XDP_ABORTED;
    eth = (void *)(long)ctx->data;
    end = (void *)(long)ctx->data_end;
    if ((void *)(eth + 1) > end)
        return XDP_ABORTED;
    *eth = copy;
    return XDP_TX;
}

/* Adds a provider tag to every packet, with the customer tag's priority. */
SEC("xdp")
int vlan_stack(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    struct vlan_tag *tag = (void *)(eth + 1);
    __u16 tci = service_vlan;

    if ((void *)(tag + 1) > end)
        return XDP_DROP;
    if (eth->h_proto == bpf_htons(ETH_P_8021AD))
        return XDP_PASS;
    if (eth->h_proto == bpf_htons(ETH_P_8021Q))
        tci |= bpf_ntohs(tag->tci) & 0xe000;
    return push_tag(ctx, tci, bpf_htons(ETH_P_8021AD)) ? XDP_ABORTED : XDP_TX;
}

/* Translates each VLAN that the map has; both tags of a stack in turn. */
SEC("xdp")
int vlan_translate(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    struct ethhdr *eth = take_eth(&c);
    int translated = 0;
    __be16 proto;

    if (!eth)
        return XDP_DROP;
    proto = eth->h_proto;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        struct vlan_tag *tag;
        __u16 id, *to;

        if (!is_tagged(proto))
            break;
        tag = take_vlan(&c);
        if (!tag)
            return XDP_DROP;
        id = bpf_ntohs(tag->tci) & 0xfff;
        to = bpf_map_lookup_elem(&vlan_map, &id);
        if (to) {
            tag->tci = bpf_htons((bpf_ntohs(tag->tci) & 0xf000) | *to);
            translated++;
        }
        proto = tag->proto;
    }
    return translated ? XDP_TX : XDP_PASS;
}
