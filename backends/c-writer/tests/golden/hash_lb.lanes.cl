// 1. // OpenCL C 1.2, from hash_lb.wgsl with workers=8, hash_lb.cl 1
// 2. typedef struct __attribute__, shared.cl 1
// 3. typedef struct, shared.cl 2
// 4. __constant uint FNV_PRIME = 16777619u;
// 5. static uint pkt_len, shared.cl 3
// 6. typedef struct __attribute__, shared.lanes.cl 1
// 7. static uint pc_any_word, shared.lanes.cl 2
// 8. static uint load_be16, shared.lanes.cl 4
// 9. static uint load_u8, shared.lanes.cl 3
// 10. static uint pc_swap, shared.lanes.cl 6
// 11. static uint load_be32, shared.lanes.cl 7
// 12. static uint redirect, hash_lb.cl 3
// 13. static uint fnv_byte, hash_lb.cl 4
// 14. static uint fnv_16, hash_lb.cl 5
// 15. static uint fnv_32, hash_lb.cl 6
// 16. static uint xdp_filter
// 17. __kernel void xdp_kernel

__constant uint FNV_PRIME = 16777619u;
__constant uint ETH_P_IP = 2048u;
__constant uint IPPROTO_TCP = 6u;
__constant uint IPPROTO_UDP = 17u;
__constant uint FNV_BASIS = 2166136261u;
__constant uint workers = 8u;
__constant uint XDP_PASS = 2u;

static uint xdp_filter(pc_packet *pkt)
{
    uint source_port = 0u;
    uint destination_port = 0u;
    uint hash = 0u;
    uint version_ihl = load_u8(pkt, 14u);
    uint protocol = load_u8(pkt, 23u);
    bool t1 = (protocol != IPPROTO_TCP) & (protocol != IPPROTO_UDP);
    bool t2 = (pkt_len(pkt) < 34u) | (load_be16(pkt, 12u) != ETH_P_IP);
    if ((load_be16(pkt, 20u) & 0x1fffu) == 0u) {
        uint ports = 14u + (version_ihl & 0xfu) * 4u;
        source_port = load_be16(pkt, ports);
        destination_port = load_be16(pkt, ports + 2u);
    }
    hash = fnv_32(FNV_BASIS, load_be32(pkt, 26u));
    hash = fnv_32(hash, load_be32(pkt, 30u));
    hash = fnv_16(hash, source_port);
    hash = fnv_16(hash, destination_port);
    uint t3 = redirect(hash % workers);
    bool t4 = (version_ihl - 69u > 10u) | t1;
    return t2 | t4 ? XDP_PASS : t3;
}

__kernel void xdp_kernel(
    __global const uchar *restrict arena,
    __global const pc_descriptor *restrict descriptors,
    __global uchar *restrict verdicts,
    __global uint *restrict targets,
    uint base,
    uint count)
{
    uint lane = (uint)get_global_id(0);
    if (lane >= count) return;
    uint packet = base + lane;
    pc_descriptor descriptor = descriptors[packet];
    pc_packet pkt;
    pkt.bytes = arena + (descriptor.length == 0u ? 0u : descriptor.offset);
    pkt.length = descriptor.length;
    uint verdict = xdp_filter(&pkt);
    verdicts[packet] = (uchar)verdict;
    targets[packet] = verdict >> 8;
}
