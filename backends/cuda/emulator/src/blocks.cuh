// Thread blocks. Without barriers, the threads of a block run one after the other. With barriers,
// each is a fiber with a stack of its own, and the fibers of a block take turns on one host thread,
// from barrier to barrier.
#include <string.h>
#include <utility>

#ifdef EMULATED_BARRIERS
static const unsigned long EMULATED_STACK = 256 << 10, EMULATED_STACKS = EMULATED_STACK * 1024;
// Stacks of blocks that have ended, for the next ones: faulting in the pages of new stacks takes
// longer than running the block.
static unsigned char *emulated_stacks[8];
static unsigned char *emulated_take_stacks(void)
{
    for (auto &slot : emulated_stacks)
        if (unsigned char *stacks = __atomic_exchange_n(&slot, nullptr, __ATOMIC_ACQUIRE)) return stacks;
    void *stacks = mmap(0, EMULATED_STACKS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) abort();
    return (unsigned char *)stacks;
}
static void emulated_return_stacks(unsigned char *stacks)
{
    for (auto &slot : emulated_stacks) {
        unsigned char *none = nullptr;
        if (__atomic_compare_exchange_n(&slot, &none, stacks, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) return;
    }
    munmap(stacks, EMULATED_STACKS);
}
__attribute__((destructor)) static void emulated_free_stacks(void)
{
    // Taken one by one: abandoned kernels may still be starting blocks.
    for (auto &slot : emulated_stacks)
        if (unsigned char *stacks = __atomic_exchange_n(&slot, nullptr, __ATOMIC_ACQUIRE)) munmap(stacks, EMULATED_STACKS);
}
static void emulated_block(void (*one)(void *), void *what)
{
    struct Fibers {
        ucontext_t back;
        ucontext_t *fibers;
        unsigned char *state;
        // The threads of the warp that each waits for, or is active with.
        unsigned masks[1024];
        void (*one)(void *);
        void *what;
        static void start(unsigned high, unsigned low)
        {
            Fibers *all = (Fibers *)((unsigned long)high << 32 | low);
            unsigned index = threadIdx.x;
            all->one(all->what);
            emulated_count_thread();
            all->state[index] = 2;
            swapcontext(&all->fibers[index], &all->back);
        }
    };
    unsigned count = blockDim.x;
    unsigned char *stacks = emulated_take_stacks();
    Fibers all;
    all.fibers = new ucontext_t[count];
    all.state = new unsigned char[count]();
    all.one = one;
    all.what = what;
    for (unsigned i = 0; i < count; i++) {
        getcontext(&all.fibers[i]);
        all.fibers[i].uc_stack.ss_sp = stacks + i * EMULATED_STACK;
        all.fibers[i].uc_stack.ss_size = EMULATED_STACK;
        all.fibers[i].uc_link = 0;
        unsigned long at = (unsigned long)&all;
        makecontext(&all.fibers[i], (void (*)())Fibers::start, 2, (unsigned)(at >> 32), (unsigned)at);
    }
    // State of a fiber: 0 running, 1 waiting at a barrier, 2 finished, 3 waiting for the active
    // mask, 4 waiting for the threads in its mask.
    emulated_wait = [](void *them) {
        Fibers *all = (Fibers *)them;
        unsigned index = threadIdx.x;
        all->state[index] = 1;
        swapcontext(&all->fibers[index], &all->back);
        threadIdx.x = index;
    };
    emulated_converge = [](void *them, unsigned mask) {
        Fibers *all = (Fibers *)them;
        unsigned index = threadIdx.x;
        all->state[index] = mask ? 4 : 3;
        all->masks[index] = mask;
        swapcontext(&all->fibers[index], &all->back);
        threadIdx.x = index;
        return all->masks[index];
    };
    emulated_fibers = &all;
    // Lets threads in a state go on whose masks have no others; returns how many.
    auto release = [&](unsigned char state) {
        unsigned there[32] = {}, released = 0;
        for (unsigned i = 0; i < count; i++)
            if (all.state[i] == state) there[i / 32] |= 1u << i % 32;
        for (unsigned i = 0; i < count; i++) {
            if (all.state[i] != state) continue;
            if (state == 3) all.masks[i] = there[i / 32];
            if (all.masks[i] & ~there[i / 32]) continue;
            all.state[i] = 0;
            released++;
        }
        return released;
    };
    for (unsigned ended = 0; ended < count;) {
        for (unsigned i = 0; i < count; i++) {
            if (all.state[i]) continue;
            threadIdx.x = i;
            swapcontext(&all.back, &all.fibers[i]);
            if (all.state[i] == 2) ended++;
        }
        if (release(4) || release(3)) continue;
        unsigned waiting = 0, stuck = 0;
        for (unsigned i = 0; i < count; i++) {
            if (all.state[i] == 1) all.state[i] = 0, waiting++;
            if (all.state[i] == 4) stuck++;
        }
        if (stuck) {
            fprintf(stderr, "emulated CUDA device: %u threads wait for others of their warp, which never come\n", stuck);
            abort();
        }
        if (waiting && ended) {
            fprintf(stderr, "emulated CUDA device: %u threads of a block wait at a barrier that %u never reach\n", waiting, ended);
            abort();
        }
    }
    emulated_return_stacks(stacks);
    delete[] all.fibers;
    delete[] all.state;
}
#else
static void emulated_block(void (*one)(void *), void *what)
{
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++) one(what), emulated_count_thread();
}
#endif

template <class... P, unsigned long... I>
static void emulated_call(void (*kernel)(P...), void **parameters, std::index_sequence<I...>)
{
    auto call = [=] { kernel(*(typename std::remove_reference<P>::type *)parameters[I]...); };
    emulated_block([](void *what) { (*(decltype(call) *)what)(); }, (void *)&call);
}

template <class... P>
static void emulated_run(void (*kernel)(P...), void **parameters, const unsigned *block, const unsigned *grid, const unsigned *threads)
{
    blockIdx.x = block[0];
    gridDim.x = grid[0];
    blockDim.x = threads[0];
    emulated_call(kernel, parameters, std::index_sequence_for<P...>());
}

template <class... P> struct emulated_sizes {
    static constexpr unsigned count = sizeof...(P);
    unsigned sizes[count] = {sizeof(P)...};
};
template <class... P> static constexpr emulated_sizes<P...> emulated_sizes_of(void (*)(P...)) { return {}; }

#define EMULATED_EXPORT extern "C" __attribute__((visibility("default")))
#define EMULATED_KERNEL(name, bounds)                                                                                  \
    EMULATED_EXPORT void emulated_run_##name(void **p, const unsigned *b, const unsigned *g, const unsigned *t)        \
    {                                                                                                                  \
        emulated_run(name, p, b, g, t);                                                                                \
    }                                                                                                                  \
    EMULATED_EXPORT constexpr auto emulated_sizes_##name = emulated_sizes_of(name);                                    \
    EMULATED_EXPORT const unsigned emulated_count_##name = sizeof emulated_sizes_##name / 4;                           \
    EMULATED_EXPORT const unsigned emulated_threads_##name = bounds;
#pragma GCC visibility push(default)
