/* Drops TCP and UDP to a few ports, passes the rest. Small, without maps: one of the three for
 * benchmarks. Exercises: plain bounds checks and a switch. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "GPL";

struct ports {
    __be16 source;
    __be16 target;
};

SEC("xdp")
int port_filter(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct iphdr *ip = data + sizeof(*eth);
    struct ports *ports;

    if ((void *)(ip + 1) > end)
        return XDP_DROP;
    if (eth->h_proto != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    if (ip->protocol != IPPROTO_TCP && ip->protocol != IPPROTO_UDP)
        return XDP_PASS;
    ports = (void *)ip + ip->ihl * 4;
    if ((void *)(ports + 1) > end)
        return XDP_DROP;
    switch (bpf_ntohs(ports->target)) {
    case 22:
    case 23:
    case 445:
    case 3389:
        return XDP_DROP;
    default:
        return XDP_PASS;
    }
}
