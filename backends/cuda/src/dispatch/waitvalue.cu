
// The stream has waited for the entry, so it is there when the kernel begins. One block on a
// multiprocessor is enough: with registers for more of them (ptxas 12.9, sm_100) some would be spilled.
extern "C" __global__ void __launch_bounds__(256, 1) pc_waitvalue(const pc_entry *posted, pc_maps maps)
{
    __shared__ pc_entry entry;
    // Nothing, once, when it is loaded.
    if (!posted) return;
    pc_take(&entry, posted);
    for (uint done = blockIdx.x * blockDim.x; done < entry.count; done += gridDim.x * blockDim.x) {
        uint rest = entry.count - done;
        pc_filter_chunk(&entry, maps, entry.first + done, rest < blockDim.x ? rest : blockDim.x);
    }
}
