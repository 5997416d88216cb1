// 1. // CUDA C++, from simple_filter.wgsl with blocked=3232235521
// 2. typedef struct alignas, shared.cu 1
// 3. typedef struct, shared.cu 2
// 4. static __device__ __forceinline__ pc_descriptor pc_find, shared.cu 3
// 5. typedef struct, shared.cu 4
// 6. static constexpr uint ETH_P_IP = 2048u;
// 7. static __device__ __forceinline__ uint pkt_len, shared.cu 5
// 8. static __device__ __forceinline__ uint pc_half, shared.cu 7
// 9. static __device__ __forceinline__ uint load_be16, shared.cu 8
// 10. static __device__ __forceinline__ uint load_u8, shared.cu 6
// 11. static __device__ __forceinline__ uint pc_word, shared.cu 19
// 12. static __device__ __forceinline__ uint load_be32, shared.cu 22
// 13. static __device__ __forceinline__ uint xdp_filter
// 14. extern "C" __global__ void __launch_bounds__, shared.cu 9

// CUDA C++, from simple_filter.wgsl with blocked=3232235521
typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned long long ulonglong;
typedef long long longlong;

static constexpr uint ETH_P_IP = 2048u;
static constexpr uint XDP_DROP = 1u;
static constexpr uint IPPROTO_TCP = 6u;
static constexpr uint IPPROTO_UDP = 17u;
static constexpr uint blocked = 3232235521u;
static constexpr uint XDP_PASS = 2u;

static __device__ __forceinline__ uint xdp_filter(pc_packet *pkt)
{
    if (pkt_len(pkt) < 34u || load_be16(pkt, 12u) != ETH_P_IP) {
        return XDP_DROP;
    }
    if (load_u8(pkt, 14u) - 69u > 10u) {
        return XDP_DROP;
    }
    uint protocol = load_u8(pkt, 23u);
    bool t1 = load_be32(pkt, 26u) == blocked;
    return (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) | t1 ? XDP_DROP : XDP_PASS;
}
