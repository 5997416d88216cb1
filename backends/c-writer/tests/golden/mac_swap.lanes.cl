// OpenCL C 1.2, from mac_swap.wgsl

typedef struct __attribute__((aligned(8))) { uint offset; uint length; } pc_descriptor;

typedef struct {
    __global uchar *bytes;
    uint length;
} pc_packet;

__constant uint XDP_DROP = 1u;
__constant uint XDP_TX = 3u;

static uint pkt_len(const pc_packet *pkt)
{
    return pkt->length;
}

static uint load_le32(const pc_packet *pkt, uint off)
{
    __global uchar *at = pkt->bytes + off;
    uint value = (uint)at[0] | (uint)at[1] << 8 | (uint)at[2] << 16 | (uint)at[3] << 24;
    return pkt->length < 4u || off > pkt->length - 4u ? 0u : value;
}

static uint load_le16(const pc_packet *pkt, uint off)
{
    __global uchar *at = pkt->bytes + off;
    uint value = (uint)at[0] | (uint)at[1] << 8;
    return pkt->length < 2u || off > pkt->length - 2u ? 0u : value;
}

static void store_le32(pc_packet *pkt, uint off, uint value)
{
    if (pkt->length < 4u || off > pkt->length - 4u) return;
    __global uchar *at = pkt->bytes + off;
    at[0] = (uchar)value;
    at[1] = (uchar)(value >> 8);
    at[2] = (uchar)(value >> 16);
    at[3] = (uchar)(value >> 24);
}

static void store_le16(pc_packet *pkt, uint off, uint value)
{
    if (pkt->length < 2u || off > pkt->length - 2u) return;
    __global uchar *at = pkt->bytes + off;
    at[0] = (uchar)value;
    at[1] = (uchar)(value >> 8);
}

static uint xdp_filter(pc_packet *pkt)
{
    if (pkt_len(pkt) < 14u) {
        return XDP_DROP;
    }
    uint destination_0 = load_le32(pkt, 0u);
    uint destination_4 = load_le16(pkt, 4u);
    uint source_0 = load_le32(pkt, 6u);
    uint source_4 = load_le16(pkt, 10u);
    store_le32(pkt, 0u, source_0);
    store_le16(pkt, 4u, source_4);
    store_le32(pkt, 6u, destination_0);
    store_le16(pkt, 10u, destination_4);
    return XDP_TX;
}

__kernel void xdp_kernel(
    __global uchar *restrict arena,
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
