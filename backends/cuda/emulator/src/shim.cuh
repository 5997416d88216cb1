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
// Counts accesses to maps, if asked to.
#ifdef EMULATED_COUNTS
#include <set>
struct emulated_counts_of { unsigned long threads, loads, stores, atomics, sectors, most; };
extern "C" __attribute__((visibility("default"))) emulated_counts_of emulated_counts;
emulated_counts_of emulated_counts = {};
// Of each thread of the block that the host thread runs.
static thread_local std::set<unsigned long> emulated_sectors[1024];
static thread_local unsigned long emulated_accesses[1024];
static inline void emulated_count(unsigned long *kind, const volatile void *at)
{
    __atomic_fetch_add(kind, 1, __ATOMIC_RELAXED);
    emulated_accesses[threadIdx.x]++;
    emulated_sectors[threadIdx.x].insert((unsigned long)at / 32);
}
#define EMULATED_COUNT(kind, at) emulated_count(&emulated_counts.kind, at)
struct emulated_word {
    volatile unsigned int *at;
    operator unsigned int() const { return EMULATED_COUNT(loads, at), *at; }
    unsigned int operator=(unsigned int value) { return EMULATED_COUNT(stores, at), *at = value; }
    unsigned int *operator&() const { return (unsigned int *)at; }
};
// A map's words, in place of a pointer to them.
struct emulated_map {
    volatile unsigned int *words;
    emulated_map() = default;
    emulated_map(volatile unsigned int *words) : words(words) {}
    emulated_word operator[](unsigned long index) const { return {words + index}; }
};
static inline void emulated_count_thread(void)
{
    auto &sectors = emulated_sectors[threadIdx.x];
    unsigned long accesses = emulated_accesses[threadIdx.x], most = __atomic_load_n(&emulated_counts.most, __ATOMIC_RELAXED);
    __atomic_fetch_add(&emulated_counts.threads, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&emulated_counts.sectors, sectors.size(), __ATOMIC_RELAXED);
    while (accesses > most && !__atomic_compare_exchange_n(&emulated_counts.most, &most, accesses, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    sectors.clear();
    emulated_accesses[threadIdx.x] = 0;
}
#else
#define EMULATED_COUNT(kind, at)
static inline void emulated_count_thread(void) {}
#endif
static inline unsigned int atomicAdd(unsigned int *at, unsigned int by)
{
    EMULATED_COUNT(atomics, at);
    return __atomic_fetch_add(emulated_aligned(at, 4), by, __ATOMIC_RELAXED);
}
static inline unsigned long long atomicAdd(unsigned long long *at, unsigned long long by)
{
    EMULATED_COUNT(atomics, at);
    return __atomic_fetch_add(emulated_aligned(at, 8), by, __ATOMIC_RELAXED);
}
static inline unsigned int atomicOr(unsigned int *at, unsigned int bits)
{
    EMULATED_COUNT(atomics, at);
    return __atomic_fetch_or(emulated_aligned(at, 4), bits, __ATOMIC_RELAXED);
}
static inline unsigned int atomicMin(unsigned int *at, unsigned int other)
{
    EMULATED_COUNT(atomics, at);
    unsigned int was = __atomic_load_n(emulated_aligned(at, 4), __ATOMIC_RELAXED);
    while (other < was && !__atomic_compare_exchange_n(at, &was, other, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return was;
}
static inline unsigned int atomicMax(unsigned int *at, unsigned int other)
{
    EMULATED_COUNT(atomics, at);
    unsigned int was = __atomic_load_n(emulated_aligned(at, 4), __ATOMIC_RELAXED);
    while (other > was && !__atomic_compare_exchange_n(at, &was, other, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return was;
}
static inline unsigned int atomicExch(unsigned int *at, unsigned int to)
{
    EMULATED_COUNT(atomics, at);
    return __atomic_exchange_n(emulated_aligned(at, 4), to, __ATOMIC_RELAXED);
}
static inline unsigned int atomicCAS(unsigned int *at, unsigned int expected, unsigned int to)
{
    EMULATED_COUNT(atomics, at);
    __atomic_compare_exchange_n(emulated_aligned(at, 4), &expected, to, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
