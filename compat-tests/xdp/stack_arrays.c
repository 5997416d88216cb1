/* Arrays on the stack, indexed by the packet or filled in loops. Exercises: bytes tested by a
 * branch after the stack was indexed, halves of 64-bit constants, unions; loops with constant
 * bounds whose counters go up and down by one and more, with pointers kept on the stack; counters
 * and pointers that move together. */
#include "parse.h"

char LICENSE[] SEC("license") = "GPL";

#define NAME 64

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 8);
    __type(key, __u32);
    __type(value, __u64[4]);
} sums SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 8192);
    __uint(key_size, NAME);
    __type(value, __u64);
} names SEC(".maps");

/* Hides a value's origin from clang's optimiser. */
#define FORGET(value) asm volatile("" : "+r"(value))

static __always_inline __u64 *sums_of(__u32 key)
{
    return bpf_map_lookup_elem(&sums, &key);
}

/* A table with some known entries, one of which is tested before the table is indexed. */
SEC("xdp")
int stack_table(struct xdp_md *ctx)
{
    struct cursor c = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
    struct ethhdr *eth = take_eth(&c);
    volatile __u8 marks[16];

    if (!eth)
        return XDP_DROP;
    marks[5] = eth->h_dest[4];
    marks[6] = eth->h_dest[5];
    marks[7] = 1;
    marks[4] = 5;
    if (marks[4] != 5)
        eth->h_source[1] = 1;
    eth->h_source[0] = marks[4 + (eth->h_dest[0] & 3)];
    return XDP_TX;
}

/* The same with the upper half of a constant. */
SEC("xdp")
int stack_halves(struct xdp_md *ctx)
{
    struct cursor c = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
    struct ethhdr *eth = take_eth(&c);
    volatile union {
        __u64 whole[2];
        __u32 halves[4];
        __u8 bytes[16];
    } mixed;

    if (!eth)
        return XDP_DROP;
    mixed.whole[0] = 5;
    mixed.whole[1] = *(__u32 *)eth->h_dest;
    if (mixed.halves[1])
        eth->h_source[1] = 1;
    eth->h_source[0] = mixed.bytes[eth->h_dest[0] & 15];
    return XDP_TX;
}

/* Counts a name, and known ones; returns whether it is known. */
static __always_inline int counts(const char *key, __u64 *known)
{
    __u64 one = 1, *count = bpf_map_lookup_elem(&names, key);

    if (count) {
        __sync_fetch_and_add(count, 1);
        __sync_fetch_and_add(known, 1);
    } else {
        bpf_map_update_elem(&names, key, &one, BPF_ANY);
    }
    return !!count;
}

/* Uses a name in lower case as a key, with three value pointers and two packet pointers on the
 * stack. */
SEC("xdp")
int stack_name(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    __u64 *all = sums_of(0), *known = sums_of(1), *bytes = sums_of(2);
    char key[NAME];
    int seen;

    if (data + ETH_HLEN + NAME > end)
        return XDP_DROP;
    if (!all || !known || !bytes)
        return XDP_ABORTED;
    for (int i = 0; i < NAME; i++) {
        char c = *(char *)(data + ETH_HLEN + i);

        key[i] = c >= 'A' && c <= 'Z' ? c + 32 : c;
    }
    seen = counts(key, known);
    __sync_fetch_and_add(all, 1);
    __sync_fetch_and_add(bytes, end - data);
    return seen ? XDP_PASS : XDP_TX;
}

/* The same, with a test for each byte. */
SEC("xdp")
int stack_name_to_the_end(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    __u64 *all = sums_of(0), *known = sums_of(1), *bytes = sums_of(2);
    char key[NAME] = {};
    int seen;

    if (!all || !known || !bytes)
        return XDP_ABORTED;
    for (int i = 0; i < NAME; i++) {
        if (data + ETH_HLEN + i + 1 > end)
            break;
        key[i] = *(char *)(data + ETH_HLEN + i) | 32;
    }
    seen = counts(key, known);
    __sync_fetch_and_add(all, 1);
    __sync_fetch_and_add(bytes, end - data);
    return seen ? XDP_PASS : XDP_TX;
}

struct triple {
    __u32 a, b, c;
};

/* Arrays of each width over the packet's first 48 bytes, filled upwards and downwards; the packet
 * selects the part that counts. Intermediate values are kept on the stack. */
#define FILLS(name, type, count, first, last, step)                                                          \
    SEC("xdp")                                                                                               \
    int name(struct xdp_md *ctx)                                                                             \
    {                                                                                                        \
        void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;                            \
        __u64 *volatile kept = sums_of(sizeof(type) / 2);                                                    \
        void *volatile packet = data;                                                                        \
        type values[count];                                                                                  \
        struct ethhdr *eth;                                                                                  \
        __u64 *sum = kept;                                                                                   \
                                                                                                             \
        if (data + 48 > end)                                                                                 \
            return XDP_DROP;                                                                                 \
        if (!sum)                                                                                            \
            return XDP_ABORTED;                                                                              \
        kept = sum;                                                                                          \
        _Pragma("clang loop unroll(disable)") for (int i = first; i != last; i += step)                      \
        {                                                                                                    \
            *(volatile type *)&values[i] = ((type *)data)[i];                                                \
        }                                                                                                    \
        eth = packet;                                                                                        \
        __sync_fetch_and_add(kept, *(__u8 *)&values[eth->h_dest[0] & (count - 1)]);                          \
        eth->h_source[0] = *(__u8 *)&values[eth->h_dest[1] & (count - 1)];                                   \
        return XDP_TX;                                                                                       \
    }

FILLS(stack_bytes, __u8, 32, 0, 32, 1)
FILLS(stack_halves_up, __u16, 16, 0, 16, 1)
FILLS(stack_words, __u32, 8, 0, 8, 1)
FILLS(stack_words_down, __u32, 8, 7, -1, -1)
FILLS(stack_quads, __u64, 4, 0, 4, 1)
FILLS(stack_triples, struct triple, 4, 0, 4, 1)

/* A pointer that advances with a counter; only the counter is compared. */
SEC("xdp")
int stack_moving(struct xdp_md *ctx)
{
    __u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    __u64 *volatile kept = sums_of(3);
    __u64 *sum = kept;
    __u8 *volatile packet = data;
    __u8 bytes[24], *to = bytes;

    if (data + sizeof(bytes) > end)
        return XDP_DROP;
    if (!sum)
        return XDP_ABORTED;
    kept = sum;
#pragma clang loop unroll(disable)
    for (int i = 0; i < sizeof(bytes); i++) {
        FORGET(to);
        *to++ = data[i] ^ 0x55;
    }
    __sync_fetch_and_add(kept, bytes[packet[0] & 15]);
    packet[6] = bytes[packet[1] & 15];
    return XDP_TX;
}
