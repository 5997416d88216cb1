// Compiles the CUDA C++ file that is the only argument, and runs its kernel `k` in one thread over
// 256 bytes of device memory.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

extern "C" {
int nvrtcCreateProgram(void **, const char *, const char *, int, const char *const *, const char *const *);
int nvrtcCompileProgram(void *, int, const char *const *);
int nvrtcGetProgramLogSize(void *, size_t *);
int nvrtcGetProgramLog(void *, char *);
int nvrtcGetCUBINSize(void *, size_t *);
int nvrtcGetCUBIN(void *, char *);
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxPushCurrent_v2(void *);
int cuModuleLoadDataEx(void **, const void *, unsigned, void *, void *);
int cuModuleGetFunction(void **, void *, const char *);
int cuMemAlloc_v2(uint64_t *, size_t);
int cuStreamCreate(void **, unsigned);
int cuStreamQuery(void *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
}

static const int NOT_READY = 600;

#define CHECK(call)                                                                                                    \
    if (int code = call) {                                                                                             \
        fprintf(stderr, "%s: code %d\n", #call, code);                                                                 \
        exit(1);                                                                                                       \
    }

int main(int, char **arguments) {
    std::stringstream text;
    text << std::ifstream(arguments[1]).rdbuf();
    void *program, *context, *module, *kernel, *stream;
    const char *options[] = {"--gpu-architecture=sm_90"};
    CHECK(nvrtcCreateProgram(&program, text.str().c_str(), "k.cu", 0, nullptr, nullptr));
    if (nvrtcCompileProgram(program, 1, options)) {
        size_t size;
        nvrtcGetProgramLogSize(program, &size);
        std::string log(size, 0);
        nvrtcGetProgramLog(program, &log[0]);
        fprintf(stderr, "%s\n", log.c_str());
        return 1;
    }
    size_t size;
    CHECK(nvrtcGetCUBINSize(program, &size));
    std::string cubin(size, 0);
    CHECK(nvrtcGetCUBIN(program, &cubin[0]));
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxPushCurrent_v2(context));
    CHECK(cuModuleLoadDataEx(&module, cubin.data(), 0, nullptr, nullptr));
    CHECK(cuModuleGetFunction(&kernel, module, "k"));
    CHECK(cuStreamCreate(&stream, 1));
    uint64_t memory;
    CHECK(cuMemAlloc_v2(&memory, 256));
    void *parameters[] = {&memory};
    CHECK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
    int code;
    while ((code = cuStreamQuery(stream)) == NOT_READY) {
    }
    CHECK(code);
    puts("done");
    fflush(stdout);
    // Skips the driver's check for resources that were not released.
    _Exit(0);
}
