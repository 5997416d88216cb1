// A clock that advances by 100 cycles whenever it is read: artificial work is counted, and takes no
// time.
extern "C" __attribute__((visibility("default"))) unsigned long long emulated_cycles;
unsigned long long emulated_cycles = 0;
static inline long long clock64(void)
{
    static thread_local long long now;
    __atomic_fetch_add(&emulated_cycles, 100, __ATOMIC_RELAXED);
    return now += 100;
}
// For kernels whose threads synchronise with each other, or that communicate with the host.
#include <time.h>
#ifdef EMULATED_BARRIERS
#include <sys/mman.h>
#include <ucontext.h>
#endif
// A block runs on one host thread.
#define __shared__ static thread_local
static thread_local void (*emulated_wait)(void *);
static thread_local void *emulated_fibers;
static inline void __syncthreads(void) { emulated_wait(emulated_fibers); }
// Functions of a warp's threads. Threads that ask for the active mask are active together once no
// other thread of the block can go on; those with a mask wait for all threads in it.
static thread_local unsigned int (*emulated_converge)(void *, unsigned int mask);
struct emulated_warp { unsigned long long keys[32]; unsigned int values[32]; };
static thread_local emulated_warp emulated_warps[32];
static inline emulated_warp &emulated_own_warp(void) { return emulated_warps[threadIdx.x / 32]; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned int __activemask(void) { return emulated_converge(emulated_fibers, 0); }
static inline void emulated_together(unsigned int mask) { emulated_converge(emulated_fibers, mask); }
static inline unsigned int __match_any_sync(unsigned int mask, unsigned long long key)
{
    emulated_warp &warp = emulated_own_warp();
    warp.keys[threadIdx.x % 32] = key;
    emulated_together(mask);
    unsigned int peers = 0;
    for (unsigned int lane = 0; lane < 32; lane++) peers |= (mask >> lane & 1u && warp.keys[lane] == key ? 1u : 0u) << lane;
    return peers;
}
static inline unsigned int __reduce_add_sync(unsigned int mask, unsigned int value)
{
    emulated_warp &warp = emulated_own_warp();
    warp.values[threadIdx.x % 32] = value;
    emulated_together(mask);
    unsigned int sum = 0;
    for (unsigned int lane = 0; lane < 32; lane++) sum += mask >> lane & 1u ? warp.values[lane] : 0u;
    // Nobody overwrites a value before all have read it.
    emulated_together(mask);
    return sum;
}
static inline void __threadfence_system(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __nanosleep(unsigned int nanoseconds)
{
    struct timespec pause = {0, (long)nanoseconds};
    nanosleep(&pause, 0);
}
// Polling yields the CPU to other threads.
static inline unsigned long long pc_poll(const unsigned long long *at, unsigned int lap)
{
    unsigned long long value = __atomic_load_n(emulated_aligned(at, 8), __ATOMIC_ACQUIRE);
    if ((unsigned int)(value >> 32) != lap) __nanosleep(1000);
    return value;
}
static inline void pc_store_tagged(void *at, unsigned int value, unsigned int tag)
{
    unsigned long long word = (unsigned long long)tag << 32 | value;
    // The device's other stores are visible to whoever sees the word, as x86 has it anyway.
    __atomic_store_n((unsigned long long *)emulated_aligned((char *)at, 8), word, __ATOMIC_RELEASE);
}
static inline void pc_release(unsigned int *at, unsigned int value)
{
    __atomic_store_n(emulated_aligned(at, 4), value, __ATOMIC_RELEASE);
}
static inline unsigned long long pc_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec;
}
static inline unsigned long long pc_cycles(void) { return pc_now(); }
struct __attribute__((aligned(8))) uint2 { unsigned int x, y; };
struct __attribute__((aligned(16))) uint4 { unsigned int x, y, z, w; };
static inline uint2 make_uint2(unsigned int x, unsigned int y) { return {x, y}; }
static inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) { return {x, y, z, w}; }
static inline unsigned int pc_load2(const void *at) { return *(const volatile unsigned short *)emulated_aligned(at, 2); }
static inline unsigned int pc_load4(const void *at) { return *(const volatile unsigned int *)emulated_aligned(at, 4); }
static inline uint2 pc_load8(const void *at) { return *(const uint2 *)at; }
static inline uint4 pc_load16(const void *at) { return *(const uint4 *)at; }
