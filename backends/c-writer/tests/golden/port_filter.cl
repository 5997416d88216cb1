// 1. // OpenCL C 1.2, from port_filter.wgsl
// 2. typedef struct __attribute__, shared.cl 1
// 3. typedef struct, shared.cl 2
// 4. __constant uint ETH_P_IP = 2048u;
// 5. static uint pkt_len, shared.cl 3
// 6. static uint load_be16, shared.cl 5
// 7. static uint load_u8, shared.cl 4
// 8. static uint xdp_filter
// 9. __kernel void xdp_kernel, shared.cl 6

// OpenCL C 1.2, from port_filter.wgsl

__constant uint ETH_P_IP = 2048u;
__constant uint XDP_DROP = 1u;
__constant uint IPPROTO_TCP = 6u;
__constant uint IPPROTO_UDP = 17u;
__constant uint XDP_PASS = 2u;

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
