/* Hash maps with keys of odd sizes: 1, 2, 3, 4, 6, 8, 13, 16, 20 and 37 bytes (40 with padding), on
 * the stack or inside the packet. Exercises: key layouts, hits and misses, deletion, padding set to
 * zero. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

struct three {
    __u8 bytes[3];
};

struct tuple13 {
    __be32 source;
    __be32 target;
    __be16 source_port;
    __be16 target_port;
    __u8 protocol;
} __attribute__((packed));

struct pair8 {
    __be32 address;
    __be16 port;
    __u8 protocol;
    /* One byte of padding. */
};

struct tuple37 {
    struct in6_addr source;
    struct in6_addr target;
    __be16 source_port;
    __be16 target_port;
    __u8 protocol;
    /* Three bytes of padding. */
};

struct twenty {
    struct in6_addr address;
    __u16 length;
    __u8 kind;
    __u8 flags;
};

#define HASH(name, size, width, entries)                                                                     \
    struct {                                                                                                 \
        __uint(type, BPF_MAP_TYPE_HASH);                                                                     \
        __uint(max_entries, entries);                                                                        \
        __uint(key_size, size);                                                                              \
        __uint(value_size, sizeof(width));                                                                   \
    } name SEC(".maps")

HASH(of1, 1, __u32, 256);
HASH(of2, 2, __u32, 65536);
HASH(of3, 3, __u16, 4096);
HASH(of4, 4, __u64, 8192);
HASH(of6, 6, __u32, 4096);
HASH(of8, sizeof(struct pair8), __u32, 8192);
HASH(of13, sizeof(struct tuple13), __u32, 8192);
HASH(of16, sizeof(struct in6_addr), __u8, 8192);
HASH(of20, sizeof(struct twenty), __u32, 8192);
HASH(of40, sizeof(struct tuple37), __u64, 8192);

static __always_inline void count(void *map, const void *key)
{
    __u32 one = 1;
    __u32 *value = bpf_map_lookup_elem(map, key);

    if (value)
        __sync_fetch_and_add(value, 1);
    else
        bpf_map_update_elem(map, key, &one, BPF_NOEXIST);
}

SEC("xdp")
int keys_small(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    __u16 *value16, length, one16 = 1;
    struct three three;
    __u8 last;

    if ((void *)(eth + 1) > end)
        return XDP_DROP;
    last = eth->h_source[5];
    count(&of1, &last);
    length = end - (void *)eth;
    count(&of2, &length);

    three.bytes[0] = eth->h_dest[5] & 7;
    three.bytes[1] = eth->h_source[5] & 7;
    three.bytes[2] = length >> 8;
    value16 = bpf_map_lookup_elem(&of3, &three);
    if (!value16)
        return bpf_map_update_elem(&of3, &three, &one16, BPF_ANY) ? XDP_ABORTED : XDP_PASS;
    *value16 += 1;
    return XDP_TX;
}

/* Without copies: the helpers read the keys inside the packet. */
SEC("xdp")
int keys_in_packet(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    __u64 *bytes, length = ctx->data_end - ctx->data;
    struct ethhdr *eth;
    struct iphdr *ip;
    struct ipv6hdr *ip6;

    switch (take_link_layer(&c, &eth)) {
    case 0:
        return XDP_DROP;
    case bpf_htons(ETH_P_IP):
        ip = take_ipv4(&c);
        if (!ip)
            return XDP_DROP;
        bytes = bpf_map_lookup_elem(&of4, &ip->daddr);
        if (bytes) {
            *bytes += length;
            return XDP_TX;
        }
        bpf_map_update_elem(&of4, &ip->saddr, &length, BPF_NOEXIST);
        break;
    case bpf_htons(ETH_P_IPV6):
        ip6 = take_ipv6(&c);
        if (!ip6)
            return XDP_DROP;
        /* The value is a byte inside the packet, too. */
        if (!bpf_map_lookup_elem(&of16, &ip6->saddr))
            bpf_map_update_elem(&of16, &ip6->saddr, &ip6->nexthdr, BPF_ANY);
        if (bpf_map_lookup_elem(&of16, &ip6->daddr))
            bpf_map_delete_elem(&of16, &ip6->daddr);
        break;
    }
    count(&of6, eth->h_source);
    return XDP_PASS;
}

SEC("xdp")
int keys_large(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    struct tuple13 tuple13;
    struct tuple37 tuple37;
    struct twenty twenty;
    struct pair8 pair8;
    struct ipv6hdr *ip6;
    struct ethhdr *eth;
    struct udphdr *udp;
    struct iphdr *ip;
    __u64 *seen, zero = 0;

    switch (take_link_layer(&c, &eth)) {
    case bpf_htons(ETH_P_IP):
        ip = take_ipv4(&c);
        if (!ip)
            return XDP_DROP;
        /* The ports are at the same offset in both. */
        if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
            return XDP_PASS;
        udp = take_udp(&c);
        if (!udp)
            return XDP_DROP;
        __builtin_memset(&pair8, 0, sizeof(pair8));
        pair8.address = ip->daddr;
        pair8.port = udp->dest;
        pair8.protocol = ip->protocol;
        count(&of8, &pair8);
        tuple13.source = ip->saddr;
        tuple13.target = ip->daddr;
        tuple13.source_port = udp->source;
        tuple13.target_port = udp->dest;
        tuple13.protocol = ip->protocol;
        count(&of13, &tuple13);
        return XDP_TX;
    case bpf_htons(ETH_P_IPV6):
        ip6 = take_ipv6(&c);
        if (!ip6)
            return XDP_DROP;
        twenty.address = ip6->daddr;
        twenty.length = ip6->payload_len;
        twenty.kind = ip6->nexthdr;
        twenty.flags = ip6->hop_limit > 1;
        count(&of20, &twenty);

        if (ip6->nexthdr != IPPROTO_TCP && ip6->nexthdr != IPPROTO_UDP)
            return XDP_PASS;
        udp = take_udp(&c);
        if (!udp)
            return XDP_DROP;
        __builtin_memset(&tuple37, 0, sizeof(tuple37));
        tuple37.source = ip6->saddr;
        tuple37.target = ip6->daddr;
        tuple37.source_port = udp->source;
        tuple37.target_port = udp->dest;
        tuple37.protocol = ip6->nexthdr;
        bpf_map_update_elem(&of40, &tuple37, &zero, BPF_NOEXIST);
        seen = bpf_map_lookup_elem(&of40, &tuple37);
        if (!seen)
            return XDP_ABORTED;
        *seen += 1;
        return XDP_TX;
    }
    return XDP_PASS;
}
