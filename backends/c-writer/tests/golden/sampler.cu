// 1. // CUDA C++, from sampler.wgsl with rate=100, seed=0
// 2. typedef struct alignas, shared.cu 1
// 3. typedef struct, shared.cu 2
// 4. static __device__ __forceinline__ pc_descriptor pc_find, shared.cu 3
// 5. typedef struct, shared.cu 4
// 6. static constexpr uint ETH_P_8021Q = 33024u;
// 7. static __device__ __forceinline__ uint pc_half, shared.cu 7
// 8. static __device__ __forceinline__ uint load_be16, shared.cu 8
// 9. static __device__ __forceinline__ uint load_be16_far, shared.cu 17
// 10. static __device__ __forceinline__ uint load_u8, shared.cu 6
// 11. static __device__ __forceinline__ uint pkt_len, shared.cu 5
// 12. static __device__ __forceinline__ uint pc_word, shared.cu 19
// 13. static __device__ __forceinline__ uint load_be32_far, shared.cu 20
// 14. static __device__ __forceinline__ uint mix
// 15. static __device__ __forceinline__ uint finish
// 16. static __device__ __forceinline__ uint xdp_filter
// 17. extern "C" __global__ void __launch_bounds__, shared.cu 9

// CUDA C++, from sampler.wgsl with rate=100, seed=0
typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned long long ulonglong;
typedef long long longlong;

static constexpr uint ETH_P_8021Q = 33024u;
static constexpr uint ETH_P_8021AD = 34984u;
static constexpr uint ETH_P_IP = 2048u;
static constexpr uint ETH_P_IPV6 = 34525u;
static constexpr uint XDP_DROP = 1u;
static constexpr uint rate = 100u;
static constexpr uint XDP_PASS = 2u;
static constexpr uint seed = 0u;

static __device__ __forceinline__ uint mix(uint hash, uint word)
{
    uint k = 0u;
    k = word * 3432918353u;
    k = ((k << 15u) | (k >> 17u)) * 461845907u;
    uint h = hash ^ k;
    return ((h << 13u) | (h >> 19u)) * 5u + 3864292196u;
}

static __device__ __forceinline__ uint finish(uint hash, uint bytes)
{
    uint h = 0u;
    h = hash ^ bytes;
    h = (h ^ (h >> 16u)) * 2246822507u;
    h = (h ^ (h >> 13u)) * 3266489909u;
    return h ^ (h >> 16u);
}

static __device__ __forceinline__ uint xdp_filter(pc_packet *pkt)
{
    uint addresses = 0u;
    uint payload = 0u;
    uint protocol = 0u;
    uint hash = seed;
    uint at = 0u;
    uint outer = load_be16(pkt, 12u);
    uint ip = outer == ETH_P_8021Q || outer == ETH_P_8021AD ? 18u : 14u;
    uint ethertype = load_be16_far(pkt, ip - 2u);
    uint version_ihl = load_u8(pkt, ip);
    if (ethertype == ETH_P_IP && version_ihl - 69u <= 10u && pkt_len(pkt) >= ip + 20u) {
        addresses = ip + 12u;
        payload = ip + (version_ihl & 0xfu) * 4u;
        protocol = (load_be16(pkt, ip + 4u) << 16u) | load_u8(pkt, ip + 9u);
    } else if (ethertype == ETH_P_IPV6 && (version_ihl >> 4u) == 6u && pkt_len(pkt) >= ip + 40u) {
        addresses = ip + 8u;
        payload = ip + 40u;
        protocol = load_u8(pkt, ip + 6u);
    } else {
        return XDP_DROP;
    }
    uint end = ethertype == ETH_P_IP ? ip + 20u : ip + 40u;
    at = addresses;
    for (; at < end; at = at + 4u) {
        hash = mix(hash, load_be32_far(pkt, at));
    }
    hash = mix(hash, protocol);
    hash = mix(hash, load_be32_far(pkt, payload));
    hash = mix(hash, load_be32_far(pkt, payload + 4u));
    return finish(hash, end - addresses + 12u) % rate == 0u ? XDP_PASS : XDP_DROP;
}
