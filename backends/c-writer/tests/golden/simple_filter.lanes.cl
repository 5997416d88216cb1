// 1. // OpenCL C 1.2, from simple_filter.wgsl with blocked=3232235521, simple_filter.cl 1
// 2. typedef struct __attribute__, shared.cl 1
// 3. typedef struct, shared.cl 2
// 4. __constant uint ETH_P_IP = 2048u;
// 5. static uint pkt_len, shared.cl 3
// 6. typedef struct __attribute__, shared.lanes.cl 1
// 7. static uint pc_any_word, shared.lanes.cl 2
// 8. static uint load_be16, shared.lanes.cl 4
// 9. static uint load_u8, shared.lanes.cl 3
// 10. static uint pc_swap, shared.lanes.cl 6
// 11. static uint load_be32, shared.lanes.cl 7
// 12. static uint xdp_filter
// 13. __kernel void xdp_kernel, shared.lanes.cl 5

__constant uint ETH_P_IP = 2048u;
__constant uint IPPROTO_TCP = 6u;
__constant uint IPPROTO_UDP = 17u;
__constant uint blocked = 3232235521u;
__constant uint XDP_DROP = 1u;
__constant uint XDP_PASS = 2u;

static uint xdp_filter(pc_packet *pkt)
{
    uint protocol = load_u8(pkt, 23u);
    bool t1 = load_be32(pkt, 26u) == blocked;
    bool t2 = ((protocol != IPPROTO_TCP) & (protocol != IPPROTO_UDP)) | t1;
    bool t3 = (load_u8(pkt, 14u) - 69u > 10u) | t2;
    return (pkt_len(pkt) < 34u) | (load_be16(pkt, 12u) != ETH_P_IP) | t3 ? XDP_DROP : XDP_PASS;
}
