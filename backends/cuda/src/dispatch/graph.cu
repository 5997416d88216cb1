
// A slot in the device's memory: the graph's copies bring it there and take back what is returned. The head says what
// is to be filtered, so that the graph need not know.
extern "C" __global__ void __launch_bounds__(256) pc_graph(uchar *inside, uchar *returned, pc_maps maps)
{
    // Nothing, once, when it is loaded.
    if (!inside) return;
    const uint *head = (const uint *)inside;
    uchar *place = *(uchar *const *)inside;
    uint packets = head[2], first = head[3], count = head[4];
    pc_given at = pc_given_of(packets);
    uchar *arena = place ? place : inside + at.packets;
    pc_returned back = pc_returned_of(packets);
    // Written so that it cannot wrap: as many are left as there are threads, or more.
    uint threads = gridDim.x * blockDim.x;
    for (uint lane = blockIdx.x * blockDim.x + threadIdx.x; lane < count;
         lane = count - lane > threads ? lane + threads : count) {
        pc_filter_packet(
            arena, (pc_descriptor *)(inside + PC_HEAD), (const uint *)(inside + at.metadata), returned,
            (uint *)(returned + back.targets), first + lane PC_WITH(maps));
    }
}
