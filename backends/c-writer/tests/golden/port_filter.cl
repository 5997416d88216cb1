// OpenCL C 1.2, from port_filter.wgsl

typedef struct __attribute__((aligned(8))) { uint offset; uint length; } pc_descriptor;

typedef struct {
    __global const uchar *bytes;
    uint length;
} pc_packet;

__constant uint ETH_P_IP = 2048u;
__constant uint XDP_DROP = 1u;
__constant uint IPPROTO_TCP = 6u;
__constant uint IPPROTO_UDP = 17u;
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

static uint xdp_filter(pc_packet *pkt)
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
