
// A kernel that stays: each block answers every entry whose number is its own modulo the number of blocks, in order,
// so no block ever waits for another. It ends by itself when it has been there for `life` nanoseconds, or for as many
// cycles as no clock makes in less time, whatever the host does or has ceased to do; the host starts it anew when there is
// work.
typedef struct {
    // In the host's memory. An entry's turn is counted from 1. `stop` is PC_LEAVE for an end between two entries, and
    // PC_ABANDON for one as soon as may be.
    const pc_entry *entries;
    uint *answers;
    const uint *stop;
    uint *left;
    // In the device's memory: how many entries each block has answered, and the start that is ending.
    ulonglong *served;
    uint *leaving;
    ulonglong life;
    uint size, start;
} pc_ring;

#define PC_LEAVE 1u
#define PC_ABANDON 2u

#ifdef __CUDACC_RTC__
// Acquire and release across the bus: what the other side wrote before is seen, what was written here before is.
static __device__ __forceinline__ uint pc_acquire(const uint *at)
{
    uint value;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

static __device__ __forceinline__ void pc_release(uint *at, uint value)
{
    asm volatile("st.release.sys.u32 [%0], %1;" : : "l"(at), "r"(value) : "memory");
}

static __device__ __forceinline__ ulonglong pc_now(void)
{
    ulonglong now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

static __device__ __forceinline__ ulonglong pc_cycles(void)
{
    return (ulonglong)clock64();
}
#endif

// No GPU has a clock of more gigahertz.
#define PC_FASTEST 4u

// When a kernel began, by a clock that some have stand still, and by one that counts whatever is in the way.
typedef struct { ulonglong now, cycles; } pc_began;

// Waits for an entry's turn; whether it has come, or the kernel is to end.
static __device__ __forceinline__ bool pc_await(const pc_ring *ring, const uint *at, uint turn, pc_began began)
{
    for (uint round = 0u;; round++) {
        if (round % 16u == 0u) {
            // One that leaves takes the others with it: the kernel ends when its last block does.
            if (*(const volatile uint *)ring->leaving == ring->start || *(const volatile uint *)ring->stop) return false;
            if (pc_now() - began.now > ring->life || pc_cycles() - began.cycles > PC_FASTEST * ring->life) return false;
            if (round > 4096u) __nanosleep(500u);
        }
        if (pc_acquire(at) == turn) return true;
    }
}

// One block on a multiprocessor is enough, as for `pc_waitvalue`: with registers for more of them (ptxas 12.9, sm_90) some
// would be spilled.
extern "C" __global__ void __launch_bounds__(256, 1) pc_persistent(pc_ring ring, pc_maps maps)
{
    __shared__ uint come, abandoned;
    __shared__ pc_entry entry;
    // Nothing, once, when it is loaded.
    if (!ring.entries) return;
    pc_began began = {pc_now(), pc_cycles()};
    ulonglong served = ring.served[blockIdx.x];
    for (;; served++) {
        ulonglong number = served * gridDim.x + blockIdx.x;
        uint index = (uint)(number % ring.size), turn = (uint)(number / ring.size) + 1u;
        if (threadIdx.x == 0u) come = pc_await(&ring, &ring.entries[index].turn, turn, began);
        __syncthreads();
        if (!come) break;
        pc_take(&entry, ring.entries + index);
        for (uint done = 0u; done < entry.count; done += blockDim.x) {
            if (done) {
                // Filters that take long are told to stop between two rounds; nobody looks at what they leave. One
                // thread asks, so that all of them hear the same, and go on to the same barrier.
                if (threadIdx.x == 0u) abandoned = *(const volatile uint *)ring.stop == PC_ABANDON;
                __syncthreads();
                if (abandoned) break;
            }
            uint rest = entry.count - done;
            pc_filter_chunk(&entry, maps, entry.first + done, rest < blockDim.x ? rest : blockDim.x);
        }
        // What all threads have written comes before the barrier, and so before the release.
        __syncthreads();
        if (threadIdx.x == 0u) pc_release(ring.answers + index, turn);
    }
    if (threadIdx.x == 0u) {
        ring.served[blockIdx.x] = served;
        *(volatile uint *)ring.leaving = ring.start;
        pc_release(ring.left + blockIdx.x, ring.start);
    }
}
