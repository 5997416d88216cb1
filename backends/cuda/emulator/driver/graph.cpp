// Graphs of copies and kernels in a linear order.
#include "emulator.hpp"

#include <cstring>

// CUDA_MEMCPY3D and CUDA_KERNEL_NODE_PARAMS of cuda.h, version 11.
struct Copy {
    size_t from_x, from_y, from_z, from_level;
    int from_type;
    const void *from_host;
    Address from_device;
    void *from_array, *reserved0;
    size_t from_pitch, from_height, to_x, to_y, to_z, to_level;
    int to_type;
    void *to_host;
    Address to_device;
    void *to_array, *reserved1;
    size_t to_pitch, to_height, width, height, depth;
};
static_assert(sizeof(Copy) == 200, "CUDA_MEMCPY3D");

struct KernelNode {
    void *function;
    unsigned grid[3], threads[3], shared;
    void **parameters, **extra;
};

struct Node {
    struct Graph *graph;
    size_t index;
    std::shared_ptr<Copy> copy;
    std::shared_ptr<Launch> launch;
};

struct Graph {
    Context *context;
    std::vector<Node *> nodes;
};

struct Executable {
    Context *context;
    Graph *graph;
    std::vector<Node> nodes;
    bool uploaded = false;
    // Launches that have not completed.
    std::atomic<long> running{0};
};

static std::mutex mutex;
static auto &graphs = kept<std::set<Graph *>>();
static auto &executables = kept<std::set<Executable *>>();

static void check(Context *context, const Copy &copy, const char *function) {
    bool plain = !copy.from_x && !copy.from_y && !copy.from_z && !copy.from_level && !copy.to_x && !copy.to_y && !copy.to_z && !copy.to_level;
    if (!plain || copy.height != 1 || copy.depth != 1 || !copy.width) misuse("%s: not emulated: a copy of more than one row", function);
    // CU_MEMORYTYPE_HOST and CU_MEMORYTYPE_DEVICE.
    if (copy.from_type == 1 && copy.to_type == 2) {
        check_pinned(copy.from_host, copy.width, function);
        check_device(context, copy.to_device, copy.width, function);
    } else if (copy.from_type == 2 && copy.to_type == 1) {
        check_device(context, copy.from_device, copy.width, function);
        check_pinned(copy.to_host, copy.width, function);
    } else {
        misuse("%s: not emulated: memory of these types", function);
    }
}

static Graph *graph_of(void *handle, const char *function) {
    Graph *graph = (Graph *)handle;
    if (!graphs.count(graph)) misuse("%s: there is no such graph", function);
    return graph;
}

static Executable *executable_of(void *handle, const char *function) {
    Executable *executable = (Executable *)handle;
    if (!executables.count(executable)) misuse("%s: there is no such executable graph", function);
    if (executable->context != current(function)) misuse("%s: an executable graph of another context", function);
    return executable;
}

// Nodes run in the order in which they were added, which must agree with their dependencies.
static Node *add(Graph *graph, Node *const *dependencies, size_t count, const char *function) {
    bool chained = graph->nodes.empty() ? count == 0 : count == 1 && dependencies[0] == graph->nodes.back();
    if (!chained) misuse("%s: not emulated: a node that does not depend on the one before it", function);
    graph->nodes.push_back(new Node{graph, graph->nodes.size(), nullptr, nullptr});
    return graph->nodes.back();
}

API int cuGraphCreate(Graph **made, unsigned flags) {
    CHECK_CONTEXT();
    if (flags) return INVALID_VALUE;
    std::lock_guard<std::mutex> lock(mutex);
    *made = new Graph{context, {}};
    graphs.insert(*made);
    context->objects++;
    return SUCCESS;
}

API int cuGraphDestroy(void *handle) {
    Context *context = current(__func__);
    std::lock_guard<std::mutex> lock(mutex);
    graphs.erase(graph_of(handle, __func__));
    context->objects--;
    return SUCCESS;
}

API int cuGraphAddMemcpyNode(Node **made, void *handle, Node *const *dependencies, size_t count, const Copy *copy, Context *of) {
    CHECK_CONTEXT();
    known(of, __func__);
    std::lock_guard<std::mutex> lock(mutex);
    Graph *graph = graph_of(handle, __func__);
    check(context, *copy, __func__);
    *made = add(graph, dependencies, count, __func__);
    (*made)->copy = std::make_shared<Copy>(*copy);
    return SUCCESS;
}

API int cuGraphAddKernelNode(Node **made, void *handle, Node *const *dependencies, size_t count, const KernelNode *kernel) {
    CHECK_CONTEXT();
    (void)context;
    std::lock_guard<std::mutex> lock(mutex);
    Graph *graph = graph_of(handle, __func__);
    if (kernel->shared || kernel->extra) misuse("cuGraphAddKernelNode: not emulated: shared memory, extra");
    *made = add(graph, dependencies, count, __func__);
    (*made)->launch = std::make_shared<Launch>(prepare_launch(kernel->function, kernel->grid, kernel->threads, kernel->parameters, __func__));
    return SUCCESS;
}

API int cuGraphInstantiateWithFlags(Executable **made, void *handle, unsigned long long flags) {
    CHECK_CONTEXT();
    undisturbed(context, __func__);
    if (flags) return INVALID_VALUE;
    std::lock_guard<std::mutex> lock(mutex);
    Graph *graph = graph_of(handle, __func__);
    *made = new Executable;
    (*made)->context = context;
    (*made)->graph = graph;
    for (Node *node : graph->nodes) {
        (*made)->nodes.push_back(*node);
        if (node->copy) (*made)->nodes.back().copy = std::make_shared<Copy>(*node->copy);
    }
    executables.insert(*made);
    context->objects++;
    return SUCCESS;
}

API int cuGraphExecMemcpyNodeSetParams(void *handle, Node *node, const Copy *copy, Context *of) {
    CHECK_CONTEXT();
    known(of, __func__);
    std::lock_guard<std::mutex> lock(mutex);
    Executable *executable = executable_of(handle, __func__);
    if (node->graph != executable->graph || !node->copy) misuse("cuGraphExecMemcpyNodeSetParams: it has no such copy");
    check(context, *copy, __func__);
    auto &kept = executable->nodes[node->index].copy;
    // "The source and destination memory in copyParams must be allocated from the same contexts as
    // the original ones", and their kinds must not change.
    if (kept->from_type != copy->from_type || kept->to_type != copy->to_type) return INVALID_VALUE;
    // Queued launches keep the parameters that they were queued with.
    kept = std::make_shared<Copy>(*copy);
    return SUCCESS;
}

API int cuGraphUpload(void *handle, void *stream_handle) {
    CHECK_CONTEXT();
    undisturbed(context, __func__);
    stream_of(stream_handle, __func__);
    std::lock_guard<std::mutex> lock(mutex);
    executable_of(handle, __func__)->uploaded = true;
    return SUCCESS;
}

API int cuGraphLaunch(void *handle, void *stream_handle) {
    CHECK_CONTEXT();
    Stream *stream = stream_of(stream_handle, __func__);
    std::lock_guard<std::mutex> lock(mutex);
    Executable *executable = executable_of(handle, __func__);
    if (!executable->uploaded) undisturbed(context, __func__);
    executable->running++;
    for (Node &node : executable->nodes) {
        if (node.launch) {
            enqueue(stream, [launch = node.launch] { run(*launch); });
        } else {
            enqueue(stream, [context, copy = node.copy] {
                check(context, *copy, "cuGraphLaunch");
                bool in = copy->from_type == 1;
                memcpy(in ? (void *)copy->to_device : copy->to_host, in ? copy->from_host : (const void *)copy->from_device, copy->width);
                copied(in, copy->width);
            });
        }
    }
    enqueue(stream, [executable] { executable->running--; });
    return SUCCESS;
}

API int cuGraphExecDestroy(void *handle) {
    undisturbed(current(__func__), __func__);
    std::lock_guard<std::mutex> lock(mutex);
    Executable *executable = executable_of(handle, __func__);
    if (executable->running && !executable->context->error) misuse("cuGraphExecDestroy: it may be running");
    executables.erase(executable);
    executable->context->objects--;
    return SUCCESS;
}
