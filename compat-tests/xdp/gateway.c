/* A gateway in one program: VLAN tags, IPv4 and IPv6 with options and extension headers, TCP
 * options, a list of networks, access lists by group, a connection table, NAT in both directions,
 * MSS clamping, counters. Exercises: size, thousands of instructions after unrolling, many live
 * pointers. */
#include "parse.h"
#include "checksum.h"

char LICENSE[] SEC("license") = "GPL";

/* As many as the kernel's verifier can follow; `benches/objects.rs` has more. */
#ifndef RULES
#define RULES 16
#define OPTIONS 4
#endif
#define MSS 1360

enum counter {
    FRAMES,
    BYTES,
    NOT_IP,
    CUT,
    FRAGMENTS,
    LISTED,
    DENIED,
    ALLOWED,
    NEW,
    KNOWN,
    TRANSLATED,
    CLAMPED,
    COUNTERS,
};

struct address {
    __u32 words[4];
};

struct network {
    __u32 length;
    __be32 address;
};

struct connection {
    struct address source;
    struct address target;
    __be16 source_port;
    __be16 target_port;
    __u8 protocol;
    __u8 pad[3];
};

struct tracked {
    __u64 packets;
    __u64 bytes;
    __u32 flags;
    __u32 group;
};

struct rule {
    __u32 network;
    __u32 mask;
    __u16 first_port;
    __u16 last_port;
    __u8 protocol;
    __u8 action;
    __u16 hits;
};

struct rules {
    struct rule rules[RULES];
};

struct translation {
    __be32 address;
    __be16 port;
    __u16 enabled;
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, COUNTERS);
    __type(key, __u32);
    __type(value, __u64);
} counters SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(max_entries, 1024);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct network);
    __type(value, __u32);
} listed SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 4);
    __type(key, __u32);
    __type(value, struct rules);
} groups SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 16384);
    __type(key, struct connection);
    __type(value, struct tracked);
} connections SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 256);
    __type(key, __u32);
    __type(value, struct translation);
} translations SEC(".maps");

struct packet {
    struct iphdr *ipv4;
    struct ipv6hdr *ipv6;
    struct tcphdr *tcp;
    __u16 *check;
    __be16 *ports;
    __u32 length;
};

static __always_inline void count(__u32 which, __u64 by)
{
    __u64 *counter = bpf_map_lookup_elem(&counters, &which);

    if (counter)
        *counter += by;
}

static __always_inline int dropped(__u32 which)
{
    count(which, 1);
    return XDP_DROP;
}

/* Clamps the segment size that a SYN offers. */
static __always_inline void clamp(struct packet *packet, void *end)
{
    __u8 *option = (void *)(packet->tcp + 1);
    __u8 *last = (void *)packet->tcp + packet->tcp->doff * 4;
    __be16 *size, mss = bpf_htons(MSS);

#pragma unroll
    for (int i = 0; i < OPTIONS; i++) {
        if ((void *)(option + 4) > end || option + 4 > last)
            return;
        switch (option[0]) {
        case 0:
            return;
        case 1:
            option++;
            break;
        case 2:
            size = (__be16 *)(option + 2);
            if (option[1] == 4 && bpf_ntohs(*size) > MSS) {
                csum_replace2(packet->check, *size, mss);
                *size = mss;
                count(CLAMPED, 1);
            }
            return;
        default:
            if (option[1] < 2)
                return;
            option += option[1] & 63;
        }
    }
}

/* Result of the first matching rule: 1 to pass, 0 to drop. */
static __always_inline int allowed(struct rules *rules, __u32 source, __u16 port, __u8 protocol)
{
#pragma unroll
    for (int i = 0; i < RULES; i++) {
        struct rule *rule = &rules->rules[i];

        if (rule->protocol && rule->protocol != protocol)
            continue;
        if ((source & rule->mask) != rule->network)
            continue;
        if (port < rule->first_port || port > rule->last_port)
            continue;
        rule->hits++;
        return rule->action;
    }
    return 1;
}

static __always_inline void translate(struct packet *packet, __be32 *address, __be16 *port)
{
    __u32 key = *address ^ (__u32)*port << 16;
    struct translation *to = bpf_map_lookup_elem(&translations, &key);

    if (!to || !to->enabled)
        return;
    csum_replace4(&packet->ipv4->check, *address, to->address);
    if (packet->tcp || *packet->check) {
        csum_replace4(packet->check, *address, to->address);
        csum_replace2(packet->check, *port, to->port);
    }
    *address = to->address;
    *port = to->port;
    count(TRANSLATED, 1);
}

SEC("xdp")
int gateway(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    struct connection connection = {};
    struct packet packet = {};
    struct tracked *tracked;
    struct network network;
    struct ethhdr *eth;
    struct udphdr *udp;
    struct rules *rules;
    __u32 group, source, *list;
    __u8 protocol;
    __be16 type;
    int next;

    packet.length = c.end - c.pos;
    count(FRAMES, 1);
    count(BYTES, packet.length);
    type = take_link_layer(&c, &eth);
    if (type == bpf_htons(ETH_P_IP)) {
        packet.ipv4 = take_ipv4(&c);
        if (!packet.ipv4)
            return dropped(CUT);
        if (packet.ipv4->frag_off & bpf_htons(0x3fff))
            return dropped(FRAGMENTS);
        network.length = 32;
        network.address = packet.ipv4->saddr;
        list = bpf_map_lookup_elem(&listed, &network);
        if (list && *list)
            return dropped(LISTED);
        protocol = packet.ipv4->protocol;
        connection.source.words[2] = bpf_htonl(0xffff);
        connection.source.words[3] = packet.ipv4->saddr;
        connection.target.words[2] = bpf_htonl(0xffff);
        connection.target.words[3] = packet.ipv4->daddr;
        source = bpf_ntohl(packet.ipv4->saddr);
    } else if (type == bpf_htons(ETH_P_IPV6)) {
        packet.ipv6 = take_ipv6(&c);
        if (!packet.ipv6)
            return dropped(CUT);
        next = take_extensions(&c, packet.ipv6->nexthdr);
        if (next < 0)
            return dropped(CUT);
        protocol = next;
        __builtin_memcpy(&connection.source, &packet.ipv6->saddr, sizeof(struct address));
        __builtin_memcpy(&connection.target, &packet.ipv6->daddr, sizeof(struct address));
        source = bpf_ntohl(connection.source.words[0]);
    } else {
        count(NOT_IP, 1);
        return XDP_PASS;
    }

    if (protocol == IPPROTO_TCP) {
        packet.tcp = take_tcp(&c);
        if (!packet.tcp)
            return dropped(CUT);
        packet.check = &packet.tcp->check;
        packet.ports = &packet.tcp->source;
    } else if (protocol == IPPROTO_UDP) {
        udp = take_udp(&c);
        if (!udp)
            return dropped(CUT);
        packet.check = &udp->check;
        packet.ports = &udp->source;
    } else {
        return XDP_PASS;
    }
    connection.source_port = packet.ports[0];
    connection.target_port = packet.ports[1];
    connection.protocol = protocol;

    group = source >> 30;
    rules = bpf_map_lookup_elem(&groups, &group);
    if (rules && !allowed(rules, source, bpf_ntohs(connection.target_port), protocol))
        return dropped(DENIED);
    count(ALLOWED, 1);

    tracked = bpf_map_lookup_elem(&connections, &connection);
    if (tracked) {
        __sync_fetch_and_add(&tracked->packets, 1);
        __sync_fetch_and_add(&tracked->bytes, packet.length);
        count(KNOWN, 1);
    } else {
        struct tracked first = { .packets = 1, .bytes = packet.length, .group = group };

        if (packet.tcp)
            first.flags = ((__u8 *)packet.tcp)[13];
        bpf_map_update_elem(&connections, &connection, &first, BPF_NOEXIST);
        count(NEW, 1);
    }

    if (packet.tcp && packet.tcp->syn)
        clamp(&packet, c.end);
    if (packet.ipv4) {
        translate(&packet, &packet.ipv4->saddr, &packet.ports[0]);
        translate(&packet, &packet.ipv4->daddr, &packet.ports[1]);
    }
    __builtin_memcpy(eth->h_source, eth->h_dest, ETH_ALEN);
    eth->h_dest[5] ^= 1;
    return XDP_TX;
}
