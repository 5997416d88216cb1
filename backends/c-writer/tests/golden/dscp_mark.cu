// 1. // CUDA C++, from dscp_mark.wgsl with dscp=46
// 2. typedef struct alignas, shared.cu 1
// 3. typedef struct, shared.cu 2
// 4. static __device__ __forceinline__ pc_descriptor pc_find, shared.cu 3
// 5. typedef struct, shared.cu 10
// 6. static constexpr uint XDP_PASS = 2u;
// 7. static __device__ __forceinline__ uint pkt_len, shared.cu 5
// 8. static __device__ __forceinline__ uint pc_half, shared.cu 7
// 9. static __device__ __forceinline__ uint load_be16, shared.cu 8
// 10. static __device__ __forceinline__ void pc_set_pair, shared.cu 11
// 11. static __device__ __forceinline__ void pc_set_half, shared.cu 12
// 12. static __device__ __forceinline__ void store_be16
// 13. static __device__ __forceinline__ uint csum_fold
// 14. static __device__ __forceinline__ uint csum_replace16
// 15. static __device__ __forceinline__ uint xdp_filter
// 16. extern "C" __global__ void __launch_bounds__, shared.cu 13

// CUDA C++, from dscp_mark.wgsl with dscp=46
typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned long long ulonglong;
typedef long long longlong;

static constexpr uint XDP_PASS = 2u;
static constexpr uint ETH_P_IP = 2048u;
static constexpr uint ETH_P_IPV6 = 34525u;

static __device__ __forceinline__ void store_be16(pc_packet *pkt, uint off, uint value)
{
    if (pkt->length < 2u || off > pkt->length - 2u) return;
    pc_set_half(pkt, off, value << 8 | (value >> 8 & 0xffu));
}

static __device__ __forceinline__ uint csum_fold(uint sum)
{
    uint once = (sum & 0xffffu) + (sum >> 16);
    return (once & 0xffffu) + (once >> 16);
}

static __device__ __forceinline__ uint csum_replace16(uint check, uint from, uint to)
{
    uint sum = (~check & 0xffffu) + (~from & 0xffffu) + (to & 0xffffu);
    return ~csum_fold(sum) & 0xffffu;
}

static __device__ __forceinline__ uint xdp_filter(pc_packet *pkt)
{
    uint length = pkt_len(pkt);
    if (length < 34u) {
        return XDP_PASS;
    }
    uint ethertype = load_be16(pkt, 12u);
    uint before = load_be16(pkt, 14u);
    if (ethertype == ETH_P_IP && (before >> 8u) - 69u <= 10u) {
        uint after = (before & 0xff03u) | 0xb8u;
        if (after != before) {
            store_be16(pkt, 14u, after);
            store_be16(pkt, 24u, csum_replace16(load_be16(pkt, 24u), before, after));
        }
    }
    if (ethertype == ETH_P_IPV6 && length >= 54u && (before >> 12u) == 6u) {
        uint after = (before & 0xf03fu) | 0xb80u;
        if (after != before) {
            store_be16(pkt, 14u, after);
        }
    }
    return XDP_PASS;
}
