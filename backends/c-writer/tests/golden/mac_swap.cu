// 1. // CUDA C++, from mac_swap.wgsl
// 2. typedef struct alignas, shared.cu 1
// 3. typedef struct, shared.cu 2
// 4. static __device__ __forceinline__ pc_descriptor pc_find, shared.cu 3
// 5. typedef struct, shared.cu 10
// 6. static constexpr uint XDP_DROP = 1u;
// 7. static __device__ __forceinline__ uint pkt_len, shared.cu 5
// 8. static __device__ __forceinline__ uint pc_word, shared.cu 19
// 9. static __device__ __forceinline__ uint load_le32, shared.cu 23
// 10. static __device__ __forceinline__ uint pc_half, shared.cu 7
// 11. static __device__ __forceinline__ uint load_le16
// 12. static __device__ __forceinline__ void pc_set_pair, shared.cu 11
// 13. static __device__ __forceinline__ void pc_set_word
// 14. static __device__ __forceinline__ void store_le32, shared.cu 24
// 15. static __device__ __forceinline__ void pc_set_half, shared.cu 12
// 16. static __device__ __forceinline__ void store_le16
// 17. static __device__ __forceinline__ uint xdp_filter
// 18. extern "C" __global__ void __launch_bounds__, shared.cu 13

// CUDA C++, from mac_swap.wgsl
typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned long long ulonglong;
typedef long long longlong;

static constexpr uint XDP_DROP = 1u;
static constexpr uint XDP_TX = 3u;

static __device__ __forceinline__ uint load_le16(const pc_packet *pkt, uint off)
{
    uint value = pc_half(pkt, off) & 0xffffu;
    return pkt->length < 2u || off > pkt->length - 2u ? 0u : value;
}

static __device__ __forceinline__ void pc_set_word(pc_packet *pkt, uint off, uint value)
{
    uint at = off;
    uchar *byte = pkt->bytes + off;
    if ((at & 3u) == 0u) {
        *(uint *)byte = value;
    } else if ((at & 1u) == 0u) {
        pc_set_pair(byte, value);
        pc_set_pair(byte + 2, value >> 16);
    } else {
        byte[0] = (uchar)value;
        pc_set_pair(byte + 1, value >> 8);
        byte[3] = (uchar)(value >> 24);
    }
}

static __device__ __forceinline__ void store_le16(pc_packet *pkt, uint off, uint value)
{
    if (pkt->length < 2u || off > pkt->length - 2u) return;
    pc_set_half(pkt, off, value);
}

static __device__ __forceinline__ uint xdp_filter(pc_packet *pkt)
{
    if (pkt_len(pkt) < 14u) {
        return XDP_DROP;
    }
    uint destination_0 = load_le32(pkt, 0u);
    uint destination_4 = load_le16(pkt, 4u);
    uint source_0 = load_le32(pkt, 6u);
    uint source_4 = load_le16(pkt, 10u);
    store_le32(pkt, 0u, source_0);
    store_le16(pkt, 4u, source_4);
    store_le32(pkt, 6u, destination_0);
    store_le16(pkt, 10u, destination_4);
    return XDP_TX;
}
