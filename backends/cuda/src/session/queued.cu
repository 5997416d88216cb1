// The kernel of `waitvalue` and `graph`, which begins after its request was posted. Its last block
// answers. Bounded to one block on a multiprocessor: with registers for more, ptxas 12.9 spills on
// sm_100.
extern "C" __global__ void __launch_bounds__(PC_BLOCK_SIZE, 1) pc_queued(const pc_posted *posted, uint *answer, uint *blocks_done, pc_maps maps)
{
    __shared__ pc_request request;
    // The launch at load time has no arguments and does nothing.
    if (!posted) return;
    const uint *words = (const uint *)posted;
    if (threadIdx.x < sizeof request / 4u) ((uint *)&request)[threadIdx.x] = pc_load4(words + 2u * threadIdx.x);
    __syncthreads();
    for (uint done = blockIdx.x * blockDim.x; done < pc_count(&request); done += gridDim.x * blockDim.x) {
        uint rest = pc_count(&request) - done;
        pc_filter_part(&request, maps, request.first + done, rest < blockDim.x ? rest : blockDim.x);
        __syncthreads();
    }
    __syncthreads();
    if (threadIdx.x != 0u) return;
    // The barrier orders the stores of the block's threads before the fence, which orders them
    // before the count.
    if (!request.tag) __threadfence_system();
    if (atomicAdd(blocks_done, 1u) + 1u != gridDim.x) return;
    *(volatile uint *)blocks_done = 0u;
    uint lap = pc_load4(words + 1);
    // Tagged results tell when they are complete: the answer only frees the ring's entry.
    if (request.tag) *(volatile uint *)answer = lap;
    else {
        __threadfence_system();
        pc_release(answer, lap);
    }
}
