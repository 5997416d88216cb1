/* Update with BPF_ANY, BPF_NOEXIST and BPF_EXIST, and delete, with the helpers' results in the
 * verdict and in counters. Exercises: -EEXIST, -ENOENT, -E2BIG of a full map, unknown flags, an
 * array's own rules, BPF_F_LOCK. */
#include "parse.h"
#include "answers.h"

char LICENSE[] SEC("license") = "GPL";

#define ENOENT 2
#define E2BIG 7
#define EEXIST 17
#define EINVAL 22

struct session {
    __u32 packets;
    __u16 last_length;
    __u8 state;
    __u8 generation;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 2048);
    __type(key, __u32);
    __type(value, struct session);
} sessions SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 8);
    __type(key, __u16);
    __type(value, __u32);
} few SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 8);
    __type(key, __u32);
    __type(value, __u64);
} cells SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 8);
    __type(key, __u32);
    __type(value, __u64);
} own_cells SEC(".maps");

/* TCP flags open, renew and close a session of the source address. */
SEC("xdp")
int sessions_track(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    struct session session = {}, *known;
    struct ethhdr *eth;
    struct tcphdr *tcp;
    struct iphdr *ip;
    long answer;
    __u32 key;

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    ip = take_ipv4(&c);
    if (!ip || ip->protocol != IPPROTO_TCP)
        return XDP_PASS;
    tcp = take_tcp(&c);
    if (!tcp)
        return XDP_DROP;
    key = bpf_ntohl(ip->saddr) & 0x1f;

    if (tcp->rst || tcp->fin) {
        answer = bpf_map_delete_elem(&sessions, &key);
        note(answer);
        return answer == -ENOENT ? XDP_DROP : XDP_TX;
    }
    session.last_length = bpf_ntohs(ip->tot_len);
    if (tcp->syn && !tcp->ack) {
        session.state = 1;
        answer = bpf_map_update_elem(&sessions, &key, &session, BPF_NOEXIST);
    } else if (tcp->syn) {
        session.state = 2;
        answer = bpf_map_update_elem(&sessions, &key, &session, BPF_ANY);
    } else {
        known = bpf_map_lookup_elem(&sessions, &key);
        if (known)
            session = *known;
        session.packets++;
        session.state = 3;
        session.generation += tcp->psh;
        answer = bpf_map_update_elem(&sessions, &key, &session, BPF_EXIST);
    }
    note(answer);
    switch (answer) {
    case 0:
        return XDP_PASS;
    case -EEXIST:
        return XDP_TX;
    case -ENOENT:
        return XDP_DROP;
    default:
        return XDP_ABORTED;
    }
}

/* Eight keys fit; further insertions fail. */
SEC("xdp")
int updates_full(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    __u32 length = ctx->data_end - ctx->data;
    long answer;
    __u16 key;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    key = eth->h_source[5];
    answer = bpf_map_update_elem(&few, &key, &length, BPF_ANY);
    note(answer);
    if (answer == -E2BIG)
        return XDP_DROP;
    return answer ? XDP_ABORTED : XDP_PASS;
}

/* Results of an array for flags, absent keys and deletion. */
SEC("xdp")
int updates_of_array(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    __u64 value = ctx->data_end - ctx->data;
    __u32 key, failed = 0;
    long answer;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    key = eth->h_dest[5] % 10;
    answer = bpf_map_update_elem(&cells, &key, &value, BPF_EXIST);
    note(answer);
    failed += answer == -E2BIG;
    answer = bpf_map_update_elem(&cells, &key, &value, BPF_NOEXIST);
    note(answer);
    failed += answer == -E2BIG;
    answer = bpf_map_delete_elem(&cells, &key);
    note(answer);
    failed += answer == -EINVAL;
    answer = bpf_map_update_elem(&sessions, &key, &value, 3);
    note(answer);
    failed += answer == -EINVAL;
    return failed == 4 ? XDP_PASS : failed == 2 ? XDP_TX : XDP_DROP;
}

/* BPF_F_LOCK on values without a lock; maps differ in the order of their checks. */
SEC("xdp")
int updates_under_lock(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    __u64 value = ctx->data_end - ctx->data;
    __u64 flags, answered = 0;
    __u32 key;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    key = eth->h_dest[5] % 10;
    flags = eth->h_source[5] & 15;
#define ANSWER(map, flags)                                                                                   \
    do {                                                                                                     \
        long answer = bpf_map_update_elem(map, &key, &value, flags);                                         \
                                                                                                             \
        note(answer);                                                                                        \
        answered = 31 * answered - answer;                                                                   \
    } while (0)
    ANSWER(&cells, BPF_F_LOCK);
    ANSWER(&cells, BPF_F_LOCK | BPF_NOEXIST);
    ANSWER(&cells, BPF_F_LOCK | BPF_EXIST);
    ANSWER(&cells, BPF_F_LOCK | 3);
    ANSWER(&cells, flags);
    ANSWER(&own_cells, BPF_F_LOCK);
    ANSWER(&own_cells, flags);
    ANSWER(&sessions, BPF_F_LOCK);
    __builtin_memcpy(eth->h_dest, &answered, 4);
    return XDP_TX;
}
