// 1. // CUDA C++, from token_bucket.wgsl
// 2. typedef struct alignas, shared.cu 1
// 3. typedef struct, shared.cu 14
// 4. typedef struct, shared.cu 15
// 5. static __device__ __forceinline__ uint pc_find_word, shared.cu 16
// 6. struct vec4_u32
// 7. typedef struct
// 8. static constexpr uint ETH_P_8021Q = 33024u;
// 9. static __device__ __forceinline__ uint pc_half, shared.cu 7
// 10. static __device__ __forceinline__ uint load_be16, shared.cu 8
// 11. static __device__ __forceinline__ uint load_be16_far, shared.cu 17
// 12. static __device__ __forceinline__ uint load_u8, shared.cu 6
// 13. static __device__ __forceinline__ uint pc_word, shared.cu 19
// 14. static __device__ __forceinline__ uint load_be32, shared.cu 22
// 15. static __device__ __forceinline__ uint pkt_len, shared.cu 5
// 16. static __device__ __forceinline__ uint load_be32_far, shared.cu 20
// 17. static __device__ __forceinline__ uint pc_min_u32, shared.cu 21
// 18. static __device__ __forceinline__ void pc_set_component_u32x4
// 19. static __device__ __forceinline__ uint pkt_time_ms
// 20. static __device__ __forceinline__ int pc_max_i32
// 21. static __device__ __forceinline__ ulonglong pc_min_u64
// 22. static __device__ __forceinline__ Source source_of
// 23. static __device__ __forceinline__ uint n_pc_in_limits_hash
// 24. static __device__ __forceinline__ uint limits_find
// 25. static __device__ __forceinline__ uint n_pc_in_buckets_hash
// 26. static __device__ __forceinline__ bool n_pc_in_buckets_claim
// 27. static __device__ __forceinline__ uint buckets_insert
// 28. static __device__ __forceinline__ uint n_pc_in_limits_word
// 29. static __device__ __forceinline__ uint limits_read
// 30. static __device__ __forceinline__ bool map_is_new
// 31. static __device__ __forceinline__ uint n_pc_in_buckets_word
// 32. static __device__ __forceinline__ uint buckets_read
// 33. static __device__ __forceinline__ void buckets_write
// 34. static __device__ __forceinline__ uint xdp_filter
// 35. extern "C" __global__ void __launch_bounds__

// CUDA C++, from token_bucket.wgsl
typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned long long ulonglong;
typedef long long longlong;

struct vec4_u32 { uint x, y, z, w; };
typedef struct {
    bool is_ip;
    uint ip;
    vec4_u32 address;
} Source;
typedef struct {
    uint old_value;
    bool exchanged;
} atomic_compare_exchange_resultu3cUintu2c4u3e;

typedef struct {
    const uchar *bytes;
    const uint *words;
    uint time_ms;
    uint length;
    const uint *limits;
    volatile uint *buckets;
} pc_packet;

static constexpr uint ETH_P_8021Q = 33024u;
static constexpr uint ETH_P_8021AD = 34984u;
static constexpr uint ETH_P_IP = 2048u;
static constexpr uint ETH_P_IPV6 = 34525u;
static constexpr uint MAP_NONE = 4294967295u;
static constexpr uint MAP_FULL = 4294967294u;
static constexpr uint XDP_PASS = 2u;
static constexpr uint BURST = 1u;
static constexpr uint MOST = 4294967u;
static constexpr uint TOKEN = 1000u;
static constexpr uint LAST = 1u;
static constexpr uint RATE = 0u;
static constexpr uint THOUSANDTHS = 0u;
static constexpr uint XDP_DROP = 1u;

static __device__ __forceinline__ void pc_set_component_u32x4(vec4_u32 * v, uint i, uint value)
{
    if (i == 0u) { v->x = value; return; }
    if (i == 1u) { v->y = value; return; }
    if (i == 2u) { v->z = value; return; }
    v->w = value;
}

static __device__ __forceinline__ uint pkt_time_ms(const pc_packet *pkt)
{
    return pkt->time_ms;
}

static __device__ __forceinline__ int pc_max_i32(int a, int b)
{
    return a > b ? a : b;
}

static __device__ __forceinline__ ulonglong pc_min_u64(ulonglong a, ulonglong b)
{
    return a < b ? a : b;
}

static __device__ __forceinline__ Source source_of(pc_packet *pkt)
{
    Source source = Source{};
    uint i = 0u;
    uint outer = load_be16(pkt, 12u);
    uint ip = outer == ETH_P_8021Q || outer == ETH_P_8021AD ? 18u : 14u;
    uint ethertype = load_be16_far(pkt, ip - 2u);
    uint version_ihl = load_u8(pkt, ip);
    source = Source{true, ip, vec4_u32{0u, 0u, 65535u, load_be32(pkt, ip + 12u)}};
    if (ethertype == ETH_P_IP && version_ihl - 69u <= 10u && pkt_len(pkt) >= ip + 20u) {
        return source;
    }
    for (; i < 4u; i = i + 1u) {
        pc_set_component_u32x4(&source.address, pc_min_u32(i, 3u), load_be32_far(pkt, ip + 8u + i * 4u));
    }
    source.is_ip = ethertype == ETH_P_IPV6 && (version_ihl >> 4u) == 6u && pkt_len(pkt) >= ip + 40u;
    return source;
}

static __device__ __forceinline__ uint n_pc_in_limits_hash(vec4_u32 key)
{
    uint h = 0u;
    h = (key.x * 2654435761u) ^ (((key.y * 3576916127u) << 11u) | ((key.y * 3576916127u) >> 21u)) ^ (((key.z * 3310886213u) << 22u) | ((key.z * 3310886213u) >> 10u)) ^ (((key.w * 145206951u) << 1u) | ((key.w * 145206951u) >> 31u));
    h = (h ^ (h >> 15u)) * 739982445u;
    return h ^ (h >> 13u);
}

static __device__ __forceinline__ uint limits_find(pc_packet *pkt, vec4_u32 key)
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

static __device__ __forceinline__ uint n_pc_in_buckets_hash(vec4_u32 key)
{
    uint h = 0u;
    h = (key.x * 2654435761u) ^ (((key.y * 3576916127u) << 11u) | ((key.y * 3576916127u) >> 21u)) ^ (((key.z * 3310886213u) << 22u) | ((key.z * 3310886213u) >> 10u)) ^ (((key.w * 145206951u) << 1u) | ((key.w * 145206951u) >> 31u));
    h = (h ^ (h >> 15u)) * 739982445u;
    return h ^ (h >> 13u);
}

static __device__ __forceinline__ bool n_pc_in_buckets_claim(pc_packet *pkt, uint at, uint word)
{
    uint was = 0u;
    was = pkt->buckets[at];
    for (;;) {
        if (was != 0u) {
            return was == word;
        }
        uint now = atomicCAS((uint *)&pkt->buckets[at], 0u, word);
        atomic_compare_exchange_resultu3cUintu2c4u3e now_ = atomic_compare_exchange_resultu3cUintu2c4u3e{now, now == 0u};
        if (now_.exchanged) {
            return true;
        }
        was = now_.old_value;
    }
    return false;
}

static __device__ __forceinline__ uint buckets_insert(pc_packet *pkt, vec4_u32 key)
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
                uint now = atomicCAS((uint *)&pkt->buckets[at], 0u, s0);
                atomic_compare_exchange_resultu3cUintu2c4u3e now_ = atomic_compare_exchange_resultu3cUintu2c4u3e{now, now == 0u};
                first = now_.old_value;
                if (now_.exchanged) {
                    atomicAdd((uint *)&pkt->buckets[0], 1u);
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
            uint was = atomicExch((uint *)&pkt->buckets[at + 5u], 1u);
            if (was == 2u) {
                atomicAdd((uint *)&pkt->buckets[1], 4294967295u);
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

static __device__ __forceinline__ uint n_pc_in_limits_word(uint entry, uint word)
{
    uint place = entry & 0x3fffffffu;
    if (entry >= 2147483648u || place >= 131072u || word >= 2u) {
        return 0u;
    }
    return 16u + place * 8u + 6u + word;
}

static __device__ __forceinline__ uint limits_read(pc_packet *pkt, uint entry, uint word)
{
    uint at = n_pc_in_limits_word(entry, word);
    if (at == 0u) {
        return 0u;
    }
    return pkt->limits[at];
}

static __device__ __forceinline__ bool map_is_new(uint entry)
{
    return entry < 2147483648u && (entry & 0x40000000u) != 0u;
}

static __device__ __forceinline__ uint n_pc_in_buckets_word(uint entry, uint word)
{
    uint place = entry & 0x3fffffffu;
    if (entry >= 2147483648u || place >= 262144u || word >= 2u) {
        return 0u;
    }
    return 16u + place * 9u + 7u + word;
}

static __device__ __forceinline__ uint buckets_read(pc_packet *pkt, uint entry, uint word)
{
    uint at = n_pc_in_buckets_word(entry, word);
    if (at == 0u) {
        return 0u;
    }
    return pkt->buckets[at];
}

static __device__ __forceinline__ void buckets_write(pc_packet *pkt, uint entry, uint word, uint value)
{
    uint at = n_pc_in_buckets_word(entry, word);
    if (at != 0u) {
        pkt->buckets[at] = value;
        return;
    } else {
        return;
    }
}

static __device__ __forceinline__ uint xdp_filter(pc_packet *pkt)
{
    uint limit = 0u;
    uint there = 0u;
    uint last = 0u;
    Source source = source_of(pkt);
    vec4_u32 t1 = source.address;
    uint t2 = limits_find(pkt, t1);
    limit = t2;
    if (limit == MAP_NONE) {
        uint t3 = limits_find(pkt, vec4_u32{0u, 0u, 0u, 0u});
        limit = t3;
    }
    if (!source.is_ip || limit == MAP_NONE) {
        return XDP_PASS;
    }
    vec4_u32 t4 = source.address;
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
        ulonglong brought = (ulonglong)elapsed * (ulonglong)t7;
        uint t8 = buckets_read(pkt, bucket, THOUSANDTHS);
        there = (uint)pc_min_u64((ulonglong)t8 + brought, (ulonglong)full);
    }
    bool passes = there >= TOKEN;
    buckets_write(pkt, bucket, THOUSANDTHS, passes ? there - TOKEN : there);
    buckets_write(pkt, bucket, LAST, last);
    return passes ? XDP_PASS : XDP_DROP;
}

extern "C" __global__ void __launch_bounds__(256) xdp_kernel(
    const uchar *__restrict__ arena,
    const pc_descriptor *__restrict__ descriptors,
    const uint *__restrict__ metadata,
    pc_metadata_rule metadata_rule,
    uchar *__restrict__ verdicts,
    const uint *__restrict__ limits,
    volatile uint *buckets,
    uint base,
    uint count)
{
    uint lane = blockIdx.x * blockDim.x + threadIdx.x;
    if (lane >= count) return;
    pc_descriptor run = descriptors[base + lane];
    const uint *numbers = (const uint *)descriptors + run.offset;
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
        pkt.bytes = arena + (descriptor.offset & ~3u);
        pkt.words = (const uint *)(arena + (descriptor.offset & ~3u));
        pkt.time_ms = pc_find_word(metadata, metadata_rule.time_ms, packet);
        pkt.length = descriptor.length;
        pkt.limits = limits;
        pkt.buckets = buckets;
        uint verdict = xdp_filter(&pkt);
        verdicts[packet] = (uchar)verdict;
    }
}
