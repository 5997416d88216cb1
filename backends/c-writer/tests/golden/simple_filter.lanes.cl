// OpenCL C 1.2, from simple_filter.wgsl with blocked=3232235521

typedef struct __attribute__((aligned(8))) { uint offset; uint length; } pc_descriptor;

typedef struct {
    __global const uchar *bytes;
    uint length;
} pc_packet;

__constant uint ETH_P_IP = 2048u;
__constant uint IPPROTO_TCP = 6u;
__constant uint IPPROTO_UDP = 17u;
__constant uint blocked = 3232235521u;
__constant uint XDP_DROP = 1u;
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

static uint xdp_filter(pc_packet *pkt)
{
    uint protocol = load_u8(pkt, 23u);
    bool t1 = load_be32(pkt, 26u) == blocked;
    bool t2 = ((protocol != IPPROTO_TCP) & (protocol != IPPROTO_UDP)) | t1;
    bool t3 = (load_u8(pkt, 14u) - 69u > 10u) | t2;
    return (pkt_len(pkt) < 34u) | (load_be16(pkt, 12u) != ETH_P_IP) | t3 ? XDP_DROP : XDP_PASS;
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
