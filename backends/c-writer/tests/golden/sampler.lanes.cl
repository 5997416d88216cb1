// OpenCL C 1.2, from sampler.wgsl with rate=100, seed=0

typedef struct __attribute__((aligned(8))) { uint offset; uint length; } pc_descriptor;

typedef struct {
    __global const uchar *bytes;
    uint length;
} pc_packet;

__constant uint ETH_P_8021Q = 33024u;
__constant uint ETH_P_8021AD = 34984u;
__constant uint ETH_P_IP = 2048u;
__constant uint ETH_P_IPV6 = 34525u;
__constant uint XDP_DROP = 1u;
__constant uint rate = 100u;
__constant uint XDP_PASS = 2u;
__constant uint seed = 0u;

static uint load_be16(const pc_packet *pkt, uint off)
{
    __global const uchar *at = pkt->bytes + off;
    uint value = (uint)at[0] << 8 | (uint)at[1];
    return pkt->length < 2u || off > pkt->length - 2u ? 0u : value;
}

static uint load_be16_far(const pc_packet *pkt, uint off)
{
    if (pkt->length < 2u || off > pkt->length - 2u) return 0u;
    __global const uchar *at = pkt->bytes + off;
    return (uint)at[0] << 8 | (uint)at[1];
}

static uint load_u8(const pc_packet *pkt, uint off)
{
    __global const uchar *at = pkt->bytes + off;
    uint value = (uint)at[0];
    return pkt->length < 1u || off > pkt->length - 1u ? 0u : value;
}

static uint pkt_len(const pc_packet *pkt)
{
    return pkt->length;
}

static uint load_be32_far(const pc_packet *pkt, uint off)
{
    if (pkt->length < 4u || off > pkt->length - 4u) return 0u;
    __global const uchar *at = pkt->bytes + off;
    return (uint)at[0] << 24 | (uint)at[1] << 16 | (uint)at[2] << 8 | (uint)at[3];
}

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

__kernel void xdp_kernel(
    __global const uchar *restrict arena,
    __global const pc_descriptor *restrict descriptors,
    __global uchar *restrict verdicts,
    uint base,
    uint count)
{
    uint lane = (uint)get_global_id(0);
    if (lane >= count) return;
    uint packet = base + lane;
    pc_descriptor descriptor = descriptors[packet];
    pc_packet pkt;
    pkt.bytes = arena + descriptor.offset;
    pkt.length = descriptor.length;
    uint verdict = xdp_filter(&pkt);
    verdicts[packet] = (uchar)verdict;
}
