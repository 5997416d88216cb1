// 1. // CUDA C++, from hash_lb.wgsl with workers=8
// 2. typedef struct alignas, shared.cu 1
// 3. typedef struct, shared.cu 2
// 4. static __device__ __forceinline__ pc_descriptor pc_find, shared.cu 3
// 5. typedef struct, shared.cu 4
// 6. static constexpr uint FNV_PRIME = 16777619u;
// 7. static __device__ __forceinline__ uint pkt_len, shared.cu 5
// 8. static __device__ __forceinline__ uint pc_half, shared.cu 7
// 9. static __device__ __forceinline__ uint load_be16, shared.cu 8
// 10. static __device__ __forceinline__ uint load_u8, shared.cu 6
// 11. static __device__ __forceinline__ uint pc_word, shared.cu 19
// 12. static __device__ __forceinline__ uint load_be32, shared.cu 22
// 13. static __device__ __forceinline__ uint redirect
// 14. static __device__ __forceinline__ uint fnv_byte
// 15. static __device__ __forceinline__ uint fnv_16
// 16. static __device__ __forceinline__ uint fnv_32
// 17. static __device__ __forceinline__ uint xdp_filter
// 18. extern "C" __global__ void __launch_bounds__

// CUDA C++, from hash_lb.wgsl with workers=8
typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned long long ulonglong;
typedef long long longlong;

static constexpr uint FNV_PRIME = 16777619u;
static constexpr uint ETH_P_IP = 2048u;
static constexpr uint XDP_PASS = 2u;
static constexpr uint IPPROTO_TCP = 6u;
static constexpr uint IPPROTO_UDP = 17u;
static constexpr uint FNV_BASIS = 2166136261u;
static constexpr uint workers = 8u;

static __device__ __forceinline__ uint redirect(uint port)
{
    return port < 0x1000000u ? port << 8 | 4u : 0u;
}

static __device__ __forceinline__ uint fnv_byte(uint hash, uint byte)
{
    return (hash ^ (byte & 0xffu)) * FNV_PRIME;
}

static __device__ __forceinline__ uint fnv_16(uint hash, uint value)
{
    return fnv_byte(fnv_byte(hash, value), value >> 8u);
}

static __device__ __forceinline__ uint fnv_32(uint hash, uint value)
{
    return fnv_16(fnv_16(hash, value), value >> 16u);
}

static __device__ __forceinline__ uint xdp_filter(pc_packet *pkt)
{
    uint source_port = 0u;
    uint destination_port = 0u;
    uint hash = 0u;
    if (pkt_len(pkt) < 34u || load_be16(pkt, 12u) != ETH_P_IP) {
        return XDP_PASS;
    }
    uint version_ihl = load_u8(pkt, 14u);
    if (version_ihl - 69u > 10u) {
        return XDP_PASS;
    }
    uint protocol = load_u8(pkt, 23u);
    if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) {
        return XDP_PASS;
    }
    if ((load_be16(pkt, 20u) & 0x1fffu) == 0u) {
        uint ports = 14u + (version_ihl & 0xfu) * 4u;
        source_port = load_be16(pkt, ports);
        destination_port = load_be16(pkt, ports + 2u);
    }
    hash = fnv_32(FNV_BASIS, load_be32(pkt, 26u));
    hash = fnv_32(hash, load_be32(pkt, 30u));
    hash = fnv_16(hash, source_port);
    hash = fnv_16(hash, destination_port);
    return redirect(hash % workers);
}

extern "C" __global__ void __launch_bounds__(256) xdp_kernel(
    const uchar *__restrict__ arena,
    const pc_descriptor *__restrict__ descriptors,
    pc_descriptor_rule rule,
    uchar *__restrict__ verdicts,
    uint *__restrict__ targets,
    uint base,
    uint count)
{
    uint lane = blockIdx.x * blockDim.x + threadIdx.x;
    if (lane >= count) return;
    uint packet = base + lane;
    pc_descriptor descriptor = pc_find(descriptors, rule, packet);
    pc_packet pkt;
    pkt.bytes = arena + (descriptor.offset & ~3u);
    pkt.words = (const uint *)(arena + (descriptor.offset & ~3u));
    pkt.length = descriptor.length;
    uint verdict = xdp_filter(&pkt);
    verdicts[packet] = (uchar)verdict;
    targets[packet] = verdict >> 8;
}
