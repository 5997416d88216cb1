// GDRCopy: device memory mapped for the CPU, at an address that differs from the device's. Error
// codes are errno's; structures are those of gdrapi.h, version 2.4.
#include "emulator.hpp"

#include <cerrno>
#include <sys/mman.h>

static const Address DEVICE_PAGE = 64 << 10;

struct Gdr {
    long pins;
};

struct Handle {
    unsigned long number;
};

struct Info {
    uint64_t start, mapped_size;
    uint32_t page_size;
    uint64_t cycles;
    uint32_t cycles_per_ms;
    unsigned mapped : 1, combines : 1;
    int type;
};

// Pinned ranges, extended to whole device pages.
struct Pin {
    Address address, start;
    size_t size;
    Pinned memory;
    void *mapped;
};

static std::mutex mutex;
static auto &pins = kept<std::map<unsigned long, Pin>>();
static size_t in_window = 0;

static Pin &pin_of(Handle handle, const char *function) {
    auto found = pins.find(handle.number);
    if (found == pins.end()) misuse("%s: there is no such pin", function);
    return found->second;
}

API Gdr *gdr_open(void) { return asked("no-gdrcopy") ? nullptr : new Gdr{0}; }

API int gdr_close(Gdr *gdr) {
    if (gdr->pins) misuse("gdr_close: memory is pinned");
    delete gdr;
    return 0;
}

API int gdr_pin_buffer(Gdr *gdr, unsigned long address, size_t bytes, uint64_t, uint32_t, Handle *handle) {
    static unsigned long next = 1;
    std::lock_guard<std::mutex> lock(mutex);
    Pin pin = {address, address / DEVICE_PAGE * DEVICE_PAGE, 0, {}, nullptr};
    pin.size = (address + bytes + DEVICE_PAGE - 1) / DEVICE_PAGE * DEVICE_PAGE - pin.start;
    if (in_window + pin.size > (size_t)asked("window", 1l << 40)) return ENOMEM;
    if (!pin_for_processor(address, bytes, &pin.memory)) return EINVAL;
    in_window += pin.size;
    gdr->pins++;
    handle->number = next++;
    pins[handle->number] = pin;
    return 0;
}

API int gdr_unpin_buffer(Gdr *gdr, Handle handle) {
    std::lock_guard<std::mutex> lock(mutex);
    Pin &pin = pin_of(handle, __func__);
    if (pin.mapped) misuse("gdr_unpin_buffer: it is mapped");
    unpin_for_processor(pin.address);
    in_window -= pin.size;
    gdr->pins--;
    pins.erase(handle.number);
    return 0;
}

API int gdr_get_info_v2(Gdr *, Handle handle, Info *info) {
    std::lock_guard<std::mutex> lock(mutex);
    Pin &pin = pin_of(handle, __func__);
    *info = {pin.start, pin.size, (uint32_t)DEVICE_PAGE, 0, 0, pin.mapped != nullptr, 1, pin.mapped ? 1 : 0};
    return 0;
}

// Maps from the first of the device's pages on. Bytes of them outside the allocation are
// inaccessible.
API int gdr_map(Gdr *, Handle handle, void **start, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex);
    Pin &pin = pin_of(handle, __func__);
    if (pin.mapped) return EAGAIN;
    if (bytes > pin.size) return EINVAL;
    unsigned char *all = (unsigned char *)mmap(nullptr, pin.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return ENOMEM;
    const Pinned &memory = pin.memory;
    Address from = memory.pages > pin.start ? memory.pages : pin.start;
    Address end = memory.pages + memory.size < pin.start + bytes ? memory.pages + memory.size : pin.start + bytes;
    void *at = mmap(all + (from - pin.start), end - from, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory.file, (off_t)(from - memory.pages));
    if (at == MAP_FAILED) return errno;
    *start = pin.mapped = all;
    return 0;
}

API int gdr_unmap(Gdr *, Handle handle, void *start, size_t) {
    std::lock_guard<std::mutex> lock(mutex);
    Pin &pin = pin_of(handle, __func__);
    if (pin.mapped != start) return EINVAL;
    munmap(start, pin.size);
    pin.mapped = nullptr;
    return 0;
}
