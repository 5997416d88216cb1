// A CUDA driver for tests on machines without a GPU: what libcuda.so.1, libnvrtc.so.12 and libgdrapi.so.2 do of what Portcullis asks
// of them, on the host's processor. It is slower than anything, and strict: what a GPU's driver would let pass, or leave
// undefined, ends the process with a message.
//
// Numbers of errors, flags and attributes are those of CUDA's cuda.h and nvrtc.h.
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

// For what is static: it is never destroyed. A thread that was left behind with a kernel that does not end asks for its
// state while the process ends, and static objects are gone by then.
template <class T> T &kept() { return *new T; }

// What the environment variable PORTCULLIS_EMULATED_CUDA asks for, `NAME` or `NAME=NUMBER` with commas between.
bool asked(const char *name);
long asked(const char *name, long otherwise);

// Ends the process: the caller did what it must not.
[[noreturn]] void misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

struct Stream;

struct Context {
    // The first error of a command: every call gives it from then on.
    std::atomic<int> error{0};
    std::mutex mutex;
    std::set<Stream *> streams;
    std::atomic<long> objects{0};
    // Commands that wait for the host and have not ended.
    std::atomic<long> resident{0};
};

// The context that is current, which there has to be.
Context *current(const char *function);
// That its handle is one that there is.
void known(Context *context, const char *function);

// A command, first in, first out.
struct Stream {
    Context *context;
    std::mutex mutex;
    std::condition_variable changed;
    // Each with its number, which grows from command to command of all streams.
    std::deque<std::pair<uint64_t, std::function<void()>>> commands;
    // The number of the one that runs, or 0.
    uint64_t running = 0;
    bool ending = false;
};

Stream *stream_of(void *handle, const char *function);
void enqueue(Stream *stream, std::function<void()> command);
// Whether nothing is queued.
bool idle(Stream *stream);
// What the driver does where it frees memory: it waits for what is at the device by then. A device that waits for the host never
// ends.
void wait_for_device(Context *context, const char *function);
// What it may do where it allocates, or loads code: nothing that waits for the host may be at the device.
void undisturbed(Context *context, const char *function);
// Such a command is queued or runs as long as this is there.
std::shared_ptr<void> resident(Context *context);

// Memory (memory.cpp). The checks are made when a command is queued, and again when it runs.
void check_device(Context *context, Address address, size_t bytes, const char *function);
void check_pinned(const void *host, size_t bytes, const char *function);
// A copy to the device, or from it, has been made.
void copied(bool to_device, size_t bytes);
// How much was, in words.
void report_copies();

// Device memory that the processor is to reach as well (gdr.cpp): a file of which all of the allocation's pages are, and
// where the device finds them.
struct Pinned {
    int file;
    Address pages;
    size_t size;
};
bool pin_for_processor(Address address, size_t bytes, Pinned *pinned);
void unpin_for_processor(Address address);

// A kernel (module.cpp), with a copy of its parameters.
struct Launch {
    void (*run)(void **parameters, const unsigned *block, const unsigned *grid, const unsigned *threads);
    bool has_barriers, stays, is_plain;
    unsigned grid[3], threads[3];
    std::vector<std::vector<unsigned char>> parameters;
    Context *context;
};
Launch prepare_launch(void *function, const unsigned *grid, const unsigned *threads, void **parameters, const char *caller);
void run(Launch &launch);

// How long kernels have looked at their clocks, in words.
void report_work();

// The compiler (nvrtc.cpp): a shared object of `source` for an architecture, or the compiler's messages.
bool compile(const std::string &source, int arch, std::string *object, std::string *log);

const unsigned PROCESSORS = 4;
int device_arch();
int driver_version();

#define CHECK_CONTEXT()                                                                                                \
    Context *context = current(__func__);                                                                              \
    if (context->error) return context->error
