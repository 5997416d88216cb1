// 1. // OpenCL C 1.2, from token_bucket.wgsl
// 2. typedef struct __attribute__, shared.cl 1
// 3. typedef struct
// 4. typedef struct
// 5. __constant uint ETH_P_8021Q = 33024u;
// 6. static uint load_be16, shared.cl 5
// 7. static uint load_be16_far, shared.cl 10
// 8. static uint load_u8, shared.cl 4
// 9. static uint load_be32, shared.cl 14
// 10. static uint pkt_len, shared.cl 3
// 11. static uint load_be32_far, shared.cl 12
// 12. static uint pc_min_u32, shared.cl 13
// 13. static void pc_set_component_u32x4
// 14. static uint pkt_time_ms
// 15. static int pc_max_i32
// 16. static ulong pc_min_u64
// 17. static Source source_of
// 18. static uint n_pc_in_limits_hash
// 19. static uint limits_find
// 20. static uint n_pc_in_buckets_hash
// 21. static bool n_pc_in_buckets_claim
// 22. static uint buckets_insert
// 23. static uint n_pc_in_limits_word
// 24. static uint limits_read
// 25. static bool map_is_new
// 26. static uint n_pc_in_buckets_word
// 27. static uint buckets_read
// 28. static void buckets_write
// 29. static uint xdp_filter
// 30. __kernel void xdp_kernel

// OpenCL C 1.2, from token_bucket.wgsl

typedef struct {
    bool is_ip;
    uint ip;
    uint4 address;
} Source;
typedef struct {
    uint old_value;
    bool exchanged;
} atomic_compare_exchange_resultu3cUintu2c4u3e;

typedef struct {
    __global const uchar *bytes;
    __global const uint *metadata;
    uint length;
    __global const uint *limits;
    __global volatile uint *buckets;
} pc_packet;

__constant uint ETH_P_8021Q = 33024u;
__constant uint ETH_P_8021AD = 34984u;
__constant uint ETH_P_IP = 2048u;
__constant uint ETH_P_IPV6 = 34525u;
__constant uint MAP_NONE = 4294967295u;
__constant uint MAP_FULL = 4294967294u;
__constant uint XDP_PASS = 2u;
__constant uint BURST = 1u;
__constant uint MOST = 4294967u;
__constant uint TOKEN = 1000u;
__constant uint LAST = 1u;
__constant uint RATE = 0u;
__constant uint THOUSANDTHS = 0u;
__constant uint XDP_DROP = 1u;

static void pc_set_component_u32x4(uint4 * v, uint i, uint value)
{
    if (i == 0u) { v->x = value; return; }
    if (i == 1u) { v->y = value; return; }
    if (i == 2u) { v->z = value; return; }
    v->w = value;
}

static uint pkt_time_ms(const pc_packet *pkt)
{
    return pkt->metadata[4];
}

static int pc_max_i32(int a, int b)
{
    return a > b ? a : b;
}

static ulong pc_min_u64(ulong a, ulong b)
{
    return a < b ? a : b;
}

static Source source_of(pc_packet *pkt)
{
    Source source = (Source){false};
    uint i = 0u;
    uint outer = load_be16(pkt, 12u);
    uint ip = outer == ETH_P_8021Q || outer == ETH_P_8021AD ? 18u : 14u;
    uint ethertype = load_be16_far(pkt, ip - 2u);
    uint version_ihl = load_u8(pkt, ip);
    source = (Source){true, ip, (uint4)(0u, 0u, 65535u, load_be32(pkt, ip + 12u))};
    if (ethertype == ETH_P_IP && version_ihl - 69u <= 10u && pkt_len(pkt) >= ip + 20u) {
        return source;
    }
    for (; i < 4u; i = i + 1u) {
        pc_set_component_u32x4(&source.address, pc_min_u32(i, 3u), load_be32_far(pkt, ip + 8u + i * 4u));
    }
    source.is_ip = ethertype == ETH_P_IPV6 && (version_ihl >> 4u) == 6u && pkt_len(pkt) >= ip + 40u;
    return source;
}

static uint n_pc_in_limits_hash(uint4 key)
{
    uint h = 0u;
    h = (key.x * 2654435761u) ^ (((key.y * 3576916127u) << 11u) | ((key.y * 3576916127u) >> 21u)) ^ (((key.z * 3310886213u) << 22u) | ((key.z * 3310886213u) >> 10u)) ^ (((key.w * 145206951u) << 1u) | ((key.w * 145206951u) >> 31u));
    h = (h ^ (h >> 15u)) * 739982445u;
    return h ^ (h >> 13u);
}

static uint limits_find(pc_packet *pkt, uint4 key)
{
    uint place = 0u;
    uint step = 1u;
    uint s0 = (key.x << 0u) | 0x80000000u;
    uint s1 = (key.x >> 31u) | (key.y << 1u) | 0x80000000u;
    uint s2 = (key.y >> 30u) | (key.z << 2u) | 0x80000000u;
    uint s3 = (key.z >> 29u) | (key.w << 3u) | 0x80000000u;
    uint s4 = (key.w >> 28u) | 0x80000000u;
    place = n_pc_in_limits_hash(key) & 0x1ffffu;
    for (; step <= 128u; step = step + 1u) {
        uint at = 16u + place * 8u;
        uint first = pkt->limits[at];
        if (first == 0u) {
            return MAP_NONE;
        }
        if (first == s0) {
            uint others = (pkt->limits[at + 1u] ^ s1) | (pkt->limits[at + 2u] ^ s2) | (pkt->limits[at + 3u] ^ s3) | (pkt->limits[at + 4u] ^ s4);
            uint state = pkt->limits[at + 5u];
            if (others == 0u) {
                if (state != 1u) {
                    return MAP_NONE;
                }
                return place;
            }
        }
        place = (place + step) & 0x1ffffu;
    }
    return MAP_NONE;
}

static uint n_pc_in_buckets_hash(uint4 key)
{
    uint h = 0u;
    h = (key.x * 2654435761u) ^ (((key.y * 3576916127u) << 11u) | ((key.y * 3576916127u) >> 21u)) ^ (((key.z * 3310886213u) << 22u) | ((key.z * 3310886213u) >> 10u)) ^ (((key.w * 145206951u) << 1u) | ((key.w * 145206951u) >> 31u));
    h = (h ^ (h >> 15u)) * 739982445u;
    return h ^ (h >> 13u);
}

static bool n_pc_in_buckets_claim(pc_packet *pkt, uint at, uint word)
{
    uint was = 0u;
    was = pkt->buckets[at];
    for (;;) {
        if (was != 0u) {
            return was == word;
        }
        uint now = atomic_cmpxchg(&pkt->buckets[at], 0u, word);
        atomic_compare_exchange_resultu3cUintu2c4u3e now_ = (atomic_compare_exchange_resultu3cUintu2c4u3e){now, now == 0u};
        if (now_.exchanged) {
            return true;
        }
        was = now_.old_value;
    }
    return false;
}

static uint buckets_insert(pc_packet *pkt, uint4 key)
{
    uint place = 0u;
    uint step = 1u;
    uint first = 0u;
    bool v_ = false;
    bool v_2 = false;
    bool v_3 = false;
    bool v_4 = false;
    uint s0 = (key.x << 0u) | 0x80000000u;
    uint s1 = (key.x >> 31u) | (key.y << 1u) | 0x80000000u;
    uint s2 = (key.y >> 30u) | (key.z << 2u) | 0x80000000u;
    uint s3 = (key.z >> 29u) | (key.w << 3u) | 0x80000000u;
    uint s4 = (key.w >> 28u) | 0x80000000u;
    place = n_pc_in_buckets_hash(key) & 0x3ffffu;
    for (; step <= 128u; step = step + 1u) {
        uint at = 16u + place * 9u;
        first = pkt->buckets[at];
        if (first == s0) {
            uint others = (pkt->buckets[at + 1u] ^ s1) | (pkt->buckets[at + 2u] ^ s2) | (pkt->buckets[at + 3u] ^ s3) | (pkt->buckets[at + 4u] ^ s4);
            uint state = pkt->buckets[at + 5u];
            uint now = pkt->buckets[2];
            uint stamp = pkt->buckets[at + 6u];
            if (others == 0u && state == 1u) {
                if (stamp != now) {
                    pkt->buckets[at + 6u] = now;
                }
                return place;
            }
        }
        if (first == 0u) {
            if (pkt->buckets[0] >= 183500u) {
                return MAP_FULL;
            }
            for (;;) {
                uint now = atomic_cmpxchg(&pkt->buckets[at], 0u, s0);
                atomic_compare_exchange_resultu3cUintu2c4u3e now_ = (atomic_compare_exchange_resultu3cUintu2c4u3e){now, now == 0u};
                first = now_.old_value;
                if (now_.exchanged) {
                    atomic_add(&pkt->buckets[0], 1u);
                    first = s0;
                }
                if (first != 0u) {
                    break;
                }
            }
        }
        if (first == s0) {
            bool t1 = n_pc_in_buckets_claim(pkt, at + 1u, s1);
            v_ = t1;
        } else {
            v_ = false;
        }
        if (v_) {
            bool t2 = n_pc_in_buckets_claim(pkt, at + 2u, s2);
            v_2 = t2;
        } else {
            v_2 = false;
        }
        if (v_2) {
            bool t3 = n_pc_in_buckets_claim(pkt, at + 3u, s3);
            v_3 = t3;
        } else {
            v_3 = false;
        }
        if (v_3) {
            bool t4 = n_pc_in_buckets_claim(pkt, at + 4u, s4);
            v_4 = t4;
        } else {
            v_4 = false;
        }
        if (v_4) {
            uint was = atomic_xchg(&pkt->buckets[at + 5u], 1u);
            if (was == 2u) {
                atomic_add(&pkt->buckets[1], 4294967295u);
            }
            uint now = pkt->buckets[2];
            uint stamp = pkt->buckets[at + 6u];
            if (stamp != now) {
                pkt->buckets[at + 6u] = now;
            }
            return place | (was == 1u ? 0u : 1073741824u);
        }
        place = (place + step) & 0x3ffffu;
    }
    return MAP_FULL;
}

static uint n_pc_in_limits_word(uint entry, uint word)
{
    uint place = entry & 0x3fffffffu;
    if (entry >= 2147483648u || place >= 131072u || word >= 2u) {
        return 0u;
    }
    return 16u + place * 8u + 6u + word;
}

static uint limits_read(pc_packet *pkt, uint entry, uint word)
{
    uint at = n_pc_in_limits_word(entry, word);
    if (at == 0u) {
        return 0u;
    }
    return pkt->limits[at];
}

static bool map_is_new(uint entry)
{
    return entry < 2147483648u && (entry & 0x40000000u) != 0u;
}

static uint n_pc_in_buckets_word(uint entry, uint word)
{
    uint place = entry & 0x3fffffffu;
    if (entry >= 2147483648u || place >= 262144u || word >= 2u) {
        return 0u;
    }
    return 16u + place * 9u + 7u + word;
}

static uint buckets_read(pc_packet *pkt, uint entry, uint word)
{
    uint at = n_pc_in_buckets_word(entry, word);
    if (at == 0u) {
        return 0u;
    }
    return pkt->buckets[at];
}

static void buckets_write(pc_packet *pkt, uint entry, uint word, uint value)
{
    uint at = n_pc_in_buckets_word(entry, word);
    if (at != 0u) {
        pkt->buckets[at] = value;
        return;
    } else {
        return;
    }
}

static uint xdp_filter(pc_packet *pkt)
{
    uint limit = 0u;
    uint there = 0u;
    uint last = 0u;
    Source source = source_of(pkt);
    uint4 t1 = source.address;
    uint t2 = limits_find(pkt, t1);
    limit = t2;
    if (limit == MAP_NONE) {
        uint t3 = limits_find(pkt, (uint4)(0u, 0u, 0u, 0u));
        limit = t3;
    }
    if (!source.is_ip || limit == MAP_NONE) {
        return XDP_PASS;
    }
    uint4 t4 = source.address;
    uint bucket = buckets_insert(pkt, t4);
    if (bucket == MAP_FULL) {
        return XDP_PASS;
    }
    uint t5 = limits_read(pkt, limit, BURST);
    uint full = pc_min_u32(t5, MOST) * TOKEN;
    there = full;
    last = pkt_time_ms(pkt);
    if (!map_is_new(bucket)) {
        uint t6 = buckets_read(pkt, bucket, LAST);
        last = t6;
        uint elapsed = (uint)pc_max_i32((int)(pkt_time_ms(pkt) - last), 0);
        last = last + elapsed;
        uint t7 = limits_read(pkt, limit, RATE);
        ulong brought = (ulong)elapsed * (ulong)t7;
        uint t8 = buckets_read(pkt, bucket, THOUSANDTHS);
        there = (uint)pc_min_u64((ulong)t8 + brought, (ulong)full);
    }
    bool passes = there >= TOKEN;
    buckets_write(pkt, bucket, THOUSANDTHS, passes ? there - TOKEN : there);
    buckets_write(pkt, bucket, LAST, last);
    return passes ? XDP_PASS : XDP_DROP;
}

__kernel void xdp_kernel(
    __global const uchar *restrict arena,
    __global const pc_descriptor *restrict descriptors,
    __global const uint *restrict metadata,
    __global uchar *restrict verdicts,
    __global const uint *restrict limits,
    __global volatile uint *buckets,
    uint base,
    uint count)
{
    uint lane = (uint)get_global_id(0);
    if (lane >= count) return;
    pc_descriptor run = descriptors[base + lane];
    __global const uint *numbers = (__global const uint *)descriptors + run.offset;
    uint next = numbers[0];
    uint later = run.length > 1u ? numbers[1] : next;
    pc_descriptor ahead = descriptors[next];
    for (uint turn = 0u; turn < run.length; ++turn) {
        uint packet = next;
        pc_descriptor descriptor = ahead;
        next = later;
        ahead = descriptors[next];
        if (turn + 2u < run.length) later = numbers[turn + 2u];
        pc_packet pkt;
        pkt.bytes = arena + descriptor.offset;
        pkt.metadata = metadata + 5 * (ulong)packet;
        pkt.length = descriptor.length;
        pkt.limits = limits;
        pkt.buckets = buckets;
        uint verdict = xdp_filter(&pkt);
        verdicts[packet] = (uchar)verdict;
    }
}
