/* A hop: decrements TTL or hop limit and updates the IPv4 checksum, swaps MAC addresses or sets
 * them from a table, XDP_TX. Exercises: byte and 16-bit stores, early returns, hash map with 6-byte
 * keys from the packet. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "GPL";

struct station {
    unsigned char next_hop[ETH_ALEN];
    __u16 port;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1024);
    __uint(key_size, ETH_ALEN);
    __uint(value_size, sizeof(struct station));
} stations SEC(".maps");

static __u64 expired, forwarded;

SEC("xdp")
int mac_swap(struct xdp_md *ctx)
{
    void *end = (void *)(long)ctx->data_end;
    __u16 *word = (void *)(long)ctx->data;
    __u16 copy[3];

    if ((void *)(word + 7) > end)
        return XDP_DROP;
    /* Does not forward group addresses. */
    if (*(__u8 *)word & 1)
        return XDP_PASS;
    copy[0] = word[0];
    copy[1] = word[1];
    copy[2] = word[2];
    word[0] = word[3];
    word[1] = word[4];
    word[2] = word[5];
    word[3] = copy[0];
    word[4] = copy[1];
    word[5] = copy[2];
    return XDP_TX;
}

static __always_inline int decrement_ttl(struct iphdr *ip)
{
    __u32 check;

    if (ip->ttl <= 1)
        return -1;
    check = ip->check;
    check += bpf_htons(0x0100);
    ip->check = (__u16)(check + (check >= 0xffff));
    return --ip->ttl;
}

SEC("xdp")
int ttl_decrement(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    struct station *station;
    struct ethhdr *eth = data;
    int left;

    if (data + sizeof(*eth) > end)
        return XDP_DROP;
    station = bpf_map_lookup_elem(&stations, eth->h_dest);
    if (!station)
        return XDP_PASS;

    if (eth->h_proto == bpf_htons(ETH_P_IP)) {
        struct iphdr *ip = data + sizeof(*eth);

        if ((void *)(ip + 1) > end)
            return XDP_DROP;
        left = decrement_ttl(ip);
    } else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
        struct ipv6hdr *ip6 = data + sizeof(*eth);

        if ((void *)(ip6 + 1) > end)
            return XDP_DROP;
        left = ip6->hop_limit > 1 ? --ip6->hop_limit : -1;
    } else {
        return XDP_PASS;
    }
    if (left < 0) {
        expired++;
        return XDP_DROP;
    }
    __builtin_memcpy(eth->h_source, eth->h_dest, ETH_ALEN);
    __builtin_memcpy(eth->h_dest, station->next_hop, ETH_ALEN);
    station->port++;
    forwarded++;
    return XDP_TX;
}
