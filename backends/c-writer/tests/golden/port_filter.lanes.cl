// 1. // OpenCL C 1.2, from port_filter.wgsl, port_filter.cl 1
// 2. typedef struct __attribute__, shared.cl 1
// 3. typedef struct, shared.cl 2
// 4. __constant uint ETH_P_IP = 2048u;
// 5. static uint pkt_len, shared.cl 3
// 6. typedef struct __attribute__, shared.lanes.cl 1
// 7. static uint pc_any_word, shared.lanes.cl 2
// 8. static uint load_be16, shared.lanes.cl 4
// 9. static uint load_u8, shared.lanes.cl 3
// 10. static uint xdp_filter
// 11. __kernel void xdp_kernel, shared.lanes.cl 5

__constant uint ETH_P_IP = 2048u;
__constant uint IPPROTO_TCP = 6u;
__constant uint IPPROTO_UDP = 17u;
__constant uint XDP_PASS = 2u;
__constant uint XDP_DROP = 1u;

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
