// Initialisation, the one device, contexts, and error texts.
#include "emulator.hpp"

#include <chrono>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <thread>

// The symbol by which the backend recognises the emulated driver.
extern "C" __attribute__((visibility("default"))) const int portcullis_emulated_driver = 1;

static const char *find(const char *name) {
    const char *text = getenv("PORTCULLIS_EMULATED_CUDA");
    size_t length = strlen(name);
    while (text && *text) {
        if (!strncmp(text, name, length) && (text[length] == '=' || text[length] == ',' || !text[length])) return text + length;
        text = strchr(text, ',');
        if (text) text++;
    }
    return nullptr;
}

bool asked(const char *name) { return find(name); }

long asked(const char *name, long otherwise) {
    const char *text = find(name);
    return text && *text == '=' ? strtol(text + 1, nullptr, 10) : otherwise;
}

void misuse(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("emulated CUDA driver: misuse: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    abort();
}

int device_arch() { return (int)asked("arch", 90); }
// 1000 times the major version and 10 times the minor one.
int driver_version() { return (int)asked("version", 12040); }

static std::atomic<bool> initialised{false};
static thread_local std::vector<Context *> stack;
static std::mutex contexts_mutex;
static auto &contexts = kept<std::set<Context *>>();

API int cuInit(unsigned flags) {
    if (flags) return INVALID_VALUE;
    if (long code = asked("init", 0)) return (int)code;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (asked("no-device") || (visible && !*visible)) return NO_DEVICE;
    initialised = true;
    return SUCCESS;
}

API int cuDriverGetVersion(int *version) {
    *version = driver_version();
    return SUCCESS;
}

static const struct {
    int code;
    const char *name, *text;
} ERRORS[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
};

API int cuGetErrorName(int code, const char **text) {
    for (auto &error : ERRORS)
        if (error.code == code) return *text = error.name, SUCCESS;
    return *text = nullptr, INVALID_VALUE;
}

API int cuGetErrorString(int code, const char **text) {
    for (auto &error : ERRORS)
        if (error.code == code) return *text = error.text, SUCCESS;
    return *text = nullptr, INVALID_VALUE;
}

API int cuDeviceGetCount(int *count) {
    if (!initialised) return NOT_INITIALIZED;
    *count = 1;
    return SUCCESS;
}

API int cuDeviceGet(int *device, int index) {
    if (!initialised) return NOT_INITIALIZED;
    if (index) return INVALID_DEVICE;
    *device = 0;
    return SUCCESS;
}

API int cuDeviceGetName(char *name, int length, int device) {
    if (device) return INVALID_DEVICE;
    snprintf(name, (size_t)length, "emulated CUDA device (Portcullis's tests, on the processor)");
    return SUCCESS;
}

API int cuDeviceGetPCIBusId(char *text, int length, int device) {
    if (device) return INVALID_DEVICE;
    snprintf(text, (size_t)length, "FFFF:3B:00.0");
    return SUCCESS;
}

API int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    if (device) return INVALID_DEVICE;
    *bytes = (size_t)asked("memory", 1l << 30);
    return SUCCESS;
}

API int cuDeviceGetAttribute(int *value, int attribute, int device) {
    if (device) return INVALID_DEVICE;
    switch (attribute) {
        case 13: *value = 2000000; return SUCCESS;                      // CLOCK_RATE, in kHz
        case 16: *value = PROCESSORS; return SUCCESS;                   // MULTIPROCESSOR_COUNT
        case 17: *value = 0; return SUCCESS;                            // KERNEL_EXEC_TIMEOUT
        case 18: *value = 0; return SUCCESS;                            // INTEGRATED
        case 19: *value = 1; return SUCCESS;                            // CAN_MAP_HOST_MEMORY
        case 20: *value = asked("prohibited") ? 2 : 0; return SUCCESS;  // COMPUTE_MODE
        case 116: *value = !asked("no-gpudirect"); return SUCCESS;       // GPU_DIRECT_RDMA_SUPPORTED
        case 117: *value = 1; return SUCCESS;                           // GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: HOST
        case 118: *value = asked("unordered") ? 0 : 100; return SUCCESS;  // GPU_DIRECT_RDMA_WRITES_ORDERING: NONE, OWNER
        case 124: *value = asked("dma-buf"); return SUCCESS;            // DMA_BUF_SUPPORTED
        case 75: *value = device_arch() / 10; return SUCCESS;           // COMPUTE_CAPABILITY_MAJOR
        case 76: *value = device_arch() % 10; return SUCCESS;           // COMPUTE_CAPABILITY_MINOR
    }
    misuse("cuDeviceGetAttribute: attribute %d is not known here", attribute);
}

void known(Context *context, const char *function) {
    std::lock_guard<std::mutex> lock(contexts_mutex);
    if (!contexts.count(context)) misuse("%s: there is no such context", function);
}

Context *current(const char *function) {
    if (stack.empty()) misuse("%s: no context is current", function);
    known(stack.back(), function);
    return stack.back();
}

static bool has_contexts() {
    std::lock_guard<std::mutex> lock(contexts_mutex);
    return !contexts.empty();
}

static void report_at_end() {
    if (asked("abort-at-exit") && has_contexts()) abort();
    // A thread that watches a session may hold its last reference and be about to release it.
    for (int tries = 0; tries < 100 && has_contexts(); tries++) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::lock_guard<std::mutex> lock(contexts_mutex);
    for (Context *context : contexts) {
        fprintf(stderr, "emulated CUDA driver: a context was left, with %ld objects in it\n", context->objects.load());
    }
    if (asked("report")) report_copies(), report_work();
}

// Delays the exit of the process, while threads with abandoned kernels go on running, although
// static objects are being destroyed.
__attribute__((destructor)) static void linger() { std::this_thread::sleep_for(std::chrono::milliseconds(asked("linger", 0))); }

// The primary context, and how often it was retained.
static Context *primary;
static long retained = 0;

API int cuDevicePrimaryCtxRetain(Context **context, int device) {
    if (!initialised) return NOT_INITIALIZED;
    if (device) return INVALID_DEVICE;
    // Report contexts left at exit, and the statistics asked for; tests look for the output.
    static int once = atexit(report_at_end);
    (void)once;
    std::lock_guard<std::mutex> lock(contexts_mutex);
    if (!retained++) contexts.insert(primary = new Context);
    *context = primary;
    return SUCCESS;
}

API int cuDevicePrimaryCtxRelease_v2(int device) {
    if (device) return INVALID_DEVICE;
    Context *context;
    {
        std::lock_guard<std::mutex> lock(contexts_mutex);
        if (!retained) misuse("cuDevicePrimaryCtxRelease: it is not retained");
        if (--retained) return SUCCESS;
        context = primary;
    }
    wait_for_device(context, __func__);
    // Objects are destroyed with the context. Tests look for this message.
    if (context->objects) fprintf(stderr, "emulated CUDA driver: %ld objects were left in a context\n", context->objects.load());
    std::lock_guard<std::mutex> lock(contexts_mutex);
    contexts.erase(context);
    // Not deleted, so that use after release by another thread is detected rather than undefined.
    return SUCCESS;
}

API int cuCtxPushCurrent_v2(Context *context) {
    known(context, __func__);
    stack.push_back(context);
    return SUCCESS;
}

API int cuCtxPopCurrent_v2(Context **context) {
    if (stack.empty()) misuse("cuCtxPopCurrent: no context is current");
    *context = stack.back();
    stack.pop_back();
    return SUCCESS;
}
