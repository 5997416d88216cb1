
// The persistent kernel. Each block answers the requests whose number modulo the number of blocks
// is its own, in order, so no block waits for another. The kernel exits by itself after `life`
// nanoseconds, or after as many clock cycles as no GPU makes in less time, whatever the host does
// or has ceased to do; the host launches it again when there is work.
typedef struct {
    // In host memory. Laps count from 1. `stop` is PC_LEAVE to exit between two requests, and
    // PC_ABANDON to exit as soon as possible.
    const pc_entry *entries;
    uint *answers;
    const uint *stop;
    uint *left;
    // In device memory: requests answered by each block, and the launch whose blocks are leaving.
    ulonglong *served;
    uint *leaving;
    ulonglong life;
    uint size, start;
} pc_ring;

#define PC_LEAVE 1u
#define PC_ABANDON 2u

#ifdef __CUDACC_RTC__
// Acquire and release at system scope, to synchronise with the host.
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

// Upper bound on the clock rate of any GPU, in GHz.
#define PC_FASTEST 4u

// When the kernel began, by the global timer, which stands still on some GPUs, and by the cycle
// counter, which never does.
typedef struct { ulonglong now, cycles; } pc_began;

// Waits for a request's lap; returns false if the kernel is to exit instead.
static __device__ __forceinline__ bool pc_await(const pc_ring *ring, const uint *at, uint turn, pc_began began)
{
    for (uint round = 0u;; round++) {
        if (round % 16u == 0u) {
            // If one block leaves, all do: the launch only ends with its last block.
            if (*(const volatile uint *)ring->leaving == ring->start || *(const volatile uint *)ring->stop) return false;
            if (pc_now() - began.now > ring->life || pc_cycles() - began.cycles > PC_FASTEST * ring->life) return false;
            if (round > 4096u) __nanosleep(500u);
        }
        if (pc_acquire(at) == turn) return true;
    }
}

// Bounded to one block on a multiprocessor, as is `pc_waitvalue`: with registers for more, ptxas
// 12.9 spills on sm_90.
extern "C" __global__ void __launch_bounds__(256, 1) pc_persistent(pc_ring ring, pc_maps maps)
{
    __shared__ uint come, abandoned;
    __shared__ pc_entry entry;
    // The launch at load time has no arguments and does nothing.
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
                // Slow filters are told to stop between two chunks, and their response is ignored.
                // One thread reads the flag for all, so that all of them reach the same barrier.
                if (threadIdx.x == 0u) abandoned = *(const volatile uint *)ring.stop == PC_ABANDON;
                __syncthreads();
                if (abandoned) break;
            }
            uint rest = entry.count - done;
            pc_filter_chunk(&entry, maps, entry.first + done, rest < blockDim.x ? rest : blockDim.x);
        }
        // The barrier orders the stores of all threads before the release.
        __syncthreads();
        if (threadIdx.x == 0u) pc_release(ring.answers + index, turn);
    }
    if (threadIdx.x == 0u) {
        ring.served[blockIdx.x] = served;
        *(volatile uint *)ring.leaving = ring.start;
        pc_release(ring.left + blockIdx.x, ring.start);
    }
}
