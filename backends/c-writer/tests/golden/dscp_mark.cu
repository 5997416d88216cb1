// CUDA C++, from dscp_mark.wgsl with dscp=46
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

static constexpr uint XDP_PASS = 2u;
static constexpr uint ETH_P_IP = 2048u;
static constexpr uint ETH_P_IPV6 = 34525u;

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

static __device__ __forceinline__ void pc_set_pair(uchar *even, uint value)
{
    even = (uchar *)__builtin_assume_aligned(even, 2);
    even[0] = (uchar)value;
    even[1] = (uchar)(value >> 8);
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
