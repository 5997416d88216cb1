/* Routes IPv4 by longest prefix: next hop's MAC addresses, TTL, checksum. Small, for benchmarks.
 * Exercises: LPM trie without a default route, array of next hops, hits and misses. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "GPL";

struct prefix {
    __u32 length;
    __be32 address;
};

struct next_hop {
    __u8 target[ETH_ALEN];
    __u8 source[ETH_ALEN];
};

struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(max_entries, 65536);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct prefix);
    __type(value, __u32);
} routes SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 256);
    __type(key, __u32);
    __type(value, struct next_hop);
} next_hops SEC(".maps");

SEC("xdp")
int lpm_router(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct iphdr *ip = data + sizeof(*eth);
    struct next_hop *hop;
    struct prefix prefix;
    __u32 *index, check;

    if ((void *)(ip + 1) > end)
        return XDP_DROP;
    if (eth->h_proto != bpf_htons(ETH_P_IP) || ip->ttl <= 1)
        return XDP_PASS;
    prefix.length = 32;
    prefix.address = ip->daddr;
    index = bpf_map_lookup_elem(&routes, &prefix);
    if (!index)
        return XDP_PASS;
    hop = bpf_map_lookup_elem(&next_hops, index);
    if (!hop)
        return XDP_DROP;

    check = ip->check + bpf_htons(0x0100);
    ip->check = check + (check >= 0xffff);
    ip->ttl--;
    __builtin_memcpy(eth->h_dest, hop->target, ETH_ALEN);
    __builtin_memcpy(eth->h_source, hop->source, ETH_ALEN);
    return XDP_TX;
}
