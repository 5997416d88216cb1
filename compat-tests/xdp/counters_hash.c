/* Counters of every width in hash and per-CPU hash maps, inserted when first seen. Exercises:
 * lookup, update with BPF_NOEXIST and BPF_ANY on a miss, add on a hit, values of 1, 2, 4 and 8
 * bytes. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 512);
    __type(key, __u8);
    __type(value, __u8);
} protocols8 SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 70000);
    __type(key, __u16);
    __type(value, __u16);
} types16 SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 4096);
    __type(key, __u32);
    __type(value, __u32);
} sources32 SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 4096);
    __type(key, __u32);
    __type(value, __u64);
} sources64 SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_HASH);
    __uint(max_entries, 4096);
    __type(key, __u32);
    __type(value, __u32);
} lengths32 SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_HASH);
    __uint(max_entries, 512);
    __type(key, __u8);
    __type(value, __u64);
} protocols64 SEC(".maps");

SEC("xdp")
int count_hash(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    __u8 *count8, one8 = 1, protocol;
    __u16 *count16, one16 = 1, type;
    __u32 *count32, one32 = 1, source;
    __u64 *count64, one64 = 1;
    struct ethhdr *eth;
    struct iphdr *ip;

    type = take_link_layer(&c, &eth);
    count16 = bpf_map_lookup_elem(&types16, &type);
    if (count16)
        *count16 += 1;
    else
        bpf_map_update_elem(&types16, &type, &one16, BPF_ANY);
    if (type != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    ip = take_ipv4(&c);
    if (!ip)
        return XDP_DROP;

    protocol = ip->protocol;
    count8 = bpf_map_lookup_elem(&protocols8, &protocol);
    if (!count8)
        bpf_map_update_elem(&protocols8, &protocol, &one8, BPF_NOEXIST);
    else
        (*count8)++;

    source = bpf_ntohl(ip->saddr) & 0xff;
    count32 = bpf_map_lookup_elem(&sources32, &source);
    if (count32)
        __sync_fetch_and_add(count32, 1);
    else
        bpf_map_update_elem(&sources32, &source, &one32, BPF_NOEXIST);
    count64 = bpf_map_lookup_elem(&sources64, &source);
    if (count64)
        __sync_fetch_and_add(count64, one64);
    else
        bpf_map_update_elem(&sources64, &source, &one64, BPF_ANY);
    return XDP_TX;
}

SEC("xdp")
int count_percpu_hash(struct xdp_md *ctx)
{
    struct cursor c = cursor_of(ctx);
    __u32 *count32, first32, bucket = (ctx->data_end - ctx->data) / 64;
    __u64 *count64, first64;
    struct ipv6hdr *ip6;
    struct ethhdr *eth;
    __u8 protocol;

    first32 = 1;
    count32 = bpf_map_lookup_elem(&lengths32, &bucket);
    if (!count32)
        bpf_map_update_elem(&lengths32, &bucket, &first32, BPF_NOEXIST);
    else
        *count32 += first32;

    if (take_link_layer(&c, &eth) != bpf_htons(ETH_P_IPV6))
        return XDP_PASS;
    ip6 = take_ipv6(&c);
    if (!ip6)
        return XDP_DROP;
    protocol = ip6->nexthdr;
    first64 = bpf_ntohs(ip6->payload_len);
    count64 = bpf_map_lookup_elem(&protocols64, &protocol);
    if (count64)
        *count64 += first64;
    else
        bpf_map_update_elem(&protocols64, &protocol, &first64, BPF_ANY);
    return XDP_TX;
}
