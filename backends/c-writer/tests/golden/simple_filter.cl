// OpenCL C 1.2, from simple_filter.wgsl with blocked=3232235521

typedef struct __attribute__((aligned(8))) { uint offset; uint length; } pc_descriptor;

typedef struct {
    __global const uchar *bytes;
    uint length;
} pc_packet;

__constant uint ETH_P_IP = 2048u;
__constant uint XDP_DROP = 1u;
__constant uint IPPROTO_TCP = 6u;
__constant uint IPPROTO_UDP = 17u;
__constant uint blocked = 3232235521u;
__constant uint XDP_PASS = 2u;

static uint pkt_len(const pc_packet *pkt)
{
    return pkt->length;
}

static uint load_be16(const pc_packet *pkt, uint off)
{
    __global const uchar *at = pkt->bytes + off;
    uint value = (uint)at[0] << 8 | (uint)at[1];
    return pkt->length < 2u || off > pkt->length - 2u ? 0u : value;
}

static uint load_u8(const pc_packet *pkt, uint off)
{
    __global const uchar *at = pkt->bytes + off;
    uint value = (uint)at[0];
    return pkt->length < 1u || off > pkt->length - 1u ? 0u : value;
}

static uint load_be32(const pc_packet *pkt, uint off)
{
    __global const uchar *at = pkt->bytes + off;
    uint value = (uint)at[0] << 24 | (uint)at[1] << 16 | (uint)at[2] << 8 | (uint)at[3];
    return pkt->length < 4u || off > pkt->length - 4u ? 0u : value;
}

static uint xdp_filter(pc_packet *pkt)
{
    if (pkt_len(pkt) < 34u || load_be16(pkt, 12u) != ETH_P_IP) {
        return XDP_DROP;
    }
    if (load_u8(pkt, 14u) - 69u > 10u) {
        return XDP_DROP;
    }
    uint protocol = load_u8(pkt, 23u);
    bool t1 = load_be32(pkt, 26u) == blocked;
    return (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) | t1 ? XDP_DROP : XDP_PASS;
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
