// A little of everything that the language has.
#ifndef LIMIT
#define LIMIT 80
#endif
#define SQUARE(x) ((x) * (x))

struct inner { uchar a; short b[2]; } __attribute__((packed));
typedef struct { struct inner in; uint4 v; ulong w; bool f; } outer;
enum colour { RED = 3, GREEN, BLUE = RED * 2 };

__constant uint primes[] = {2, 3, 5, 7};
__constant struct { ushort port; uchar rate; } rules[2] = {{80, 1}, {.rate = 9}};
__constant char name[] = "ab\n";

int *second(int *p) { return p + 1; }
void bump(__private struct inner *p, int i) { p->b[i]++; }
uint at(__constant uint *table, uint i) { return table[i & 3]; }
__global uchar *skip(__global uchar *p, uint n) { return p + n * 4; }

float mean(float2 v) { return (v.x + v.y) / 2.0f; }

uint xdp_filter(__global uchar *pkt, uint len)
{
    outer o = {.in.a = 1, .v = (uint4)(1, 2, 3, 4)};
    int a[4] = {1, 2, [3] = 4};
    __global outer *p = (__global outer *)(pkt + 2);
    const __global uchar *end = pkt + len;
    ulong wide = *(__global ulong *)(pkt + 3) << 33;
    for (__global uchar *q = pkt; q < end && q - pkt < 20; q += 3) {
        switch (*q & 7) {
        case RED: a[*q & 3]++;
        case GREEN: o.v.xy = o.v.yx; break;
        case 1: continue;
        default: wide ^= rotate(wide, 3ul); break;
        case BLUE: { do { o.in.b[1] -= *q; } while (0); }
        }
    }
    int i = 0;
    while (i < 3) { if (i++ == 1) break; }
    *second(a) += convert_char_sat(i * 100);
    bump(&o.in, 1);
    p->v.s3 = max(at(primes, len), rules[len & 1].port + name[1]);
    p->in = o.in;
    o.v += (o.v > 2u) ? o.v : (uint4)(popcount(len));
    pkt[1] = mean((float2)(1.5f, len)) > 2 ? sizeof(outer) : (uchar)wide;
    *(__global ushort *)skip(pkt, 2) = htons(ntohs(*(__global ushort *)pkt) + SQUARE(LIMIT));
    if (!adjust_head(pkt, 4) || (len ? wide : 1) == 0)
        return redirect(o.v.x);
    return o.f ? XDP_TX : (a[1], XDP_PASS);
}
