// 1. // OpenCL C 1.2, from dscp_mark.wgsl with dscp=46
// 2. typedef struct __attribute__, shared.cl 1
// 3. typedef struct, shared.cl 7
// 4. __constant uint XDP_PASS = 2u;
// 5. static uint pkt_len, shared.cl 3
// 6. static uint load_be16, shared.cl 8
// 7. static void store_be16
// 8. static uint csum_fold
// 9. static uint csum_replace16
// 10. static uint xdp_filter
// 11. __kernel void xdp_kernel, shared.cl 9

// OpenCL C 1.2, from dscp_mark.wgsl with dscp=46

__constant uint XDP_PASS = 2u;
__constant uint ETH_P_IP = 2048u;
__constant uint ETH_P_IPV6 = 34525u;

static void store_be16(pc_packet *pkt, uint off, uint value)
{
    if (pkt->length < 2u || off > pkt->length - 2u) return;
    __global uchar *at = pkt->bytes + off;
    at[0] = (uchar)(value >> 8);
    at[1] = (uchar)value;
}

static uint csum_fold(uint sum)
{
    uint once = (sum & 0xffffu) + (sum >> 16);
    return (once & 0xffffu) + (once >> 16);
}

static uint csum_replace16(uint check, uint from, uint to)
{
    uint sum = (~check & 0xffffu) + (~from & 0xffffu) + (to & 0xffffu);
    return ~csum_fold(sum) & 0xffffu;
}

static uint xdp_filter(pc_packet *pkt)
{
    uint length = pkt_len(pkt);
    if (length < 34u) {
        return XDP_PASS;
    }
    uint ethertype = load_be16(pkt, 12u);
    uint before = load_be16(pkt, 14u);
    if (ethertype == ETH_P_IP && (before >> 8u) - 69u <= 10u) {
        uint after = (before & 0xff03u) | 0xb8u;
        if (after != before) {
            store_be16(pkt, 14u, after);
            store_be16(pkt, 24u, csum_replace16(load_be16(pkt, 24u), before, after));
        }
    }
    if (ethertype == ETH_P_IPV6 && length >= 54u && (before >> 12u) == 6u) {
        uint after = (before & 0xf03fu) | 0xb80u;
        if (after != before) {
            store_be16(pkt, 14u, after);
        }
    }
    return XDP_PASS;
}
