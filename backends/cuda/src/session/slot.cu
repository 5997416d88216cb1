// Shared by the kernels of `graph`, `waitvalue` and `persistent`. The text above this is the
// filter, as `pc_filter_packet`, and what it does: PC_ACCESSES_PACKETS, PC_WRITES_PACKETS,
// PC_RESIZES_PACKETS, PC_METADATA, PC_REDIRECTS and PC_MAPS are 0 or 1. A filter has at most
// PC_MAX_MAPS maps. Blocks have PC_BLOCK_SIZE threads.
//
// A slot is host memory, mapped for the device, whose layout slots.rs mirrors. Each section starts
// at a multiple of 16 bytes. Results come first:
//
//     verdicts; targets; descriptors; packets
//
// or, if the request has a tag, words of 8 bytes whose high half is the tag, and whose low half has
// four verdicts, or a target:
//
//     verdicts; targets
//
// A host that sees the tag in each word has all results. The memory model makes scalar accesses of
// 8 aligned bytes single-copy atomic (PTX ISA, "Memory Consistency Model"), so no fence has to
// complete, over the bus, between the results and a flag. At `input` follows what the host writes:
//
//     metadata; descriptor tables; packets

// The maps' words, by map number.
typedef struct { uint *at[PC_MAX_MAPS]; } pc_maps;
#if PC_MAPS
#define PC_WITH(maps) , (maps).at
#else
#define PC_WITH(maps)
#endif

// Where the kernel finds the packets of a request.
#define PC_IN_PLACE 0u  // where they are: in device memory
#define PC_RANGE 1u     // `words` words from byte `start` on, which are copied to the device
#define PC_ROWS 2u      // the first `words` words of each packet, which are copied there and back

// A request to filter packets `first` to `first + pc_count()` of a slot (`Request` in request.rs).
//
// Packets that are filtered in place were written by a network card, a copy or another kernel
// before the host posted the request, maybe over a packet that this kernel has read before. They
// are read by plain loads, which the multiprocessor's L1 cache may answer. It holds nothing stale:
// the block has read the request by `ld.acquire.sys`, or the kernel began after the post, and both
// invalidate L1; the barrier that follows extends that to all threads of the block. What a network
// card has written is in device memory or its L2 when the host posts: it is ordered before what
// announces it to the host, or the host has flushed it (`Gpu::flush_remote_writes`). Loads through
// the read-only cache (`ld.global.nc`) must not be used for such memory: that cache is not
// invalidated while the kernel runs. Compilers emit them only for `const ... *__restrict__`
// parameters of kernels, of which there are none here; nor has the filter's function any.
typedef struct {
    uchar *slot;
    // Device memory for packets that do not fit in shared memory.
    uchar *staging;
    // Offsets of packets count from here.
    uchar *source;
    // Offset in the slot of what the host writes.
    uint input;
    // From bit 0: format of the descriptors (2 bits), PC_IN_PLACE or another (2), number of packets
    // (28).
    uint kind;
    uint first;
    // Packets in the slot.
    uint packets;
    // Tag of the results; 0 for results without tags.
    uint tag;
    // The descriptor rule (docs/reference/abi.md, "Descriptor formats"), without its format.
    // Offsets in tables count from `first_offset`.
    uint first_offset, stride, length;
    uint start, words;
} pc_request;

// A request as the host posts it: its words, each in the low half of a double word whose high half
// is the request's lap. So one read of 128 bytes tells whether the request is there, and has it.
typedef struct { ulonglong words[sizeof(pc_request) / 4u]; } pc_posted;

static __device__ __forceinline__ uint pc_format(const pc_request *request) { return request->kind & 3u; }
static __device__ __forceinline__ uint pc_copy(const pc_request *request) { return request->kind >> 2u & 3u; }
static __device__ __forceinline__ uint pc_count(const pc_request *request) { return request->kind >> 4u; }

#ifdef __CUDACC_RTC__
// Volatile loads: what the host has written since the kernel began must be visible.
static __device__ __forceinline__ uint pc_load2(const void *at)
{
    unsigned short value;
    asm volatile("ld.volatile.u16 %0, [%1];" : "=h"(value) : "l"(at) : "memory");
    return value;
}

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

// Stores a tagged word.
static __device__ __forceinline__ void pc_store_tagged(void *at, uint value, uint tag)
{
    ulonglong word = (ulonglong)tag << 32u | value;
    asm volatile("st.relaxed.sys.u64 [%0], %1;" : : "l"(at), "l"(word) : "memory");
}

// A release at system scope, to synchronise with the host.
static __device__ __forceinline__ void pc_release(uint *at, uint value)
{
    asm volatile("st.release.sys.u32 [%0], %1;" : : "l"(at), "r"(value) : "memory");
}
#endif

static __device__ __forceinline__ uint pc_rounded(uint bytes) { return (bytes + 15u) & ~15u; }

// The descriptor of packet `index` of the slot.
static __device__ __forceinline__ uint2 pc_descriptor_of(const pc_request *request, uint index)
{
    const uchar *tables = request->slot + request->input + (PC_METADATA ? pc_rounded(20u * request->packets) : 0u);
    if (pc_format(request) == 0u) {
        uint2 descriptor = pc_load8(tables + 8u * index);
        return make_uint2(request->first_offset + descriptor.x, descriptor.y);
    }
    if (pc_format(request) == 1u) {
        uint base = pc_load4(tables + 4u * (index / 32u)), word = pc_load4(tables + 4u * (request->stride + index));
        return make_uint2(request->first_offset + 4u * (base + (word & 0xffffu)), word >> 16u);
    }
    uint length = pc_format(request) == 2u ? pc_load2(tables + 2u * index) : request->length;
    return make_uint2(request->first_offset + request->stride * index, length);
}

// `words` words, split into 16-byte vectors at multiples of 16 bytes and the fewer than four words
// before and behind them.
typedef struct { uint before, vectors, behind; } pc_extent;

static __device__ __forceinline__ pc_extent pc_extent_of(const uint *at, uint words)
{
    pc_extent extent;
    uint before = (0u - (uint)((ulonglong)at / 4u)) & 3u;
    extent.before = before < words ? before : words;
    extent.vectors = (words - extent.before) / 4u;
    extent.behind = words - extent.before - 4u * extent.vectors;
    return extent;
}

// Whether a word before or behind the 16-byte vectors belongs to this thread, and which.
static __device__ __forceinline__ bool pc_is_edge(pc_extent extent, uint *word)
{
    uint i = threadIdx.x;
    *word = i < extent.before ? i : i + 4u * extent.vectors;
    return i < extent.before + extent.behind;
}

static __device__ __forceinline__ uint pc_vector_start(pc_extent extent, uint index) { return extent.before + 4u * index; }

// Shared memory of a block for one part of a request: at most PC_BLOCK_SIZE packets.
typedef struct {
    // Offsets from `source`, and descriptors of the copies.
    uint origins[PC_BLOCK_SIZE];
    pc_descriptor descriptors[PC_BLOCK_SIZE];
    uint metadata[PC_METADATA ? 5u * PC_BLOCK_SIZE : 1u];
    uint verdicts[PC_BLOCK_SIZE / 4u];
    uint targets[PC_REDIRECTS ? PC_BLOCK_SIZE : 1u];
    // Packets, if they fit, from any address modulo 16, and the bytes behind the last one that
    // filters may read.
    uint4 packets[(PC_SHARED_BYTES + 16u + PC_OVERREAD_BYTES) / 16u];
} pc_part_memory;

// Copies `words` words from byte `start` of `from` to `to`, whose address is the same modulo 16.
// All loads of a small batch are issued before the first store, to hide the latency of the bus.
static __device__ __forceinline__ void pc_copy_range(uchar *to, const uchar *from, uint start, uint words)
{
    const uint lane = threadIdx.x, step = blockDim.x;
    const uint *source = (const uint *)(from + start);
    uint *target = (uint *)to;
    pc_extent extent = pc_extent_of(source, words);
    uint edge = 0u, word;
    uint4 parts[4] = {make_uint4(0u, 0u, 0u, 0u), make_uint4(0u, 0u, 0u, 0u), make_uint4(0u, 0u, 0u, 0u), make_uint4(0u, 0u, 0u, 0u)};
    bool has_edge = pc_is_edge(extent, &word);
    if (has_edge) edge = pc_load4(source + word);
    for (uint done = lane;; done += 4u * step) {
        #pragma unroll
        for (uint i = 0u; i < 4u; i++) if (done + i * step < extent.vectors) parts[i] = pc_load16(source + pc_vector_start(extent, done + i * step));
        if (done == lane && has_edge) target[word] = edge;
        #pragma unroll
        for (uint i = 0u; i < 4u; i++) if (done + i * step < extent.vectors) *(uint4 *)(target + pc_vector_start(extent, done + i * step)) = parts[i];
        if (done + 4u * step >= extent.vectors) break;
    }
}

// Number of words of a packet's row that have bytes of the packet.
static __device__ __forceinline__ uint pc_row_words(uint length, uint words)
{
    uint all = length / 4u + (length % 4u != 0u);
    return all < words ? all : words;
}

// Copies the first words of `here` packets to rows of `words` words. `memory` has their
// descriptors.
static __device__ __forceinline__ void pc_copy_rows(uint *to, const uchar *from, const pc_part_memory *memory, uint here, uint words)
{
    const uint step = blockDim.x, all = here * words;
    for (uint done = threadIdx.x; done < all; done += 8u * step) {
        uint loaded[8];
        #pragma unroll
        for (uint i = 0u; i < 8u; i++) {
            uint at = done + i * step, packet = at / words, word = at % words;
            bool has_bytes = at < all && word < pc_row_words(memory->descriptors[packet].length, words);
            loaded[i] = has_bytes ? pc_load4(from + memory->origins[packet] + 4u * word) : 0u;
        }
        #pragma unroll
        for (uint i = 0u; i < 8u; i++) if (done + i * step < all) to[done + i * step] = loaded[i];
    }
}

// Writes the first words of `here` packets from their copies back to `to`. Bytes behind the end of
// a packet stay as they are.
static __device__ __forceinline__ void pc_write_packets(uchar *to, const uchar *from, const pc_part_memory *memory, uint here, uint words)
{
    const uint all = here * words;
    for (uint at = threadIdx.x; at < all; at += blockDim.x) {
        uint packet = at / words, word = at % words;
        pc_descriptor copy = memory->descriptors[packet];
        if (word >= pc_row_words(copy.length, words)) continue;
        uchar *into = to + memory->origins[packet] + 4u * word;
        const uchar *changed = from + copy.offset + 4u * word;
        uint rest = copy.length - 4u * word;
        if (rest >= 4u) *(uint *)into = *(const uint *)changed;
        else for (uint byte = 0u; byte < rest; byte++) into[byte] = changed[byte];
    }
}

// Copies a range of words to the results, whose address is the same modulo 16.
static __device__ __forceinline__ void pc_write_range(uchar *to, const uchar *from, uint words)
{
    uint *target = (uint *)to, word;
    const uint *source = (const uint *)from;
    pc_extent extent = pc_extent_of(source, words);
    if (pc_is_edge(extent, &word)) target[word] = source[word];
    for (uint i = threadIdx.x; i < extent.vectors; i += blockDim.x) {
        word = pc_vector_start(extent, i);
        *(uint4 *)(target + word) = *(const uint4 *)(source + word);
    }
}

// Offset of packet `index` of the slot, with its headroom. Packets of a range ascend.
static __device__ __forceinline__ uint pc_packet_start(const pc_request *request, uint index)
{
    return (pc_descriptor_of(request, index).x - (PC_RESIZES_PACKETS ? 128u : 0u)) & ~3u;
}

// Filters packets `first` to `first + here` of a request, at most as many as the block has threads,
// with all threads of the block.
static __device__ __forceinline__ void pc_filter_part(const pc_request *request, const pc_maps &maps, uint first, uint here)
{
    __shared__ pc_part_memory memory;
    const uint lane = threadIdx.x, copy = PC_ACCESSES_PACKETS ? pc_copy(request) : PC_IN_PLACE;
    const uint end = request->first + pc_count(request);
    uint start = request->start, words = request->words;
    uchar *base = request->source;

    // Everything that comes over the bus is asked for at once, except rows, which need descriptors.
    uint2 descriptor = make_uint2(0u, 0u);
    if (lane < here) descriptor = pc_descriptor_of(request, first + lane);
    if (PC_METADATA) {
        const uint *metadata = (const uint *)(request->slot + request->input) + 5u * first;
        for (uint i = lane; i < 5u * here; i += blockDim.x) memory.metadata[i] = pc_load4(metadata + i);
    }
    uint local = descriptor.x;
    if (copy == PC_RANGE) {
        if (first != request->first) start = pc_packet_start(request, first);
        if (here < pc_count(request)) words = ((first + here < end ? pc_packet_start(request, first + here) : request->start + 4u * request->words) - start) / 4u;
        base = 4u * words <= PC_SHARED_BYTES
            ? (uchar *)memory.packets + ((uint)(ulonglong)request->source + start & 15u)
            : request->staging + (start - request->start);
        local -= start;
        pc_copy_range(base, request->source, start, words);
    } else if (copy == PC_ROWS) {
        base = 4u * words * here <= PC_SHARED_BYTES ? (uchar *)memory.packets : request->staging + (ulonglong)(first - request->first) * words * 4u;
        local = 4u * words * lane;
    }
    if (lane < here) {
        memory.origins[lane] = descriptor.x;
        memory.descriptors[lane].offset = local;
        memory.descriptors[lane].length = descriptor.y;
    }
    __syncthreads();
    if (copy == PC_ROWS) {
        pc_copy_rows((uint *)base, request->source, &memory, here, words);
        __syncthreads();
    }
    if (lane < here) {
        pc_filter_packet(base, memory.descriptors, memory.metadata, (uchar *)memory.verdicts, memory.targets, lane PC_WITH(maps));
    }
    __syncthreads();

    uchar *results = request->slot;
    if (request->tag) {
        // Tagged results are no release: what the block has stored in maps comes before them.
        if (PC_MAPS && lane < (PC_REDIRECTS ? here : (here + 3u) / 4u)) __threadfence_system();
        uint *target = (uint *)(results + pc_rounded(8u * ((request->packets + 3u) / 4u)));
        if (lane < (here + 3u) / 4u) pc_store_tagged(results + 8u * (first / 4u + lane), memory.verdicts[lane], request->tag);
        if (PC_REDIRECTS && lane < here) pc_store_tagged(target + 2u * (first + lane), memory.targets[lane], request->tag);
        return;
    }
    uint *target = (uint *)(results + pc_rounded(request->packets));
    pc_descriptor *descriptors = (pc_descriptor *)((uchar *)target + (PC_REDIRECTS ? pc_rounded(4u * request->packets) : 0u));
    uchar *packets = (uchar *)descriptors + (PC_RESIZES_PACKETS ? pc_rounded(8u * request->packets) : 0u);
    if (lane < here) {
        results[first + lane] = ((const uchar *)memory.verdicts)[lane];
        if (PC_REDIRECTS) target[first + lane] = memory.targets[lane];
        if (PC_RESIZES_PACKETS) {
            pc_descriptor resized = memory.descriptors[lane];
            if (copy == PC_RANGE) resized.offset += start;
            descriptors[first + lane] = resized;
        }
    }
    if (!PC_WRITES_PACKETS || copy == PC_IN_PLACE) return;
    if (copy == PC_RANGE) pc_write_range(packets + start, base, words);
    else pc_write_packets(request->source, base, &memory, here, words);
}
