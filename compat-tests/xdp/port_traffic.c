/* Counts traffic by UDP port, with verdicts by port: some are reflected, some dropped, the rest
 * passes. The counters are in an array, and in a hash whose entries the first packet inserts.
 * Exercises: constants from the host, updates with BPF_NOEXIST, atomic additions, exchange of MAC
 * addresses. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

const volatile __be16 reflected = bpf_htons(9);
const volatile __be16 closed[2] = { bpf_htons(10), bpf_htons(19) };

struct port {
    __be16 port;
    __u16 reserved;
};

struct traffic {
    __u64 packets;
    __u64 bytes;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 4096);
    __type(key, struct port);
    __type(value, struct traffic);
} ports SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 5);
    __type(key, __u32);
    __type(value, __u64);
} actions SEC(".maps");

static __always_inline int done(__u32 action)
{
    __u64 *count = bpf_map_lookup_elem(&actions, &action);

    if (count)
        __sync_fetch_and_add(count, 1);
    return action;
}

SEC("xdp")
int port_traffic(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    const struct traffic none = {};
    struct port key = {};
    struct traffic *traffic;
    struct ethhdr *eth;
    struct udphdr *udp;
    struct iphdr *ip;
    __u8 station[6];

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    ip = take_ipv4(&c);
    if (!ip || ip->protocol != IPPROTO_UDP)
        return XDP_PASS;
    udp = take_udp(&c);
    if (!udp)
        return XDP_PASS;
    key.port = udp->dest;
    traffic = bpf_map_lookup_elem(&ports, &key);
    if (!traffic) {
        bpf_map_update_elem(&ports, &key, &none, BPF_NOEXIST);
        traffic = bpf_map_lookup_elem(&ports, &key);
        if (!traffic)
            return done(XDP_ABORTED);
    }
    __sync_fetch_and_add(&traffic->packets, 1);
    __sync_fetch_and_add(&traffic->bytes, ctx->data_end - ctx->data);
    if (udp->dest == closed[0] || udp->dest == closed[1])
        return done(XDP_DROP);
    if (udp->dest != reflected)
        return done(XDP_PASS);
    __builtin_memcpy(station, eth->h_dest, 6);
    __builtin_memcpy(eth->h_dest, eth->h_source, 6);
    __builtin_memcpy(eth->h_source, station, 6);
    return done(XDP_TX);
}
