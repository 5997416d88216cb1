/* Global variables of every kind: parameters in .rodata, initialised tables and words in .data,
 * counters in .bss, static variables, constant arrays indexed by the packet. Exercises: reads and
 * writes of globals at all widths. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

const volatile struct {
    __u16 lowest_port;
    __u16 highest_port;
    __u8 drop_fragments;
    __be32 own_network;
    __be32 own_mask;
} config = {
    .lowest_port = 1024,
    .highest_port = 40000,
    .drop_fragments = 1,
    .own_network = bpf_htonl(0x0a000000),
    .own_mask = bpf_htonl(0xff000000),
};

/* One for each value of the three upper bits of the type of service. */
static const __u8 priorities[8] = { 1, 2, 3, 3, 2, 1, 2, 3 };

__u16 weights[8] = { 1, 1, 2, 3, 5, 8, 13, 21 };
__u64 total = 1000000;
__s32 balance = -5;

__u64 packets;
__u64 protocol_packets[256];
__u32 protocol_bytes[256];
__u8 longest_ihl;
static __u16 checks;
static __u32 turn;

SEC("xdp")
int globals_config(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    struct ethhdr *eth;
    struct udphdr *udp;
    struct iphdr *ip;
    __u16 port;

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    ip = take_ipv4(&c);
    if (!ip)
        return XDP_DROP;
    if (config.drop_fragments && ip->frag_off & bpf_htons(0x3fff))
        return XDP_DROP;
    if ((ip->daddr & config.own_mask) != config.own_network)
        return priorities[ip->tos >> 5];
    if (ip->protocol != IPPROTO_UDP && ip->protocol != IPPROTO_TCP)
        return XDP_PASS;
    udp = take_udp(&c);
    if (!udp)
        return XDP_ABORTED;
    port = bpf_ntohs(udp->dest);
    return port >= config.lowest_port && port <= config.highest_port ? XDP_TX : XDP_DROP;
}

SEC("xdp")
int globals_counters(struct xdp_md *ctx)
{
    __u32 length = ctx->data_end - ctx->data;
    struct cursor c = cursor_of(ctx);
    struct ethhdr *eth;
    struct iphdr *ip;

    packets++;
    total += length;
    balance += length & 1 ? 1 : -1;
    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    ip = take_ipv4(&c);
    if (!ip)
        return XDP_DROP;
    protocol_packets[ip->protocol]++;
    __sync_fetch_and_add(&protocol_bytes[ip->protocol], length);
    weights[ip->tos >> 5] += 1;
    checks ^= ip->check;
    if (ip->ihl > longest_ihl)
        longest_ihl = ip->ihl;
    return XDP_TX;
}

/* The verdicts of a run are 2, 3, 1, 2, ... in the order of the packets. */
SEC("xdp")
int globals_turn(struct xdp_md *ctx)
{
    if (ctx->data_end - ctx->data < 60)
        return XDP_DROP;
    turn++;
    if (turn >= 3)
        turn = 0;
    return turn + 1;
}
