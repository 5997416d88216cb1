typedef struct alignas(8) { uint offset; uint length; } pc_descriptor;

typedef struct { uint format; uint first; uint stride; uint length; } pc_descriptor_rule;

static __device__ __forceinline__ pc_descriptor pc_find(const pc_descriptor *table, pc_descriptor_rule rule, uint packet)
{
    if (rule.format == 0u) return table[packet];
    const uint *words = (const uint *)table;
    pc_descriptor found;
    if (rule.format == 1u) {
        uint word = words[rule.stride + packet];
        found.offset = (words[packet / 32u] + (word & 0xffffu)) * 4u;
        found.length = word >> 16;
        return found;
    }
    found.offset = rule.first + packet * rule.stride;
    found.length = rule.length;
    if (rule.format == 2u) found.length = words[packet / 2u] >> (packet % 2u * 16u) & 0xffffu;
    return found;
}

typedef struct {
    const uchar *bytes;
    const uint *words;
    uint length;
} pc_packet;

static __device__ __forceinline__ uint pkt_len(const pc_packet *pkt)
{
    return pkt->length;
}

static __device__ __forceinline__ uint load_u8(const pc_packet *pkt, uint off)
{
    const uchar *at = pkt->bytes + off;
    uint value = (uint)at[0];
    return pkt->length < 1u || off > pkt->length - 1u ? 0u : value;
}

static __device__ __forceinline__ uint pc_half(const pc_packet *pkt, uint off)
{
    uint at = off;
    uint shift = (at & 3u) * 8u;
    const uint *word = pkt->words + (at >> 2);
    return word[0] >> shift | (shift == 24u ? word[1] << 8 : 0u);
}

static __device__ __forceinline__ uint load_be16(const pc_packet *pkt, uint off)
{
    uint both = pc_half(pkt, off);
    uint value = (both & 0xffu) << 8 | (both >> 8 & 0xffu);
    return pkt->length < 2u || off > pkt->length - 2u ? 0u : value;
}

extern "C" __global__ void __launch_bounds__(256) xdp_kernel(
    const uchar *__restrict__ arena,
    const pc_descriptor *__restrict__ descriptors,
    pc_descriptor_rule rule,
    uchar *__restrict__ verdicts,
    uint base,
    uint count)
{
    uint lane = blockIdx.x * blockDim.x + threadIdx.x;
    if (lane >= count) return;
    uint packet = base + lane;
    pc_descriptor descriptor = pc_find(descriptors, rule, packet);
    pc_packet pkt;
    pkt.bytes = arena + (descriptor.offset & ~3u);
    pkt.words = (const uint *)(arena + (descriptor.offset & ~3u));
    pkt.length = descriptor.length;
    uint verdict = xdp_filter(&pkt);
    verdicts[packet] = (uchar)verdict;
}

typedef struct {
    uchar *bytes;
    const uint *words;
    uint length;
} pc_packet;

static __device__ __forceinline__ void pc_set_pair(uchar *even, uint value)
{
    even = (uchar *)__builtin_assume_aligned(even, 2);
    even[0] = (uchar)value;
    even[1] = (uchar)(value >> 8);
}

static __device__ __forceinline__ void pc_set_half(pc_packet *pkt, uint off, uint value)
{
    uint at = off;
    uchar *byte = pkt->bytes + off;
    if ((at & 1u) == 0u) {
        pc_set_pair(byte, value);
    } else {
        byte[0] = (uchar)value;
        byte[1] = (uchar)(value >> 8);
    }
}

extern "C" __global__ void __launch_bounds__(256) xdp_kernel(
    uchar *__restrict__ arena,
    const pc_descriptor *__restrict__ descriptors,
    pc_descriptor_rule rule,
    uchar *__restrict__ verdicts,
    uint base,
    uint count)
{
    uint lane = blockIdx.x * blockDim.x + threadIdx.x;
    if (lane >= count) return;
    uint packet = base + lane;
    pc_descriptor descriptor = pc_find(descriptors, rule, packet);
    pc_packet pkt;
    pkt.bytes = (uchar *)__builtin_assume_aligned(arena + (descriptor.offset & ~3u), 4);
    pkt.words = (const uint *)(arena + (descriptor.offset & ~3u));
    pkt.length = descriptor.length;
    uint verdict = xdp_filter(&pkt);
    verdicts[packet] = (uchar)verdict;
}

typedef struct { uint format; uint table; uint distances; uint low; uint high; } pc_column;

typedef struct { pc_column wire_length; pc_column port; pc_column time; pc_column time_ms; } pc_metadata_rule;

static __device__ __forceinline__ uint pc_find_word(const uint *tables, pc_column column, uint packet)
{
    if (column.format == 2u) return column.low;
    const uint *table = tables + column.table;
    if (column.format == 0u) return table[packet];
    uint distance = tables[column.distances + packet / 2u] >> (packet % 2u * 16u) & 0xffffu;
    return table[packet / 32u] + distance;
}

static __device__ __forceinline__ uint load_be16_far(const pc_packet *pkt, uint off)
{
    if (pkt->length < 2u || off > pkt->length - 2u) return 0u;
    uint both = pc_half(pkt, off);
    return (both & 0xffu) << 8 | (both >> 8 & 0xffu);
}

static __device__ __forceinline__ uint load_u8_far(const pc_packet *pkt, uint off)
{
    if (pkt->length < 1u || off > pkt->length - 1u) return 0u;
    const uchar *at = pkt->bytes + off;
    return (uint)at[0];
}

static __device__ __forceinline__ uint pc_word(const pc_packet *pkt, uint off)
{
    uint at = off;
    uint shift = (at & 3u) * 8u;
    const uint *word = pkt->words + (at >> 2);
    return word[0] >> shift | word[1] << 1 << (31u - shift);
}

static __device__ __forceinline__ uint load_be32_far(const pc_packet *pkt, uint off)
{
    if (pkt->length < 4u || off > pkt->length - 4u) return 0u;
    return __byte_perm(pc_word(pkt, off), 0u, 0x0123u);
}

static __device__ __forceinline__ uint pc_min_u32(uint a, uint b)
{
    return a < b ? a : b;
}

static __device__ __forceinline__ uint load_be32(const pc_packet *pkt, uint off)
{
    uint value = __byte_perm(pc_word(pkt, off), 0u, 0x0123u);
    return pkt->length < 4u || off > pkt->length - 4u ? 0u : value;
}

static __device__ __forceinline__ uint load_le32(const pc_packet *pkt, uint off)
{
    uint value = pc_word(pkt, off);
    return pkt->length < 4u || off > pkt->length - 4u ? 0u : value;
}

static __device__ __forceinline__ void store_le32(pc_packet *pkt, uint off, uint value)
{
    if (pkt->length < 4u || off > pkt->length - 4u) return;
    pc_set_word(pkt, off, value);
}
