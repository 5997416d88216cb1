// 1. // OpenCL C 1.2, from complex_filter.wgsl, complex_filter.cl 1
// 2. typedef struct __attribute__, shared.cl 1
// 3. typedef struct, shared.cl 2
// 4. __constant uint ETH_P_IP = 2048u;
// 5. static uint pkt_len, shared.cl 3
// 6. typedef struct __attribute__, shared.lanes.cl 1
// 7. static uint pc_any_word, shared.lanes.cl 2
// 8. static uint load_u8, shared.lanes.cl 3
// 9. static uint load_be16, shared.lanes.cl 4
// 10. static uint xdp_filter
// 11. __kernel void xdp_kernel, shared.lanes.cl 5

__constant uint ETH_P_IP = 2048u;
__constant uint IPPROTO_TCP = 6u;
__constant uint IPPROTO_UDP = 17u;
__constant uint XDP_DROP = 1u;
__constant uint XDP_PASS = 2u;
__constant uint IPPROTO_ICMP = 1u;

static uint xdp_filter(pc_packet *pkt)
{
    uint length = pkt_len(pkt);
    uint version_ihl = load_u8(pkt, 14u);
    uint protocol = load_u8(pkt, 23u);
    uint network = load_be16(pkt, 26u);
    bool private_source = (network == 2560u) | (network == 44048u) | (network == 49320u);
    uint at = 14u + (version_ihl & 0xfu) * 4u + 2u;
    bool first_fragment = (load_be16(pkt, 20u) & 0x1fffu) == 0u;
    bool t1 = !private_source | !first_fragment | (at + 2u > length);
    uint port = load_be16(pkt, at);
    uint t2 = (port < 1024u) & (port != 80u) & (port != 443u) ? XDP_DROP : XDP_PASS;
    return (length < 64u) | (length > 1500u) ? XDP_DROP : ((load_be16(pkt, 12u) != ETH_P_IP) | (version_ihl - 69u > 10u) ? XDP_PASS : (protocol == IPPROTO_ICMP ? XDP_DROP : (((protocol != IPPROTO_TCP) & (protocol != IPPROTO_UDP)) | t1 ? XDP_PASS : t2)));
}
