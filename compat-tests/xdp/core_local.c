/* CO-RE relocations for every access, which libbpf would resolve against the kernel's types. The
 * UAPI structures here never change, so the offsets that clang wrote are final. Exercises:
 * preserve_access_index on members, arrays in structures and bit fields, bpf_core_field_exists,
 * bpf_core_type_size. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "GPL";

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ethhdr {
    unsigned char h_dest[6];
    unsigned char h_source[6];
    __be16 h_proto;
};

struct iphdr {
    __u8 ihl : 4, version : 4;
    __u8 tos;
    __be16 tot_len;
    __be16 id;
    __be16 frag_off;
    __u8 ttl;
    __u8 protocol;
    __u16 check;
    __be32 saddr;
    __be32 daddr;
};

struct udphdr {
    __be16 source;
    __be16 dest;
    __be16 len;
    __u16 check;
};

#pragma clang attribute pop

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 256);
    __type(key, __u32);
    __type(value, __u64);
} protocols SEC(".maps");

SEC("xdp")
int core_headers(struct xdp_md *ctx)
{
    void *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = (void *)(long)ctx->data;
    struct iphdr *ip = (void *)(eth + 1);
    struct udphdr *udp = (void *)(ip + 1);
    __u64 *bytes;
    __u32 key;

    if ((void *)(ip + 1) > end)
        return XDP_DROP;
    if (eth->h_proto != bpf_htons(0x0800) || ip->version != 4)
        return XDP_PASS;
    key = ip->protocol;
    bytes = bpf_map_lookup_elem(&protocols, &key);
    if (bytes)
        *bytes += bpf_ntohs(ip->tot_len);
    if (ip->ihl != 5 || ip->protocol != 17)
        return XDP_PASS;
    if ((void *)(udp + 1) > end)
        return XDP_DROP;
    eth->h_dest[4] = bpf_ntohs(udp->dest) >> 8;
    eth->h_source[5] = ip->ttl;
    return bpf_ntohs(udp->len) > 64 ? XDP_TX : XDP_PASS;
}

SEC("xdp")
int core_questions(struct xdp_md *ctx)
{
    void *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = (void *)(long)ctx->data;
    struct iphdr *ip = (void *)(eth + 1);

    if ((void *)(ip + 1) > end)
        return XDP_DROP;
    if (!bpf_core_field_exists(ip->daddr))
        return XDP_ABORTED;
    eth->h_dest[0] = bpf_core_type_size(struct iphdr);
    eth->h_dest[1] = bpf_core_field_offset(ip->saddr);
    eth->h_dest[2] = bpf_core_field_size(ip->saddr);
    *(__be32 *)eth->h_source = ip->saddr ^ ip->daddr;
    return ip->protocol & 1 ? XDP_TX : XDP_PASS;
}
