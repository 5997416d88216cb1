/* Random numbers, in programs whose verdicts and maps do not depend on their values. Exercises:
 * bpf_get_prandom_u32, its remainder, several per packet, one in a loop. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "GPL";

#define BACKENDS 4
#define RATE 128

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, BACKENDS);
    __type(key, __u32);
    __type(value, __u32);
} backends SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 2);
    __type(key, __u32);
    __type(value, __u64);
} counts SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 1 << 16);
} drawn SEC(".maps");

static __always_inline void count(__u32 slot)
{
    __u64 *there = bpf_map_lookup_elem(&counts, &slot);

    if (there)
        *there += 1;
}

/* Takes a random backend; all of them have the same value. */
SEC("xdp")
int random_backend(struct xdp_md *ctx)
{
    __u32 key = bpf_get_prandom_u32() % BACKENDS;
    __u32 *backend = bpf_map_lookup_elem(&backends, &key);

    if (!backend || *backend)
        return XDP_DROP;
    count(0);
    return XDP_TX;
}

/* Reports one packet in 128, with its number. */
SEC("xdp")
int random_sampler(struct xdp_md *ctx)
{
    __u32 number = bpf_get_prandom_u32();

    count(0);
    if (number % RATE == 0)
        bpf_ringbuf_output(&drawn, &number, sizeof(number), 0);
    return XDP_PASS;
}

/* Reports four numbers per packet. */
SEC("xdp")
int random_several(struct xdp_md *ctx)
{
    __u32 numbers[4];

    for (int i = 0; i < 3; i++)
        numbers[i] = bpf_get_prandom_u32();
    numbers[3] = bpf_get_prandom_u32();
    if (numbers[0] == numbers[1] && numbers[1] == numbers[2])
        count(1);
    bpf_ringbuf_output(&drawn, numbers, sizeof(numbers), 0);
    return XDP_PASS;
}
