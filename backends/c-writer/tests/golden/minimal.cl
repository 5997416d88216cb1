// 1. // OpenCL C 1.2, from minimal.wgsl
// 2. typedef struct __attribute__, shared.cl 1
// 3. typedef struct
// 4. __constant uint XDP_PASS = 2u;
// 5. static uint xdp_filter
// 6. __kernel void xdp_kernel

// OpenCL C 1.2, from minimal.wgsl

typedef struct {
    uint length;
} pc_packet;

__constant uint XDP_PASS = 2u;

static uint xdp_filter(pc_packet *pkt)
{
    return XDP_PASS;
}

__kernel void xdp_kernel(
    __global const pc_descriptor *restrict descriptors,
    __global uchar *restrict verdicts,
    uint base,
    uint count)
{
    uint lane = (uint)get_global_id(0);
    if (lane >= count) return;
    uint packet = base + lane;
    pc_descriptor descriptor = descriptors[packet];
    pc_packet pkt;
    pkt.length = descriptor.length;
    uint verdict = xdp_filter(&pkt);
    verdicts[packet] = (uchar)verdict;
}
