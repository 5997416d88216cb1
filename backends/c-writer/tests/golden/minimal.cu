// 1. // CUDA C++, from minimal.wgsl
// 2. typedef struct alignas, shared.cu 1
// 3. typedef struct, shared.cu 2
// 4. static __device__ __forceinline__ pc_descriptor pc_find, shared.cu 3
// 5. typedef struct
// 6. static constexpr uint XDP_PASS = 2u;
// 7. static __device__ __forceinline__ uint xdp_filter
// 8. extern "C" __global__ void __launch_bounds__

// CUDA C++, from minimal.wgsl
typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned long long ulonglong;
typedef long long longlong;

typedef struct {
    uint length;
} pc_packet;

static constexpr uint XDP_PASS = 2u;

static __device__ __forceinline__ uint xdp_filter(pc_packet *pkt)
{
    return XDP_PASS;
}

extern "C" __global__ void __launch_bounds__(256) xdp_kernel(
    const pc_descriptor *__restrict__ descriptors,
    pc_descriptor_rule rule,
    uchar *__restrict__ verdicts,
    uint base,
    uint count)
{
    uint lane = blockIdx.x * blockDim.x + threadIdx.x;
    if (lane >= count) return;
    uint packet = base + lane;
    pc_descriptor descriptor = pc_find(descriptors, rule, packet);
    pc_packet pkt;
    pkt.length = descriptor.length;
    uint verdict = xdp_filter(&pkt);
    verdicts[packet] = (uchar)verdict;
}
