// The persistent kernel. Each block answers the requests whose number modulo the number of blocks
// is its own, in order, so no block waits for another. The kernel exits by itself after `life`
// nanoseconds, or after as many clock cycles as no GPU makes in less time, whatever the host does
// or has ceased to do; the host launches it again when there is work.
typedef struct {
    // In host memory. Laps count from 1. `stop` is PC_LEAVE to exit between two requests, and
    // PC_ABANDON to exit as soon as possible.
    const pc_posted *requests;
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
// Loads a word of a request with acquire semantics at system scope, to synchronise with the host.
// The lap that it waits for only tells an emulated device whether to yield.
static __device__ __forceinline__ ulonglong pc_poll(const ulonglong *at, uint lap)
{
    ulonglong value;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
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

// Waits for a word of a request; returns false if the kernel is to exit instead. One thread for
// each word, so that the request arrives with the read that finds it.
static __device__ __forceinline__ bool pc_await(const pc_ring *ring, const ulonglong *at, uint lap, pc_began began, uint *word)
{
    for (uint round = 0u;; round++) {
        if (round % 16u == 0u) {
            // If one block leaves, all do: the launch only ends with its last block.
            if (*(const volatile uint *)ring->leaving == ring->start || *(const volatile uint *)ring->stop) return false;
            if (pc_now() - began.now > ring->life || pc_cycles() - began.cycles > PC_FASTEST * ring->life) return false;
            if (round > 4096u) __nanosleep(500u);
        }
        ulonglong posted = pc_poll(at, lap);
        *word = (uint)posted;
        if ((uint)(posted >> 32u) == lap) return true;
    }
}

// Bounded to one block on a multiprocessor, as is `pc_queued`: with registers for more, ptxas 12.9
// spills on sm_90.
extern "C" __global__ void __launch_bounds__(PC_BLOCK_SIZE, 1) pc_persistent(pc_ring ring, pc_maps maps)
{
    __shared__ uint leaves, abandoned;
    __shared__ pc_request request;
    // The launch at load time has no arguments and does nothing.
    if (!ring.requests) return;
    pc_began began = {pc_now(), pc_cycles()};
    ulonglong served = ring.served[blockIdx.x];
    if (threadIdx.x == 0u) leaves = 0u;
    __syncthreads();
    for (;; served++) {
        ulonglong number = served * gridDim.x + blockIdx.x;
        uint index = (uint)(number % ring.size), lap = (uint)(number / ring.size) + 1u;
        if (threadIdx.x < sizeof request / 4u && !pc_await(&ring, ring.requests[index].words + threadIdx.x, lap, began, (uint *)&request + threadIdx.x)) leaves = 1u;
        __syncthreads();
        if (leaves) break;
        for (uint done = 0u; done < pc_count(&request); done += blockDim.x) {
            if (done) {
                // Slow filters are told to stop between two parts, and their response is ignored.
                // One thread reads the flag for all, so that all of them reach the same barrier.
                if (threadIdx.x == 0u) abandoned = *(const volatile uint *)ring.stop == PC_ABANDON;
                __syncthreads();
                if (abandoned) break;
            }
            uint rest = pc_count(&request) - done;
            pc_filter_part(&request, maps, request.first + done, rest < blockDim.x ? rest : blockDim.x);
        }
        // After the barrier the next request may come. It orders the stores of all threads before
        // the release.
        bool is_tagged = request.tag != 0u;
        __syncthreads();
        if (threadIdx.x != 0u) continue;
        // Tagged results tell when they are complete: the answer only frees the ring's entry.
        if (is_tagged) *(volatile uint *)(ring.answers + index) = lap;
        else pc_release(ring.answers + index, lap);
    }
    if (threadIdx.x == 0u) {
        ring.served[blockIdx.x] = served;
        *(volatile uint *)ring.leaving = ring.start;
        pc_release(ring.left + blockIdx.x, ring.start);
    }
}
