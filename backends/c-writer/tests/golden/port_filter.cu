// CUDA C++, from port_filter.wgsl
typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned long long ulonglong;
typedef long long longlong;

typedef struct alignas(8) { uint offset; uint length; } pc_descriptor;

typedef struct {
    const uchar *bytes;
    const uint *words;
    uint length;
} pc_packet;

static constexpr uint ETH_P_IP = 2048u;
static constexpr uint XDP_DROP = 1u;
static constexpr uint IPPROTO_TCP = 6u;
static constexpr uint IPPROTO_UDP = 17u;
static constexpr uint XDP_PASS = 2u;

static __device__ __forceinline__ uint pkt_len(const pc_packet *pkt)
{
    return pkt->length;
}

static __device__ __forceinline__ uint pc_half(const pc_packet *pkt, uint off)
{
    uint at = off;
    uint shift = (at & 3u) * 8u;
    const uint *word = pkt->words + (at >> 2);
    return word[0] >> shift | (shift == 24u ? word[1] << 8 : 0u);
}

static __device__ __forceinline__ uint load_be16(const pc_packet *pkt, uint off)
{
    uint both = pc_half(pkt, off);
    uint value = (both & 0xffu) << 8 | (both >> 8 & 0xffu);
    return pkt->length < 2u || off > pkt->length - 2u ? 0u : value;
}

static __device__ __forceinline__ uint load_u8(const pc_packet *pkt, uint off)
{
    const uchar *at = pkt->bytes + off;
    uint value = (uint)at[0];
    return pkt->length < 1u || off > pkt->length - 1u ? 0u : value;
}

static __device__ __forceinline__ uint xdp_filter(pc_packet *pkt)
{
    if (pkt_len(pkt) < 34u || load_be16(pkt, 12u) != ETH_P_IP) {
        return XDP_DROP;
    }
    uint version_ihl = load_u8(pkt, 14u);
    if (version_ihl - 69u > 10u) {
        return XDP_DROP;
    }
    if ((load_be16(pkt, 20u) & 0x1fffu) != 0u) {
        return XDP_DROP;
    }
    uint protocol = load_u8(pkt, 23u);
    if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) {
        return XDP_DROP;
    }
    uint port = load_be16(pkt, 14u + (version_ihl & 0xfu) * 4u + 2u);
    if (port == 80u || port == 443u || port >= 1024u) {
        return XDP_PASS;
    }
    return XDP_DROP;
}

extern "C" __global__ void __launch_bounds__(256) xdp_kernel(
    const uchar *__restrict__ arena,
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
    pkt.bytes = arena + descriptor.offset;
    pkt.words = (const uint *)(arena + descriptor.offset);
    pkt.length = descriptor.length;
    uint verdict = xdp_filter(&pkt);
    verdicts[packet] = (uchar)verdict;
}
