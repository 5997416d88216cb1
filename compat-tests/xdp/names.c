/* Maps whose names are prefixes or suffixes of others, or words with a meaning in Portcullis's
 * generated code. Exercises: names of maps, counters of 8 and 16 bits, atomic operations. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

#define MAP(name, kind, what)                                                                                \
    struct {                                                                                                 \
        __uint(type, BPF_MAP_TYPE_##kind);                                                                   \
        __uint(max_entries, 300);                                                                            \
        __type(key, __u32);                                                                                  \
        __type(value, what);                                                                                 \
    } name SEC(".maps")

MAP(map_x, ARRAY, __u64);
MAP(x_or, ARRAY, __u64);
MAP(x_word, ARRAY, __u16);
MAP(do_x, HASH, __u16);
MAP(FLOW_KEYS, HASH, __u16);
MAP(MAX_ENTRIES, HASH, __u8);
MAP(ADDED, LRU_HASH, __u16);
MAP(NAME, HASH, __u8);
MAP(GIVEN_CHANGED, ARRAY, __u8);

#define COUNT(map, type, key)                                                                                \
    do {                                                                                                     \
        type one = 1, *count = bpf_map_lookup_elem(&map, &key);                                              \
                                                                                                             \
        if (count)                                                                                           \
            *count += 1;                                                                                     \
        else                                                                                                 \
            bpf_map_update_elem(&map, &key, &one, BPF_ANY);                                                  \
    } while (0)

SEC("xdp")
int names(struct xdp_md *ctx)
{
    __u8 *bytes = (void *)(long)ctx->data;
    __u32 key;
    __u64 *word;

    if ((void *)(bytes + 14) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    key = bytes[11];
    word = bpf_map_lookup_elem(&map_x, &key);
    if (word)
        __sync_fetch_and_or(word, 1ull << (bytes[10] & 63));
    word = bpf_map_lookup_elem(&x_or, &key);
    if (word)
        __sync_fetch_and_xor(word, bytes[9]);
    COUNT(x_word, __u16, key);
    COUNT(do_x, __u16, key);
    COUNT(FLOW_KEYS, __u16, key);
    COUNT(MAX_ENTRIES, __u8, key);
    COUNT(ADDED, __u16, key);
    COUNT(NAME, __u8, key);
    COUNT(GIVEN_CHANGED, __u8, key);
    return key & 1 ? XDP_PASS : XDP_TX;
}
