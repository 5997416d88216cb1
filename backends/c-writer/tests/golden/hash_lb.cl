// 1. // OpenCL C 1.2, from hash_lb.wgsl with workers=8
// 2. typedef struct __attribute__, shared.cl 1
// 3. typedef struct, shared.cl 2
// 4. __constant uint FNV_PRIME = 16777619u;
// 5. static uint pkt_len, shared.cl 3
// 6. static uint load_be16, shared.cl 5
// 7. static uint load_u8, shared.cl 4
// 8. static uint load_be32, shared.cl 14
// 9. static uint redirect
// 10. static uint fnv_byte
// 11. static uint fnv_16
// 12. static uint fnv_32
// 13. static uint xdp_filter
// 14. __kernel void xdp_kernel

// OpenCL C 1.2, from hash_lb.wgsl with workers=8

__constant uint FNV_PRIME = 16777619u;
__constant uint ETH_P_IP = 2048u;
__constant uint XDP_PASS = 2u;
__constant uint IPPROTO_TCP = 6u;
__constant uint IPPROTO_UDP = 17u;
__constant uint FNV_BASIS = 2166136261u;
__constant uint workers = 8u;

static uint redirect(uint port)
{
    return port < 0x1000000u ? port << 8 | 4u : 0u;
}

static uint fnv_byte(uint hash, uint byte)
{
    return (hash ^ (byte & 0xffu)) * FNV_PRIME;
}

static uint fnv_16(uint hash, uint value)
{
    return fnv_byte(fnv_byte(hash, value), value >> 8u);
}

static uint fnv_32(uint hash, uint value)
{
    return fnv_16(fnv_16(hash, value), value >> 16u);
}

static uint xdp_filter(pc_packet *pkt)
{
    uint source_port = 0u;
    uint destination_port = 0u;
    uint hash = 0u;
    if (pkt_len(pkt) < 34u || load_be16(pkt, 12u) != ETH_P_IP) {
        return XDP_PASS;
    }
    uint version_ihl = load_u8(pkt, 14u);
    if (version_ihl - 69u > 10u) {
        return XDP_PASS;
    }
    uint protocol = load_u8(pkt, 23u);
    if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) {
        return XDP_PASS;
    }
    if ((load_be16(pkt, 20u) & 0x1fffu) == 0u) {
        uint ports = 14u + (version_ihl & 0xfu) * 4u;
        source_port = load_be16(pkt, ports);
        destination_port = load_be16(pkt, ports + 2u);
    }
    hash = fnv_32(FNV_BASIS, load_be32(pkt, 26u));
    hash = fnv_32(hash, load_be32(pkt, 30u));
    hash = fnv_16(hash, source_port);
    hash = fnv_16(hash, destination_port);
    return redirect(hash % workers);
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
    pkt.bytes = arena + descriptor.offset;
    pkt.length = descriptor.length;
    uint verdict = xdp_filter(&pkt);
    verdicts[packet] = (uchar)verdict;
    targets[packet] = verdict >> 8;
}
