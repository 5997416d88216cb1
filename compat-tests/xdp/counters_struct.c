/* Structs of counters of mixed widths, counters that saturate, and read-modify-write by xor, or,
 * minimum and maximum. Exercises: several fields of one value, if (*v < LIMIT) (*v)++, bit sets,
 * u8/u16/u32/u64 fields. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "GPL";

#define LIMIT 20

struct mixed {
    __u64 bytes;
    __u32 packets;
    __u16 small;
    __u8 large;
    __u8 flags;
    __u32 longest;
    __u32 shortest;
    __u64 mixture;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 256);
    __type(key, __u32);
    __type(value, struct mixed);
} by_protocol SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 64);
    __type(key, __u32);
    __type(value, struct mixed);
} by_dscp SEC(".maps");

struct saturating {
    __u8 seen8;
    __u16 seen16;
    __u32 seen32;
    __u64 seen64;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 64);
    __type(key, __u32);
    __type(value, struct saturating);
} by_host SEC(".maps");

static __always_inline struct iphdr *ipv4_of(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    struct iphdr *ip = (void *)(eth + 1);

    if ((void *)(ip + 1) > (void *)(long)ctx->data_end || eth->h_proto != bpf_htons(ETH_P_IP))
        return 0;
    return ip;
}

static __always_inline void account(struct mixed *m, struct iphdr *ip, __u32 length)
{
    m->bytes += length;
    m->packets++;
    if (length < 100)
        m->small++;
    else
        m->large += 1;
    m->flags |= 1 << (ip->ttl & 7);
    m->mixture ^= (__u64)ip->saddr << 32 | ip->daddr;
}

SEC("xdp")
int stats_mixed(struct xdp_md *ctx)
{
    __u32 length = ctx->data_end - ctx->data;
    struct iphdr *ip = ipv4_of(ctx);
    struct mixed *m;
    __u32 key;

    if (!ip)
        return XDP_PASS;
    key = ip->protocol;
    m = bpf_map_lookup_elem(&by_protocol, &key);
    if (!m)
        return XDP_ABORTED;
    account(m, ip, length);
    if (length > m->longest)
        m->longest = length;
    if (!m->shortest || length < m->shortest)
        m->shortest = length;
    return ip->protocol == IPPROTO_TCP ? XDP_TX : XDP_DROP;
}

SEC("xdp")
int stats_mixed_percpu(struct xdp_md *ctx)
{
    __u32 length = ctx->data_end - ctx->data;
    struct iphdr *ip = ipv4_of(ctx);
    struct mixed *m;
    __u32 key;

    if (!ip)
        return XDP_PASS;
    key = ip->tos >> 2;
    m = bpf_map_lookup_elem(&by_dscp, &key);
    if (m)
        account(m, ip, length);
    return key ? XDP_TX : XDP_PASS;
}

/* The verdict shows which packets of a host came before the limit. */
SEC("xdp")
int stats_saturating(struct xdp_md *ctx)
{
    struct iphdr *ip = ipv4_of(ctx);
    struct saturating *s;
    int verdict;
    __u32 key;

    if (!ip)
        return XDP_PASS;
    key = bpf_ntohl(ip->saddr) & 0x3f;
    s = bpf_map_lookup_elem(&by_host, &key);
    if (!s)
        return XDP_ABORTED;
    verdict = s->seen8 < LIMIT ? XDP_TX : XDP_DROP;
    if (s->seen8 < LIMIT)
        s->seen8++;
    if (s->seen16 < LIMIT / 2)
        s->seen16 += 1;
    if (s->seen32 != LIMIT)
        s->seen32 = s->seen32 + 1;
    s->seen64 = s->seen64 >= 3 ? 3 : s->seen64 + 1;
    return verdict;
}
