// OpenCL C 1.2, from hash_lb.wgsl with workers=8

typedef struct __attribute__((aligned(8))) { uint offset; uint length; } pc_descriptor;

typedef struct {
    __global const uchar *bytes;
    uint length;
} pc_packet;

__constant uint FNV_PRIME = 16777619u;
__constant uint ETH_P_IP = 2048u;
__constant uint IPPROTO_TCP = 6u;
__constant uint IPPROTO_UDP = 17u;
__constant uint FNV_BASIS = 2166136261u;
__constant uint workers = 8u;
__constant uint XDP_PASS = 2u;

static uint pkt_len(const pc_packet *pkt)
{
    return pkt->length;
}

typedef struct __attribute__((packed)) { uint value; } pc_any;

static uint pc_any_word(__global const uchar *at)
{
    return ((__global const pc_any *)at)->value;
}

static uint load_be16(const pc_packet *pkt, uint off)
{
    bool outside = (pkt->length < 2u) | (off > pkt->length - 2u);
    uint from = (off & 3u) == 3u ? off - 2u : off & ~3u;
    uint word = pc_any_word(pkt->bytes + from) >> (off - from) * 8u;
    return outside ? 0u : (word & 0xffu) << 8 | (word >> 8 & 0xffu);
}

static uint load_u8(const pc_packet *pkt, uint off)
{
    bool outside = (pkt->length < 1u) | (off > pkt->length - 1u);
    uint from = off & ~3u;
    uint word = pc_any_word(pkt->bytes + from) >> (off - from) * 8u;
    return outside ? 0u : word & 0xffu;
}

static uint pc_swap(uint x)
{
    return x << 24 | (x & 0xff00u) << 8 | (x >> 8 & 0xff00u) | x >> 24;
}

static uint load_be32(const pc_packet *pkt, uint off)
{
    bool outside = (pkt->length < 4u) | (off > pkt->length - 4u);
    uint from = off;
    uint word = pc_any_word(pkt->bytes + from);
    return outside ? 0u : pc_swap(word);
}

static uint redirect(uint port)
{
    return port < 0x1000000u ? port << 8 | 4u : 0u;
}

static uint fnv_byte(uint hash, uint byte)
{
    return (hash ^ (byte & 0xffu)) * FNV_PRIME;
}

static uint fnv_16(uint hash, uint value)
{
    return fnv_byte(fnv_byte(hash, value), value >> 8u);
}

static uint fnv_32(uint hash, uint value)
{
    return fnv_16(fnv_16(hash, value), value >> 16u);
}

static uint xdp_filter(pc_packet *pkt)
{
    uint source_port = 0u;
    uint destination_port = 0u;
    uint hash = 0u;
    uint version_ihl = load_u8(pkt, 14u);
    uint protocol = load_u8(pkt, 23u);
    bool t1 = (protocol != IPPROTO_TCP) & (protocol != IPPROTO_UDP);
    bool t2 = (pkt_len(pkt) < 34u) | (load_be16(pkt, 12u) != ETH_P_IP);
    if ((load_be16(pkt, 20u) & 0x1fffu) == 0u) {
        uint ports = 14u + (version_ihl & 0xfu) * 4u;
        source_port = load_be16(pkt, ports);
        destination_port = load_be16(pkt, ports + 2u);
    }
    hash = fnv_32(FNV_BASIS, load_be32(pkt, 26u));
    hash = fnv_32(hash, load_be32(pkt, 30u));
    hash = fnv_16(hash, source_port);
    hash = fnv_16(hash, destination_port);
    uint t3 = redirect(hash % workers);
    bool t4 = (version_ihl - 69u > 10u) | t1;
    return t2 | t4 ? XDP_PASS : t3;
}

__kernel void xdp_kernel(
    __global const uchar *restrict arena,
    __global const pc_descriptor *restrict descriptors,
    __global uchar *restrict verdicts,
    __global uint *restrict targets,
    uint base,
    uint count)
{
    uint lane = (uint)get_global_id(0);
    if (lane >= count) return;
    uint packet = base + lane;
    pc_descriptor descriptor = descriptors[packet];
    pc_packet pkt;
    pkt.bytes = arena + (descriptor.length == 0u ? 0u : descriptor.offset);
    pkt.length = descriptor.length;
    uint verdict = xdp_filter(&pkt);
    verdicts[packet] = (uchar)verdict;
    targets[packet] = verdict >> 8;
}
