
// A launch, as the host posts it: packets `first` to `first + count` of a slot. `given` and `returned` are in the host's
// memory, `inside` in the device's, where as much is as is given. `turn` is written last.
typedef struct {
    uchar *given, *inside, *returned;
    uint first, count, packets, bytes;
    uint turn, unused[5];
} pc_entry;

// Copies words between the device's memory and the host's, all threads of a block together. Volatile: what the host
// has written since the kernel began must be seen. Four loads are on their way at once: the bus is far.
static __device__ __forceinline__ void pc_copy(void *to_bytes, const void *from_bytes, uint words)
{
    volatile uint *to = (volatile uint *)to_bytes;
    const volatile uint *from = (const volatile uint *)from_bytes;
    uint step = blockDim.x;
    for (uint i = threadIdx.x; i < words; i += 4u * step) {
        uint a = from[i], b = 0u, c = 0u, d = 0u;
        if (i + step < words) b = from[i + step];
        if (i + 2u * step < words) c = from[i + 2u * step];
        if (i + 3u * step < words) d = from[i + 3u * step];
        to[i] = a;
        if (i + step < words) to[i + step] = b;
        if (i + 2u * step < words) to[i + 2u * step] = c;
        if (i + 3u * step < words) to[i + 3u * step] = d;
    }
}

// Where the bytes of packet `index` begin, its room included. Packets lie one behind the other.
static __device__ __forceinline__ uint pc_start(const pc_entry *entry, uint index)
{
    const volatile uint *descriptors = (const volatile uint *)(entry->given + 16u);
    uint offset = index < entry->packets ? descriptors[2u * index] - (PC_MOVES ? 128u : 0u) : entry->bytes;
    return offset & ~3u;
}

// Filters packets `first` to `first + here`, at most as many as the block has threads, all threads together: what the
// filter needs of them is brought inside, and what it may have changed is taken back. No word is written that belongs
// to other packets.
static __device__ __forceinline__ void pc_filter_chunk(const pc_entry *entry, uint first, uint here)
{
    pc_given at = pc_given_of(entry->packets);
    pc_returned back = pc_returned_of(entry->packets);
    uchar *given = entry->given, *inside = entry->inside, *returned = entry->returned;
    pc_copy(inside + 16u + 8u * first, given + 16u + 8u * first, 2u * here);
    if (PC_METADATA) pc_copy(inside + at.metadata + 20u * first, given + at.metadata + 20u * first, 5u * here);
    uint start = 0u, words = 0u;
    if (PC_SEES) {
        start = pc_start(entry, first);
        words = (pc_start(entry, first + here) - start) / 4u;
        pc_copy(inside + at.packets + start, given + at.packets + start, words);
    }
    __syncthreads();
    if (threadIdx.x < here) {
        pc_filter_packet(
            inside + at.packets, (pc_descriptor *)(inside + 16u), (const uint *)(inside + at.metadata), returned,
            (uint *)(returned + back.targets), first + threadIdx.x);
    }
    __syncthreads();
    if (PC_MOVES) pc_copy(returned + back.ends + 8u * first, inside + 16u + 8u * first, 2u * here);
    if (PC_SEES && PC_WRITES) pc_copy(returned + back.changed + start, inside + at.packets + start, words);
}
