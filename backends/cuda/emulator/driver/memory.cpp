// Memory: allocations between inaccessible guard pages, filled with junk, with bounds checked to
// the byte.
#include "emulator.hpp"

#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

static const size_t PAGE = 4096, ALIGNMENT = 256;
static const unsigned char JUNK = 0xa5, CANARY = 0xc5;

struct Allocation {
    unsigned char *start;
    size_t size;
    // The whole mapping, guard pages included.
    unsigned char *map;
    size_t mapped;
    Context *context;
    // Of device memory: the file behind it, so that it can be mapped again; the value of
    // SYNC_MEMOPS; how often it is pinned for the CPU.
    int file = -1;
    bool syncs = false;
    long pins = 0;
};

static std::mutex mutex;
// Allocations by their first byte.
static auto &device = kept<std::map<uintptr_t, Allocation>>();
static auto &host = kept<std::map<uintptr_t, Allocation>>();
static auto &registered = kept<std::map<uintptr_t, size_t>>();
static size_t in_use = 0;
static std::atomic<uint64_t> copied_in{0}, copied_out{0}, flushes{0};

void copied(bool to_device, size_t bytes) { (to_device ? copied_in : copied_out) += bytes; }

void report_copies() {
    fprintf(stderr, "emulated CUDA driver: copied %lu bytes to the device, %lu from it\n", copied_in.load(), copied_out.load());
    fprintf(stderr, "emulated CUDA driver: flushed remote writes %lu times\n", flushes.load());
}

static bool allocate(Context *context, size_t size, bool of_device, Allocation *made) {
    size_t rounded = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, pages = (rounded + PAGE - 1) / PAGE * PAGE;
    size_t mapped = pages + 2 * PAGE;
    void *map = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return false;
    unsigned char *first = (unsigned char *)map + PAGE;
    int file = -1;
    if (of_device) {
        file = memfd_create("device memory", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, (off_t)pages)) return false;
        if (mmap(first, pages, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) return false;
    } else if (mprotect(first, pages, PROT_READ | PROT_WRITE)) {
        return false;
    }
    unsigned char *start = of_device ? first + pages - rounded : first;
    memset(first, CANARY, pages);
    memset(start, JUNK, size);
    *made = {start, size, (unsigned char *)map, mapped, context, file};
    return true;
}

static void release(const Allocation &allocation, const char *function) {
    const unsigned char *end = allocation.map + allocation.mapped - PAGE;
    for (const unsigned char *at = allocation.start + allocation.size; at < end; at++)
        if (*at != CANARY) misuse("%s: byte %zu past the end was written to", function, (size_t)(at - allocation.start) - allocation.size);
    for (const unsigned char *at = allocation.map + PAGE; at < allocation.start; at++)
        if (*at != CANARY) misuse("%s: a byte before the start was written to", function);
    munmap(allocation.map, allocation.mapped);
    if (allocation.file >= 0) close(allocation.file);
}

// The allocation that contains the bytes, or none.
template <class Map, class Size> static auto find(Map &map, uintptr_t start, size_t bytes, Size size) {
    auto after = map.upper_bound(start);
    if (after == map.begin()) return map.end();
    auto entry = std::prev(after);
    size_t offset = start - entry->first, all = size(entry->second);
    return offset <= all && bytes <= all - offset ? entry : map.end();
}

static size_t size_of(const Allocation &allocation) { return allocation.size; }
static size_t size_of_range(size_t size) { return size; }

void check_device(Context *context, Address address, size_t bytes, const char *function) {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = find(device, (uintptr_t)address, bytes, size_of);
    if (found == device.end()) misuse("%s: %zu bytes at %#lx are not all in one allocation of the device's", function, bytes, (unsigned long)address);
    if (found->second.context != context) misuse("%s: device memory of another context", function);
}

static bool is_pinned(const void *start, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex);
    uintptr_t at = (uintptr_t)start;
    return find(host, at, bytes, size_of) != host.end() || find(registered, at, bytes, size_of_range) != registered.end();
}

void check_pinned(const void *start, size_t bytes, const char *function) {
    if (!is_pinned(start, bytes))
        misuse("%s: %zu bytes of host memory at %p are not all pinned", function, bytes, start);
}

API int cuMemAlloc_v2(Address *address, size_t bytes) {
    CHECK_CONTEXT();
    undisturbed(context, __func__);
    if (!bytes) return INVALID_VALUE;
    std::lock_guard<std::mutex> lock(mutex);
    Allocation made;
    if (in_use + bytes > (size_t)asked("memory", 1l << 30) || !allocate(context, bytes, true, &made)) return OUT_OF_MEMORY;
    in_use += bytes;
    device[(uintptr_t)made.start] = made;
    *address = (Address)made.start;
    context->objects++;
    return SUCCESS;
}

API int cuMemFree_v2(Address address) {
    Context *context = current(__func__);
    undisturbed(context, __func__);
    wait_for_device(context, __func__);
    std::lock_guard<std::mutex> lock(mutex);
    auto found = device.find((uintptr_t)address);
    if (found == device.end()) misuse("cuMemFree: nothing was allocated at %#lx", (unsigned long)address);
    if (found->second.context != context) misuse("cuMemFree: memory of another context");
    if (found->second.pins) misuse("cuMemFree: the memory is pinned for the processor");
    release(found->second, "cuMemFree");
    in_use -= found->second.size;
    device.erase(found);
    context->objects--;
    return SUCCESS;
}

API int cuMemHostAlloc(void **start, size_t bytes, unsigned flags) {
    CHECK_CONTEXT();
    undisturbed(context, __func__);
    if (!bytes || flags & ~7u) return INVALID_VALUE;
    std::lock_guard<std::mutex> lock(mutex);
    Allocation made;
    size_t all = bytes;
    for (auto &own : host) all += own.second.size;
    bool refused = asked("no-pinned-memory") || all > (size_t)asked("pinned", 1l << 40);
    if (refused || !allocate(context, bytes, false, &made)) return OUT_OF_MEMORY;
    host[(uintptr_t)made.start] = made;
    *start = made.start;
    context->objects++;
    return SUCCESS;
}

API int cuMemFreeHost(void *start) {
    Context *context = current(__func__);
    undisturbed(context, __func__);
    wait_for_device(context, __func__);
    std::lock_guard<std::mutex> lock(mutex);
    auto found = host.find((uintptr_t)start);
    if (found == host.end()) misuse("cuMemFreeHost: nothing was allocated at %p", start);
    if (found->second.context != context) misuse("cuMemFreeHost: memory of another context");
    release(found->second, "cuMemFreeHost");
    host.erase(found);
    context->objects--;
    return SUCCESS;
}

// Whether all of these bytes are mapped in the process.
static bool is_there(uintptr_t start, size_t bytes) {
    uintptr_t first = start / PAGE * PAGE;
    size_t pages = (start + bytes - first + PAGE - 1) / PAGE;
    std::vector<unsigned char> resident(pages);
    return mincore((void *)first, pages * PAGE, resident.data()) == 0;
}

// Drivers track ranges of bytes, not pages: two ranges may share a page.
API int cuMemHostRegister_v2(void *start, size_t bytes, unsigned flags) {
    CHECK_CONTEXT();
    undisturbed(context, __func__);
    if (!bytes || flags & ~15u) return INVALID_VALUE;
    if (asked("no-registering")) return OUT_OF_MEMORY;
    std::lock_guard<std::mutex> lock(mutex);
    uintptr_t at = (uintptr_t)start;
    auto after = registered.upper_bound(at);
    bool above = after != registered.end() && after->first < at + bytes;
    bool below = after != registered.begin() && std::prev(after)->first + std::prev(after)->second > at;
    for (auto &own : host) above |= own.first < at + bytes && at < own.first + own.second.size;
    if (above || below) return HOST_MEMORY_ALREADY_REGISTERED;
    if (!is_there(at, bytes)) return INVALID_VALUE;
    size_t all = bytes;
    for (auto &range : registered) all += range.second;
    if (all > (size_t)asked("registered", 1l << 40)) return OUT_OF_MEMORY;
    registered[at] = bytes;
    context->objects++;
    return SUCCESS;
}

API int cuMemHostUnregister(void *start) {
    Context *context = current(__func__);
    undisturbed(context, __func__);
    wait_for_device(context, __func__);
    std::lock_guard<std::mutex> lock(mutex);
    uintptr_t at = (uintptr_t)start;
    auto found = registered.find(at);
    if (found == registered.end()) {
        bool is_pinned = find(host, at, 1, size_of) != host.end() || find(registered, at, 1, size_of_range) != registered.end();
        return is_pinned ? INVALID_VALUE : HOST_MEMORY_NOT_REGISTERED;
    }
    if (!is_there(at, found->second)) misuse("cuMemHostUnregister: memory went before it was let go of");
    registered.erase(found);
    context->objects--;
    return SUCCESS;
}

API int cuMemHostGetDevicePointer_v2(Address *address, void *start, unsigned flags) {
    CHECK_CONTEXT();
    if (flags) return INVALID_VALUE;
    check_pinned(start, 1, __func__);
    *address = (Address)start;
    return SUCCESS;
}

// Supports CU_POINTER_ATTRIBUTE_SYNC_MEMOPS only: network cards and the CPU may access the memory.
API int cuPointerSetAttribute(const void *value, int attribute, Address address) {
    CHECK_CONTEXT();
    if (attribute != 6) misuse("cuPointerSetAttribute: attribute %d is not known here", attribute);
    std::lock_guard<std::mutex> lock(mutex);
    auto found = find(device, (uintptr_t)address, 1, size_of);
    if (found == device.end() || found->second.context != context) return INVALID_VALUE;
    found->second.syncs = *(const unsigned *)value;
    return SUCCESS;
}

API int cuFlushGPUDirectRDMAWrites(int target, int scope) {
    CHECK_CONTEXT();
    // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX, and TO_OWNER or TO_ALL_DEVICES.
    if (target || (scope != 100 && scope != 200)) return INVALID_VALUE;
    flushes++;
    return SUCCESS;
}

bool pin_for_processor(Address address, size_t bytes, Pinned *pinned) {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = find(device, (uintptr_t)address, bytes, size_of);
    if (found == device.end()) return false;
    Allocation &allocation = found->second;
    if (!allocation.syncs) misuse("gdr_pin_buffer: SYNC_MEMOPS was not set for the memory");
    allocation.pins++;
    allocation.context->objects++;
    *pinned = {allocation.file, (Address)(allocation.map + PAGE), allocation.mapped - 2 * PAGE};
    return true;
}

void unpin_for_processor(Address address) {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = find(device, (uintptr_t)address, 1, size_of);
    if (found == device.end()) misuse("gdr_unpin_buffer: the memory is gone");
    found->second.pins--;
    found->second.context->objects--;
}

API int cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, void *handle) {
    CHECK_CONTEXT();
    Stream *stream = stream_of(handle, __func__);
    auto check = [=] {
        check_device(context, to, bytes, "cuMemcpyHtoDAsync");
        if (!asked("pageable")) check_pinned(from, bytes, "cuMemcpyHtoDAsync");
    };
    check();
    enqueue(stream, [=] {
        check();
        memcpy((void *)to, from, bytes);
        copied(true, bytes);
    });
    return SUCCESS;
}

API int cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, void *handle) {
    CHECK_CONTEXT();
    Stream *stream = stream_of(handle, __func__);
    auto check = [=] {
        check_device(context, from, bytes, "cuMemcpyDtoHAsync");
        if (!asked("pageable")) check_pinned(to, bytes, "cuMemcpyDtoHAsync");
    };
    check();
    enqueue(stream, [=] {
        check();
        memcpy(to, (const void *)from, bytes);
        copied(false, bytes);
    });
    // "For transfers from device memory to pageable host memory, the function will return only once
    // the copy has completed" (CUDA driver API, "API synchronization behavior").
    while (!is_pinned(to, bytes) && !idle(stream)) usleep(100);
    return SUCCESS;
}

API int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void *handle) {
    CHECK_CONTEXT();
    Stream *stream = stream_of(handle, __func__);
    auto check = [=] {
        check_device(context, from, bytes, "cuMemcpyDtoDAsync");
        check_device(context, to, bytes, "cuMemcpyDtoDAsync");
    };
    check();
    enqueue(stream, [=] {
        check();
        memmove((void *)to, (const void *)from, bytes);
    });
    return SUCCESS;
}

API int cuMemsetD8Async(Address to, unsigned char value, size_t bytes, void *handle) {
    CHECK_CONTEXT();
    Stream *stream = stream_of(handle, __func__);
    check_device(context, to, bytes, __func__);
    enqueue(stream, [=] {
        check_device(context, to, bytes, "cuMemsetD8Async");
        memset((void *)to, value, bytes);
    });
    return SUCCESS;
}
