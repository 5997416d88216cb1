/* VXLAN and GRE: encapsulates whole frames in VXLAN, decapsulates them, and encapsulates IPv4 and
 * IPv6 in GRE. Exercises: bpf_xdp_adjust_head by 50 bytes, outer headers as one packed struct, with
 * checksum, a flow hash as port. */
#include "parse.h"
#include "checksum.h"

char LICENSE[] SEC("license") = "GPL";

#define VXLAN_PORT 4789
#define VXLAN_VALID_VNI 0x08000000

struct vxlan_header {
    __be32 flags;
    __be32 vni;
};

struct vxlan_outer {
    struct ethhdr eth;
    struct iphdr ip;
    struct udphdr udp;
    struct vxlan_header vxlan;
} __attribute__((packed));

struct gre_outer {
    struct ethhdr eth;
    struct iphdr ip;
    __be16 flags;
    __be16 protocol;
} __attribute__((packed));

struct tunnel {
    __be32 remote;
    __u32 vni;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 16);
    __type(key, __u32);
    __type(value, struct tunnel);
} tunnels SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 256);
    __type(key, __u32);
    __type(value, __u64);
} vni_packets SEC(".maps");

const volatile __u32 local_address = 0xc0a80001;

static __always_inline void fill_ipv4(void *header, __u16 length, __u8 protocol, __be32 remote)
{
    struct iphdr *ip = header;

    ip->version = 4;
    ip->ihl = 5;
    ip->tos = 0;
    ip->tot_len = bpf_htons(length);
    ip->id = 0;
    ip->frag_off = bpf_htons(0x4000);
    ip->ttl = 64;
    ip->protocol = protocol;
    ip->check = 0;
    ip->saddr = bpf_htonl(local_address);
    ip->daddr = remote;
    ip->check = csum_ipv4(ip);
}

SEC("xdp")
int vxlan_encap(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    struct vxlan_outer *outer;
    struct tunnel *tunnel;
    __u16 length, hash = 0;
    __u32 index;

    if ((void *)(eth + 1) > end)
        return XDP_DROP;
    index = eth->h_dest[5] & 0xf;
    tunnel = bpf_map_lookup_elem(&tunnels, &index);
    if (!tunnel || !tunnel->remote)
        return XDP_PASS;
#pragma unroll
    for (int i = 0; i < ETH_ALEN; i++)
        hash = hash * 31 + (eth->h_source[i] ^ eth->h_dest[i]);
    length = end - (void *)eth + sizeof(*outer) - sizeof(struct ethhdr);

    if (bpf_xdp_adjust_head(ctx, -50))
        return XDP_ABORTED;
    outer = (void *)(long)ctx->data;
    end = (void *)(long)ctx->data_end;
    if ((void *)(outer + 1) > end)
        return XDP_ABORTED;

    __builtin_memset(outer, 0, sizeof(*outer));
    outer->eth.h_source[0] = outer->eth.h_dest[0] = 2;
    outer->eth.h_dest[5] = index;
    outer->eth.h_proto = bpf_htons(ETH_P_IP);
    fill_ipv4(&outer->eth + 1, length, IPPROTO_UDP, tunnel->remote);
    outer->udp.source = bpf_htons(0xc000 | (hash & 0x3fff));
    outer->udp.dest = bpf_htons(VXLAN_PORT);
    outer->udp.len = bpf_htons(length - sizeof(struct iphdr));
    outer->vxlan.flags = bpf_htonl(VXLAN_VALID_VNI);
    outer->vxlan.vni = bpf_htonl(tunnel->vni << 8);
    return XDP_TX;
}

SEC("xdp")
int vxlan_decap(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    struct vxlan_header *vxlan;
    struct ethhdr *eth;
    struct udphdr *udp;
    struct iphdr *ip;
    __u64 *packets, one = 1;
    __u32 vni;

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    ip = take_ipv4(&c);
    if (!ip || ip->protocol != IPPROTO_UDP)
        return XDP_PASS;
    udp = take_udp(&c);
    if (!udp || udp->dest != bpf_htons(VXLAN_PORT))
        return XDP_PASS;
    vxlan = c.pos;
    if ((void *)(vxlan + 1) > c.end)
        return XDP_DROP;

    vni = bpf_ntohl(vxlan->vni) >> 8;
    vni &= 0xff;
    packets = bpf_map_lookup_elem(&vni_packets, &vni);
    if (packets)
        __sync_fetch_and_add(packets, 1);
    else
        bpf_map_update_elem(&vni_packets, &vni, &one, BPF_NOEXIST);

    c.pos = vxlan + 1;
    if (bpf_xdp_adjust_head(ctx, c.pos - (void *)(long)ctx->data))
        return XDP_DROP;
    return XDP_TX;
}

SEC("xdp")
int gre_encap(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    struct gre_outer *outer;
    struct ethhdr link;
    __u16 length;

    if ((void *)(eth + 1) > end)
        return XDP_DROP;
    switch (eth->h_proto) {
    case bpf_htons(ETH_P_IP):
    case bpf_htons(ETH_P_IPV6):
        break;
    default:
        return XDP_PASS;
    }
    link = *eth;
    length = (__u16)(end - (void *)eth) - sizeof(link) + sizeof(*outer) - sizeof(outer->eth);

    if (bpf_xdp_adjust_head(ctx, (int)sizeof(link) - (int)sizeof(*outer)))
        return XDP_ABORTED;
    outer = (void *)(long)ctx->data;
    end = (void *)(long)ctx->data_end;
    if ((void *)(outer + 1) > end)
        return XDP_ABORTED;
    __builtin_memcpy(&outer->eth, &link, sizeof(link));
    outer->eth.h_proto = bpf_htons(ETH_P_IP);
    fill_ipv4(&outer->eth + 1, length, IPPROTO_GRE, bpf_htonl(0x0a0000fe));
    outer->flags = 0;
    outer->protocol = link.h_proto;
    return XDP_TX;
}
