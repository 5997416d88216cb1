/* Reads and writes values at every width and odd offsets: a union of 1, 2, 4 and 8 bytes,
 * consecutive fields, whole structs copied, a byte table indexed by the packet. Exercises: access
 * widths, sign extension. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "GPL";

union cell {
    __u8 bytes[16];
    __u16 halves[8];
    __u32 words[4];
    __u64 longs[2];
    __s8 small;
    __s16 medium;
    __s32 large;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 32);
    __type(key, __u32);
    __type(value, union cell);
} cells SEC(".maps");

struct record {
    __u8 first;
    __u16 second;
    __u32 third;
    __u64 fourth;
    __u8 mac[ETH_ALEN];
    __s16 balance;
} __attribute__((packed));

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 64);
    __type(key, __u8);
    __type(value, struct record);
} records SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u8[256]);
} classes SEC(".maps");

SEC("xdp")
int widths_union(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    union cell *cell;
    __s64 sum;
    __u32 key;

    if (data + sizeof(*eth) > end)
        return XDP_DROP;
    key = eth->h_source[5] & 31;
    cell = bpf_map_lookup_elem(&cells, &key);
    if (!cell)
        return XDP_ABORTED;

    /* Each of these depends on the packet alone. */
    cell->bytes[0] = eth->h_source[5] ^ 0x80;
    cell->bytes[1] = eth->h_source[5] << 3;
    cell->halves[1] = key * 0x1111;
    cell->words[1] = key * 0x01010101;
    cell->longs[1] = (__u64)key << 40 | key;
    cell->bytes[13] = 0xff;

    sum = cell->small;
    sum += cell->medium;
    sum += cell->large;
    sum += cell->halves[5];
    sum += cell->words[3];
    sum += cell->longs[1] >> 33;
    if (sum < 0)
        return XDP_TX;
    return sum & 1 ? XDP_DROP : XDP_PASS;
}

SEC("xdp")
int widths_record(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    struct record *record, fresh = {};
    struct ethhdr *eth = data;
    __u8 key;

    if (data + sizeof(*eth) > end)
        return XDP_DROP;
    key = eth->h_dest[5] & 63;
    record = bpf_map_lookup_elem(&records, &key);
    if (!record) {
        fresh.first = key;
        fresh.second = 0x0102;
        fresh.third = 0x03040506;
        fresh.fourth = 0x0708090a0b0c0d0eULL;
        fresh.balance = -1;
        __builtin_memcpy(fresh.mac, eth->h_dest, ETH_ALEN);
        bpf_map_update_elem(&records, &key, &fresh, BPF_ANY);
        return XDP_DROP;
    }
    record->second += 0x0101;
    record->third += end - data;
    record->fourth += 1ULL << 32;
    record->first++;
    record->balance -= 1;
    return record->balance < 0 ? XDP_TX : XDP_PASS;
}

SEC("xdp")
int widths_table(struct xdp_md *ctx)
{
    __u8 *byte = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    __u8(*table)[256];
    __u32 zero = 0;
    __u32 score = 0;

    table = bpf_map_lookup_elem(&classes, &zero);
    if (!table)
        return XDP_ABORTED;
    if ((void *)(byte + ETH_HLEN) > end)
        return XDP_DROP;
#pragma unroll
    for (int i = 0; i < ETH_HLEN; i++)
        score += (*table)[byte[i]];
    return score % 3 + 1;
}
