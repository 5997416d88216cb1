/* LPM tries that programs change, look up with prefixes of any length, and with keys of unusual
 * sizes. Packets insert the entries. Exercises: lookup, update with every flag and delete in LPM
 * tries of 4, 2, 8, 16 and 24 bytes, invalid lengths, a full trie. */
#include "parse.h"
#include "answers.h"

char LICENSE[] SEC("license") = "GPL";

struct prefix4 {
    __u32 length;
    __u8 address[4];
};

struct rule {
    __u32 number;
    __u32 hits;
};

struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(max_entries, 4096);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct prefix4);
    __type(value, struct rule);
} networks SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(max_entries, 12);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct prefix4);
    __type(value, __u32);
} few SEC(".maps");

static __always_inline struct iphdr *ipv4_of(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    struct ethhdr *eth;

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return NULL;
    return take_ipv4(&c);
}

/* The bits after the prefix are zero. */
static __always_inline __be32 network(__be32 address, __u32 length)
{
    if (length == 0)
        return 0;
    if (length >= 32)
        return address;
    return address & bpf_htonl(0xffffffff << (32 - length));
}

/* Each source inserts a network whose length its checksum gives; each destination is looked up with
 * the length that its TTL gives, some of them invalid. */
SEC("xdp")
int prefixes_learn(struct xdp_md *ctx)
{
    struct iphdr *ip = ipv4_of(ctx);
    struct rule fresh = {}, *rule;
    struct prefix4 key = {};
    __u32 length;
    long answer;

    if (!ip)
        return XDP_PASS;
    length = ip->check % 34;
    key.length = length;
    *(__be32 *)key.address = network(ip->saddr, length);
    fresh.number = ip->id;
    answer = bpf_map_update_elem(&networks, &key, &fresh, ip->ttl & 3);
    note(answer);
    key.length = ip->ttl % 35;
    *(__be32 *)key.address = ip->daddr;
    rule = bpf_map_lookup_elem(&networks, &key);
    if (!rule)
        return answer ? XDP_DROP : XDP_PASS;
    rule->hits++;
    return rule->number & 1 ? XDP_TX : XDP_PASS;
}

/* Networks are inserted and deleted, and whole addresses are looked up. */
SEC("xdp")
int prefixes_forget(struct xdp_md *ctx)
{
    struct iphdr *ip = ipv4_of(ctx);
    struct prefix4 key = {};
    struct rule *rule, fresh = {};
    __u32 length;

    if (!ip)
        return XDP_PASS;
    length = 4 * (ip->check % 10);
    key.length = length;
    *(__be32 *)key.address = network(ip->saddr, length);
    if (ip->id & 0x100) {
        note(bpf_map_delete_elem(&networks, &key));
    } else {
        fresh.number = length;
        note(bpf_map_update_elem(&networks, &key, &fresh, BPF_ANY));
    }
    key.length = 32;
    *(__be32 *)key.address = ip->saddr;
    rule = bpf_map_lookup_elem(&networks, &key);
    if (!rule)
        return XDP_DROP;
    __sync_fetch_and_add(&rule->hits, 1);
    return rule->number > 8 ? XDP_TX : XDP_PASS;
}

SEC("xdp")
int prefixes_full(struct xdp_md *ctx)
{
    struct iphdr *ip = ipv4_of(ctx);
    struct prefix4 key = {};
    __u32 value, *found;
    long answer;

    if (!ip)
        return XDP_PASS;
    value = ip->id;
    key.length = 8 + (ip->check & 3);
    *(__be32 *)key.address = network(ip->saddr, key.length);
    answer = bpf_map_update_elem(&few, &key, &value, BPF_ANY);
    note(answer);
    if ((ip->ttl & 15) == 3)
        note(bpf_map_delete_elem(&few, &key));
    key.length = 32;
    found = bpf_map_lookup_elem(&few, &key);
    return !found ? XDP_DROP : answer ? XDP_TX : XDP_PASS;
}
