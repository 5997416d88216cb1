// Four stock filters as hand-written OpenCL C kernels over uchar pointers, with one length check
// for fixed offsets. The other side of `benches/opencl.rs`, which compares their verdicts.

#define DROP 1
#define PASS 2
#define REDIRECT 4

#define TCP 6
#define UDP 17

// Offset and length of a packet in the arena, in bytes.
typedef uint2 place;

uint be16(__global const uchar *p)
{
    return (uint)p[0] << 8 | p[1];
}

uint be32(__global const uchar *p)
{
    return be16(p) << 16 | be16(p + 2);
}

// Whether the Ethernet header and the fixed part of an IPv4 header are present.
bool is_ipv4(__global const uchar *p, uint len)
{
    return len >= 34 && be16(p + 12) == 0x0800 && p[14] >= 0x45 && p[14] <= 0x4f;
}

bool later_fragment(__global const uchar *p)
{
    return (be16(p + 20) & 0x1fff) != 0;
}

__kernel void simple_filter(__global const uchar *arena, __global const place *places, __global uchar *verdicts,
                            uint base, uint count)
{
    uint i = get_global_id(0);
    if (i >= count)
        return;
    i += base;
    __global const uchar *p = arena + places[i].x;
    uchar verdict = DROP;
    if (is_ipv4(p, places[i].y) && be32(p + 26) != 0xc0a80001 && (p[23] == TCP || p[23] == UDP))
        verdict = PASS;
    verdicts[i] = verdict;
}

__kernel void port_filter(__global const uchar *arena, __global const place *places, __global uchar *verdicts,
                          uint base, uint count)
{
    uint i = get_global_id(0);
    if (i >= count)
        return;
    i += base;
    __global const uchar *p = arena + places[i].x;
    uint len = places[i].y;
    uchar verdict = DROP;
    if (is_ipv4(p, len) && !later_fragment(p) && (p[23] == TCP || p[23] == UDP)) {
        uint at = 14 + (p[14] & 0xf) * 4 + 2;
        if (at + 2 <= len) {
            uint port = be16(p + at);
            if (port == 80 || port == 443 || port >= 1024)
                verdict = PASS;
        }
    }
    verdicts[i] = verdict;
}

uint port_ipv6(__global const uchar *ip, uint len)
{
    if (len < 40 || ip[0] >> 4 != 6)
        return 0;
    uint next = ip[6], at = 40;
    for (int i = 0; i < 8 && next != TCP; i++) {
        if (at + 2 > len)
            return 0;
        uint following = ip[at], length = ip[at + 1];
        switch (next) {
        case 0:
        case 43:
        case 60:
        case 135:
            at += (length + 1) * 8;
            break;
        case 51:
            at += (length + 2) * 4;
            break;
        case 44:
            if (at + 4 > len || (be16(ip + at + 2) & 0xfff8) != 0)
                return 0;
            at += 8;
            break;
        default:
            return 0;
        }
        next = following;
    }
    return next == TCP && at + 4 <= len ? be16(ip + at + 2) : 0;
}

uint http_port(__global const uchar *p, uint len)
{
    if (len < 38)
        return 0;
    uint type = be16(p + 12), header = 14;
    if (type == 0x8100 || type == 0x88a8) {
        type = be16(p + 16);
        header = 18;
    }
    __global const uchar *ip = p + header;
    uint left = len - header;
    if (type == 0x86dd)
        return port_ipv6(ip, left);
    if (type != 0x0800 || left < 20 || ip[0] < 0x45 || ip[0] > 0x4f || ip[9] != TCP || (be16(ip + 6) & 0x1fff) != 0)
        return 0;
    uint at = (ip[0] & 0xf) * 4 + 2;
    return at + 2 <= left ? be16(ip + at) : 0;
}

__kernel void http_only(__global const uchar *arena, __global const place *places, __global uchar *verdicts,
                        uint base, uint count)
{
    uint i = get_global_id(0);
    if (i >= count)
        return;
    i += base;
    uint port = http_port(arena + places[i].x, places[i].y);
    verdicts[i] = port == 80 || port == 443 ? PASS : DROP;
}

uint fnv_16(uint hash, uint value)
{
    hash = (hash ^ (value & 0xff)) * 16777619u;
    return (hash ^ value >> 8) * 16777619u;
}

__kernel void hash_lb(__global const uchar *arena, __global const place *places, __global uchar *verdicts,
                      __global uint *targets, uint base, uint count)
{
    uint i = get_global_id(0);
    if (i >= count)
        return;
    i += base;
    __global const uchar *p = arena + places[i].x;
    uint len = places[i].y;
    if (!is_ipv4(p, len) || (p[23] != TCP && p[23] != UDP)) {
        verdicts[i] = PASS;
        targets[i] = 0;
        return;
    }
    uint source = 0, destination = 0;
    if (!later_fragment(p)) {
        uint at = 14 + (p[14] & 0xf) * 4;
        source = at + 2 <= len ? be16(p + at) : 0;
        destination = at + 4 <= len ? be16(p + at + 2) : 0;
    }
    uint hash = 2166136261u;
    hash = fnv_16(fnv_16(hash, be16(p + 28)), be16(p + 26));
    hash = fnv_16(fnv_16(hash, be16(p + 32)), be16(p + 30));
    hash = fnv_16(fnv_16(hash, source), destination);
    verdicts[i] = REDIRECT;
    targets[i] = hash % 8;
}
