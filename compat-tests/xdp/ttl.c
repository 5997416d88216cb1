/* Decrements TTLs and hop limits and updates the checksum, as routers do. Without maps and helpers:
 * for benchmarks. Exercises: packet rewriting, two paths of nearly the same length. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "GPL";

SEC("xdp")
int ttl(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct ipv6hdr *ipv6;
    struct iphdr *ip;
    __u32 check;

    if ((void *)(eth + 1) > end)
        return XDP_DROP;
    if (eth->h_proto == bpf_htons(ETH_P_IP)) {
        ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end || ip->ttl <= 1)
            return XDP_DROP;
        check = ip->check + bpf_htons(0x0100);
        ip->check = check + (check >= 0xffff);
        ip->ttl--;
        return XDP_TX;
    }
    if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
        ipv6 = (void *)(eth + 1);
        if ((void *)(ipv6 + 1) > end || ipv6->hop_limit <= 1)
            return XDP_DROP;
        ipv6->hop_limit--;
        return XDP_TX;
    }
    return XDP_PASS;
}
