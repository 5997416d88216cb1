// Streams, each run by a thread of its own; events; stream waits for memory.
#include "emulator.hpp"

#include <chrono>
#include <ctime>
#include <thread>

static std::mutex handles_mutex;
static auto &streams = kept<std::set<void *>>();

static void pause_for(long microseconds) {
    struct timespec pause = {0, microseconds * 1000};
    nanosleep(&pause, nullptr);
}

Stream *stream_of(void *handle, const char *function) {
    std::lock_guard<std::mutex> lock(handles_mutex);
    if (!streams.count(handle)) misuse("%s: there is no such stream", function);
    Stream *stream = (Stream *)handle;
    if (stream->context != current(function)) misuse("%s: a stream of another context", function);
    return stream;
}

// Number of commands so far.
static std::atomic<uint64_t> numbers{0};

void enqueue(Stream *stream, std::function<void()> command) {
    std::lock_guard<std::mutex> lock(stream->mutex);
    stream->commands.emplace_back(++numbers, std::move(command));
    stream->changed.notify_all();
}

// Whether all commands up to this one have completed.
static bool ended(Stream *stream, uint64_t last) {
    std::lock_guard<std::mutex> lock(stream->mutex);
    if (stream->running && stream->running <= last) return false;
    return stream->commands.empty() || stream->commands.front().first > last;
}

bool idle(Stream *stream) { return ended(stream, UINT64_MAX); }

static bool ended(Context *context, uint64_t last) {
    std::lock_guard<std::mutex> lock(context->mutex);
    for (Stream *stream : context->streams)
        if (!ended(stream, last)) return false;
    return true;
}

void wait_for_device(Context *context, const char *function) {
    // Does not wait for commands that are queued meanwhile: there may be no end of them.
    uint64_t last = numbers;
    auto began = std::chrono::steady_clock::now();
    while (!ended(context, last)) {
        // A driver would wait forever. The timeout is that of the tests for a silent device, since
        // test machines can be slow.
        bool is_long = std::chrono::steady_clock::now() - began > std::chrono::seconds(120);
        if (is_long && !asked("hang") && !asked("hang-plain")) misuse("%s waits for the device, which does not end", function);
        pause_for(1000);
    }
}

void undisturbed(Context *context, const char *function) {
    // In a context that has failed, commands are only discarded, so none waits for the host.
    if (context->resident && !context->error) misuse("%s: a driver may wait for the device here, where something waits for the host", function);
}

std::shared_ptr<void> resident(Context *context) {
    context->resident++;
    return std::shared_ptr<void>(context, [](void *context) { ((Context *)context)->resident--; });
}

static void work(Stream *stream) {
    for (;;) {
        std::function<void()> command;
        {
            std::unique_lock<std::mutex> lock(stream->mutex);
            stream->changed.wait(lock, [&] { return stream->ending || !stream->commands.empty(); });
            if (stream->commands.empty()) return;
            stream->running = stream->commands.front().first;
            command = std::move(stream->commands.front().second);
            stream->commands.pop_front();
        }
        // A context that has failed runs nothing.
        if (!stream->context->error) command();
        command = nullptr;
        std::lock_guard<std::mutex> lock(stream->mutex);
        stream->running = 0;
        stream->changed.notify_all();
    }
}

API int cuStreamCreate(Stream **made, unsigned flags) {
    CHECK_CONTEXT();
    if (flags & ~1u) return INVALID_VALUE;
    Stream *stream = new Stream;
    stream->context = context;
    std::thread(work, stream).detach();
    {
        std::lock_guard<std::mutex> lock(context->mutex);
        context->streams.insert(stream);
    }
    std::lock_guard<std::mutex> lock(handles_mutex);
    streams.insert(stream);
    *made = stream;
    context->objects++;
    return SUCCESS;
}

API int cuStreamDestroy_v2(void *handle) {
    Stream *stream = stream_of(handle, __func__);
    // CUDA allows this, and the commands still run; but a caller that does it has lost track of
    // them.
    if (!idle(stream)) misuse("cuStreamDestroy: commands are queued");
    {
        std::lock_guard<std::mutex> lock(stream->context->mutex);
        stream->context->streams.erase(stream);
    }
    std::lock_guard<std::mutex> lock(handles_mutex);
    streams.erase(stream);
    stream->context->objects--;
    std::lock_guard<std::mutex> own(stream->mutex);
    stream->ending = true;
    stream->changed.notify_all();
    return SUCCESS;
}

API int cuStreamQuery(void *handle) {
    CHECK_CONTEXT();
    return idle(stream_of(handle, __func__)) ? context->error.load() : NOT_READY;
}

// Records of an event are counted: a wait is for the last record at the time when the wait was
// queued.
struct Event {
    Context *context;
    bool timed;
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t recorded = 0, come = 0;
    std::chrono::steady_clock::time_point time;
};

static auto &events_by_handle = kept<std::map<void *, std::shared_ptr<Event>>>();

static std::shared_ptr<Event> event_of(void *handle, const char *function) {
    std::lock_guard<std::mutex> lock(handles_mutex);
    auto found = events_by_handle.find(handle);
    if (found == events_by_handle.end()) misuse("%s: there is no such event", function);
    if (found->second->context != current(function)) misuse("%s: an event of another context", function);
    return found->second;
}

API int cuEventCreate(void **made, unsigned flags) {
    CHECK_CONTEXT();
    if (flags & ~7u) return INVALID_VALUE;
    auto event = std::make_shared<Event>();
    event->context = context;
    event->timed = !(flags & 2u);
    std::lock_guard<std::mutex> lock(handles_mutex);
    events_by_handle[event.get()] = event;
    *made = event.get();
    context->objects++;
    return SUCCESS;
}

API int cuEventDestroy_v2(void *handle) {
    auto event = event_of(handle, __func__);
    std::lock_guard<std::mutex> lock(handles_mutex);
    events_by_handle.erase(handle);
    event->context->objects--;
    return SUCCESS;
}

API int cuEventRecord(void *handle, void *stream) {
    CHECK_CONTEXT();
    auto event = event_of(handle, __func__);
    Stream *queue = stream_of(stream, __func__);
    uint64_t number;
    {
        std::lock_guard<std::mutex> lock(event->mutex);
        number = ++event->recorded;
    }
    enqueue(queue, [event, number] {
        std::lock_guard<std::mutex> lock(event->mutex);
        event->come = number;
        event->time = std::chrono::steady_clock::now();
        event->changed.notify_all();
    });
    return SUCCESS;
}

API int cuEventQuery(void *handle) {
    CHECK_CONTEXT();
    auto event = event_of(handle, __func__);
    std::lock_guard<std::mutex> lock(event->mutex);
    return event->come >= event->recorded ? SUCCESS : NOT_READY;
}

API int cuStreamWaitEvent(void *stream, void *handle, unsigned flags) {
    CHECK_CONTEXT();
    if (flags) return INVALID_VALUE;
    auto event = event_of(handle, __func__);
    Stream *queue = stream_of(stream, __func__);
    uint64_t number;
    {
        std::lock_guard<std::mutex> lock(event->mutex);
        number = event->recorded;
    }
    enqueue(queue, [event, number] {
        std::unique_lock<std::mutex> lock(event->mutex);
        // An event of a context that has failed never completes.
        while (event->come < number && !event->context->error) event->changed.wait_for(lock, std::chrono::milliseconds(5));
    });
    return SUCCESS;
}

API int cuEventElapsedTime(float *milliseconds, void *from, void *to) {
    CHECK_CONTEXT();
    auto first = event_of(from, __func__), second = event_of(to, __func__);
    if (!first->timed || !second->timed) return INVALID_HANDLE;
    std::lock_guard<std::mutex> one(first->mutex);
    std::lock_guard<std::mutex> two(second->mutex);
    if (first->come < first->recorded || second->come < second->recorded) return NOT_READY;
    if (!first->recorded || !second->recorded) return INVALID_HANDLE;
    *milliseconds = std::chrono::duration<float, std::milli>(second->time - first->time).count();
    return SUCCESS;
}

API int cuStreamWaitValue32_v2(void *handle, Address address, uint32_t value, unsigned flags) {
    CHECK_CONTEXT();
    Stream *stream = stream_of(handle, __func__);
    // Supports CU_STREAM_WAIT_VALUE_GEQ only.
    if (flags) return INVALID_VALUE;
    if (address % 4) misuse("cuStreamWaitValue32: the address is no multiple of 4");
    check_pinned((const void *)address, 4, __func__);
    enqueue(stream, [=, stays = resident(context)] {
        while ((int32_t)(__atomic_load_n((uint32_t *)address, __ATOMIC_ACQUIRE) - value) < 0 && !context->error) pause_for(5);
    });
    return SUCCESS;
}
