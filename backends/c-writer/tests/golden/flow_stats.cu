// 1. // CUDA C++, from flow_stats.wgsl
// 2. typedef struct alignas, shared.cu 1
// 3. typedef struct, shared.cu 2
// 4. static __device__ __forceinline__ pc_descriptor pc_find, shared.cu 3
// 5. typedef struct, shared.cu 14
// 6. typedef struct, shared.cu 15
// 7. static __device__ __forceinline__ uint pc_find_word, shared.cu 16
// 8. static __device__ __forceinline__ void pc_find_time
// 9. typedef struct
// 10. typedef struct
// 11. static constexpr uint ETH_P_IP = 2048u;
// 12. static __device__ __forceinline__ uint pc_half, shared.cu 7
// 13. static __device__ __forceinline__ uint load_be16_far, shared.cu 17
// 14. static __device__ __forceinline__ uint load_u8_far, shared.cu 18
// 15. static __device__ __forceinline__ uint pkt_len, shared.cu 5
// 16. static __device__ __forceinline__ uint pc_word, shared.cu 19
// 17. static __device__ __forceinline__ uint load_be32_far, shared.cu 20
// 18. static __device__ __forceinline__ uint pc_min_u32, shared.cu 21
// 19. static __device__ __forceinline__ void pc_count_combined
// 20. static __device__ __forceinline__ void pc_add_combined
// 21. static __device__ __forceinline__ uint load_be16, shared.cu 8
// 22. static __device__ __forceinline__ vec2_u32 pkt_time
// 23. static __device__ __forceinline__ uint pc_max_u32
// 24. static __device__ __forceinline__ uint pkt_wire_len
// 25. static __device__ __forceinline__ Flow flow_of
// 26. static __device__ __forceinline__ uint seconds
// 27. static __device__ __forceinline__ uint n_pc_in_flows_hash
// 28. static __device__ __forceinline__ bool n_pc_in_flows_claim
// 29. static __device__ __forceinline__ uint flows_insert
// 30. static __device__ __forceinline__ void missed_add
// 31. static __device__ __forceinline__ uint n_pc_in_flows_word
// 32. static __device__ __forceinline__ uint flows_add
// 33. static __device__ __forceinline__ uint flows_add_combined
// 34. static __device__ __forceinline__ void flows_add64
// 35. static __device__ __forceinline__ void flows_min_nonzero
// 36. static __device__ __forceinline__ void flows_max
// 37. static __device__ __forceinline__ uint xdp_filter
// 38. extern "C" __global__ void __launch_bounds__

// CUDA C++, from flow_stats.wgsl
typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned long long ulonglong;
typedef long long longlong;

static __device__ __forceinline__ void pc_find_time(const uint *tables, pc_column column, uint packet, uint *low, uint *high)
{
    if (column.format == 2u) {
        *low = column.low;
        *high = column.high;
        return;
    }
    bool grouped = column.format != 0u;
    const uint *value = tables + column.table + (grouped ? packet / 32u : packet) * 2u;
    uint distance = grouped ? tables[column.distances + packet] : 0u;
    *low = value[0] + distance;
    *high = value[1] + (*low < distance ? 1u : 0u);
}

typedef struct { uint at[11]; } uint_array11;
typedef struct {
    bool is_ip;
    uint_array11 key;
} Flow;
struct vec2_u32 { uint x, y; };
typedef struct {
    uint old_value;
    bool exchanged;
} atomic_compare_exchange_resultu3cUintu2c4u3e;

typedef struct {
    const uchar *bytes;
    const uint *words;
    uint wire_length;
    uint time_low;
    uint time_high;
    uint length;
    volatile uint *flows;
    volatile uint *missed;
} pc_packet;

static constexpr uint ETH_P_IP = 2048u;
static constexpr uint ETH_P_IPV6 = 34525u;
static constexpr uint IPPROTO_TCP = 6u;
static constexpr uint IPPROTO_UDP = 17u;
static constexpr uint IPPROTO_SCTP = 132u;
static constexpr uint MAP_FULL = 4294967294u;
static constexpr uint ETH_P_8021Q = 33024u;
static constexpr uint ETH_P_8021AD = 34984u;
static constexpr uint XDP_PASS = 2u;
static constexpr uint PACKETS = 0u;
static constexpr uint BYTES = 1u;
static constexpr uint FIRST = 3u;
static constexpr uint LAST = 4u;

static __device__ __forceinline__ void pc_count_combined(ulonglong *at, uint amount)
{
#if __CUDA_ARCH__ >= 800
    uint peers = __match_any_sync(__activemask(), (ulonglong)at);
    uint low = __reduce_add_sync(peers, amount & 0xffffu), high = __reduce_add_sync(peers, amount >> 16u);
    if ((threadIdx.x & 31u) + 1u == (uint)__ffs((int)peers)) atomicAdd(at, ((ulonglong)high << 16u) + low);
#else
    atomicAdd(at, (ulonglong)amount);
#endif
}

static __device__ __forceinline__ void pc_add_combined(uint *at, uint amount)
{
#if __CUDA_ARCH__ >= 800
    uint peers = __match_any_sync(__activemask(), (ulonglong)at);
    uint sum = __reduce_add_sync(peers, amount);
    if ((threadIdx.x & 31u) + 1u == (uint)__ffs((int)peers)) atomicAdd(at, sum);
#else
    atomicAdd(at, amount);
#endif
}

static __device__ __forceinline__ vec2_u32 pkt_time(const pc_packet *pkt)
{
    return vec2_u32{pkt->time_low, pkt->time_high};
}

static __device__ __forceinline__ uint pc_max_u32(uint a, uint b)
{
    return a > b ? a : b;
}

static __device__ __forceinline__ uint pkt_wire_len(const pc_packet *pkt)
{
    return pkt->wire_length;
}

static __device__ __forceinline__ Flow flow_of(pc_packet *pkt, uint ip)
{
    Flow flow = Flow{};
    uint ports = 0u;
    bool has_ports = true;
    uint i = 0u;
    uint ethertype = load_be16_far(pkt, ip - 2u);
    uint version_ihl = load_u8_far(pkt, ip);
    ports = ip + 40u;
    if (ethertype == ETH_P_IP && version_ihl - 69u <= 10u && pkt_len(pkt) >= ip + 20u) {
        flow.key.at[2] = 65535u;
        flow.key.at[3] = load_be32_far(pkt, ip + 12u);
        flow.key.at[6] = 65535u;
        flow.key.at[7] = load_be32_far(pkt, ip + 16u);
        flow.key.at[10] = load_u8_far(pkt, ip + 9u);
        ports = ip + (version_ihl & 0xfu) * 4u;
        has_ports = (load_be16_far(pkt, ip + 6u) & 0x1fffu) == 0u;
    } else if (ethertype == ETH_P_IPV6 && (version_ihl >> 4u) == 6u && pkt_len(pkt) >= ip + 40u) {
        for (; i < 8u; i = i + 1u) {
            flow.key.at[pc_min_u32(i, 10u)] = load_be32_far(pkt, ip + 8u + i * 4u);
        }
        flow.key.at[10] = load_u8_far(pkt, ip + 6u);
    } else {
        return flow;
    }
    uint protocol = flow.key.at[10];
    if (has_ports && (protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP)) {
        flow.key.at[8] = load_be16_far(pkt, ports);
        flow.key.at[9] = load_be16_far(pkt, ports + 2u);
    }
    flow.is_ip = true;
    return flow;
}

static __device__ __forceinline__ uint seconds(vec2_u32 time)
{
    uint high = time.y >> 9u;
    uint low = (time.y << 23u) | (time.x >> 9u);
    uint a = ((high % 1953125u) << 11u) | (low >> 21u);
    uint b = ((a % 1953125u) << 11u) | ((low >> 10u) & 0x7ffu);
    uint c = ((b % 1953125u) << 10u) | (low & 0x3ffu);
    return ((a / 1953125u) << 21u) + ((b / 1953125u) << 10u) + c / 1953125u;
}

static __device__ __forceinline__ uint n_pc_in_flows_hash(uint_array11 key)
{
    uint h = 0u;
    h = (key.at[0] * 2654435761u) ^ (((key.at[1] * 3576916127u) << 11u) | ((key.at[1] * 3576916127u) >> 21u)) ^ (((key.at[2] * 3310886213u) << 22u) | ((key.at[2] * 3310886213u) >> 10u)) ^ (((key.at[3] * 145206951u) << 1u) | ((key.at[3] * 145206951u) >> 31u)) ^ (((key.at[4] * 879991039u) << 12u) | ((key.at[4] * 879991039u) >> 20u)) ^ (((key.at[5] * 491644465u) << 23u) | ((key.at[5] * 491644465u) >> 9u)) ^ (((key.at[6] * 3086230341u) << 2u) | ((key.at[6] * 3086230341u) >> 30u)) ^ (((key.at[7] * 736667653u) << 13u) | ((key.at[7] * 736667653u) >> 19u)) ^ (((key.at[8] * 3246501653u) << 24u) | ((key.at[8] * 3246501653u) >> 8u)) ^ (((key.at[9] * 502329409u) << 3u) | ((key.at[9] * 502329409u) >> 29u)) ^ (((key.at[10] * 2124627681u) << 14u) | ((key.at[10] * 2124627681u) >> 18u));
    h = (h ^ (h >> 15u)) * 739982445u;
    return h ^ (h >> 13u);
}

static __device__ __forceinline__ bool n_pc_in_flows_claim(pc_packet *pkt, uint at, uint word)
{
    uint was = 0u;
    was = pkt->flows[at];
    for (;;) {
        if (was != 0u) {
            return was == word;
        }
        uint now = atomicCAS((uint *)&pkt->flows[at], 0u, word);
        atomic_compare_exchange_resultu3cUintu2c4u3e now_ = atomic_compare_exchange_resultu3cUintu2c4u3e{now, now == 0u};
        if (now_.exchanged) {
            return true;
        }
        was = now_.old_value;
    }
    return false;
}

static __device__ __forceinline__ uint flows_insert(pc_packet *pkt, uint_array11 key)
{
    uint place = 0u;
    uint step = 1u;
    uint first = 0u;
    bool v_ = false;
    bool v_2 = false;
    bool v_3 = false;
    bool v_4 = false;
    bool v_5 = false;
    bool v_6 = false;
    bool v_7 = false;
    bool v_8 = false;
    bool v_9 = false;
    bool v_10 = false;
    bool v_11 = false;
    uint s0 = (key.at[0] << 0u) | 0x80000000u;
    uint s1 = (key.at[0] >> 31u) | (key.at[1] << 1u) | 0x80000000u;
    uint s2 = (key.at[1] >> 30u) | (key.at[2] << 2u) | 0x80000000u;
    uint s3 = (key.at[2] >> 29u) | (key.at[3] << 3u) | 0x80000000u;
    uint s4 = (key.at[3] >> 28u) | (key.at[4] << 4u) | 0x80000000u;
    uint s5 = (key.at[4] >> 27u) | (key.at[5] << 5u) | 0x80000000u;
    uint s6 = (key.at[5] >> 26u) | (key.at[6] << 6u) | 0x80000000u;
    uint s7 = (key.at[6] >> 25u) | (key.at[7] << 7u) | 0x80000000u;
    uint s8 = (key.at[7] >> 24u) | (key.at[8] << 8u) | 0x80000000u;
    uint s9 = (key.at[8] >> 23u) | (key.at[9] << 9u) | 0x80000000u;
    uint s10 = (key.at[9] >> 22u) | (key.at[10] << 10u) | 0x80000000u;
    uint s11 = (key.at[10] >> 21u) | 0x80000000u;
    place = n_pc_in_flows_hash(key) & 0x1ffffu;
    for (; step <= 128u; step = step + 1u) {
        uint at = 16u + place * 18u;
        first = pkt->flows[at];
        if (first == s0) {
            uint others = (pkt->flows[at + 1u] ^ s1) | (pkt->flows[at + 2u] ^ s2) | (pkt->flows[at + 3u] ^ s3) | (pkt->flows[at + 4u] ^ s4) | (pkt->flows[at + 5u] ^ s5) | (pkt->flows[at + 6u] ^ s6) | (pkt->flows[at + 7u] ^ s7) | (pkt->flows[at + 8u] ^ s8) | (pkt->flows[at + 9u] ^ s9) | (pkt->flows[at + 10u] ^ s10) | (pkt->flows[at + 11u] ^ s11);
            uint state = pkt->flows[at + 12u];
            if (others == 0u && state == 1u) {
                return place;
            }
        }
        if (first == 0u) {
            if (pkt->flows[0] >= 91750u) {
                return MAP_FULL;
            }
            for (;;) {
                uint now = atomicCAS((uint *)&pkt->flows[at], 0u, s0);
                atomic_compare_exchange_resultu3cUintu2c4u3e now_ = atomic_compare_exchange_resultu3cUintu2c4u3e{now, now == 0u};
                first = now_.old_value;
                if (now_.exchanged) {
                    atomicAdd((uint *)&pkt->flows[0], 1u);
                    first = s0;
                }
                if (first != 0u) {
                    break;
                }
            }
        }
        if (first == s0) {
            bool t1 = n_pc_in_flows_claim(pkt, at + 1u, s1);
            v_ = t1;
        } else {
            v_ = false;
        }
        if (v_) {
            bool t2 = n_pc_in_flows_claim(pkt, at + 2u, s2);
            v_2 = t2;
        } else {
            v_2 = false;
        }
        if (v_2) {
            bool t3 = n_pc_in_flows_claim(pkt, at + 3u, s3);
            v_3 = t3;
        } else {
            v_3 = false;
        }
        if (v_3) {
            bool t4 = n_pc_in_flows_claim(pkt, at + 4u, s4);
            v_4 = t4;
        } else {
            v_4 = false;
        }
        if (v_4) {
            bool t5 = n_pc_in_flows_claim(pkt, at + 5u, s5);
            v_5 = t5;
        } else {
            v_5 = false;
        }
        if (v_5) {
            bool t6 = n_pc_in_flows_claim(pkt, at + 6u, s6);
            v_6 = t6;
        } else {
            v_6 = false;
        }
        if (v_6) {
            bool t7 = n_pc_in_flows_claim(pkt, at + 7u, s7);
            v_7 = t7;
        } else {
            v_7 = false;
        }
        if (v_7) {
            bool t8 = n_pc_in_flows_claim(pkt, at + 8u, s8);
            v_8 = t8;
        } else {
            v_8 = false;
        }
        if (v_8) {
            bool t9 = n_pc_in_flows_claim(pkt, at + 9u, s9);
            v_9 = t9;
        } else {
            v_9 = false;
        }
        if (v_9) {
            bool t10 = n_pc_in_flows_claim(pkt, at + 10u, s10);
            v_10 = t10;
        } else {
            v_10 = false;
        }
        if (v_10) {
            bool t11 = n_pc_in_flows_claim(pkt, at + 11u, s11);
            v_11 = t11;
        } else {
            v_11 = false;
        }
        if (v_11) {
            uint was = atomicExch((uint *)&pkt->flows[at + 12u], 1u);
            if (was == 2u) {
                atomicAdd((uint *)&pkt->flows[1], 4294967295u);
            }
            return place | (was == 1u ? 0u : 1073741824u);
        }
        place = (place + step) & 0x1ffffu;
    }
    return MAP_FULL;
}

static __device__ __forceinline__ void missed_add(pc_packet *pkt, uint index, uint amount)
{
    if (index >= 1u) {
        return;
    }
    pc_count_combined((ulonglong *)&pkt->missed[16u + index * 2u], amount);
}

static __device__ __forceinline__ uint n_pc_in_flows_word(uint entry, uint word)
{
    uint place = entry & 0x3fffffffu;
    if (entry >= 2147483648u || place >= 131072u || word >= 5u) {
        return 0u;
    }
    return 16u + place * 18u + 13u + word;
}

static __device__ __forceinline__ uint flows_add(pc_packet *pkt, uint entry, uint word, uint amount)
{
    uint at = n_pc_in_flows_word(entry, word);
    if (at == 0u) {
        return 0u;
    }
    uint t1 = atomicAdd((uint *)&pkt->flows[at], amount);
    return t1;
}

static __device__ __forceinline__ uint flows_add_combined(pc_packet *pkt, uint entry, uint word, uint amount)
{
    uint at = n_pc_in_flows_word(entry, word);
    if (at == 0u) {
        return 0u;
    }
    pc_add_combined((uint *)&pkt->flows[at], amount);
    uint t1 = 0u;
    return t1;
}

static __device__ __forceinline__ void flows_add64(pc_packet *pkt, uint entry, uint word, uint value)
{
    uint at = n_pc_in_flows_word(entry, word);
    if (at == 0u) {
        return;
    }
    if (n_pc_in_flows_word(entry, word + 1u) == 0u) {
        return;
    }
    uint before = atomicAdd((uint *)&pkt->flows[at], value);
    if (before + value < before) {
        atomicAdd((uint *)&pkt->flows[at + 1u], 1u);
        return;
    } else {
        return;
    }
}

static __device__ __forceinline__ void flows_min_nonzero(pc_packet *pkt, uint entry, uint word, uint value)
{
    uint was = 0u;
    uint at = n_pc_in_flows_word(entry, word);
    if (at == 0u) {
        return;
    }
    was = pkt->flows[at];
    while (!(value == 0u || (was != 0u && was <= value))) {
        uint now = atomicCAS((uint *)&pkt->flows[at], was, value);
        atomic_compare_exchange_resultu3cUintu2c4u3e now_ = atomic_compare_exchange_resultu3cUintu2c4u3e{now, now == was};
        if (now_.exchanged) {
            break;
        }
        was = now_.old_value;
    }
}

static __device__ __forceinline__ void flows_max(pc_packet *pkt, uint entry, uint word, uint value)
{
    uint at = n_pc_in_flows_word(entry, word);
    if (at == 0u) {
        return;
    }
    if (value > pkt->flows[at]) {
        atomicMax((uint *)&pkt->flows[at], value);
        return;
    } else {
        return;
    }
}

static __device__ __forceinline__ uint xdp_filter(pc_packet *pkt)
{
    uint outer = load_be16(pkt, 12u);
    uint ip = outer == ETH_P_8021Q || outer == ETH_P_8021AD ? 18u : 14u;
    Flow flow = flow_of(pkt, ip);
    if (!flow.is_ip) {
        return XDP_PASS;
    }
    uint entry = flows_insert(pkt, flow.key);
    if (entry == MAP_FULL) {
        missed_add(pkt, 0u, 1u);
        return XDP_PASS;
    }
    vec2_u32 t1 = pkt_time(pkt);
    uint now = pc_max_u32(seconds(t1), 1u);
    flows_add_combined(pkt, entry, PACKETS, 1u);
    flows_add64(pkt, entry, BYTES, pkt_wire_len(pkt) - ip);
    flows_min_nonzero(pkt, entry, FIRST, now);
    flows_max(pkt, entry, LAST, now);
    return XDP_PASS;
}

extern "C" __global__ void __launch_bounds__(256) xdp_kernel(
    const uchar *__restrict__ arena,
    const pc_descriptor *__restrict__ descriptors,
    pc_descriptor_rule rule,
    const uint *__restrict__ metadata,
    pc_metadata_rule metadata_rule,
    uchar *__restrict__ verdicts,
    volatile uint *flows,
    volatile uint *missed,
    uint base,
    uint count)
{
    uint lane = blockIdx.x * blockDim.x + threadIdx.x;
    if (lane >= count) return;
    uint packet = base + lane;
    pc_descriptor descriptor = pc_find(descriptors, rule, packet);
    pc_packet pkt;
    pkt.bytes = arena + (descriptor.offset & ~3u);
    pkt.words = (const uint *)(arena + (descriptor.offset & ~3u));
    pkt.wire_length = metadata_rule.wire_length.format == 3u ? descriptor.length : pc_find_word(metadata, metadata_rule.wire_length, packet);
    pc_find_time(metadata, metadata_rule.time, packet, &pkt.time_low, &pkt.time_high);
    pkt.length = descriptor.length;
    pkt.flows = flows;
    pkt.missed = missed;
    uint verdict = xdp_filter(&pkt);
    verdicts[packet] = (uchar)verdict;
}
