// What kernels that answer slots have in common. Above this stands the filter, as `pc_filter_packet`, and what it
// does: PC_SEES, PC_WRITES, PC_MOVES, PC_METADATA, PC_REDIRECTS and PC_MAPS are 0 or 1, and filters have PC_MOST_MAPS maps at most.
//
// A slot is two regions of memory (slots.rs has the same), each part of them at a multiple of 16 bytes. What is given:
//     { ulonglong place; uint packets, first, count, unused[3] }; descriptors; metadata; the packets' bytes
// and what is returned:
//     verdicts; targets; descriptors; the packets' bytes
// Where `place` is not 0 the packets are in memory of the device's that begins there, and stay: neither region has any
// bytes of theirs, and descriptors count from there.
#define PC_HEAD 32u

// The words of the filter's maps, by their numbers.
typedef struct { uint *at[PC_MOST_MAPS]; } pc_maps;
#if PC_MAPS
#define PC_WITH(maps) , (maps).at
#else
#define PC_WITH(maps)
#endif

typedef struct { uint metadata, packets; } pc_given;
typedef struct { uint targets, ends, changed; } pc_returned;

static __device__ __forceinline__ uint pc_rounded(uint bytes)
{
    return (bytes + 15u) & ~15u;
}

static __device__ __forceinline__ pc_given pc_given_of(uint packets)
{
    pc_given at;
    at.metadata = PC_HEAD + pc_rounded(8u * packets);
    at.packets = at.metadata + (PC_METADATA ? pc_rounded(20u * packets) : 0u);
    return at;
}

static __device__ __forceinline__ pc_returned pc_returned_of(uint packets)
{
    pc_returned at;
    at.targets = pc_rounded(packets);
    at.ends = at.targets + (PC_REDIRECTS ? pc_rounded(4u * packets) : 0u);
    at.changed = at.ends + (PC_MOVES ? pc_rounded(8u * packets) : 0u);
    return at;
}
