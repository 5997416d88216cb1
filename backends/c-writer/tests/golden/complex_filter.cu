// 1. // CUDA C++, from complex_filter.wgsl
// 2. typedef struct alignas, shared.cu 1
// 3. typedef struct, shared.cu 2
// 4. static __device__ __forceinline__ pc_descriptor pc_find, shared.cu 3
// 5. typedef struct, shared.cu 4
// 6. static constexpr uint XDP_DROP = 1u;
// 7. static __device__ __forceinline__ uint pkt_len, shared.cu 5
// 8. static __device__ __forceinline__ uint load_u8, shared.cu 6
// 9. static __device__ __forceinline__ uint pc_half, shared.cu 7
// 10. static __device__ __forceinline__ uint load_be16, shared.cu 8
// 11. static __device__ __forceinline__ uint xdp_filter
// 12. extern "C" __global__ void __launch_bounds__, shared.cu 9

// CUDA C++, from complex_filter.wgsl
typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned long long ulonglong;
typedef long long longlong;

static constexpr uint XDP_DROP = 1u;
static constexpr uint ETH_P_IP = 2048u;
static constexpr uint XDP_PASS = 2u;
static constexpr uint IPPROTO_ICMP = 1u;
static constexpr uint IPPROTO_TCP = 6u;
static constexpr uint IPPROTO_UDP = 17u;

static __device__ __forceinline__ uint xdp_filter(pc_packet *pkt)
{
    uint length = pkt_len(pkt);
    if (length < 64u || length > 1500u) {
        return XDP_DROP;
    }
    uint version_ihl = load_u8(pkt, 14u);
    if (load_be16(pkt, 12u) != ETH_P_IP || version_ihl - 69u > 10u) {
        return XDP_PASS;
    }
    uint protocol = load_u8(pkt, 23u);
    if (protocol == IPPROTO_ICMP) {
        return XDP_DROP;
    }
    if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) {
        return XDP_PASS;
    }
    uint network = load_be16(pkt, 26u);
    bool private_source = network == 2560u || network == 44048u || network == 49320u;
    uint at = 14u + (version_ihl & 0xfu) * 4u + 2u;
    bool first_fragment = (load_be16(pkt, 20u) & 0x1fffu) == 0u;
    if (!private_source || !first_fragment || at + 2u > length) {
        return XDP_PASS;
    }
    uint port = load_be16(pkt, at);
    return port < 1024u && port != 80u && port != 443u ? XDP_DROP : XDP_PASS;
}
