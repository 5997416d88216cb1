/* Entries read after their deletion, and values read before they are replaced. Exercises: a flow
 * that is closed and then accounted for, a key that is deleted and inserted again, the old value of
 * an update. */
#include "parse.h"
#include "answers.h"

char LICENSE[] SEC("license") = "GPL";

struct flow {
    __u64 bytes;
    __u32 packets;
    __u8 mark[6];
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 4096);
    __type(key, __be32);
    __type(value, struct flow);
} flows SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 4096);
    __type(key, __be32);
    __type(value, struct flow);
} recent SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 4);
    __type(key, __u32);
    __type(value, __u64);
} closed SEC(".maps");

static __always_inline void account(__u32 slot, __u64 amount)
{
    __u64 *sum = bpf_map_lookup_elem(&closed, &slot);

    if (sum)
        *sum += amount;
}

static __always_inline int closes(struct xdp_md *ctx, void *map)
{
    struct cursor c = cursor_of(ctx);
    __u64 length = ctx->data_end - ctx->data;
    struct flow fresh = {}, *flow;
    struct ethhdr *eth;
    struct iphdr *ip;
    __be32 key;

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    ip = take_ipv4(&c);
    if (!ip)
        return XDP_DROP;
    key = ip->saddr & bpf_htonl(0x1f);
    flow = bpf_map_lookup_elem(map, &key);
    if (!flow) {
        fresh.bytes = length;
        fresh.packets = 1;
        fresh.mark[5] = ip->ttl;
        note(bpf_map_update_elem(map, &key, &fresh, BPF_NOEXIST));
        return XDP_PASS;
    }
    flow->bytes += length;
    flow->packets++;
    if (ip->ttl & 1)
        return XDP_PASS;
    note(bpf_map_delete_elem(map, &key));
    note(bpf_map_delete_elem(map, &key));
    account(0, flow->bytes);
    account(1, flow->packets);
    account(2, flow->mark[5]);
    /* The entry is unreachable now. */
    flow->bytes = 1;
    account(3, flow->bytes);
    return bpf_map_lookup_elem(map, &key) ? XDP_ABORTED : XDP_TX;
}

SEC("xdp")
int closed_flows(struct xdp_md *ctx)
{
    return closes(ctx, &flows);
}

SEC("xdp")
int closed_recent_flows(struct xdp_md *ctx)
{
    return closes(ctx, &recent);
}

/* An update replaces the value; reading the old one before the update is safe everywhere. */
SEC("xdp")
int replaced_flows(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    struct flow fresh = {}, *flow;
    __u64 before = 0;
    struct ethhdr *eth;
    struct iphdr *ip;
    __be32 key;

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    ip = take_ipv4(&c);
    if (!ip)
        return XDP_DROP;
    key = ip->saddr & bpf_htonl(0x1f);
    flow = bpf_map_lookup_elem(&flows, &key);
    if (flow)
        before = flow->bytes;
    fresh.bytes = ctx->data_end - ctx->data;
    fresh.packets = before >> 8;
    note(bpf_map_update_elem(&flows, &key, &fresh, BPF_ANY));
    account(0, before);
    return before > fresh.bytes ? XDP_TX : XDP_PASS;
}
