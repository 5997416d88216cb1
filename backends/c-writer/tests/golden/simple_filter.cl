// 1. // OpenCL C 1.2, from simple_filter.wgsl with blocked=3232235521
// 2. typedef struct __attribute__, shared.cl 1
// 3. typedef struct, shared.cl 2
// 4. __constant uint ETH_P_IP = 2048u;
// 5. static uint pkt_len, shared.cl 3
// 6. static uint load_be16, shared.cl 5
// 7. static uint load_u8, shared.cl 4
// 8. static uint load_be32, shared.cl 14
// 9. static uint xdp_filter
// 10. __kernel void xdp_kernel, shared.cl 6

// OpenCL C 1.2, from simple_filter.wgsl with blocked=3232235521

__constant uint ETH_P_IP = 2048u;
__constant uint XDP_DROP = 1u;
__constant uint IPPROTO_TCP = 6u;
__constant uint IPPROTO_UDP = 17u;
__constant uint blocked = 3232235521u;
__constant uint XDP_PASS = 2u;

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
