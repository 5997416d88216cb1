// CUDA for a CPU: what generated source uses of it, one work item after the other.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
static thread_local struct { unsigned int x; } blockIdx, blockDim, threadIdx, gridDim;
static inline int __popc(unsigned int x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned int)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline unsigned int __byte_perm(unsigned int x, unsigned int y, unsigned int s) {
    unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned int r = 0;
    for (int i = 0; i < 4; i++) r |= (unsigned int)(both >> 8 * (s >> 4 * i & 7) & 0xff) << 8 * i;
    return r;
}
static inline unsigned int __brev(unsigned int x) {
    unsigned int r = 0;
    for (int i = 0; i < 32; i++) r |= (x >> i & 1u) << (31 - i);
    return r;
}
static inline unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)__brev((unsigned int)x) << 32 | __brev((unsigned int)(x >> 32));
}
static inline unsigned int __float_as_uint(float x) { unsigned int r; __builtin_memcpy(&r, &x, 4); return r; }
static inline float __uint_as_float(unsigned int x) { float r; __builtin_memcpy(&r, &x, 4); return r; }
// Checks what the sanitizer does not: the addresses of atomic functions, and assumptions.
template <class T> static inline T *emulated_aligned(T *at, unsigned long bytes)
{
    if ((unsigned long)at % bytes) {
        fprintf(stderr, "misaligned address %p, which must be a multiple of %lu bytes\n", (const volatile void *)at, bytes);
        abort();
    }
    return at;
}
#define __builtin_assume_aligned(at, bytes) emulated_aligned(at, bytes)
static inline unsigned int atomicAdd(unsigned int *at, unsigned int by)
{
    return __atomic_fetch_add(emulated_aligned(at, 4), by, __ATOMIC_RELAXED);
}
static inline unsigned int atomicExch(unsigned int *at, unsigned int to)
{
    return __atomic_exchange_n(emulated_aligned(at, 4), to, __ATOMIC_RELAXED);
}
static inline unsigned int atomicCAS(unsigned int *at, unsigned int expected, unsigned int to)
{
    __atomic_compare_exchange_n(emulated_aligned(at, 4), &expected, to, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
