/* IP in IP: encapsulates IPv4 in IPv4 and IPv6 in IPv6, and decapsulates both. Exercises:
 * bpf_xdp_adjust_head by the length of a header, a new outer header with its checksum, globals of
 * .rodata, a hash map of endpoints. */
#include "parse.h"
#include "checksum.h"

char LICENSE[] SEC("license") = "GPL";

struct endpoint {
    __be32 local;
    __be32 remote;
    __u8 mac[ETH_ALEN];
    __u8 ttl;
    __u8 tos;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 64);
    __type(key, __u8);
    __type(value, struct endpoint);
} endpoints SEC(".maps");

const volatile __u8 outer_source6[16] = { 0x20, 0x01, 0x0d, 0xb8, 0xff, 0xff, [15] = 1 };
const volatile __u8 outer_target6[16] = { 0x20, 0x01, 0x0d, 0xb8, 0xff, 0xff, [15] = 2 };

static __u32 identification;

SEC("xdp")
int ipip_encap(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    struct iphdr *inner = (void *)(eth + 1), *outer;
    struct endpoint *endpoint;
    struct ethhdr *new_eth;
    __u16 length;
    __u8 key;

    if ((void *)(inner + 1) > end)
        return XDP_DROP;
    if (eth->h_proto != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    key = bpf_ntohl(inner->daddr) & 0xf;
    endpoint = bpf_map_lookup_elem(&endpoints, &key);
    if (!endpoint)
        return XDP_PASS;
    length = bpf_ntohs(inner->tot_len) + sizeof(*outer);

    if (bpf_xdp_adjust_head(ctx, 0 - (int)sizeof(*outer)))
        return XDP_ABORTED;
    new_eth = (void *)(long)ctx->data;
    end = (void *)(long)ctx->data_end;
    eth = (void *)new_eth + sizeof(*outer);
    outer = (void *)(new_eth + 1);
    if ((void *)(eth + 1) > end || (void *)(outer + 1) > end)
        return XDP_ABORTED;

    /* The new outer header overwrites the old header: first save what is needed of it. */
    __builtin_memcpy(new_eth->h_source, eth->h_dest, ETH_ALEN);
    __builtin_memcpy(new_eth->h_dest, endpoint->mac, ETH_ALEN);
    new_eth->h_proto = bpf_htons(ETH_P_IP);
    outer->version = 4;
    outer->ihl = sizeof(*outer) / 4;
    outer->tos = endpoint->tos;
    outer->tot_len = bpf_htons(length);
    outer->id = 0;
    outer->frag_off = bpf_htons(0x4000);
    outer->ttl = endpoint->ttl;
    outer->protocol = IPPROTO_IPIP;
    outer->check = 0;
    outer->saddr = endpoint->local;
    outer->daddr = endpoint->remote;
    outer->check = csum_ipv4(outer);
    __sync_fetch_and_add(&identification, 1);
    return XDP_TX;
}

SEC("xdp")
int ipip_decap(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data, *new_eth;
    void *end = (void *)(long)ctx->data_end;
    struct iphdr *outer = (void *)(eth + 1);
    struct ethhdr copy;
    __be16 proto;
    int shift;

    if ((void *)(outer + 1) > end)
        return XDP_DROP;
    copy = *eth;
    if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
        struct ipv6hdr *outer6 = (void *)(eth + 1);

        if ((void *)(outer6 + 1) > end)
            return XDP_DROP;
        if (outer6->nexthdr != IPPROTO_IPIP && outer6->nexthdr != IPPROTO_IPV6)
            return XDP_PASS;
        proto = outer6->nexthdr == IPPROTO_IPIP ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
        shift = sizeof(*outer6);
    } else if (eth->h_proto == bpf_htons(ETH_P_IP)) {
        if (outer->protocol != IPPROTO_IPIP && outer->protocol != IPPROTO_IPV6)
            return XDP_PASS;
        proto = outer->protocol == IPPROTO_IPIP ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
        shift = outer->ihl * 4;
        if (shift < (int)sizeof(*outer))
            return XDP_DROP;
    } else {
        return XDP_PASS;
    }

    if (bpf_xdp_adjust_head(ctx, shift))
        return XDP_DROP;
    new_eth = (void *)(long)ctx->data;
    end = (void *)(long)ctx->data_end;
    if ((void *)(new_eth + 1) > end)
        return XDP_ABORTED;
    *new_eth = copy;
    new_eth->h_proto = proto;
    return XDP_TX;
}

SEC("xdp")
int ip6ip6_encap(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    struct ipv6hdr *inner = (void *)(eth + 1), *outer;
    struct ethhdr copy;
    __u16 payload;

    if ((void *)(eth + 1) > end)
        return XDP_DROP;
    if (eth->h_proto != bpf_htons(ETH_P_IPV6))
        return XDP_PASS;
    if ((void *)(inner + 1) > end)
        return XDP_DROP;
    payload = bpf_ntohs(inner->payload_len) + sizeof(*inner);
    copy = *eth;

    if (bpf_xdp_adjust_head(ctx, -40))
        return XDP_ABORTED;
    eth = (void *)(long)ctx->data;
    end = (void *)(long)ctx->data_end;
    outer = (void *)(eth + 1);
    inner = outer + 1;
    if ((void *)(inner + 1) > end)
        return XDP_ABORTED;
    *eth = copy;
    __builtin_memset(outer, 0, sizeof(*outer));
    outer->version = 6;
    outer->priority = inner->priority;
    outer->payload_len = bpf_htons(payload);
    outer->nexthdr = IPPROTO_IPV6;
    outer->hop_limit = 64;
    for (int i = 0; i < 16; i++) {
        outer->saddr.s6_addr[i] = outer_source6[i];
        outer->daddr.s6_addr[i] = outer_target6[i];
    }
    return XDP_TX;
}
