// 1. // OpenCL C 1.2, from mac_swap.wgsl
// 2. typedef struct __attribute__, shared.cl 1
// 3. typedef struct, shared.cl 7
// 4. __constant uint XDP_DROP = 1u;
// 5. static uint pkt_len, shared.cl 3
// 6. static uint load_le32, shared.cl 15
// 7. static uint load_le16
// 8. static void store_le32, shared.cl 16
// 9. static void store_le16
// 10. static uint xdp_filter
// 11. __kernel void xdp_kernel, shared.cl 9

// OpenCL C 1.2, from mac_swap.wgsl

__constant uint XDP_DROP = 1u;
__constant uint XDP_TX = 3u;

static uint load_le16(const pc_packet *pkt, uint off)
{
    __global uchar *at = pkt->bytes + off;
    uint value = (uint)at[0] | (uint)at[1] << 8;
    return pkt->length < 2u || off > pkt->length - 2u ? 0u : value;
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
