// 1. // CUDA C++, from http_only.wgsl with http=80, https=443
// 2. typedef struct alignas, shared.cu 1
// 3. typedef struct, shared.cu 2
// 4. static __device__ __forceinline__ pc_descriptor pc_find, shared.cu 3
// 5. typedef struct, shared.cu 4
// 6. static constexpr uint http = 80u;
// 7. static __device__ __forceinline__ uint load_u8_far, shared.cu 18
// 8. static __device__ __forceinline__ uint pc_half, shared.cu 7
// 9. static __device__ __forceinline__ uint load_be16_far, shared.cu 17
// 10. static __device__ __forceinline__ uint pkt_len, shared.cu 5
// 11. static __device__ __forceinline__ uint load_be16, shared.cu 8
// 12. static __device__ __forceinline__ bool port_matches
// 13. static __device__ __forceinline__ uint port_ipv4
// 14. static __device__ __forceinline__ uint port_ipv6
// 15. static __device__ __forceinline__ uint xdp_filter
// 16. extern "C" __global__ void __launch_bounds__, shared.cu 9

// CUDA C++, from http_only.wgsl with http=80, https=443
typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned long long ulonglong;
typedef long long longlong;

static constexpr uint http = 80u;
static constexpr uint https = 443u;
static constexpr uint IPPROTO_TCP = 6u;
static constexpr uint MAX_EXTENSION_HEADERS = 8u;
static constexpr uint XDP_DROP = 1u;
static constexpr uint ETH_P_IP = 2048u;
static constexpr uint XDP_PASS = 2u;
static constexpr uint ETH_P_IPV6 = 34525u;
static constexpr uint ETH_P_8021Q = 33024u;
static constexpr uint ETH_P_8021AD = 34984u;

static __device__ __forceinline__ bool port_matches(uint port)
{
    return port != 0u && (port == http || port == https);
}

static __device__ __forceinline__ uint port_ipv4(pc_packet *pkt, uint at)
{
    uint version_ihl = load_u8_far(pkt, at);
    if (version_ihl - 69u > 10u || load_u8_far(pkt, at + 9u) != IPPROTO_TCP) {
        return 0u;
    }
    if ((load_be16_far(pkt, at + 6u) & 0x1fffu) != 0u) {
        return 0u;
    }
    return load_be16_far(pkt, at + (version_ihl & 0xfu) * 4u + 2u);
}

static __device__ __forceinline__ uint port_ipv6(pc_packet *pkt, uint at)
{
    uint header = 0u;
    uint start = 0u;
    uint i = 0u;
    if ((load_u8_far(pkt, at) >> 4u) != 6u) {
        return 0u;
    }
    header = load_u8_far(pkt, at + 6u);
    start = at + 40u;
    for (; i < MAX_EXTENSION_HEADERS && header != IPPROTO_TCP; i = i + 1u) {
        uint next = load_u8_far(pkt, start);
        uint length = load_u8_far(pkt, start + 1u);
        switch (header) {
        case 0u:
        case 43u:
        case 60u:
        case 135u: {
            start = start + (length + 1u) * 8u;
        } break;
        case 51u: {
            start = start + (length + 2u) * 4u;
        } break;
        case 44u: {
            if ((load_be16_far(pkt, start + 2u) & 0xfff8u) != 0u) {
                return 0u;
            }
            start = start + 8u;
        } break;
        default: {
            return 0u;
        }
        }
        header = next;
    }
    if (header != IPPROTO_TCP) {
        return 0u;
    }
    return load_be16_far(pkt, start + 2u);
}

static __device__ __forceinline__ uint xdp_filter(pc_packet *pkt)
{
    if (pkt_len(pkt) < 38u) {
        return XDP_DROP;
    }
    uint outer = load_be16(pkt, 12u);
    if (outer == ETH_P_IP) {
        return port_matches(port_ipv4(pkt, 14u)) ? XDP_PASS : XDP_DROP;
    }
    if (outer == ETH_P_IPV6) {
        return port_matches(port_ipv6(pkt, 14u)) ? XDP_PASS : XDP_DROP;
    }
    if (outer == ETH_P_8021Q || outer == ETH_P_8021AD) {
        uint inner = load_be16(pkt, 16u);
        if (inner == ETH_P_IP) {
            return port_matches(port_ipv4(pkt, 18u)) ? XDP_PASS : XDP_DROP;
        }
        if (inner == ETH_P_IPV6) {
            return port_matches(port_ipv6(pkt, 18u)) ? XDP_PASS : XDP_DROP;
        }
    }
    return XDP_DROP;
}
