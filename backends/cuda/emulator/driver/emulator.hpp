// A CUDA driver for tests on machines without a GPU: the functions of libcuda.so.1, libnvrtc.so.12
// and libgdrapi.so.2 that Portcullis calls, on the CPU. It is slow, and strict: what a GPU's driver
// would tolerate or leave undefined ends the process with a message.
//
// Error codes, flags and attributes have the values of CUDA's cuda.h and nvrtc.h.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

enum : int {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    UNSUPPORTED_PTX_VERSION = 222,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    LAUNCH_FAILED = 719,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    SYSTEM_DRIVER_MISMATCH = 803,
};

typedef uint64_t Address;

// For static state, which must never be destroyed: a thread with an abandoned kernel still uses it
// while the process exits.
template <class T> T &kept() { return *new T; }

// Options in the environment variable PORTCULLIS_EMULATED_CUDA: `NAME` or `NAME=NUMBER`,
// comma-separated.
bool asked(const char *name);
long asked(const char *name, long otherwise);

// Ends the process because the caller has misused the API.
[[noreturn]] void misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

struct Stream;

struct Context {
    // The first error of a command; every later call returns it.
    std::atomic<int> error{0};
    std::mutex mutex;
    std::set<Stream *> streams;
    std::atomic<long> objects{0};
    // Number of queued or running commands that wait for the host.
    std::atomic<long> resident{0};
};

// Returns the current context; it is misuse if there is none.
Context *current(const char *function);
// Checks that the context's handle is valid.
void known(Context *context, const char *function);

// An in-order queue of commands, run by a thread of its own.
struct Stream {
    Context *context;
    std::mutex mutex;
    std::condition_variable changed;
    // Commands with their numbers, which ascend across all streams.
    std::deque<std::pair<uint64_t, std::function<void()>>> commands;
    // Number of the running command, or 0.
    uint64_t running = 0;
    bool ending = false;
};

Stream *stream_of(void *handle, const char *function);
void enqueue(Stream *stream, std::function<void()> command);
// Whether no command is queued or running.
bool idle(Stream *stream);
// Waits for the commands on the device, as a driver does when it frees memory. It is misuse if one
// of them waits for the host, since that would never end.
void wait_for_device(Context *context, const char *function);
// Checks that no command waits for the host: a driver may synchronise with the device when it
// allocates memory or loads code.
void undisturbed(Context *context, const char *function);
// Marks a command that waits for the host, for as long as the result exists.
std::shared_ptr<void> resident(Context *context);

// Checks of memory (memory.cpp), made when a command is queued and again when it runs.
void check_device(Context *context, Address address, size_t bytes, const char *function);
void check_pinned(const void *host, size_t bytes, const char *function);
// Counts the bytes of a copy to or from the device.
void copied(bool to_device, size_t bytes);
// Prints how many bytes were copied.
void report_copies();

// Device memory to be mapped for the CPU (gdr.cpp): a file that backs the allocation's pages, and
// their device address.
struct Pinned {
    int file;
    Address pages;
    size_t size;
};
bool pin_for_processor(Address address, size_t bytes, Pinned *pinned);
void unpin_for_processor(Address address);

// A kernel launch (module.cpp), with a copy of its parameters.
struct Launch {
    void (*run)(void **parameters, const unsigned *block, const unsigned *grid, const unsigned *threads);
    bool has_barriers, stays, is_plain;
    unsigned grid[3], threads[3];
    std::vector<std::vector<unsigned char>> parameters;
    Context *context;
};
Launch prepare_launch(void *function, const unsigned *grid, const unsigned *threads, void **parameters, const char *caller);
void run(Launch &launch);

// Prints for how many cycles kernels have watched their clocks.
void report_work();

// The compiler (nvrtc.cpp): compiles `source` for an architecture to a shared object, or returns
// the compiler's messages.
bool compile(const std::string &source, int arch, std::string *object, std::string *log);

const unsigned PROCESSORS = 4;
int device_arch();
int driver_version();

#define CHECK_CONTEXT()                                                                                                \
    Context *context = current(__func__);                                                                              \
    if (context->error) return context->error
