/* LPM tries whose keys are not addresses: ports, an address with a port, a pair of addresses, an
 * interface index with an IPv6 address. Packets insert the entries. Exercises: LPM tries with keys
 * of 4+2, 4+6, 4+8 and 4+24 bytes. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

#define DEFINE_TRIE(name, bytes)                                                                             \
    struct key_##name {                                                                                      \
        __u32 length;                                                                                        \
        __u8 data[bytes];                                                                                    \
    };                                                                                                       \
    struct {                                                                                                 \
        __uint(type, BPF_MAP_TYPE_LPM_TRIE);                                                                 \
        __uint(max_entries, 4096);                                                                           \
        __uint(map_flags, BPF_F_NO_PREALLOC);                                                                \
        __uint(key_size, 4 + bytes);                                                                         \
        __uint(value_size, 4);                                                                               \
    } name SEC(".maps")

DEFINE_TRIE(ports, 2);
DEFINE_TRIE(services, 6);
DEFINE_TRIE(pairs, 8);
DEFINE_TRIE(tenants, 24);

/* Clears the bits after the first `bits`. */
static __always_inline void cut(__u8 *data, __u32 bytes, __u32 length)
{
#pragma unroll
    for (__u32 i = 0; i < bytes; i++) {
        if (length <= 8 * i)
            data[i] = 0;
        else if (length < 8 * i + 8)
            data[i] &= 0xff << (8 * i + 8 - length);
    }
}

SEC("xdp")
int keys_ports(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    struct key_services service = {};
    struct key_ports key = {};
    struct ethhdr *eth;
    struct udphdr *udp;
    struct iphdr *ip;
    __u32 value, *found, sum = 0;

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    ip = take_ipv4(&c);
    if (!ip)
        return XDP_DROP;
    udp = take_udp(&c);
    if (!udp)
        return XDP_DROP;
    value = udp->len;
    key.length = ip->ttl & 15;
    __builtin_memcpy(key.data, &udp->source, 2);
    cut(key.data, 2, key.length);
    bpf_map_update_elem(&ports, &key, &value, BPF_ANY);
    service.length = ip->check % 49;
    __builtin_memcpy(service.data, &ip->saddr, 4);
    __builtin_memcpy(service.data + 4, &udp->source, 2);
    cut(service.data, 6, service.length);
    bpf_map_update_elem(&services, &service, &value, BPF_ANY);

    key.length = 16;
    __builtin_memcpy(key.data, &udp->dest, 2);
    found = bpf_map_lookup_elem(&ports, &key);
    if (found)
        sum = *found;
    service.length = 48;
    __builtin_memcpy(service.data, &ip->daddr, 4);
    __builtin_memcpy(service.data + 4, &udp->dest, 2);
    found = bpf_map_lookup_elem(&services, &service);
    if (found)
        sum += *found;
    eth->h_dest[0] = sum;
    return found ? XDP_TX : XDP_PASS;
}

SEC("xdp")
int keys_wide(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    struct key_tenants tenant = {};
    struct key_pairs pair = {};
    struct ethhdr *eth;
    struct ipv6hdr *ip6;
    struct iphdr *ip;
    __u32 value = ctx->data_end - ctx->data, *found;

    switch (take_link_layer(&c, &eth)) {
    case bpf_htons(ETH_P_IP):
        ip = take_ipv4(&c);
        if (!ip)
            return XDP_DROP;
        pair.length = ip->ttl & 0x3f;
        __builtin_memcpy(pair.data, &ip->saddr, 4);
        __builtin_memcpy(pair.data + 4, &ip->daddr, 4);
        cut(pair.data, 8, pair.length);
        bpf_map_update_elem(&pairs, &pair, &value, BPF_ANY);
        pair.length = 64;
        __builtin_memcpy(pair.data, &ip->daddr, 4);
        __builtin_memcpy(pair.data + 4, &ip->saddr, 4);
        found = bpf_map_lookup_elem(&pairs, &pair);
        break;
    case bpf_htons(ETH_P_IPV6):
        ip6 = take_ipv6(&c);
        if (!ip6)
            return XDP_DROP;
        tenant.length = ip6->hop_limit % 193;
        __builtin_memcpy(tenant.data, eth->h_source, 6);
        __builtin_memcpy(tenant.data + 8, &ip6->saddr, 16);
        cut(tenant.data, 24, tenant.length);
        bpf_map_update_elem(&tenants, &tenant, &value, BPF_NOEXIST);
        tenant.length = 192 - (ip6->hop_limit & 31);
        __builtin_memcpy(tenant.data, eth->h_source, 6);
        __builtin_memcpy(tenant.data + 8, &ip6->saddr, 16);
        found = bpf_map_lookup_elem(&tenants, &tenant);
        break;
    default:
        return XDP_PASS;
    }
    if (!found)
        return XDP_DROP;
    *found += 1;
    eth->h_dest[0] = *found;
    return *found & 1 ? XDP_TX : XDP_PASS;
}
