// 1. // OpenCL C 1.2, from complex_filter.wgsl
// 2. typedef struct __attribute__, shared.cl 1
// 3. typedef struct, shared.cl 2
// 4. __constant uint XDP_DROP = 1u;
// 5. static uint pkt_len, shared.cl 3
// 6. static uint load_u8, shared.cl 4
// 7. static uint load_be16, shared.cl 5
// 8. static uint xdp_filter
// 9. __kernel void xdp_kernel, shared.cl 6

// OpenCL C 1.2, from complex_filter.wgsl

__constant uint XDP_DROP = 1u;
__constant uint ETH_P_IP = 2048u;
__constant uint XDP_PASS = 2u;
__constant uint IPPROTO_ICMP = 1u;
__constant uint IPPROTO_TCP = 6u;
__constant uint IPPROTO_UDP = 17u;

static uint xdp_filter(pc_packet *pkt)
{
    uint length = pkt_len(pkt);
    if (length < 64u || length > 1500u) {
        return XDP_DROP;
    }
    uint version_ihl = load_u8(pkt, 14u);
    if (load_be16(pkt, 12u) != ETH_P_IP || version_ihl - 69u > 10u) {
        return XDP_PASS;
    }
    uint protocol = load_u8(pkt, 23u);
    if (protocol == IPPROTO_ICMP) {
        return XDP_DROP;
    }
    if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) {
        return XDP_PASS;
    }
    uint network = load_be16(pkt, 26u);
    bool private_source = network == 2560u || network == 44048u || network == 49320u;
    uint at = 14u + (version_ihl & 0xfu) * 4u + 2u;
    bool first_fragment = (load_be16(pkt, 20u) & 0x1fffu) == 0u;
    if (!private_source || !first_fragment || at + 2u > length) {
        return XDP_PASS;
    }
    uint port = load_be16(pkt, at);
    return port < 1024u && port != 80u && port != 443u ? XDP_DROP : XDP_PASS;
}
