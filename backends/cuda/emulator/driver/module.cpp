// Modules: a cubin is a shared object here, and PTX is the source with a PTX header before it.
#include "emulator.hpp"

#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <thread>
#include <unistd.h>

struct Module {
    Context *context;
    void *library;
};

struct Function {
    Module *module;
    // Symbols that nvrtc.cpp appends to the source for each kernel.
    void (*run)(void **, const unsigned *, const unsigned *, const unsigned *);
    const unsigned *sizes;
    unsigned count;
    bool has_barriers, stays, is_plain;
    unsigned most_threads;
    // Whether it was launched before: drivers may defer loading until then.
    bool launched;
};

static std::mutex mutex;
static auto &modules = kept<std::set<Module *>>();
static auto &functions = kept<std::set<Function *>>();
static std::atomic<long> launches{0};
// Cycles that kernels of unloaded modules have waited.
static std::atomic<uint64_t> worked{0};
// What the kernels of an unloaded module have accessed (`emulated_counts_of` in shim.cuh).
struct MapAccesses {
    unsigned long threads, loads, stores, atomics, sectors, most;
};
static auto &accesses = kept<std::vector<MapAccesses>>();

// Number of multiprocessors times the blocks that each holds.
static const unsigned BLOCKS_EACH = 2, RESIDENT = PROCESSORS * BLOCKS_EACH;

static int load(const void *bytes, size_t size, void **library) {
    char path[] = "/tmp/portcullis-cubin-XXXXXX";
    int file = mkstemp(path);
    if (file < 0) return OUT_OF_MEMORY;
    bool written = write(file, bytes, size) == (ssize_t)size;
    close(file);
    *library = written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (!*library) fprintf(stderr, "emulated CUDA driver: %s\n", dlerror());
    unlink(path);
    return *library ? SUCCESS : INVALID_IMAGE;
}

API int cuModuleLoadDataEx(Module **made, const void *image, unsigned options, void *, void *) {
    CHECK_CONTEXT();
    undisturbed(context, __func__);
    if (options) return INVALID_VALUE;
    void *library = nullptr;
    if (!memcmp(image, ELFMAG, SELFMAG)) {
        // The length is not passed: it follows from the section headers.
        const Elf64_Ehdr *head = (const Elf64_Ehdr *)image;
        if (int code = load(image, head->e_shoff + (size_t)head->e_shentsize * head->e_shnum, &library)) return code;
    } else {
        const char *text = (const char *)image;
        int major, minor;
        if (sscanf(text, ".version %d.%d", &major, &minor) != 2) return INVALID_IMAGE;
        // PTX 8.4 came with CUDA 12.4, and 7.8 with 11.8 (PTX ISA, "Release Notes").
        if ((major + 4) * 1000 + minor * 10 > driver_version()) return UNSUPPORTED_PTX_VERSION;
        std::string object, log;
        if (!compile(strchr(text, '\n') + 1, device_arch(), &object, &log)) return INVALID_IMAGE;
        if (int code = load(object.data(), object.size(), &library)) return code;
    }
    const int *arch = (const int *)dlsym(library, "emulated_arch");
    // A cubin runs on its own architecture and on later ones of the same major version.
    if (!arch || *arch / 10 != device_arch() / 10 || *arch > device_arch()) {
        dlclose(library);
        return arch ? NO_BINARY_FOR_GPU : INVALID_IMAGE;
    }
    std::lock_guard<std::mutex> lock(mutex);
    *made = new Module{context, library};
    modules.insert(*made);
    context->objects++;
    return SUCCESS;
}

API int cuModuleUnload(Module *module) {
    Context *context = current(__func__);
    undisturbed(context, __func__);
    wait_for_device(context, __func__);
    std::lock_guard<std::mutex> lock(mutex);
    if (!modules.erase(module)) misuse("cuModuleUnload: there is no such module");
    for (auto function = functions.begin(); function != functions.end();)
        function = (*function)->module == module ? functions.erase(function) : std::next(function);
    if (const unsigned long long *cycles = (const unsigned long long *)dlsym(module->library, "emulated_cycles")) worked += *cycles;
    if (auto *counts = (const MapAccesses *)dlsym(module->library, "emulated_counts")) accesses.push_back(*counts);
    dlclose(module->library);
    context->objects--;
    return SUCCESS;
}

void report_work() {
    for (auto &each : accesses) {
        if (!each.most) continue;
        fprintf(stderr, "emulated CUDA driver: %lu threads accessed maps by %lu loads, %lu stores and %lu atomic operations, ",
                each.threads, each.loads, each.stores, each.atomics);
        fprintf(stderr, "in %lu sectors of 32 bytes, and one of them %lu times\n", each.sectors, each.most);
    }
    fprintf(stderr, "emulated CUDA driver: kernels looked at their clock for %lu cycles\n", worked.load());
}

API int cuModuleGetFunction(Function **made, Module *module, const char *name) {
    CHECK_CONTEXT();
    std::lock_guard<std::mutex> lock(mutex);
    if (!modules.count(module)) misuse("cuModuleGetFunction: there is no such module");
    auto symbol = [&](const char *prefix) { return dlsym(module->library, (prefix + std::string(name)).c_str()); };
    void *run = symbol("emulated_run_");
    if (!run) return NOT_FOUND;
    *made = new Function{
        module,
        (void (*)(void **, const unsigned *, const unsigned *, const unsigned *))run,
        (const unsigned *)symbol("emulated_sizes_"),
        *(const unsigned *)symbol("emulated_count_"),
        *(const bool *)dlsym(module->library, "emulated_barriers"),
        // The only kernel of Portcullis that waits for the host.
        !strcmp(name, "pc_persistent"),
        !strcmp(name, "xdp_kernel"),
        *(const unsigned *)symbol("emulated_threads_"),
        false,
    };
    functions.insert(*made);
    return SUCCESS;
}

API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Function *function, int threads, size_t) {
    CHECK_CONTEXT();
    std::lock_guard<std::mutex> lock(mutex);
    if (!functions.count(function)) misuse("cuOccupancyMaxActiveBlocksPerMultiprocessor: there is no such function");
    if (threads < 1 || threads > 1024) return INVALID_VALUE;
    *blocks = BLOCKS_EACH;
    return SUCCESS;
}

API int cuFuncGetAttribute(int *value, int attribute, Function *function) {
    CHECK_CONTEXT();
    std::lock_guard<std::mutex> lock(mutex);
    if (!functions.count(function)) misuse("cuFuncGetAttribute: there is no such function");
    // LOCAL_SIZE_BYTES.
    if (attribute != 3) misuse("cuFuncGetAttribute: attribute %d is not known here", attribute);
    *value = (int)asked("local", 0);
    return SUCCESS;
}

Launch prepare_launch(void *handle, const unsigned *grid, const unsigned *threads, void **parameters, const char *caller) {
    std::lock_guard<std::mutex> lock(mutex);
    Function *function = (Function *)handle;
    if (!functions.count(function)) misuse("%s: there is no such function", caller);
    if (function->module->context != current(caller)) misuse("%s: a function of another context", caller);
    for (int i = 0; i < 3; i++)
        if (!grid[i] || !threads[i]) misuse("%s: a grid or a block of nothing", caller);
    if (threads[0] * threads[1] * threads[2] > function->most_threads) misuse("%s: more threads than the kernel's bounds", caller);
    if (!function->launched) undisturbed(function->module->context, caller);
    function->launched = true;
    Launch launch;
    launch.stays = function->stays;
    launch.is_plain = function->is_plain;
    launch.run = function->run;
    launch.has_barriers = function->has_barriers;
    memcpy(launch.grid, grid, sizeof launch.grid);
    memcpy(launch.threads, threads, sizeof launch.threads);
    launch.context = function->module->context;
    for (unsigned i = 0; i < function->count; i++) {
        const unsigned char *from = (const unsigned char *)parameters[i];
        launch.parameters.emplace_back(from, from + function->sizes[i]);
    }
    return launch;
}

void run(Launch &launch) {
    long number = ++launches;
    if (number == asked("launch-fails", 0)) {
        launch.context->error = LAUNCH_FAILED;
        return;
    }
    while (number >= asked("hang", 1l << 62) || (launch.is_plain && asked("hang-plain"))) pause();
    std::vector<void *> parameters;
    for (auto &parameter : launch.parameters) parameters.push_back(parameter.data());
    unsigned all = launch.grid[0] * launch.grid[1] * launch.grid[2];
    auto one = [&](unsigned index) {
        unsigned block[3] = {index % launch.grid[0], index / launch.grid[0] % launch.grid[1], index / launch.grid[0] / launch.grid[1]};
        launch.run(parameters.data(), block, launch.grid, launch.threads);
    };
    if (!launch.has_barriers) {
        for (unsigned index = 0; index < all; index++) one(index);
        return;
    }
    // At most as many blocks run concurrently as a GPU would hold; the rest waits.
    std::atomic<unsigned> next{0};
    std::vector<std::thread> workers;
    for (unsigned worker = 0; worker < RESIDENT && worker < all; worker++)
        workers.emplace_back([&] {
            for (unsigned index; (index = next++) < all;) one(index);
        });
    for (auto &worker : workers) worker.join();
}

API int cuLaunchKernel(
    void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned x, unsigned y, unsigned z, unsigned shared,
    void *handle, void **parameters, void **extra) {
    CHECK_CONTEXT();
    if (shared || extra) misuse("cuLaunchKernel: not emulated: shared memory, extra");
    Stream *stream = stream_of(handle, __func__);
    unsigned grid[3] = {grid_x, grid_y, grid_z}, threads[3] = {x, y, z};
    auto launch = std::make_shared<Launch>(prepare_launch(function, grid, threads, parameters, __func__));
    // Local memory, for all threads that the multiprocessors hold.
    if (asked("local", 0) * PROCESSORS * 2048 > asked("memory", 1l << 30)) return OUT_OF_MEMORY;
    // Launched without a ring, the kernel returns at once.
    void *ring = nullptr;
    if (launch->stays) memcpy(&ring, launch->parameters[0].data(), sizeof ring);
    enqueue(stream, [launch, stays = ring ? resident(context) : nullptr] { run(*launch); });
    return SUCCESS;
}
