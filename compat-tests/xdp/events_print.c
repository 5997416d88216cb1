/* Prints. Exercises: bpf_printk with up to three arguments, with more (bpf_trace_vprintk), numbers
 * of 32 and 64 bits with and without a sign, widths, leading zeros, characters, constant strings,
 * addresses, invalid formats. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "outcomes.h"

char LICENSE[] SEC("license") = "GPL";

SEC("xdp")
int print_few(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    __u32 length = end - data;

    if ((void *)(eth + 1) > end)
        return XDP_DROP;
    bpf_printk("packet of %u bytes, proto %04x", length, bpf_ntohs(eth->h_proto));
    if (length & 1)
        bpf_printk("odd: %d and %c at 100%%", (int)(60 - length), 'a' + (length & 7));
    bpf_printk("nothing to be said");
    return XDP_PASS;
}

SEC("xdp")
int print_many(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    __u64 length = end - data;

    if ((void *)(eth + 1) > end)
        return XDP_DROP;
    bpf_printk("[%5d|%-5d|%05d|%+d|% d] %s", (int)length, (int)length, (int)length, (int)length, (int)length, "done");
    bpf_printk("%llu %lld %llx %lX %8x|%-8x|", length << 33, -(__s64)length << 30, length * 0x9e3779b97f4a7c15ULL,
               (long)length << 44, (__u32)length, (__u32)length);
    return XDP_PASS;
}

SEC("xdp")
int print_addresses(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;

    if ((void *)(eth + 1) > end)
        return XDP_DROP;
    if (eth->h_proto == bpf_htons(ETH_P_IP)) {
        struct iphdr *ip = data + sizeof(*eth);

        if ((void *)(ip + 1) > end)
            return XDP_DROP;
        bpf_printk("from %pI4 to %pi4, %u", &ip->saddr, &ip->daddr, ip->protocol);
    } else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
        struct ipv6hdr *ip = data + sizeof(*eth);
        struct in6_addr to;

        if ((void *)(ip + 1) > end)
            return XDP_DROP;
        to = ip->daddr;
        bpf_printk("from %pI6 to %pi6", &ip->saddr, &to);
    }
    return XDP_PASS;
}

/* An invalid format returns an error and prints nothing. */
SEC("xdp")
int print_wrong(struct xdp_md *ctx)
{
    static const char float_of[] = "%f", too_many[] = "%d %d %d %d", no_end[] = { 'a', 'b' };

    note(0, bpf_trace_printk(float_of, sizeof(float_of), 1));
    note(1, bpf_trace_printk(too_many, sizeof(too_many), 1, 2, 3));
    note(2, bpf_trace_printk(no_end, sizeof(no_end)));
    return XDP_PASS;
}

/* The format on the stack, as before clang supported constant strings. */
SEC("xdp")
int print_from_stack(struct xdp_md *ctx)
{
    char format[] = "of %x bytes, %ld\n";

    bpf_trace_printk(format, sizeof(format), ctx->data_end - ctx->data, -1L);
    return XDP_PASS;
}
