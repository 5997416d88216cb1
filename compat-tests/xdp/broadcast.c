/* Packets to all of a map's devices: of an array and of a hash, by flags of which some are known only when the packet is there,
 * some are wrong, and some do nothing by themselves. */
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

/* What is for everybody goes to all others, and what is for one goes back. */
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

/* Flags out of the packet. */
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

/* To all, to one, and by a flag that bpf_redirect() does not have. */
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

/* Only with what excludes the port where it came in, which says nothing by itself. */
SEC("xdp")
int without(struct xdp_md *ctx)
{
    return bpf_redirect_map(&array, 1, BPF_F_EXCLUDE_INGRESS | XDP_PASS);
}
