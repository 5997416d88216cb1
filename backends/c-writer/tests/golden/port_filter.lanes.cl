// OpenCL C 1.2, from port_filter.wgsl

typedef struct __attribute__((aligned(8))) { uint offset; uint length; } pc_descriptor;

typedef struct {
    __global const uchar *bytes;
    uint length;
} pc_packet;

__constant uint ETH_P_IP = 2048u;
__constant uint IPPROTO_TCP = 6u;
__constant uint IPPROTO_UDP = 17u;
__constant uint XDP_PASS = 2u;
__constant uint XDP_DROP = 1u;

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

static uint xdp_filter(pc_packet *pkt)
{
    uint version_ihl = load_u8(pkt, 14u);
    uint protocol = load_u8(pkt, 23u);
    bool t1 = (protocol != IPPROTO_TCP) & (protocol != IPPROTO_UDP);
    uint port = load_be16(pkt, 14u + (version_ihl & 0xfu) * 4u + 2u);
    uint t2 = (port == 80u) | (port == 443u) | (port >= 1024u) ? XDP_PASS : XDP_DROP;
    bool t3 = ((load_be16(pkt, 20u) & 0x1fffu) != 0u) | t1;
    bool t4 = (version_ihl - 69u > 10u) | t3;
    return (pkt_len(pkt) < 34u) | (load_be16(pkt, 12u) != ETH_P_IP) | t4 ? XDP_DROP : t2;
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
    pkt.bytes = arena + (descriptor.length == 0u ? 0u : descriptor.offset);
    pkt.length = descriptor.length;
    uint verdict = xdp_filter(&pkt);
    verdicts[packet] = (uchar)verdict;
}
