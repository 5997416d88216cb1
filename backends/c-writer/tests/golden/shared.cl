typedef struct __attribute__((aligned(8))) { uint offset; uint length; } pc_descriptor;

typedef struct {
    __global const uchar *bytes;
    uint length;
} pc_packet;

static uint pkt_len(const pc_packet *pkt)
{
    return pkt->length;
}

static uint load_u8(const pc_packet *pkt, uint off)
{
    __global const uchar *at = pkt->bytes + off;
    uint value = (uint)at[0];
    return pkt->length < 1u || off > pkt->length - 1u ? 0u : value;
}

static uint load_be16(const pc_packet *pkt, uint off)
{
    __global const uchar *at = pkt->bytes + off;
    uint value = (uint)at[0] << 8 | (uint)at[1];
    return pkt->length < 2u || off > pkt->length - 2u ? 0u : value;
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

typedef struct {
    __global uchar *bytes;
    uint length;
} pc_packet;

static uint load_be16(const pc_packet *pkt, uint off)
{
    __global uchar *at = pkt->bytes + off;
    uint value = (uint)at[0] << 8 | (uint)at[1];
    return pkt->length < 2u || off > pkt->length - 2u ? 0u : value;
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

static uint load_be16_far(const pc_packet *pkt, uint off)
{
    if (pkt->length < 2u || off > pkt->length - 2u) return 0u;
    __global const uchar *at = pkt->bytes + off;
    return (uint)at[0] << 8 | (uint)at[1];
}

static uint load_u8_far(const pc_packet *pkt, uint off)
{
    if (pkt->length < 1u || off > pkt->length - 1u) return 0u;
    __global const uchar *at = pkt->bytes + off;
    return (uint)at[0];
}

static uint load_be32_far(const pc_packet *pkt, uint off)
{
    if (pkt->length < 4u || off > pkt->length - 4u) return 0u;
    __global const uchar *at = pkt->bytes + off;
    return (uint)at[0] << 24 | (uint)at[1] << 16 | (uint)at[2] << 8 | (uint)at[3];
}

static uint pc_min_u32(uint a, uint b)
{
    return a < b ? a : b;
}

static uint load_be32(const pc_packet *pkt, uint off)
{
    __global const uchar *at = pkt->bytes + off;
    uint value = (uint)at[0] << 24 | (uint)at[1] << 16 | (uint)at[2] << 8 | (uint)at[3];
    return pkt->length < 4u || off > pkt->length - 4u ? 0u : value;
}

static uint load_le32(const pc_packet *pkt, uint off)
{
    __global uchar *at = pkt->bytes + off;
    uint value = (uint)at[0] | (uint)at[1] << 8 | (uint)at[2] << 16 | (uint)at[3] << 24;
    return pkt->length < 4u || off > pkt->length - 4u ? 0u : value;
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
