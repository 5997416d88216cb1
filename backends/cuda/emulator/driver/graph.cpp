// Graphs of kernels in a linear order.
#include "emulator.hpp"

// CUDA_KERNEL_NODE_PARAMS of cuda.h, version 11.
struct KernelNode {
    void *function;
    unsigned grid[3], threads[3], shared;
    void **parameters, **extra;
};

struct Node {
    std::shared_ptr<Launch> launch;
};

struct Graph {
    Context *context;
    std::vector<Node *> nodes;
};

struct Executable {
    Context *context;
    std::vector<Node> nodes;
    bool uploaded = false;
    // Launches that have not completed.
    std::atomic<long> running{0};
};

static std::mutex mutex;
static auto &graphs = kept<std::set<Graph *>>();
static auto &executables = kept<std::set<Executable *>>();

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
    graph->nodes.push_back(new Node{});
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
    for (Node *node : graph->nodes) (*made)->nodes.push_back(*node);
    executables.insert(*made);
    context->objects++;
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
    for (Node &node : executable->nodes) enqueue(stream, [launch = node.launch] { run(*launch); });
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
