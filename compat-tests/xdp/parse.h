/* A cursor over a packet, and code shared by the programs that parse several layers. Every take_*()
 * returns the header at the cursor and advances past it, or returns NULL if the packet ends before
 * the header does. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#ifndef NULL
#define NULL ((void *)0)
#endif

#define MAX_VLANS 4
#define MAX_EXTENSIONS 6

struct cursor {
    void *pos;
    void *end;
};

struct vlan_tag {
    __be16 tci;
    __be16 proto;
};

/* Not from linux/icmp.h, which includes headers of a 32-bit C library. */
struct icmphdr {
    __u8 type;
    __u8 code;
    __sum16 checksum;
    __be16 id;
    __be16 sequence;
};

enum {
    ICMP_ECHOREPLY = 0,
    ICMP_DEST_UNREACH = 3,
    ICMP_ECHO = 8,
    ICMP_TIME_EXCEEDED = 11,
};

struct extension {
    __u8 next;
    __u8 length;
};

#define DEFINE_TAKE(name, type)                                                                              \
    static __always_inline type *take_##name(struct cursor *c)                                               \
    {                                                                                                        \
        type *header = c->pos;                                                                               \
                                                                                                             \
        if ((void *)(header + 1) > c->end)                                                                   \
            return NULL;                                                                                     \
        c->pos = header + 1;                                                                                 \
        return header;                                                                                       \
    }

DEFINE_TAKE(eth, struct ethhdr)
DEFINE_TAKE(vlan, struct vlan_tag)
DEFINE_TAKE(ipv6, struct ipv6hdr)
DEFINE_TAKE(tcp, struct tcphdr)
DEFINE_TAKE(udp, struct udphdr)
DEFINE_TAKE(icmp, struct icmphdr)
DEFINE_TAKE(extension, struct extension)

static __always_inline struct cursor cursor_of(struct xdp_md *ctx)
{
    struct cursor c = {
        .pos = (void *)(long)ctx->data,
        .end = (void *)(long)ctx->data_end,
    };

    return c;
}

/* Advances past the Ethernet header and its VLAN tags; returns the EtherType in network order, or
 * 0. */
static __always_inline __be16 take_link_layer(struct cursor *c, struct ethhdr **eth)
{
    struct vlan_tag *tag;
    __be16 proto;

    *eth = take_eth(c);
    if (!*eth)
        return 0;
    proto = (*eth)->h_proto;
#pragma unroll
    for (int i = 0; i < MAX_VLANS; i++) {
        if (proto != bpf_htons(ETH_P_8021Q) && proto != bpf_htons(ETH_P_8021AD))
            break;
        tag = take_vlan(c);
        if (!tag)
            return 0;
        proto = tag->proto;
    }
    return proto;
}

/* Returns the IPv4 header with its options. */
static __always_inline struct iphdr *take_ipv4(struct cursor *c)
{
    struct iphdr *ip = c->pos;
    __u32 length;

    if ((void *)(ip + 1) > c->end)
        return NULL;
    length = ip->ihl * 4;
    if (ip->version != 4 || length < sizeof(*ip))
        return NULL;
    if (c->pos + length > c->end)
        return NULL;
    c->pos += length;
    return ip;
}

/* Advances past IPv6 extension headers; returns the number of the protocol after them, or -1 if the
 * packet ends in them or there are too many. */
static __always_inline int take_extensions(struct cursor *c, __u8 next)
{
    struct extension *extension;
    __u32 length;

    for (int i = 0; i < MAX_EXTENSIONS; i++) {
        switch (next) {
        case IPPROTO_HOPOPTS:
        case IPPROTO_ROUTING:
        case IPPROTO_DSTOPTS:
        case IPPROTO_MH:
        case IPPROTO_FRAGMENT:
        case IPPROTO_AH:
            break;
        default:
            return next;
        }
        extension = c->pos;
        if ((void *)(extension + 1) > c->end)
            return -1;
        if (next == IPPROTO_FRAGMENT)
            length = 8;
        else if (next == IPPROTO_AH)
            length = (extension->length + 2) * 4;
        else
            length = (extension->length + 1) * 8;
        next = extension->next;
        if (c->pos + length > c->end)
            return -1;
        c->pos += length;
    }
    return -1;
}
