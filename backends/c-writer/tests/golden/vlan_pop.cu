// 1. // CUDA C++, from vlan_pop.wgsl
// 2. typedef struct alignas, shared.cu 1
// 3. typedef struct
// 4. static constexpr uint ETH_P_8021Q = 33024u;
// 5. static __device__ __forceinline__ uint pc_half
// 6. static __device__ __forceinline__ uint load_be16, shared.cu 8
// 7. static __device__ __forceinline__ uint pkt_len, shared.cu 5
// 8. static __device__ __forceinline__ uint pc_word
// 9. static __device__ __forceinline__ uint load_le32, shared.cu 23
// 10. static __device__ __forceinline__ void pc_set_pair, shared.cu 11
// 11. static __device__ __forceinline__ void pc_set_word
// 12. static __device__ __forceinline__ void store_le32, shared.cu 24
// 13. static __device__ __forceinline__ void pc_clear
// 14. static __device__ __forceinline__ bool adjust_head
// 15. static __device__ __forceinline__ uint xdp_filter
// 16. extern "C" __global__ void __launch_bounds__

// CUDA C++, from vlan_pop.wgsl
typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned long long ulonglong;
typedef long long longlong;

typedef struct {
    uchar *bytes;
    const uint *words;
    uint offset;
    uint length;
    uint first;
    uint last;
} pc_packet;

static constexpr uint ETH_P_8021Q = 33024u;
static constexpr uint ETH_P_8021AD = 34984u;
static constexpr uint XDP_PASS = 2u;

static __device__ __forceinline__ uint pc_half(const pc_packet *pkt, uint off)
{
    uint at = pkt->offset + off;
    uint shift = (at & 3u) * 8u;
    const uint *word = pkt->words + (at >> 2);
    return word[0] >> shift | (shift == 24u ? word[1] << 8 : 0u);
}

static __device__ __forceinline__ uint pc_word(const pc_packet *pkt, uint off)
{
    uint at = pkt->offset + off;
    uint shift = (at & 3u) * 8u;
    const uint *word = pkt->words + (at >> 2);
    return word[0] >> shift | word[1] << 1 << (31u - shift);
}

static __device__ __forceinline__ void pc_set_word(pc_packet *pkt, uint off, uint value)
{
    uint at = pkt->offset + off;
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

static __device__ __forceinline__ void pc_clear(uchar *at, uint count)
{
    for (uint i = 0u; i < count; i++) at[i] = 0;
}

static __device__ __forceinline__ bool adjust_head(pc_packet *pkt, int delta)
{
    if (delta >= 0) {
        uint cut = (uint)delta;
        if (pkt->length < 14u || cut > pkt->length - 14u) return false;
        pkt->bytes += cut;
        pkt->offset += cut;
        pkt->length -= cut;
        return true;
    }
    uint add = 0u - (uint)delta;
    if (add > pkt->offset - pkt->first || pkt->length + add < 14u) return false;
    pkt->bytes -= add;
    pkt->offset -= add;
    pkt->length += add;
    pc_clear(pkt->bytes, add);
    return true;
}

static __device__ __forceinline__ uint xdp_filter(pc_packet *pkt)
{
    uint tpid = load_be16(pkt, 12u);
    if (pkt_len(pkt) < 18u || (tpid != ETH_P_8021Q && tpid != ETH_P_8021AD)) {
        return XDP_PASS;
    }
    uint address_0 = load_le32(pkt, 0u);
    uint address_4 = load_le32(pkt, 4u);
    uint address_8 = load_le32(pkt, 8u);
    store_le32(pkt, 4u, address_0);
    store_le32(pkt, 8u, address_4);
    store_le32(pkt, 12u, address_8);
    adjust_head(pkt, 4);
    return XDP_PASS;
}

extern "C" __global__ void __launch_bounds__(256) xdp_kernel(
    uchar *__restrict__ arena,
    pc_descriptor *__restrict__ descriptors,
    uchar *__restrict__ verdicts,
    uint base,
    uint count)
{
    uint lane = blockIdx.x * blockDim.x + threadIdx.x;
    if (lane >= count) return;
    uint packet = base + lane;
    pc_descriptor descriptor = descriptors[packet];
    pc_packet pkt;
    pkt.bytes = arena + descriptor.offset;
    pkt.words = (const uint *)arena;
    pkt.offset = descriptor.offset;
    pkt.length = descriptor.length;
    pkt.first = descriptor.offset - 128u;
    pkt.last = descriptor.offset + descriptor.length + 128u;
    uint verdict = xdp_filter(&pkt);
    descriptors[packet].offset = pkt.offset;
    descriptors[packet].length = pkt.length;
    verdicts[packet] = (uchar)verdict;
}
