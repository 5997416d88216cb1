/* Source and destination NAT of TCP and UDP over IPv4, with incremental checksum updates (RFC 1624)
 * or bpf_csum_diff(). Exercises: packet rewriting, packed 13-byte keys, hash maps, values copied to
 * the packet. */
#include "parse.h"
#include "checksum.h"

char LICENSE[] SEC("license") = "GPL";

struct flow {
    __be32 source;
    __be32 target;
    __be16 source_port;
    __be16 target_port;
    __u8 protocol;
} __attribute__((packed));

struct binding {
    __be32 address;
    __be16 port;
    __u16 packets;
};

/* Indexed by the low six bits of the private source address. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 64);
    __type(key, __u32);
    __type(value, struct binding);
} sources SEC(".maps");

/* By service: protocol in the upper, port in the lower 16 bits. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 128);
    __type(key, __u32);
    __type(value, struct binding);
} services SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 16384);
    __type(key, struct flow);
    __type(value, struct binding);
} flows SEC(".maps");

struct ports {
    __be16 source;
    __be16 target;
};

struct packet {
    struct iphdr *ip;
    struct ports *ports;
    __u16 *check;
};

static __always_inline int parse(struct xdp_md *ctx, struct packet *packet)
{
    struct cursor c = cursor_of(ctx);
    struct ethhdr *eth;
    struct tcphdr *tcp;
    struct udphdr *udp;

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return -1;
    packet->ip = take_ipv4(&c);
    if (!packet->ip || packet->ip->frag_off & bpf_htons(0x3fff))
        return -1;
    switch (packet->ip->protocol) {
    case IPPROTO_TCP:
        tcp = take_tcp(&c);
        if (!tcp)
            return -1;
        packet->ports = (struct ports *)tcp;
        packet->check = &tcp->check;
        return 0;
    case IPPROTO_UDP:
        udp = take_udp(&c);
        if (!udp)
            return -1;
        packet->ports = (struct ports *)udp;
        packet->check = &udp->check;
        return 0;
    }
    return -1;
}

static __always_inline void replace_address(struct packet *packet, __be32 *field, __be32 address)
{
    csum_replace4(&packet->ip->check, *field, address);
    /* A UDP checksum of 0 means none. */
    if (packet->ip->protocol != IPPROTO_UDP || *packet->check) {
        csum_replace4(packet->check, *field, address);
        if (packet->ip->protocol == IPPROTO_UDP && !*packet->check)
            *packet->check = 0xffff;
    }
    *field = address;
}

static __always_inline void replace_port(struct packet *packet, __be16 *field, __be16 port)
{
    if (packet->ip->protocol != IPPROTO_UDP || *packet->check)
        csum_replace2(packet->check, *field, port);
    *field = port;
}

SEC("xdp")
int nat_source(struct xdp_md *ctx)
{
    struct binding *binding;
    struct packet packet;
    struct flow reply = {};
    struct binding inside = {};
    __u32 index;

    if (parse(ctx, &packet))
        return XDP_PASS;
    index = bpf_ntohl(packet.ip->saddr) & 63;
    binding = bpf_map_lookup_elem(&sources, &index);
    if (!binding || !binding->address)
        return XDP_PASS;

    reply.source = packet.ip->daddr;
    reply.target = binding->address;
    reply.source_port = packet.ports->target;
    reply.target_port = packet.ports->source;
    reply.protocol = packet.ip->protocol;
    inside.address = packet.ip->saddr;
    inside.port = packet.ports->source;
    bpf_map_update_elem(&flows, &reply, &inside, BPF_ANY);

    binding->packets++;
    replace_address(&packet, &packet.ip->saddr, binding->address);
    return XDP_TX;
}

SEC("xdp")
int nat_target(struct xdp_md *ctx)
{
    struct binding *binding;
    struct packet packet;
    __u32 service;

    if (parse(ctx, &packet))
        return XDP_PASS;
    service = packet.ip->protocol << 16 | bpf_ntohs(packet.ports->target);
    binding = bpf_map_lookup_elem(&services, &service);
    if (!binding)
        return XDP_PASS;
    if (!binding->address)
        return XDP_DROP;
    binding->packets += 1;
    replace_address(&packet, &packet.ip->daddr, binding->address);
    replace_port(&packet, &packet.ports->target, binding->port);
    return XDP_TX;
}

/* The same for one service, with the helper: both addresses at once. */
SEC("xdp")
int nat_full_csum_diff(struct xdp_md *ctx)
{
    __be32 from[2], to[2];
    struct binding *binding;
    struct packet packet;
    __u32 service;
    __s64 sum;

    if (parse(ctx, &packet))
        return XDP_PASS;
    if (packet.ip->protocol != IPPROTO_TCP)
        return XDP_PASS;
    service = packet.ip->protocol << 16 | bpf_ntohs(packet.ports->target);
    binding = bpf_map_lookup_elem(&services, &service);
    if (!binding)
        return XDP_DROP;
    from[0] = packet.ip->saddr;
    from[1] = packet.ip->daddr;
    to[0] = packet.ip->daddr;
    to[1] = binding->address;

    sum = bpf_csum_diff(from, sizeof(from), to, sizeof(to), (__u16)~packet.ip->check);
    if (sum < 0)
        return XDP_ABORTED;
    packet.ip->check = csum_fold(sum);
    sum = bpf_csum_diff(from, sizeof(from), to, sizeof(to), (__u16)~*packet.check);
    if (sum < 0)
        return XDP_ABORTED;
    *packet.check = csum_fold(sum);
    packet.ip->saddr = to[0];
    packet.ip->daddr = to[1];
    return XDP_TX;
}
