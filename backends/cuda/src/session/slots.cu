// Shared by the kernels that read slots. The text above this is the filter, as `pc_filter_packet`,
// and what it does: PC_SEES, PC_WRITES, PC_MOVES, PC_METADATA, PC_REDIRECTS and PC_MAPS are 0 or 1.
// A filter has at most PC_MOST_MAPS maps.
//
// A slot consists of a request (`given`) and a response (`returned`), whose layout slots.rs
// mirrors. Each section starts at a multiple of 16 bytes. The request is
//
//     { ulonglong place; uint packets, first, count, unused[3] }; descriptors; metadata; packets
//
// and the response is
//
//     verdicts; targets; descriptors; packets
//
// If `place` is not 0, it is the address of an arena in device memory where the packets are
// filtered in place: request and response have no packets, and descriptors count from there.
#define PC_HEAD 32u

// The maps' words, by map number.
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
