// 1. // OpenCL C 1.2, from flow_stats.wgsl
// 2. typedef struct __attribute__, shared.cl 1
// 3. typedef struct
// 4. typedef struct
// 5. __constant uint ETH_P_IP = 2048u;
// 6. static uint load_be16_far, shared.cl 10
// 7. static uint load_u8_far, shared.cl 11
// 8. static uint pkt_len, shared.cl 3
// 9. static uint load_be32_far, shared.cl 12
// 10. static uint pc_min_u32, shared.cl 13
// 11. static uint load_be16, shared.cl 5
// 12. static uint2 pkt_time
// 13. static uint pc_max_u32
// 14. static uint pkt_wire_len
// 15. static Flow flow_of
// 16. static uint seconds
// 17. static uint n_pc_in_flows_hash
// 18. static bool n_pc_in_flows_claim
// 19. static uint flows_insert
// 20. static void missed_add
// 21. static uint n_pc_in_flows_word
// 22. static uint flows_add
// 23. static void flows_add64
// 24. static void flows_min_nonzero
// 25. static void flows_max
// 26. static uint xdp_filter
// 27. __kernel void xdp_kernel

// OpenCL C 1.2, from flow_stats.wgsl

typedef struct { uint at[11]; } uint_array11;
typedef struct {
    bool is_ip;
    uint_array11 key;
} Flow;
typedef struct {
    uint old_value;
    bool exchanged;
} atomic_compare_exchange_resultu3cUintu2c4u3e;

typedef struct {
    __global const uchar *bytes;
    __global const uint *metadata;
    uint length;
    __global volatile uint *flows;
    __global volatile uint *missed;
} pc_packet;

__constant uint ETH_P_IP = 2048u;
__constant uint ETH_P_IPV6 = 34525u;
__constant uint IPPROTO_TCP = 6u;
__constant uint IPPROTO_UDP = 17u;
__constant uint IPPROTO_SCTP = 132u;
__constant uint MAP_FULL = 4294967294u;
__constant uint ETH_P_8021Q = 33024u;
__constant uint ETH_P_8021AD = 34984u;
__constant uint XDP_PASS = 2u;
__constant uint PACKETS = 0u;
__constant uint BYTES = 1u;
__constant uint FIRST = 3u;
__constant uint LAST = 4u;

static uint2 pkt_time(const pc_packet *pkt)
{
    return (uint2)(pkt->metadata[2], pkt->metadata[3]);
}

static uint pc_max_u32(uint a, uint b)
{
    return a > b ? a : b;
}

static uint pkt_wire_len(const pc_packet *pkt)
{
    return pkt->metadata[0];
}

static Flow flow_of(pc_packet *pkt, uint ip)
{
    Flow flow = (Flow){false};
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

static uint seconds(uint2 time)
{
    uint high = time.y >> 9u;
    uint low = (time.y << 23u) | (time.x >> 9u);
    uint a = ((high % 1953125u) << 11u) | (low >> 21u);
    uint b = ((a % 1953125u) << 11u) | ((low >> 10u) & 0x7ffu);
    uint c = ((b % 1953125u) << 10u) | (low & 0x3ffu);
    return ((a / 1953125u) << 21u) + ((b / 1953125u) << 10u) + c / 1953125u;
}

static uint n_pc_in_flows_hash(uint_array11 key)
{
    uint h = 0u;
    h = (key.at[0] * 2654435761u) ^ (((key.at[1] * 3576916127u) << 11u) | ((key.at[1] * 3576916127u) >> 21u)) ^ (((key.at[2] * 3310886213u) << 22u) | ((key.at[2] * 3310886213u) >> 10u)) ^ (((key.at[3] * 145206951u) << 1u) | ((key.at[3] * 145206951u) >> 31u)) ^ (((key.at[4] * 879991039u) << 12u) | ((key.at[4] * 879991039u) >> 20u)) ^ (((key.at[5] * 491644465u) << 23u) | ((key.at[5] * 491644465u) >> 9u)) ^ (((key.at[6] * 3086230341u) << 2u) | ((key.at[6] * 3086230341u) >> 30u)) ^ (((key.at[7] * 736667653u) << 13u) | ((key.at[7] * 736667653u) >> 19u)) ^ (((key.at[8] * 3246501653u) << 24u) | ((key.at[8] * 3246501653u) >> 8u)) ^ (((key.at[9] * 502329409u) << 3u) | ((key.at[9] * 502329409u) >> 29u)) ^ (((key.at[10] * 2124627681u) << 14u) | ((key.at[10] * 2124627681u) >> 18u));
    h = (h ^ (h >> 15u)) * 739982445u;
    return h ^ (h >> 13u);
}

static bool n_pc_in_flows_claim(pc_packet *pkt, uint at, uint word)
{
    uint was = 0u;
    was = pkt->flows[at];
    for (;;) {
        if (was != 0u) {
            return was == word;
        }
        uint now = atomic_cmpxchg(&pkt->flows[at], 0u, word);
        atomic_compare_exchange_resultu3cUintu2c4u3e now_ = (atomic_compare_exchange_resultu3cUintu2c4u3e){now, now == 0u};
        if (now_.exchanged) {
            return true;
        }
        was = now_.old_value;
    }
    return false;
}

static uint flows_insert(pc_packet *pkt, uint_array11 key)
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
                uint now = atomic_cmpxchg(&pkt->flows[at], 0u, s0);
                atomic_compare_exchange_resultu3cUintu2c4u3e now_ = (atomic_compare_exchange_resultu3cUintu2c4u3e){now, now == 0u};
                first = now_.old_value;
                if (now_.exchanged) {
                    atomic_add(&pkt->flows[0], 1u);
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
            uint was = atomic_xchg(&pkt->flows[at + 12u], 1u);
            if (was == 2u) {
                atomic_add(&pkt->flows[1], 4294967295u);
            }
            return place | (was == 1u ? 0u : 1073741824u);
        }
        place = (place + step) & 0x1ffffu;
    }
    return MAP_FULL;
}

static void missed_add(pc_packet *pkt, uint index, uint amount)
{
    if (index >= 1u) {
        return;
    }
    uint at = 16u + index * 2u;
    uint before = atomic_add(&pkt->missed[at], amount);
    if (before + amount < before) {
        atomic_add(&pkt->missed[at + 1u], 1u);
        return;
    } else {
        return;
    }
}

static uint n_pc_in_flows_word(uint entry, uint word)
{
    uint place = entry & 0x3fffffffu;
    if (entry >= 2147483648u || place >= 131072u || word >= 5u) {
        return 0u;
    }
    return 16u + place * 18u + 13u + word;
}

static uint flows_add(pc_packet *pkt, uint entry, uint word, uint amount)
{
    uint at = n_pc_in_flows_word(entry, word);
    if (at == 0u) {
        return 0u;
    }
    uint t1 = atomic_add(&pkt->flows[at], amount);
    return t1;
}

static void flows_add64(pc_packet *pkt, uint entry, uint word, uint value)
{
    uint at = n_pc_in_flows_word(entry, word);
    if (at == 0u) {
        return;
    }
    if (n_pc_in_flows_word(entry, word + 1u) == 0u) {
        return;
    }
    uint before = atomic_add(&pkt->flows[at], value);
    if (before + value < before) {
        atomic_add(&pkt->flows[at + 1u], 1u);
        return;
    } else {
        return;
    }
}

static void flows_min_nonzero(pc_packet *pkt, uint entry, uint word, uint value)
{
    uint was = 0u;
    uint at = n_pc_in_flows_word(entry, word);
    if (at == 0u) {
        return;
    }
    was = pkt->flows[at];
    while (!(value == 0u || (was != 0u && was <= value))) {
        uint now = atomic_cmpxchg(&pkt->flows[at], was, value);
        atomic_compare_exchange_resultu3cUintu2c4u3e now_ = (atomic_compare_exchange_resultu3cUintu2c4u3e){now, now == was};
        if (now_.exchanged) {
            break;
        }
        was = now_.old_value;
    }
}

static void flows_max(pc_packet *pkt, uint entry, uint word, uint value)
{
    uint at = n_pc_in_flows_word(entry, word);
    if (at == 0u) {
        return;
    }
    if (value > pkt->flows[at]) {
        atomic_max(&pkt->flows[at], value);
        return;
    } else {
        return;
    }
}

static uint xdp_filter(pc_packet *pkt)
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
    uint2 t1 = pkt_time(pkt);
    uint now = pc_max_u32(seconds(t1), 1u);
    flows_add(pkt, entry, PACKETS, 1u);
    flows_add64(pkt, entry, BYTES, pkt_wire_len(pkt) - ip);
    flows_min_nonzero(pkt, entry, FIRST, now);
    flows_max(pkt, entry, LAST, now);
    return XDP_PASS;
}

__kernel void xdp_kernel(
    __global const uchar *restrict arena,
    __global const pc_descriptor *restrict descriptors,
    __global const uint *restrict metadata,
    __global uchar *restrict verdicts,
    __global volatile uint *flows,
    __global volatile uint *missed,
    uint base,
    uint count)
{
    uint lane = (uint)get_global_id(0);
    if (lane >= count) return;
    uint packet = base + lane;
    pc_descriptor descriptor = descriptors[packet];
    pc_packet pkt;
    pkt.bytes = arena + descriptor.offset;
    pkt.metadata = metadata + 5 * (ulong)packet;
    pkt.length = descriptor.length;
    pkt.flows = flows;
    pkt.missed = missed;
    uint verdict = xdp_filter(&pkt);
    verdicts[packet] = (uchar)verdict;
}
