
// The stream has waited for the request, so it is complete when the kernel begins. Bounded to one
// block on a multiprocessor: with registers for more, ptxas 12.9 spills on sm_100.
extern "C" __global__ void __launch_bounds__(256, 1) pc_waitvalue(const pc_entry *posted, pc_maps maps)
{
    __shared__ pc_entry entry;
    // The launch at load time has no arguments and does nothing.
    if (!posted) return;
    pc_take(&entry, posted);
    for (uint done = blockIdx.x * blockDim.x; done < entry.count; done += gridDim.x * blockDim.x) {
        uint rest = entry.count - done;
        pc_filter_chunk(&entry, maps, entry.first + done, rest < blockDim.x ? rest : blockDim.x);
    }
}
