/* Values that are known on one path only and tested after the paths have joined: the kernel's
 * verifier follows each path separately. Exercises: pointers returned by reference unless a
 * function fails, values and pointers valid only if a flag is set, pointers that encode errors, one
 * pointer of two kinds, branches that join at once, one of two callbacks for a loop. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

#define ERR_SHORT (-1)
#define ERR_OTHER (-2)
#define MAX_ERRNO 4095
#define IS_ERR(pointer) ((unsigned long)(pointer) >= (unsigned long)-MAX_ERRNO)

/* Hides a number from clang's optimiser, so that conditions on it are evaluated again. */
#define FORGET(number) asm volatile("" : "+r"(number))

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 8);
    __type(key, __u32);
    __type(value, __u64);
} seen SEC(".maps");

/* Returns the IPv4 header, if there is one. */
static __noinline int ipv4_of(struct xdp_md *ctx, struct iphdr **out)
{
    struct cursor c = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
    struct ethhdr *eth = take_eth(&c);
    struct iphdr *ip;

    if (!eth)
        return ERR_SHORT;
    if (eth->h_proto != bpf_htons(ETH_P_IP))
        return ERR_OTHER;
    ip = take_ipv4(&c);
    if (!ip)
        return ERR_SHORT;
    *out = ip;
    return 0;
}

SEC("xdp")
int paths_out(struct xdp_md *ctx)
{
    struct iphdr *ip;
    int error = ipv4_of(ctx, &ip);

    if (error == ERR_SHORT)
        return XDP_ABORTED;
    if (error)
        return XDP_PASS;
    ip->tos |= 4;
    return ip->ttl < 32 ? XDP_DROP : XDP_TX;
}

/* Returns one of two headers, and which. */
static __noinline int either_of(struct xdp_md *ctx, struct iphdr **v4, struct ipv6hdr **v6)
{
    struct cursor c = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
    struct ethhdr *eth = take_eth(&c);
    struct ipv6hdr *ip6;
    struct iphdr *ip;

    if (!eth)
        return ERR_SHORT;
    if (eth->h_proto == bpf_htons(ETH_P_IP)) {
        ip = take_ipv4(&c);
        if (!ip)
            return ERR_SHORT;
        *v4 = ip;
        return 4;
    }
    if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
        ip6 = take_ipv6(&c);
        if (!ip6)
            return ERR_SHORT;
        *v6 = ip6;
        return 6;
    }
    return ERR_OTHER;
}

SEC("xdp")
int paths_either(struct xdp_md *ctx)
{
    struct iphdr *v4;
    struct ipv6hdr *v6;
    __u32 hops, key;
    __u64 *count;

    switch (either_of(ctx, &v4, &v6)) {
    case 4:
        hops = v4->ttl;
        break;
    case 6:
        hops = v6->hop_limit;
        break;
    case ERR_SHORT:
        return XDP_DROP;
    default:
        return XDP_PASS;
    }
    key = hops / 32;
    count = bpf_map_lookup_elem(&seen, &key);
    if (count)
        __sync_fetch_and_add(count, hops);
    return XDP_TX;
}

/* The value is set with a flag, and used if the flag is set. */
SEC("xdp")
int paths_flag(struct xdp_md *ctx)
{
    struct cursor c = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
    struct ethhdr *eth = take_eth(&c);
    struct iphdr *ip;
    __u32 length;
    int is_ip = 0;

    if (!eth)
        return XDP_DROP;
    if (eth->h_proto == bpf_htons(ETH_P_IP)) {
        ip = take_ipv4(&c);
        if (!ip)
            return XDP_DROP;
        length = bpf_ntohs(ip->tot_len);
        is_ip = 1;
    }
    FORGET(is_ip);
    if (eth->h_dest[0] & 1)
        eth->h_dest[5] = 0xff;
    else
        eth->h_dest[5] = 1;
    if (is_ip == 1) {
        if (ip->ihl > 5 || length > 1000)
            return XDP_PASS;
        ip->id = 0;
        return XDP_TX;
    }
    return XDP_PASS;
}

/* Returns an address or an error code in one register. */
static __noinline void *transport_of(struct xdp_md *ctx)
{
    struct iphdr *ip;
    int error = ipv4_of(ctx, &ip);

    if (error)
        return (void *)(long)error;
    if (ip->protocol != IPPROTO_UDP)
        return NULL;
    if ((void *)(ip + 1) + sizeof(struct udphdr) > (void *)(long)ctx->data_end)
        return (void *)(long)ERR_SHORT;
    return ip + 1;
}

SEC("xdp")
int paths_error(struct xdp_md *ctx)
{
    struct udphdr *udp = transport_of(ctx);

    if (IS_ERR(udp))
        return (long)udp == ERR_SHORT ? XDP_ABORTED : XDP_PASS;
    if (!udp)
        return XDP_DROP;
    udp->check = 0;
    return XDP_TX;
}

/* Sums bytes of the packet or of the program's own memory: the same instructions read both. */
SEC("xdp")
int paths_kinds(struct xdp_md *ctx)
{
    struct cursor c = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
    struct ethhdr *eth = take_eth(&c);
    __u8 own[ETH_ALEN] = { 1, 2, 3, 4, 5, 6 };
    __u8 *from = own;
    __u32 sum = 0, key = 7;
    __u64 *count;

    if (!eth)
        return XDP_DROP;
    if (eth->h_source[0] & 2)
        from = eth->h_source;
    FORGET(from);
    for (int i = 0; i < ETH_ALEN; i++)
        sum += from[i];
    count = bpf_map_lookup_elem(&seen, &key);
    if (!count)
        return XDP_ABORTED;
    __sync_fetch_and_add(count, sum);
    return sum & 1 ? XDP_PASS : XDP_TX;
}

/* A jump to the next instruction, after a pointer was stored at one of two places. */
SEC("xdp")
int paths_together(struct xdp_md *ctx)
{
    struct cursor c = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
    struct ethhdr *eth = take_eth(&c);
    long result, which, other;

    if (!eth)
        return XDP_DROP;
    which = eth->h_dest[0] & 1;
    other = eth->h_dest[1] & 1;
    asm volatile("r2 = r10\n"
                 "r2 += -8\n"
                 "if %[which] == 0 goto 1f\n"
                 "r2 += -8\n"
                 "1:\n"
                 "*(u64 *)(r2 + 0) = %[ctx]\n"
                 "r0 = %[other]\n"
                 "r0 &= 1\n"
                 "if r0 == 0 goto 2f\n"
                 "2:\n"
                 "%[result] = r0\n"
                 : [result] "=r"(result)
                 : [which] "r"(which), [other] "r"(other), [ctx] "r"(ctx)
                 : "r0", "r2", "memory");
    eth->h_source[0] = result;
    return XDP_TX;
}

struct tally {
    __u32 sum;
    __u32 rounds;
};

static long add_round(__u32 round, struct tally *tally)
{
    tally->sum += round;
    tally->rounds++;
    return 0;
}

static long add_much(__u32 round, struct tally *tally)
{
    tally->sum += 100;
    tally->rounds++;
    return tally->sum > 250;
}

/* One of two callbacks for a loop's iterations. */
SEC("xdp")
int paths_function(struct xdp_md *ctx)
{
    struct cursor c = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
    struct ethhdr *eth = take_eth(&c);
    long (*round)(__u32, struct tally *) = add_round;
    struct tally tally = {};

    if (!eth)
        return XDP_DROP;
    if (eth->h_dest[0] & 1)
        round = add_much;
    FORGET(round);
    bpf_loop(eth->h_dest[1] & 7, round, &tally, 0);
    eth->h_source[0] = tally.sum;
    eth->h_source[1] = tally.rounds;
    return XDP_TX;
}
