typedef struct __attribute__((packed)) { uint value; } pc_any;

static uint pc_any_word(__global const uchar *at)
{
    return ((__global const pc_any *)at)->value;
}

static uint load_u8(const pc_packet *pkt, uint off)
{
    bool outside = (pkt->length < 1u) | (off > pkt->length - 1u);
    uint from = off & ~3u;
    uint word = pc_any_word(pkt->bytes + from) >> (off - from) * 8u;
    return outside ? 0u : word & 0xffu;
}

static uint load_be16(const pc_packet *pkt, uint off)
{
    bool outside = (pkt->length < 2u) | (off > pkt->length - 2u);
    uint from = (off & 3u) == 3u ? off - 2u : off & ~3u;
    uint word = pc_any_word(pkt->bytes + from) >> (off - from) * 8u;
    return outside ? 0u : (word & 0xffu) << 8 | (word >> 8 & 0xffu);
}

__kernel void xdp_kernel(
    __global const uchar *restrict arena,
    __global const pc_descriptor *restrict descriptors,
    __global uchar *restrict verdicts,
    uint base,
    uint count)
{
    uint lane = (uint)get_global_id(0);
    if (lane >= count) return;
    uint packet = base + lane;
    pc_descriptor descriptor = descriptors[packet];
    pc_packet pkt;
    pkt.bytes = arena + (descriptor.length == 0u ? 0u : descriptor.offset);
    pkt.length = descriptor.length;
    uint verdict = xdp_filter(&pkt);
    verdicts[packet] = (uchar)verdict;
}

static uint pc_swap(uint x)
{
    return x << 24 | (x & 0xff00u) << 8 | (x >> 8 & 0xff00u) | x >> 24;
}

static uint load_be32(const pc_packet *pkt, uint off)
{
    bool outside = (pkt->length < 4u) | (off > pkt->length - 4u);
    uint from = off;
    uint word = pc_any_word(pkt->bytes + from);
    return outside ? 0u : pc_swap(word);
}
