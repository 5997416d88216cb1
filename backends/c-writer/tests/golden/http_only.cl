// 1. // OpenCL C 1.2, from http_only.wgsl with http=80, https=443
// 2. typedef struct __attribute__, shared.cl 1
// 3. typedef struct, shared.cl 2
// 4. __constant uint http = 80u;
// 5. static uint load_u8_far, shared.cl 11
// 6. static uint load_be16_far, shared.cl 10
// 7. static uint pkt_len, shared.cl 3
// 8. static uint load_be16, shared.cl 5
// 9. static bool port_matches
// 10. static uint port_ipv4
// 11. static uint port_ipv6
// 12. static uint xdp_filter
// 13. __kernel void xdp_kernel, shared.cl 6

// OpenCL C 1.2, from http_only.wgsl with http=80, https=443

__constant uint http = 80u;
__constant uint https = 443u;
__constant uint IPPROTO_TCP = 6u;
__constant uint MAX_EXTENSION_HEADERS = 8u;
__constant uint XDP_DROP = 1u;
__constant uint ETH_P_IP = 2048u;
__constant uint XDP_PASS = 2u;
__constant uint ETH_P_IPV6 = 34525u;
__constant uint ETH_P_8021Q = 33024u;
__constant uint ETH_P_8021AD = 34984u;

static bool port_matches(uint port)
{
    return port != 0u && (port == http || port == https);
}

static uint port_ipv4(pc_packet *pkt, uint at)
{
    uint version_ihl = load_u8_far(pkt, at);
    if (version_ihl - 69u > 10u || load_u8_far(pkt, at + 9u) != IPPROTO_TCP) {
        return 0u;
    }
    if ((load_be16_far(pkt, at + 6u) & 0x1fffu) != 0u) {
        return 0u;
    }
    return load_be16_far(pkt, at + (version_ihl & 0xfu) * 4u + 2u);
}

static uint port_ipv6(pc_packet *pkt, uint at)
{
    uint header = 0u;
    uint start = 0u;
    uint i = 0u;
    if ((load_u8_far(pkt, at) >> 4u) != 6u) {
        return 0u;
    }
    header = load_u8_far(pkt, at + 6u);
    start = at + 40u;
    for (; i < MAX_EXTENSION_HEADERS && header != IPPROTO_TCP; i = i + 1u) {
        uint next = load_u8_far(pkt, start);
        uint length = load_u8_far(pkt, start + 1u);
        switch (header) {
        case 0u:
        case 43u:
        case 60u:
        case 135u: {
            start = start + (length + 1u) * 8u;
        } break;
        case 51u: {
            start = start + (length + 2u) * 4u;
        } break;
        case 44u: {
            if ((load_be16_far(pkt, start + 2u) & 0xfff8u) != 0u) {
                return 0u;
            }
            start = start + 8u;
        } break;
        default: {
            return 0u;
        }
        }
        header = next;
    }
    if (header != IPPROTO_TCP) {
        return 0u;
    }
    return load_be16_far(pkt, start + 2u);
}

static uint xdp_filter(pc_packet *pkt)
{
    if (pkt_len(pkt) < 38u) {
        return XDP_DROP;
    }
    uint outer = load_be16(pkt, 12u);
    if (outer == ETH_P_IP) {
        return port_matches(port_ipv4(pkt, 14u)) ? XDP_PASS : XDP_DROP;
    }
    if (outer == ETH_P_IPV6) {
        return port_matches(port_ipv6(pkt, 14u)) ? XDP_PASS : XDP_DROP;
    }
    if (outer == ETH_P_8021Q || outer == ETH_P_8021AD) {
        uint inner = load_be16(pkt, 16u);
        if (inner == ETH_P_IP) {
            return port_matches(port_ipv4(pkt, 18u)) ? XDP_PASS : XDP_DROP;
        }
        if (inner == ETH_P_IPV6) {
            return port_matches(port_ipv6(pkt, 18u)) ? XDP_PASS : XDP_DROP;
        }
    }
    return XDP_DROP;
}
