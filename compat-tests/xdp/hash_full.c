/* Full hash maps: never more than `max_entries` keys, and room again after a deletion. Exercises:
 * -E2BIG with every flag, of hashes and per-CPU hashes, updates of existing keys in a full map,
 * flags that depend on the packet. */
#include "parse.h"
#include "answers.h"

char LICENSE[] SEC("license") = "GPL";

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 5);
    __type(key, __u16);
    __type(value, __u64);
} five SEC(".maps");

struct wide {
    __u8 bytes[22];
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_HASH);
    __uint(max_entries, 20);
    __type(key, struct wide);
    __type(value, __u32);
} twenty SEC(".maps");

SEC("xdp")
int full_five(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    __u64 value = ctx->data_end - ctx->data;
    long answer;
    __u16 key;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    key = eth->h_source[5] & 15;
    if (value % 7 == 3) {
        answer = bpf_map_delete_elem(&five, &key);
        note(answer);
        return answer ? XDP_DROP : XDP_TX;
    }
    switch (value & 3) {
    case 0:
        answer = bpf_map_update_elem(&five, &key, &value, BPF_NOEXIST);
        break;
    case 1:
        answer = bpf_map_update_elem(&five, &key, &value, BPF_EXIST);
        break;
    case 2:
        answer = bpf_map_update_elem(&five, &key, &value, BPF_ANY);
        break;
    default:
        answer = bpf_map_update_elem(&five, &key, &value, eth->h_source[4] & 3);
    }
    note(answer);
    return answer ? XDP_ABORTED : XDP_PASS;
}

SEC("xdp")
int full_twenty(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    struct wide key = {};
    __u32 one = 1, *count;
    long answer;

    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    __builtin_memcpy(key.bytes + 3, eth->h_source, 6);
    count = bpf_map_lookup_elem(&twenty, &key);
    if (count) {
        *count += 1;
        if (*count == 7)
            note(bpf_map_delete_elem(&twenty, &key));
        return XDP_TX;
    }
    answer = bpf_map_update_elem(&twenty, &key, &one, BPF_ANY);
    note(answer);
    return answer ? XDP_DROP : XDP_PASS;
}
