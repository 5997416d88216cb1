// 1. // OpenCL C 1.2, from vlan_pop.wgsl
// 2. typedef struct __attribute__, shared.cl 1
// 3. typedef struct
// 4. __constant uint ETH_P_8021Q = 33024u;
// 5. static uint load_be16, shared.cl 8
// 6. static uint pkt_len, shared.cl 3
// 7. static uint load_le32, shared.cl 15
// 8. static void store_le32, shared.cl 16
// 9. static void pc_clear
// 10. static bool adjust_head
// 11. static uint xdp_filter
// 12. __kernel void xdp_kernel

// OpenCL C 1.2, from vlan_pop.wgsl

typedef struct {
    __global uchar *bytes;
    uint offset;
    uint length;
    uint first;
    uint last;
} pc_packet;

__constant uint ETH_P_8021Q = 33024u;
__constant uint ETH_P_8021AD = 34984u;
__constant uint XDP_PASS = 2u;

static void pc_clear(__global uchar *at, uint count)
{
    for (uint i = 0u; i < count; i++) at[i] = 0;
}

static bool adjust_head(pc_packet *pkt, int delta)
{
    if (delta >= 0) {
        uint cut = (uint)delta;
        if (pkt->length < 14u || cut > pkt->length - 14u) return false;
        pkt->bytes += cut;
        pkt->offset += cut;
        pkt->length -= cut;
        return true;
    }
    uint add = 0u - (uint)delta;
    if (add > pkt->offset - pkt->first || pkt->length + add < 14u) return false;
    pkt->bytes -= add;
    pkt->offset -= add;
    pkt->length += add;
    pc_clear(pkt->bytes, add);
    return true;
}

static uint xdp_filter(pc_packet *pkt)
{
    uint tpid = load_be16(pkt, 12u);
    if (pkt_len(pkt) < 18u || (tpid != ETH_P_8021Q && tpid != ETH_P_8021AD)) {
        return XDP_PASS;
    }
    uint address_0 = load_le32(pkt, 0u);
    uint address_4 = load_le32(pkt, 4u);
    uint address_8 = load_le32(pkt, 8u);
    store_le32(pkt, 4u, address_0);
    store_le32(pkt, 8u, address_4);
    store_le32(pkt, 12u, address_8);
    adjust_head(pkt, 4);
    return XDP_PASS;
}

__kernel void xdp_kernel(
    __global uchar *restrict arena,
    __global pc_descriptor *restrict descriptors,
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
    pkt.offset = descriptor.offset;
    pkt.length = descriptor.length;
    pkt.first = descriptor.offset - 128u;
    pkt.last = descriptor.offset + descriptor.length + 128u;
    uint verdict = xdp_filter(&pkt);
    descriptors[packet].offset = pkt.offset;
    descriptors[packet].length = pkt.length;
    verdicts[packet] = (uchar)verdict;
}
