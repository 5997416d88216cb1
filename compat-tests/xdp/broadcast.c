/* Redirects packets to all devices of an array or hash map. Exercises: BPF_F_BROADCAST and
 * BPF_F_EXCLUDE_INGRESS, with flags that depend on the packet, are invalid, or have no effect by
 * themselves. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "GPL";

struct {
    __uint(type, BPF_MAP_TYPE_DEVMAP);
    __uint(max_entries, 8);
    __type(key, __u32);
    __type(value, __u32);
} array SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
    __uint(max_entries, 8);
    __type(key, __u32);
    __type(value, struct bpf_devmap_val);
} hash SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, 8);
    __type(key, __u32);
    __type(value, __u32);
} sockets SEC(".maps");

/* Group addresses go to all other devices, unicast goes back. */
SEC("xdp")
int hub(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    if (eth->h_dest[0] & 1)
        return bpf_redirect_map(&array, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS);
    return XDP_TX;
}

/* Flags from the packet. */
SEC("xdp")
int by_packet(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    __u64 flags;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    flags = eth->h_source[5] & 63;
    if (eth->h_source[4] & 1)
        flags |= 1ULL << 40;
    if (eth->h_dest[5] & 1)
        return bpf_redirect_map(&array, eth->h_dest[4] & 15, flags);
    if (eth->h_dest[5] & 2)
        return bpf_redirect_map(&sockets, eth->h_dest[4] & 15, flags);
    return bpf_redirect_map(&hash, eth->h_dest[4] & 15, flags);
}

/* To all, to one, and with a flag that bpf_redirect() does not support. */
SEC("xdp")
int one_or_all(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    if (eth->h_proto == bpf_htons(ETH_P_ARP))
        return bpf_redirect_map(&hash, 0, BPF_F_BROADCAST);
    if (eth->h_dest[0] & 1)
        return bpf_redirect(7, 0);
    return bpf_redirect(9, BPF_F_BROADCAST);
}

/* Only BPF_F_EXCLUDE_INGRESS, which has no effect without BPF_F_BROADCAST. */
SEC("xdp")
int without(struct xdp_md *ctx)
{
    return bpf_redirect_map(&array, 1, BPF_F_EXCLUDE_INGRESS | XDP_PASS);
}
