
// Filters a slot in device memory, which the graph's copies upload and whose response they
// download. The header has the number of packets, so that the graph does not depend on it.
extern "C" __global__ void __launch_bounds__(256) pc_graph(uchar *inside, uchar *returned, pc_maps maps)
{
    // The launch at load time has no arguments and does nothing.
    if (!inside) return;
    const uint *head = (const uint *)inside;
    uchar *place = *(uchar *const *)inside;
    uint packets = head[2], first = head[3], count = head[4];
    pc_given at = pc_given_of(packets);
    uchar *arena = place ? place : inside + at.packets;
    pc_returned back = pc_returned_of(packets);
    // Avoids overflow of `lane`: stops if fewer than `threads` lanes are left.
    uint threads = gridDim.x * blockDim.x;
    for (uint lane = blockIdx.x * blockDim.x + threadIdx.x; lane < count;
         lane = count - lane > threads ? lane + threads : count) {
        pc_filter_packet(
            arena, (pc_descriptor *)(inside + PC_HEAD), (const uint *)(inside + at.metadata), returned,
            (uint *)(returned + back.targets), first + lane PC_WITH(maps));
    }
}
