/* LRU hash maps as connection tables, large enough that tests evict nothing. Exercises: LRU lookup
 * and update, a two-way flow key, states in a value, per-CPU LRU counters. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

enum state {
    STATE_NONE,
    STATE_OPENING,
    STATE_ESTABLISHED,
    STATE_CLOSING,
};

/* The bits of addresses that are used, and the first port that is not, so that flows collide. */
const volatile __be32 host_mask = bpf_htonl(0xff000001);
const volatile __u16 ephemeral = 1024;

struct connection {
    __be32 low;
    __be32 high;
    __be16 low_port;
    __be16 high_port;
    __u32 protocol;
};

struct entry {
    __u64 bytes;
    __u32 packets;
    __u8 state;
    __u8 opened_by_low;
    __u16 unused;
};

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 65536);
    __type(key, struct connection);
    __type(value, struct entry);
} connections SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 65536);
    __type(key, __u32);
    __type(value, __u32);
} seen SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
    __uint(max_entries, 65536);
    __type(key, __u32);
    __type(value, __u64);
} traffic SEC(".maps");

SEC("xdp")
int lru_connections(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    struct connection key = {};
    struct entry *entry, fresh = {};
    struct ethhdr *eth;
    struct tcphdr *tcp;
    struct iphdr *ip;
    int from_low;

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    ip = take_ipv4(&c);
    if (!ip || ip->protocol != IPPROTO_TCP)
        return XDP_PASS;
    tcp = take_tcp(&c);
    if (!tcp)
        return XDP_DROP;

    from_low = ip->saddr < ip->daddr;
    key.low = from_low ? ip->saddr : ip->daddr;
    key.high = from_low ? ip->daddr : ip->saddr;
    key.low &= host_mask;
    key.high &= host_mask;
    key.low_port = from_low ? tcp->source : tcp->dest;
    key.high_port = from_low ? tcp->dest : tcp->source;
    if (bpf_ntohs(key.low_port) >= ephemeral)
        key.low_port = 0;
    if (bpf_ntohs(key.high_port) >= ephemeral)
        key.high_port = 0;
    key.protocol = ip->protocol;

    entry = bpf_map_lookup_elem(&connections, &key);
    if (!entry) {
        if (!tcp->syn || tcp->ack)
            return XDP_DROP;
        fresh.state = STATE_OPENING;
        fresh.opened_by_low = from_low;
        fresh.packets = 1;
        fresh.bytes = ctx->data_end - ctx->data;
        bpf_map_update_elem(&connections, &key, &fresh, BPF_NOEXIST);
        return XDP_PASS;
    }
    __sync_fetch_and_add(&entry->packets, 1);
    __sync_fetch_and_add(&entry->bytes, ctx->data_end - ctx->data);
    if (tcp->rst || tcp->fin)
        entry->state = STATE_CLOSING;
    else if (entry->state == STATE_OPENING && entry->opened_by_low != from_low)
        entry->state = STATE_ESTABLISHED;
    return XDP_TX;
}

SEC("xdp")
int lru_seen(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    struct iphdr *ip = (void *)(eth + 1);
    __u32 key, one = 1, *count;
    __u64 *bytes, length = ctx->data_end - ctx->data;

    if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    if (eth->h_proto != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    key = bpf_ntohl(ip->saddr);
    count = bpf_map_lookup_elem(&seen, &key);
    if (count)
        (*count)++;
    else
        bpf_map_update_elem(&seen, &key, &one, BPF_ANY);

    key &= 0xff;
    bytes = bpf_map_lookup_elem(&traffic, &key);
    if (bytes)
        *bytes += length;
    else
        bpf_map_update_elem(&traffic, &key, &length, BPF_ANY);
    return count ? XDP_TX : XDP_PASS;
}
