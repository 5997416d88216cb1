
// A launch, as the host posts it: packets `first` to `first + count` of a slot, whose bytes are `words` words from byte
// `start` of the slot's packets. `given` and `returned` are in the host's memory, `inside` in the device's, where as
// much is as is given. Where `place` is not 0 the packets are in the device's memory from there on, and there are no words
// of theirs. `turn` is written last.
//
// Packets at `place` were written by a network card, by a copy or by another kernel before the host posted the entry, maybe
// where a packet lay that this kernel has read before. They are read by plain loads, which a multiprocessor's own cache
// (L1) may answer. It holds nothing from before: the block's turn was read by `ld.acquire.sys`, or the kernel began after the
// post, and either lets go of what the cache had; the barrier behind it has that hold for all threads of the block. What a network
// card has written is in the device's memory, or its L2, when the host posts: it comes in order with what tells the host of
// it, or the host has had it flushed (`Gpu::flush_remote_writes`). Loads by the path for constants (`ld.global.nc`) are
// not for such memory: its cache would not be let go of while the kernel stays. Compilers take it for `const ... *__restrict__`
// parameters of kernels only, which these have none of; nor has the filter's function.
typedef struct {
    uchar *given, *inside, *returned, *place;
    uint first, count, packets, bytes, start, words;
    uint turn, unused;
} pc_entry;

#ifdef __CUDACC_RTC__
// Loads that are made when they are asked for: what the host has written since the kernel began must be seen.
static __device__ __forceinline__ uint pc_load4(const void *at)
{
    uint value;
    asm volatile("ld.volatile.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

static __device__ __forceinline__ uint2 pc_load8(const void *at)
{
    uint2 value;
    asm volatile("ld.volatile.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(at) : "memory");
    return value;
}

static __device__ __forceinline__ uint4 pc_load16(const void *at)
{
    uint4 value;
    asm volatile("ld.volatile.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "l"(at) : "memory");
    return value;
}
#endif

// Brings an entry to where all threads of a block have it, in one read over the bus.
static __device__ __forceinline__ void pc_take(pc_entry *to, const pc_entry *posted)
{
    if (threadIdx.x < sizeof(pc_entry) / 4u) ((uint *)to)[threadIdx.x] = pc_load4((const uint *)posted + threadIdx.x);
    __syncthreads();
}

// Words of a region, whose first word's number is `start`: as many as may be in parts of 16 bytes, which begin at
// multiples of that, and those before and behind, fewer than four each.
typedef struct { uint start, before, parts, behind; } pc_extent;

static __device__ __forceinline__ pc_extent pc_extent_of(uint start, uint words)
{
    pc_extent extent;
    uint before = (0u - start) & 3u;
    extent.start = start;
    extent.before = before < words ? before : words;
    extent.parts = (words - extent.before) / 4u;
    extent.behind = words - extent.before - 4u * extent.parts;
    return extent;
}

// Whether one of the words before and behind is this thread's, and which.
static __device__ __forceinline__ bool pc_is_edge(pc_extent extent, uint *word)
{
    uint i = threadIdx.x;
    *word = extent.start + (i < extent.before ? i : i + 4u * extent.parts);
    return i < extent.before + extent.behind;
}

static __device__ __forceinline__ uint pc_part(pc_extent extent, uint index)
{
    return extent.start + extent.before + 4u * index;
}

// Where the bytes of packet `index` begin, its room included. Packets lie one behind the other.
static __device__ __forceinline__ uint pc_start(const pc_entry *entry, uint index)
{
    if (index >= entry->packets) return entry->bytes;
    return (pc_load4(entry->given + PC_HEAD + 8u * index) - (PC_MOVES ? 128u : 0u)) & ~3u;
}

// Brings inside what the filter needs of packets `first` to `first + here`, at most as many as there are threads: words
// `start` to `start + words` of their bytes. The bus is far, so everything that a small batch has is on its way before
// the first of it is written.
static __device__ __forceinline__ void pc_bring(const pc_entry *entry, uint first, uint here, uint start, uint words)
{
    pc_given at = pc_given_of(entry->packets);
    const uint lane = threadIdx.x, step = blockDim.x;
    const uint *packets = (const uint *)(entry->given + at.packets);
    const uint *metadata = (const uint *)(entry->given + at.metadata) + 5u * first;
    pc_extent extent = pc_extent_of(start, words);
    uint2 descriptor = make_uint2(0u, 0u);
    uint known[5] = {0u, 0u, 0u, 0u, 0u}, edge = 0u, word = 0u;
    uint4 parts[4] = {make_uint4(0u, 0u, 0u, 0u), make_uint4(0u, 0u, 0u, 0u), make_uint4(0u, 0u, 0u, 0u), make_uint4(0u, 0u, 0u, 0u)};
    bool has_edge = PC_SEES && pc_is_edge(extent, &word);

    if (lane < here) descriptor = pc_load8(entry->given + PC_HEAD + 8u * (first + lane));
    if (PC_METADATA) {
        #pragma unroll
        for (uint i = 0u; i < 5u; i++) if (lane + i * step < 5u * here) known[i] = pc_load4(metadata + lane + i * step);
    }
    if (has_edge) edge = pc_load4(packets + word);
    if (PC_SEES) {
        #pragma unroll
        for (uint i = 0u; i < 4u; i++) if (lane + i * step < extent.parts) parts[i] = pc_load16(packets + pc_part(extent, lane + i * step));
    }

    uint *to = (uint *)(entry->inside + at.packets), *to_metadata = (uint *)(entry->inside + at.metadata) + 5u * first;
    if (lane < here) *(uint2 *)(entry->inside + PC_HEAD + 8u * (first + lane)) = descriptor;
    if (PC_METADATA) {
        #pragma unroll
        for (uint i = 0u; i < 5u; i++) if (lane + i * step < 5u * here) to_metadata[lane + i * step] = known[i];
    }
    if (has_edge) to[word] = edge;
    if (PC_SEES) {
        for (uint done = lane;;) {
            #pragma unroll
            for (uint i = 0u; i < 4u; i++) if (done + i * step < extent.parts) *(uint4 *)(to + pc_part(extent, done + i * step)) = parts[i];
            done += 4u * step;
            if (done >= extent.parts) break;
            #pragma unroll
            for (uint i = 0u; i < 4u; i++) if (done + i * step < extent.parts) parts[i] = pc_load16(packets + pc_part(extent, done + i * step));
        }
    }
}

// Takes words back to the host's memory.
static __device__ __forceinline__ void pc_take_back(uchar *to_bytes, const uchar *from_bytes, uint start, uint words)
{
    uint *to = (uint *)to_bytes, word;
    const uint *from = (const uint *)from_bytes;
    pc_extent extent = pc_extent_of(start, words);
    if (pc_is_edge(extent, &word)) to[word] = from[word];
    for (uint i = threadIdx.x; i < extent.parts; i += blockDim.x) {
        word = pc_part(extent, i);
        *(uint4 *)(to + word) = *(const uint4 *)(from + word);
    }
}

// Filters packets `first` to `first + here` of an entry, at most as many as the block has threads, all threads together:
// what the filter needs of them is brought inside, and what it may have changed is taken back. No word is written that
// belongs to other packets.
static __device__ __forceinline__ void pc_filter_chunk(const pc_entry *entry, const pc_maps &maps, uint first, uint here)
{
    pc_given at = pc_given_of(entry->packets);
    pc_returned back = pc_returned_of(entry->packets);
    uchar *inside = entry->inside, *returned = entry->returned;
    uint start = entry->start / 4u, words = entry->words;
    if (PC_SEES && !entry->place && here < entry->count) {
        // Where the parts of an entry begin is for the descriptors to say.
        uint from = pc_start(entry, first), to = pc_start(entry, first + here);
        start = from / 4u;
        words = (to - from) / 4u;
    }
    pc_bring(entry, first, here, start, words);
    __syncthreads();
    if (threadIdx.x < here) {
        pc_filter_packet(
            entry->place ? entry->place : inside + at.packets, (pc_descriptor *)(inside + PC_HEAD), (const uint *)(inside + at.metadata), returned,
            (uint *)(returned + back.targets), first + threadIdx.x PC_WITH(maps));
    }
    __syncthreads();
    if (PC_MOVES) pc_take_back(returned + back.ends, inside + PC_HEAD, 2u * first, 2u * here);
    if (PC_SEES && PC_WRITES) pc_take_back(returned + back.changed, inside + at.packets, start, words);
}
