// A CUDA driver and compiler whose device does nothing: commands complete when they are queued,
// copies move no byte and kernels write none. What is measured over it is the host's own work.
// Results are whatever was in the memory before.
//
// The exceptions are kernels that the host waits for in memory, with verdicts that have the tag of
// their request (`session/slot.cu`): those in graphs answer when they are launched, and for
// persistent ones, and those queued behind a wait for a value, a thread answers requests as soon as
// it sees them.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#define API extern "C" __attribute__((visibility("default")))

typedef uint64_t Address;
enum : int { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_READY = 600 };

// The symbol by which the backend recognises a driver without a GPU.
API const int portcullis_emulated_driver = 1;

static char handle;

template <class T> static int set(T *to, T value) {
    *to = value;
    return SUCCESS;
}

// Commands that were given to the device.
static std::atomic<uint64_t> submissions{0};
API uint64_t portcullis_submissions() { return submissions; }
static int submitted() { return submissions++, SUCCESS; }

// The device, and contexts of it.
API int cuInit(unsigned) { return SUCCESS; }
API int cuDriverGetVersion(int *version) { return set(version, 12040); }
API int cuGetErrorName(int, const char **text) { return set(text, "CUDA_ERROR"); }
API int cuGetErrorString(int, const char **text) { return set(text, "an error of the idle driver"); }
API int cuDeviceGetCount(int *count) { return set(count, 1); }
API int cuDeviceGet(int *device, int index) { return index ? INVALID_VALUE : set(device, 0); }
API int cuDeviceTotalMem_v2(size_t *bytes, int) { return set(bytes, (size_t)64 << 30); }
API int cuDeviceGetName(char *name, int length, int) { return snprintf(name, (size_t)length, "idle CUDA device"), SUCCESS; }
API int cuDeviceGetPCIBusId(char *text, int length, int) { return snprintf(text, (size_t)length, "FFFF:3C:00.0"), SUCCESS; }

API int cuDeviceGetAttribute(int *value, int attribute, int) {
    switch (attribute) {
        case 13: return set(value, 2000000);  // CLOCK_RATE, in kHz
        case 16: return set(value, 132);      // MULTIPROCESSOR_COUNT
        case 19: return set(value, 1);        // CAN_MAP_HOST_MEMORY
        case 75: return set(value, 9);        // COMPUTE_CAPABILITY_MAJOR
        case 118: return set(value, 100);     // GPU_DIRECT_RDMA_WRITES_ORDERING: OWNER
    }
    return set(value, 0);
}

static thread_local void *contexts[16];
static thread_local int entered = 0;

API int cuDevicePrimaryCtxRetain(void **context, int) { return set(context, (void *)&handle); }
API int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
API int cuCtxPushCurrent_v2(void *context) { return entered < 16 ? set(&contexts[entered++], context) : INVALID_VALUE; }
API int cuCtxPopCurrent_v2(void **context) { return entered > 0 ? set(context, contexts[--entered]) : INVALID_VALUE; }

// Memory. Device memory is a range of addresses without contents.
API int cuMemAlloc_v2(Address *address, size_t bytes) {
    static std::atomic<Address> next{(Address)1 << 40};
    return set(address, next.fetch_add((bytes + 0xffff) & ~(size_t)0xffff));
}
API int cuMemFree_v2(Address) { return SUCCESS; }
API int cuMemHostAlloc(void **host, size_t bytes, unsigned) { return posix_memalign(host, 4096, bytes) ? OUT_OF_MEMORY : SUCCESS; }
API int cuMemFreeHost(void *host) { return free(host), SUCCESS; }
API int cuMemHostRegister_v2(void *, size_t, unsigned) { return SUCCESS; }
API int cuMemHostUnregister(void *) { return SUCCESS; }
API int cuPointerSetAttribute(const void *, int, Address) { return SUCCESS; }
API int cuMemHostGetDevicePointer_v2(Address *address, void *host, unsigned) { return set(address, (Address)host); }
API int cuMemcpyHtoDAsync_v2(Address, const void *, size_t, void *) { return submitted(); }
API int cuMemcpyDtoHAsync_v2(void *, Address, size_t, void *) { return submitted(); }
API int cuMemcpyDtoDAsync_v2(Address, Address, size_t, void *) { return submitted(); }
API int cuMemsetD8Async(Address, uint8_t, size_t, void *) { return submitted(); }
API int cuFlushGPUDirectRDMAWrites(int, int) { return SUCCESS; }

// A request, `pc_posted`: words, each below the request's lap. Those that matter here.
struct Posted { uint64_t words[16]; };
enum { SLOT_LOW = 0, SLOT_HIGH = 1, INPUT = 6, PACKETS = 9, TAG = 10 };

static std::atomic<uint32_t> *word(Address at) { return (std::atomic<uint32_t> *)at; }

static uint32_t lap_of(Address posted) {
    // The host writes this one last.
    return (uint32_t)(((std::atomic<uint64_t> *)posted)[15].load(std::memory_order_acquire) >> 32);
}

// Answers a request as if its kernel had filtered nothing: tags the double words of verdicts, and
// those that would have targets if the filter redirected.
static void answer(Address posted, Address answers, uint32_t lap) {
    const Posted *request = (const Posted *)posted;
    auto value = [&](int index) { return (uint32_t)request->words[index]; };
    if (uint64_t tag = value(TAG)) {
        auto results = (std::atomic<uint64_t> *)((Address)value(SLOT_HIGH) << 32 | value(SLOT_LOW));
        uint32_t verdicts = ((value(PACKETS) + 3) / 4 + 1) & ~1u, all = std::min(verdicts + value(PACKETS), value(INPUT) / 8);
        for (uint32_t index = 0; index < all; index++) results[index].store(tag << 32, std::memory_order_release);
    }
    word(answers)->store(lap, std::memory_order_release);
}

// Persistent kernels: their argument, `pc_ring`.
struct Ring {
    Address requests, answers, stop, left, served, leaving, life;
    uint32_t size, start;
};

static std::atomic<int> residents{0};

static void stay(Ring ring, unsigned blocks) {
    // Requests answered so far, by an address that no other ring has: a kernel that is launched
    // again goes on from there.
    static auto &answered = *new std::map<Address, uint64_t>;
    static auto &mutex = *new std::mutex;
    auto load = [&](Address at) { return word(at)->load(std::memory_order_acquire); };
    auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(ring.life);
    uint64_t number;
    {
        std::lock_guard<std::mutex> lock(mutex);
        number = answered[ring.served];
    }
    for (uint32_t rounds = 1; !load(ring.stop); rounds++) {
        uint64_t index = number % ring.size, lap = number / ring.size + 1;
        if (Address posted = ring.requests + index * sizeof(Posted); lap_of(posted) == lap) {
            answer(posted, ring.answers + index * 4, (uint32_t)lap);
            number++;
        } else if (rounds % 1024 == 0 && std::chrono::steady_clock::now() > end) {
            break;
        }
    }
    {
        std::lock_guard<std::mutex> lock(mutex);
        answered[ring.served] = number;
    }
    for (unsigned block = 0; block < blocks; block++) word(ring.left + block * 4)->store(ring.start, std::memory_order_release);
    residents--;
}

// Kernels behind a wait for a value, in the order of one stream: the addresses of a request and of
// its answer, and the request's lap.
struct Queued { Address posted, answer; uint32_t lap; };

static auto &queued = *new std::deque<Queued>;
static auto &queue_mutex = *new std::mutex;
static bool queue_is_served = false;

static void serve_queue() {
    for (;;) {
        Queued next;
        {
            std::lock_guard<std::mutex> lock(queue_mutex);
            if (queued.empty()) {
                queue_is_served = false;
                return;
            }
            next = queued.front();
        }
        while (lap_of(next.posted) != next.lap) {
        }
        // Before the answer, after which the host may find the stream empty.
        {
            std::lock_guard<std::mutex> lock(queue_mutex);
            queued.pop_front();
        }
        answer(next.posted, next.answer, next.lap);
    }
}

static thread_local uint32_t awaited = 0;

API int cuStreamWaitValue32_v2(void *, Address, uint32_t value, unsigned) {
    awaited = value;
    return submitted();
}

// Functions, by the addresses of these.
static char persistent_kernel, queued_kernel, other_kernel;

API int cuModuleLoadDataEx(void **module, const void *, unsigned, int *, void **) { return set(module, (void *)&handle); }
API int cuModuleUnload(void *) { return SUCCESS; }
API int cuModuleGetFunction(void **function, void *, const char *name) {
    return set(function, (void *)(!strcmp(name, "pc_persistent") ? &persistent_kernel : !strcmp(name, "pc_queued") ? &queued_kernel : &other_kernel));
}
API int cuFuncGetAttribute(int *value, int attribute, void *) { return set(value, attribute ? 0 : 1024); }
API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *, int, size_t) { return set(blocks, 8); }
API int cuLaunchKernel(void *function, unsigned blocks, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **parameters, void **) {
    submitted();
    if (function == &persistent_kernel) {
        Ring ring;
        memcpy(&ring, parameters[0], sizeof ring);
        if (!ring.requests) return SUCCESS;
        residents++;
        std::thread(stay, ring, blocks).detach();
    } else if (function == &queued_kernel && *(Address *)parameters[0]) {
        std::lock_guard<std::mutex> lock(queue_mutex);
        queued.push_back(Queued{*(Address *)parameters[0], *(Address *)parameters[1], awaited});
        if (!queue_is_served) std::thread(serve_queue).detach();
        queue_is_served = true;
    }
    return SUCCESS;
}

// Streams and events: nothing is ever queued.
API int cuStreamCreate(void **stream, unsigned) { return set(stream, malloc(1)); }
API int cuStreamDestroy_v2(void *stream) { return free(stream), SUCCESS; }
API int cuStreamQuery(void *) {
    std::lock_guard<std::mutex> lock(queue_mutex);
    return residents || !queued.empty() ? NOT_READY : SUCCESS;
}
API int cuStreamWaitEvent(void *, void *, unsigned) { return submitted(); }
API int cuEventCreate(void **event, unsigned) { return set(event, (void *)&handle); }
API int cuEventDestroy_v2(void *) { return SUCCESS; }
API int cuEventRecord(void *, void *) { return submitted(); }
API int cuEventQuery(void *) { return SUCCESS; }
API int cuEventElapsedTime(float *milliseconds, void *, void *) { return set(milliseconds, 0.0f); }

// Graphs of one kernel, whose first two arguments are the addresses of a request and of its answer.
struct KernelNode {
    void *function;
    unsigned grid[3], threads[3], shared;
    void **parameters;
};
struct Graph { Address posted, answer; };

API int cuGraphCreate(void **graph, unsigned) { return set(graph, (void *)new Graph{}); }
API int cuGraphDestroy(void *graph) { return delete (Graph *)graph, SUCCESS; }
API int cuGraphAddKernelNode(void **node, void *graph, const void *, size_t, const void *parameters) {
    void **arguments = ((const KernelNode *)parameters)->parameters;
    *(Graph *)graph = Graph{*(Address *)arguments[0], *(Address *)arguments[1]};
    return set(node, (void *)&handle);
}
API int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long) { return set(executable, (void *)new Graph(*(Graph *)graph)); }
API int cuGraphUpload(void *, void *) { return SUCCESS; }
API int cuGraphLaunch(void *executable, void *) {
    submitted();
    const Graph *graph = (const Graph *)executable;
    return answer(graph->posted, graph->answer, lap_of(graph->posted)), SUCCESS;
}
API int cuGraphExecDestroy(void *executable) { return delete (Graph *)executable, SUCCESS; }

// The compiler, whose output is an empty PTX text.
API int nvrtcVersion(int *major, int *minor) { return set(major, 12), set(minor, 4); }
API int nvrtcGetNumSupportedArchs(int *count) { return set(count, 1); }
API int nvrtcGetSupportedArchs(int *archs) { return set(archs, 90); }
API int nvrtcCreateProgram(void **program, const char *, const char *, int, const char *const *, const char *const *) { return set(program, (void *)&handle); }
API int nvrtcDestroyProgram(void **) { return SUCCESS; }
API int nvrtcCompileProgram(void *, int, const char *const *) { return SUCCESS; }
API int nvrtcGetProgramLogSize(void *, size_t *size) { return set(size, (size_t)1); }
API int nvrtcGetProgramLog(void *, char *log) { return set(log, '\0'); }
API int nvrtcGetCUBINSize(void *, size_t *size) { return set(size, (size_t)1); }
API int nvrtcGetCUBIN(void *, char *cubin) { return set(cubin, '\0'); }
API int nvrtcGetPTXSize(void *, size_t *size) { return set(size, (size_t)1); }
API int nvrtcGetPTX(void *, char *ptx) { return set(ptx, '\0'); }
