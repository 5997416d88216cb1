// 1. // OpenCL C 1.2, from sampler.wgsl with rate=100, seed=0
// 2. typedef struct __attribute__, shared.cl 1
// 3. typedef struct, shared.cl 2
// 4. __constant uint ETH_P_8021Q = 33024u;
// 5. static uint load_be16, shared.cl 5
// 6. static uint load_be16_far, shared.cl 10
// 7. static uint load_u8, shared.cl 4
// 8. static uint pkt_len, shared.cl 3
// 9. static uint load_be32_far, shared.cl 12
// 10. static uint mix_
// 11. static uint finish
// 12. static uint xdp_filter
// 13. __kernel void xdp_kernel, shared.cl 6

// OpenCL C 1.2, from sampler.wgsl with rate=100, seed=0

__constant uint ETH_P_8021Q = 33024u;
__constant uint ETH_P_8021AD = 34984u;
__constant uint ETH_P_IP = 2048u;
__constant uint ETH_P_IPV6 = 34525u;
__constant uint XDP_DROP = 1u;
__constant uint rate = 100u;
__constant uint XDP_PASS = 2u;
__constant uint seed = 0u;

static uint mix_(uint hash, uint word)
{
    uint k = 0u;
    k = word * 3432918353u;
    k = ((k << 15u) | (k >> 17u)) * 461845907u;
    uint h = hash ^ k;
    return ((h << 13u) | (h >> 19u)) * 5u + 3864292196u;
}

static uint finish(uint hash, uint bytes)
{
    uint h = 0u;
    h = hash ^ bytes;
    h = (h ^ (h >> 16u)) * 2246822507u;
    h = (h ^ (h >> 13u)) * 3266489909u;
    return h ^ (h >> 16u);
}

static uint xdp_filter(pc_packet *pkt)
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
        hash = mix_(hash, load_be32_far(pkt, at));
    }
    hash = mix_(hash, protocol);
    hash = mix_(hash, load_be32_far(pkt, payload));
    hash = mix_(hash, load_be32_far(pkt, payload + 4u));
    return finish(hash, end - addresses + 12u) % rate == 0u ? XDP_PASS : XDP_DROP;
}
