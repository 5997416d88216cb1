// The compiler: compiles CUDA C++ as C++17 with a shim, by the system's compiler with the
// undefined-behaviour sanitizer, whose findings end the process with a message.
#include "emulator.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <regex>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>

// shim.cuh and blocks.cuh, as strings.
extern const char SHIM[], BLOCKS[];

static std::string read(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

struct Kernel {
    std::string name, bounds;
};

// Matches `__global__ void`, an optional `__launch_bounds__(N)`, of which the first number counts,
// and the name.
static std::vector<Kernel> kernels_of(const std::string &source) {
    const std::string start = "__global__ void ", bounds = "__launch_bounds__(";
    std::vector<Kernel> kernels;
    for (size_t at = source.find(start); at != std::string::npos; at = source.find(start, at)) {
        at += start.size();
        Kernel kernel{"", "1024"};
        if (!source.compare(at, bounds.size(), bounds)) {
            size_t end = source.find(')', at);
            kernel.bounds = source.substr(at + bounds.size(), end - at - bounds.size());
            kernel.bounds.resize(std::min(kernel.bounds.find(','), kernel.bounds.size()));
            at = source.find_first_not_of(' ', end + 1);
        }
        size_t end = at;
        while (isalnum((unsigned char)source[end]) || source[end] == '_') end++;
        kernel.name = source.substr(at, end - at);
        kernels.push_back(kernel);
    }
    return kernels;
}

bool compile(const std::string &source, int arch, std::string *object, std::string *log) {
    char folder[] = "/tmp/portcullis-nvrtc-XXXXXX";
    if (!mkdtemp(folder)) return *log = "no folder to compile in", false;
    std::string base = folder;
    // Kernels whose threads wait for each other.
    bool barriers = source.find("__syncthreads") != std::string::npos || source.find("_sync(") != std::string::npos;
    std::string counted = source;
    if (asked("count")) {
        // Maps are volatile, or constant as only metadata and packets are besides.
        std::regex maps("(volatile uint \\*|const uint \\*(__restrict__ )?(?!(metadata|words)\\b))(\\w+[;,\\n])");
        counted = std::regex_replace(source, maps, "emulated_map $4");
    }
    {
        std::ofstream file(base + "/filter.cpp", std::ios::binary);
        file << (barriers ? "#define EMULATED_BARRIERS\n" : "") << (asked("count") ? "#define EMULATED_COUNTS\n" : "");
        file << "#define __CUDA_ARCH__ " << arch * 10 << "\n";
        file << SHIM << "#line 1 \"filter.cu\"\n" << counted << BLOCKS;
        file << "extern \"C\" const int emulated_arch = " << arch << ";\n";
        file << "extern \"C\" const bool emulated_barriers = " << barriers << ";\n";
        for (auto &kernel : kernels_of(source)) file << "EMULATED_KERNEL(" << kernel.name << ", " << kernel.bounds << ")\n";
    }
    std::string command = "${CXX:-c++} -std=c++17 -O1 -w -shared -fPIC -fvisibility=hidden -fsanitize=undefined "
                          "-fno-sanitize-recover=all -o " + base + "/filter.so " + base + "/filter.cpp 2>" + base + "/log";
    int status = system(command.c_str());
    bool done = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    *(done ? object : log) = read(base + (done ? "/filter.so" : "/log"));
    for (const char *name : {"/filter.cpp", "/filter.so", "/log"}) unlink((base + name).c_str());
    rmdir(folder);
    return done;
}

struct Program {
    std::string source, cubin, ptx, log;
};

// 1000 times the major version and 10 times the minor one.
static int version() { return (int)asked("nvrtc", 12040); }

static std::vector<int> archs() {
    std::vector<int> archs;
    for (int arch : {75, 80, 86, 89, 90, 100, 120})
        if (arch <= asked("newest", 120)) archs.push_back(arch);
    return archs;
}

API int nvrtcVersion(int *major, int *minor) {
    *major = version() / 1000;
    *minor = version() % 1000 / 10;
    return SUCCESS;
}

API int nvrtcGetNumSupportedArchs(int *count) {
    *count = (int)archs().size();
    return SUCCESS;
}

API int nvrtcGetSupportedArchs(int *list) {
    for (int arch : archs()) *list++ = arch;
    return SUCCESS;
}

API int nvrtcCreateProgram(Program **made, const char *source, const char *, int headers, const char *const *, const char *const *) {
    if (headers) return 3;
    *made = new Program{source, "", "", ""};
    return SUCCESS;
}

API int nvrtcDestroyProgram(Program **program) {
    delete *program;
    *program = nullptr;
    return SUCCESS;
}

API int nvrtcCompileProgram(Program *program, int count, const char *const *options) {
    std::string arch;
    for (int i = 0; i < count; i++) {
        if (!strncmp(options[i], "--gpu-architecture=", 19)) arch = options[i] + 19;
        else if (strncmp(options[i], "--", 2)) return 5;
    }
    bool machine = !arch.compare(0, 3, "sm_");
    if (!machine && arch.compare(0, 8, "compute_")) return 5;
    int number = atoi(arch.c_str() + (machine ? 3 : 8));
    bool supported = false;
    for (int other : archs()) supported |= other == number;
    if (!supported) return program->log = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n", 5;
    if (!machine) {
        program->ptx = ".version " + std::to_string(version() / 1000 - 4) + "." + std::to_string(version() % 1000 / 10) + "\n" + program->source;
        return SUCCESS;
    }
    return compile(program->source, number, &program->cubin, &program->log) ? SUCCESS : 6;
}

static int copy(const std::string &from, char *to, size_t extra) {
    memcpy(to, from.c_str(), from.size() + extra);
    return SUCCESS;
}

API int nvrtcGetProgramLogSize(Program *program, size_t *size) { return *size = program->log.size() + 1, SUCCESS; }
API int nvrtcGetProgramLog(Program *program, char *log) { return copy(program->log, log, 1); }
API int nvrtcGetCUBINSize(Program *program, size_t *size) { return *size = program->cubin.size(), SUCCESS; }
API int nvrtcGetCUBIN(Program *program, char *cubin) { return copy(program->cubin, cubin, 0); }
API int nvrtcGetPTXSize(Program *program, size_t *size) { return *size = program->ptx.empty() ? 0 : program->ptx.size() + 1, SUCCESS; }
API int nvrtcGetPTX(Program *program, char *ptx) { return copy(program->ptx, ptx, 1); }
