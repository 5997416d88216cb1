
// A launch request as the host posts it (`LaunchRequest` in mailbox.rs): packets `first` to `first
// + count` of a slot, which are `words` words from byte `start` of the slot's packet section.
// `given` and `returned` are in host memory, `inside` is the request's copy in device memory. If
// `place` is not 0, packets are in device memory from there on, and `words` is 0. The host writes
// `turn`, the lap, last.
//
// Packets at `place` were written by a network card, a copy or another kernel before the host
// posted the request, maybe over a packet that this kernel has read before. They are read by plain
// loads, which the multiprocessor's L1 cache may answer. It holds nothing stale: the block has read
// `turn` by `ld.acquire.sys`, or the kernel began after the post, and both invalidate L1; the
// barrier that follows extends that to all threads of the block. What a network card has written is
// in device memory or its L2 when the host posts: it is ordered before what announces it to the
// host, or the host has flushed it (`Gpu::flush_remote_writes`). Loads through the read-only cache
// (`ld.global.nc`) must not be used for such memory: that cache is not invalidated while the kernel
// runs. Compilers emit them only for `const ... *__restrict__` parameters of kernels, of which
// there are none here; nor has the filter's function any.
typedef struct {
    uchar *given, *inside, *returned, *place;
    uint first, count, packets, bytes, start, words;
    uint turn, unused;
} pc_entry;

#ifdef __CUDACC_RTC__
// Volatile loads: what the host has written since the kernel began must be visible.
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

// Copies a request to shared memory, in one read over the bus.
static __device__ __forceinline__ void pc_take(pc_entry *to, const pc_entry *posted)
{
    if (threadIdx.x < sizeof(pc_entry) / 4u) ((uint *)to)[threadIdx.x] = pc_load4((const uint *)posted + threadIdx.x);
    __syncthreads();
}

// A range of words, from word number `start` on, split into 16-byte parts at multiples of 16 bytes
// and the fewer than four words before and behind them.
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

// Whether a word before or behind the 16-byte parts belongs to this thread, and which.
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

// Byte offset of packet `index`, including its headroom, in the packet section. Packets lie one
// after the other.
static __device__ __forceinline__ uint pc_start(const pc_entry *entry, uint index)
{
    if (index >= entry->packets) return entry->bytes;
    return (pc_load4(entry->given + PC_HEAD + 8u * index) - (PC_MOVES ? 128u : 0u)) & ~3u;
}

// Copies what the filter needs of packets `first` to `first + here` from the request to `inside`:
// at most as many packets as there are threads; their bytes are words `start` to `start + words`.
// To hide the latency of the bus, all loads of a small batch are issued before the first store.
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

// Copies words to the response in host memory.
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

// Filters packets `first` to `first + here` of a request, at most as many as the block has threads,
// with all threads of the block: copies what the filter needs to `inside`, filters, and copies what
// it may have changed to the response. Writes no word that belongs to other packets.
static __device__ __forceinline__ void pc_filter_chunk(const pc_entry *entry, const pc_maps &maps, uint first, uint here)
{
    pc_given at = pc_given_of(entry->packets);
    pc_returned back = pc_returned_of(entry->packets);
    uchar *inside = entry->inside, *returned = entry->returned;
    uint start = entry->start / 4u, words = entry->words;
    if (PC_SEES && !entry->place && here < entry->count) {
        // The range of a part of a request follows from the descriptors.
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
