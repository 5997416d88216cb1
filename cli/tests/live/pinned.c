/* Maps of every type that --from-pin reads, with values of every type. */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/in6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "GPL";

enum mode { MODE_OFF, MODE_ON = 5, MODE_MOST = 0xffffffff };
enum level { LOWEST = -2, LOW = -1, HIGH = 3 };
typedef char letters[4];
typedef struct { __u8 small; __s16 wide; } pair;

struct key {
    __be32 address;
    __be16 port;
    __u8 protocol;
    __u8 reserved;
};

struct value {
    __u64 packets;
    __s64 balance;
    __u32 word;
    __s32 signed_word;
    __u16 half;
    __s16 signed_half;
    __u8 byte;
    __s8 signed_byte;
    bool flag;
    char letter;
    enum mode mode;
    enum level level;
    char name[16];
    letters initials;
    __u8 mac[6];
    __u16 ports[3];
    pair pairs[2];
    __u32 table[2][2];
    union { __u32 word; __u8 bytes[4]; } address;
    union { __u32 whole; __u16 part; };
    struct { __u32 three : 3; __u32 seven : 7; __s32 five : 5; };
    __u64 low : 36, high : 28;
    struct in6_addr six;
    __be32 network;
    void *pointer;
    unsigned long long last;
};

struct prefix {
    __u32 length;
    __be32 address;
};

struct area {
    __u32 length;
    __u8 bytes[8];
};

#define MAP(name, kind, entries, of_key, of_value, flags) \
    struct { \
        __uint(type, kind); \
        __uint(max_entries, entries); \
        __type(key, of_key); \
        __type(value, of_value); \
        __uint(map_flags, flags); \
    } name SEC(".maps")

MAP(table, BPF_MAP_TYPE_HASH, 64, struct key, struct value, 0);
MAP(recent, BPF_MAP_TYPE_LRU_HASH, 64, struct key, __s32, 0);
MAP(numbered, BPF_MAP_TYPE_ARRAY, 6, __u32, struct value, 0);
MAP(counts, BPF_MAP_TYPE_PERCPU_ARRAY, 4, __u32, struct value, 0);
MAP(shares, BPF_MAP_TYPE_PERCPU_HASH, 16, __u64, __u32, 0);
MAP(routes, BPF_MAP_TYPE_LPM_TRIE, 32, struct prefix, pair, BPF_F_NO_PREALLOC);
MAP(areas, BPF_MAP_TYPE_LPM_TRIE, 32, struct area, __u64, BPF_F_NO_PREALLOC);

__u64 total = 7;
struct key last = { .port = bpf_htons(80) };
__u64 seen;
static volatile __u16 turns[3] = { 1, 2, 3 };

SEC("xdp")
int everything(struct xdp_md *ctx)
{
    struct key key = last;
    struct prefix prefix = { 32, last.address };
    struct area area = { ctx->data_end - ctx->data, { 1 } };
    __u32 number = 1;
    __u64 share = total;
    void *there[] = {
        bpf_map_lookup_elem(&table, &key), bpf_map_lookup_elem(&recent, &key), bpf_map_lookup_elem(&numbered, &number),
        bpf_map_lookup_elem(&counts, &number), bpf_map_lookup_elem(&shares, &share), bpf_map_lookup_elem(&routes, &prefix),
        bpf_map_lookup_elem(&areas, &area),
    };

    total++;
    seen++;
    turns[1]++;
    return there[0] && there[1] && there[2] && there[3] && there[4] && there[5] && there[6] ? XDP_DROP : XDP_PASS;
}
