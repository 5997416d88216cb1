/* Balances TCP and UDP flows over backends by FNV-1a of the 5-tuple and a ring in an array; the
 * backend's MAC address is written to the packet. Small, for benchmarks. Exercises: 64-bit
 * multiply, array lookups. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "GPL";

#define RING 256
#define FNV_OFFSET 0xcbf29ce484222325ULL
#define FNV_PRIME 0x100000001b3ULL

struct backend {
    __u8 mac[ETH_ALEN];
    __u16 enabled;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, RING);
    __type(key, __u32);
    __type(value, __u32);
} ring SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 16);
    __type(key, __u32);
    __type(value, struct backend);
} backends SEC(".maps");

static __always_inline __u64 fnv1a(__u64 hash, __u32 word)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        hash ^= word & 0xff;
        hash *= FNV_PRIME;
        word >>= 8;
    }
    return hash;
}

SEC("xdp")
int hash_balancer(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct iphdr *ip = data + sizeof(*eth);
    struct backend *backend;
    __u32 slot, *ports, *index;
    __u64 hash;

    if ((void *)(ip + 1) > end)
        return XDP_DROP;
    if (eth->h_proto != bpf_htons(ETH_P_IP) || ip->ihl != 5)
        return XDP_PASS;
    if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
        return XDP_PASS;
    ports = (void *)(ip + 1);
    if ((void *)(ports + 1) > end)
        return XDP_DROP;

    hash = fnv1a(FNV_OFFSET, ip->saddr);
    hash = fnv1a(hash, ip->daddr);
    hash = fnv1a(hash, *ports);
    hash = (hash ^ ip->protocol) * FNV_PRIME;
    slot = (hash ^ hash >> 32) & (RING - 1);
    index = bpf_map_lookup_elem(&ring, &slot);
    if (!index)
        return XDP_ABORTED;
    backend = bpf_map_lookup_elem(&backends, index);
    if (!backend || !backend->enabled)
        return XDP_DROP;
    __builtin_memcpy(eth->h_source, eth->h_dest, ETH_ALEN);
    __builtin_memcpy(eth->h_dest, backend->mac, ETH_ALEN);
    return XDP_TX;
}
