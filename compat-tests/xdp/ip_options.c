/* Walks IPv4 options: drops source routes, counts each kind, overwrites record routes with
 * no-operations. Exercises: bounded loop over options with variable steps, while, writes at
 * variable offsets. */
#include "parse.h"
#include "checksum.h"

char LICENSE[] SEC("license") = "GPL";

#define MAX_OPTIONS 12

enum option {
    OPTION_END = 0,
    OPTION_NOP = 1,
    OPTION_RECORD_ROUTE = 7,
    OPTION_TIMESTAMP = 68,
    OPTION_LOOSE_SOURCE_ROUTE = 131,
    OPTION_STRICT_SOURCE_ROUTE = 137,
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 256);
    __type(key, __u32);
    __type(value, __u16);
} option_counts SEC(".maps");

static __always_inline void count_option(__u8 kind)
{
    __u32 key = kind;
    __u16 *count = bpf_map_lookup_elem(&option_counts, &key);

    if (count)
        *count += 1;
}

SEC("xdp")
int options_refuse_source_route(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    __u32 offset = 0, length;
    struct ethhdr *eth;
    struct iphdr *ip;
    int verdict = XDP_PASS;

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    ip = take_ipv4(&c);
    if (!ip)
        return XDP_DROP;

    length = ip->ihl * 4 - sizeof(*ip);
    for (int i = 0; i < MAX_OPTIONS; i++) {
        __u8 *option = (__u8 *)(ip + 1) + offset;
        __u8 kind;

        if (offset >= length || option + 1 > (__u8 *)c.end)
            break;
        kind = option[0];
        if (kind == OPTION_END)
            break;
        count_option(kind);
        if (kind == OPTION_NOP) {
            offset++;
            continue;
        }
        if (kind == OPTION_LOOSE_SOURCE_ROUTE || kind == OPTION_STRICT_SOURCE_ROUTE) {
            verdict = XDP_DROP;
            break;
        }
        if (option + 2 > (__u8 *)c.end)
            break;
        if (option[1] < 2) {
            verdict = XDP_ABORTED;
            break;
        }
        offset += option[1];
    }
    return verdict;
}

SEC("xdp")
int options_blank(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct iphdr *ip = data + sizeof(*eth);
    const __u16 blank = OPTION_NOP << 8 | OPTION_NOP;
    __u32 header, offset = sizeof(*ip);
    __u16 changed = 0;

    if ((void *)(ip + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP) || ip->version != 4)
        return XDP_PASS;
    header = ip->ihl * 4;
    while (offset < header) {
        __u16 *word = (void *)ip + offset;

        if ((void *)(word + 1) > end)
            return XDP_DROP;
        changed |= *word ^ blank;
        csum_replace2(&ip->check, *word, blank);
        *word = blank;
        offset += sizeof(*word);
    }
    return changed ? XDP_TX : XDP_PASS;
}
