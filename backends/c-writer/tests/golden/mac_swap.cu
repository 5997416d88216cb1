// CUDA C++, from mac_swap.wgsl
typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned long long ulonglong;
typedef long long longlong;

typedef struct alignas(8) { uint offset; uint length; } pc_descriptor;

typedef struct {
    uchar *bytes;
    const uint *words;
    uint length;
} pc_packet;

static constexpr uint XDP_DROP = 1u;
static constexpr uint XDP_TX = 3u;

static __device__ __forceinline__ uint pkt_len(const pc_packet *pkt)
{
    return pkt->length;
}

static __device__ __forceinline__ uint pc_word(const pc_packet *pkt, uint off)
{
    uint at = off;
    uint shift = (at & 3u) * 8u;
    const uint *word = pkt->words + (at >> 2);
    return word[0] >> shift | word[1] << 1 << (31u - shift);
}

static __device__ __forceinline__ uint load_le32(const pc_packet *pkt, uint off)
{
    uint value = pc_word(pkt, off);
    return pkt->length < 4u || off > pkt->length - 4u ? 0u : value;
}

static __device__ __forceinline__ uint pc_half(const pc_packet *pkt, uint off)
{
    uint at = off;
    uint shift = (at & 3u) * 8u;
    const uint *word = pkt->words + (at >> 2);
    return word[0] >> shift | (shift == 24u ? word[1] << 8 : 0u);
}

static __device__ __forceinline__ uint load_le16(const pc_packet *pkt, uint off)
{
    uint value = pc_half(pkt, off) & 0xffffu;
    return pkt->length < 2u || off > pkt->length - 2u ? 0u : value;
}

static __device__ __forceinline__ void pc_set_pair(uchar *even, uint value)
{
    even = (uchar *)__builtin_assume_aligned(even, 2);
    even[0] = (uchar)value;
    even[1] = (uchar)(value >> 8);
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

static __device__ __forceinline__ void store_le32(pc_packet *pkt, uint off, uint value)
{
    if (pkt->length < 4u || off > pkt->length - 4u) return;
    pc_set_word(pkt, off, value);
}

static __device__ __forceinline__ void pc_set_half(pc_packet *pkt, uint off, uint value)
{
    uint at = off;
    uchar *byte = pkt->bytes + off;
    if ((at & 1u) == 0u) {
        pc_set_pair(byte, value);
    } else {
        byte[0] = (uchar)value;
        byte[1] = (uchar)(value >> 8);
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

extern "C" __global__ void __launch_bounds__(256) xdp_kernel(
    uchar *__restrict__ arena,
    const pc_descriptor *__restrict__ descriptors,
    uchar *__restrict__ verdicts,
    uint base,
    uint count)
{
    uint lane = blockIdx.x * blockDim.x + threadIdx.x;
    if (lane >= count) return;
    uint packet = base + lane;
    pc_descriptor descriptor = descriptors[packet];
    pc_packet pkt;
    pkt.bytes = (uchar *)__builtin_assume_aligned(arena + descriptor.offset, 4);
    pkt.words = (const uint *)(arena + descriptor.offset);
    pkt.length = descriptor.length;
    uint verdict = xdp_filter(&pkt);
    verdicts[packet] = (uchar)verdict;
}
