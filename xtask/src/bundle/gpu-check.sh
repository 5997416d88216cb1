#!/bin/sh
# Tests Portcullis on this machine's NVIDIA GPU and writes the results to one JSON file.
#
#     ./gpu-check.sh [FILE]      FILE is gpu-check.json by default
#
# Needs Linux on x86-64 with a shell, awk, sed, tr and timeout. Installs nothing, and writes nothing
# but FILE and a temporary folder. Takes at most six minutes: each step has a time budget, which it
# prints, and may also use what the steps before it have left. A failed step does not stop the
# others. At the end it prints which bars are met and which are missed.
#
# Exit status: 0 if FILE is written (it names what is missing here), 1 if a step failed as well, 2
# if FILE could not be written.
set -u
LC_ALL=C
export LC_ALL

here=$(cd "$(dirname "$0")" && pwd) || exit 2
file=${1:-gpu-check.json}
(: >"$file") || { echo "gpu-check: cannot write $file" >&2; exit 2; }
work=$(mktemp -d) || { echo "gpu-check: cannot create a temporary folder" >&2; exit 2; }
trap 'rm -rf "$work"' EXIT
trap 'exit 2' HUP INT TERM

# Time limit of all steps together, in seconds. The rest of the six minutes is for starting, for
# stopping a step that ignores its limit, and for the report. `planned` is the sum of the budgets up
# to the current step; the first five seconds are for looking around.
BUDGET=350
began=$(date +%s)
planned=5
failed=0

# Prints standard input as a JSON string, without non-ASCII characters.
quote() {
    tr -cd '\011\012\040-\176' | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/	/\\t/g' |
        awk 'BEGIN { printf "\"" } { printf "%s%s", (NR > 1 ? "\\n" : ""), $0 } END { printf "\"" }'
}

text() {
    printf '%s' "$1" | quote
}

# --- The machine's drivers ----------------------------------------------------------------------

FOLDERS="/usr/lib/x86_64-linux-gnu /usr/lib64 /lib64 /usr/lib /usr/local/lib /usr/local/nvidia/lib64
    /usr/local/nvidia/lib /usr/lib/x86_64-linux-gnu/nvidia/current /usr/lib/nvidia /run/opengl-driver/lib
    /run/nvidia/driver/usr/lib/x86_64-linux-gnu /usr/lib/wsl/lib /usr/local/cuda/lib64 /opt/cuda/lib64"

# Prints the path of the first of these libraries that exists: in the folders above, in
# LD_LIBRARY_PATH, or in ldconfig's cache.
find_library() {
    for name in "$@"; do
        for folder in $FOLDERS $(printf '%s' "${LD_LIBRARY_PATH:-}" | tr ':' ' '); do
            [ -e "$folder/$name" ] && { echo "$folder/$name"; return 0; }
        done
        listed=$( (ldconfig -p || /sbin/ldconfig -p) 2>/dev/null |
            awk -v name="$name" '$1 == name && /x86-64/ { print $NF; exit }')
        [ -n "$listed" ] && { echo "$listed"; return 0; }
    done
    return 1
}

libraries=${LD_LIBRARY_PATH:-}
add_folder() {
    case ":$libraries:" in
        *":$1:"*) ;;
        *) libraries=${libraries:+$libraries:}$1 ;;
    esac
}

mkdir "$work/lib" "$work/vendors"
# The bundle's loaders, each if the system has none.
: >"$work/loaders"
for loader in "$here"/lib/lib*.so.*; do
    [ -e "$loader" ] || continue
    name=$(basename "$loader")
    path=$(find_library "$name") || { cp "$loader" "$work/lib/" && path="the bundle's"; }
    [ -s "$work/loaders" ] && printf ', ' >>"$work/loaders"
    printf '%s: %s' "$(text "$name")" "$(text "$path")" >>"$work/loaders"
    [ "$path" = "the bundle's" ] && echo "$name is missing here: the bundle's is used"
done
add_folder "$work/lib"

cuda=$(find_library libcuda.so.1) && add_folder "$(dirname "$cuda")"

vulkan=${VK_DRIVER_FILES:-${VK_ICD_FILENAMES:-}}
if [ -z "$vulkan" ]; then
    for folder in /usr/share/vulkan/icd.d /etc/vulkan/icd.d /usr/local/share/vulkan/icd.d /usr/local/nvidia/share/vulkan/icd.d \
        /usr/local/nvidia/vulkan/icd.d /run/opengl-driver/share/vulkan/icd.d /usr/share/nvidia/vulkan/icd.d; do
        for name in nvidia_icd.json nvidia_icd.x86_64.json; do
            [ -z "$vulkan" ] && [ -f "$folder/$name" ] && vulkan=$folder/$name
        done
    done
    driver=$(find_library libGLX_nvidia.so.0 libEGL_nvidia.so.0) && add_folder "$(dirname "$driver")"
    if [ -z "$vulkan" ] && [ -n "$driver" ]; then
        vulkan=$work/nvidia_icd.json
        # Format: LoaderDriverInterface.md, "Driver Manifest File Format".
        printf '{"file_format_version": "1.0.0", "ICD": {"library_path": "%s", "api_version": "1.3.0"}}\n' \
            "$driver" >"$vulkan"
    fi
    [ -n "$vulkan" ] && VK_DRIVER_FILES=$vulkan VK_ICD_FILENAMES=$vulkan && export VK_DRIVER_FILES VK_ICD_FILENAMES
fi

opencl=${OCL_ICD_VENDORS:-}
if [ -z "$opencl" ]; then
    opencl=$(find_library libnvidia-opencl.so.1) && add_folder "$(dirname "$opencl")"
    if [ -n "$opencl" ]; then
        echo "$opencl" >"$work/vendors/nvidia.icd"
        OCL_ICD_VENDORS=$work/vendors OPENCL_VENDOR_PATH=$work/vendors
        export OCL_ICD_VENDORS OPENCL_VENDOR_PATH
    fi
fi

# Add every NVRTC to the library path: the program chooses the one that suits the driver.
nvrtc=${PORTCULLIS_NVRTC:-}
if [ -z "$nvrtc" ]; then
    for found in $(find_library libnvrtc.so.12) $(find_library libnvrtc.so.13) /usr/local/cuda*/lib64/libnvrtc.so.1[23] \
        /usr/local/cuda*/targets/x86_64-linux/lib/libnvrtc.so.1[23] \
        /usr/lib/python3*/*-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12 \
        /usr/local/lib/python3*/*-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12; do
        [ -e "$found" ] && nvrtc=${nvrtc:+$nvrtc }$found && add_folder "$(dirname "$found")"
    done
fi
# Precompiled filters come first, so that every machine measures the same code.
PORTCULLIS_CUBINS=$here/cubins
PORTCULLIS_CACHE=$work/cache
# The program links to DPDK, which initialises nothing before l2fwd.
LD_LIBRARY_PATH=$libraries:$here/lib/dpdk
export PORTCULLIS_CUBINS PORTCULLIS_CACHE LD_LIBRARY_PATH

gpu= driver_version=
query=$(timeout -k 1 5 nvidia-smi --query-gpu=name,driver_version,memory.total,pci.bus_id --format=csv,noheader 2>&1)
if [ $? -eq 0 ]; then
    gpu=$(printf '%s\n' "$query" | awk -F ', ' 'NR == 1 { print $1 }')
    driver_version=$(printf '%s\n' "$query" | awk -F ', ' 'NR == 1 { print $2 }')
elif [ -r /proc/driver/nvidia/version ]; then
    driver_version=$(sed -n 's/.*Kernel Module[^0-9]*\([0-9.]*\).*/\1/p' /proc/driver/nvidia/version)
fi

# --- The steps ----------------------------------------------------------------------------------

: >"$work/steps"
entry() {
    [ -s "$work/steps" ] && printf ',\n' >>"$work/steps"
    printf '    {"name": %s, ' "$(text "$1")" >>"$work/steps"
}

skip() { # NAME SECONDS REASON
    planned=$((planned + $2))
    echo "$1: skipped: $3"
    entry "$1"
    printf '"skipped": %s}' "$(text "$3")" >>"$work/steps"
}

# Adds a budget to those before it, and sets `limit` to the seconds until then: what earlier steps
# have left is this one's as well.
plan() { # SECONDS
    planned=$((planned + $1))
    [ $planned -gt $BUDGET ] && planned=$BUDGET
    limit=$((planned - ($(date +%s) - began)))
}

# Runs a command and keeps its output, exit status and time in files named after KEY.
attempt() { # KEY SECONDS COMMAND...
    key=$1 seconds=$2 start=$(date +%s)
    shift 2
    timeout -k 3 "$seconds" "$@" >"$work/$key.output" 2>&1 </dev/null
    echo "$? $(($(date +%s) - start))" >"$work/$key.ended"
}

# Adds a step: its exit status, the last lines of its output, and the JSON file that it wrote.
record() { # NAME KEY SECONDS RESULT
    read -r rc seconds <"$work/$2.ended"
    case $rc in
        0) echo "$1: done after $seconds seconds" ;;
        124 | 137) echo "$1: FAILED: out of time after $seconds seconds" ;;
        *) echo "$1: FAILED: ends with $rc after $seconds seconds: $(tail -n 1 "$work/$2.output" | tr -cd '\040-\176')" ;;
    esac
    [ "$rc" -ne 0 ] && failed=1
    entry "$1"
    {
        printf '"rc": %d, "seconds": %d, "limit": %d, ' "$rc" "$seconds" "$3"
        printf '"output": %s, "result": ' "$(tail -n 120 "$work/$2.output" | quote)"
        # A step that ran out of time may have written what it had so far, or a part of it.
        if "$here/bin/gpu-tool" json "$4" 2>/dev/null; then cat "$4"; else printf 'null'; fi
        printf '}'
    } >>"$work/steps"
}

# Runs a step and adds it.
run() { # NAME SECONDS RESULT COMMAND...
    name=$1 result=$3
    plan "$2"
    shift 3
    if [ "$limit" -lt 3 ]; then
        skip "$name" 0 "no time left of $BUDGET seconds"
        return
    fi
    echo "$name: at most $limit seconds"
    attempt step "$limit" "$@"
    record "$name" step "$limit" "$result"
}

# Prints why a backend has no device; nothing if it has one.
missing() {
    awk -v head="$1: " '
        index($0, head) == 1 { found = 1; on = 1; next }
        /^[^ ]/ { on = 0 }
        on && /^  none: / { sub(/^  none: /, ""); print; exit }
        END { if (!found) print "portcullis devices does not list the backend" }' "$work/devices"
}

program=$here/bin/portcullis
run devices 12 "$work/devices.json" \
    sh -c '"$1" devices --json >"$2"; "$1" devices' sh "$program" "$work/devices.json"
cp "$work/step.output" "$work/devices"
no_cuda=$(missing cuda)

# All at once: they compile and interpret more than the GPU works. Only CUDA runs all packets, as
# OpenCL drivers take long to compile.
plan 32
echo "selftests: at most $limit seconds"
for backend in cuda opencl wgpu; do
    quick=--quick
    [ $backend = cuda ] && quick=
    # shellcheck disable=SC2086 # no argument if it is empty
    [ -z "$(missing $backend)" ] && attempt $backend "$limit" \
        "$program" selftest $quick --device $backend --json "$work/$backend.json" &
done
wait
for backend in cuda opencl wgpu; do
    if [ -e "$work/$backend.ended" ]; then
        record "selftest $backend" $backend "$limit" "$work/$backend.json"
        continue
    fi
    skip "selftest $backend" 0 "$(missing $backend)"
    [ $backend = wgpu ] && echo "selftest wgpu: NVIDIA's Vulkan driver needs libvulkan1, libegl1, libglvnd0, libgl1, libglx0," \
        "libopengl0 and libgles2 (Debian's names), and VK_DRIVER_FILES to name its manifest${vulkan:+, here $vulkan}"
done

# Measures with `portcullis bench` on CUDA.
bench() { # NAME SECONDS ARGUMENT...
    name=$1 budget=$2
    shift 2
    if [ -n "$no_cuda" ]; then
        skip "$name" "$budget" "$no_cuda"
        return
    fi
    # A quarter of the budget is left for what --time bounds only roughly: loading maps, and repetitions
    # that a slow device needs in any case.
    run "$name" "$budget" "$work/bench.json" "$program" bench --json "$work/bench.json" --time $((budget * 3 / 4))s "$@"
    rm -f "$work/bench.json"
}

# One batch size each: with several, only one of them is measured by every method.
for packets in 64 1024; do
    bench "latency, $packets packets" 14 --device cuda:0 --filter http_only --batch $packets --packets 64 \
        --transfer auto --transfer resident \
        --dispatch inline --dispatch pipelined --dispatch persistent --dispatch waitvalue --dispatch graph
done
bench large 26 --device cuda:0 --device cpu --filter simple_filter --filter hash_lb --batch 1048576 --packets 64 \
    --transfer auto --transfer whole --transfer window --transfer imported --dispatch pipelined
bench resident 18 --device cuda:0 --filter simple_filter --filter hash_lb --batch 1048576,8388608 --packets 64 \
    --transfer resident --dispatch pipelined
bench stateful 26 --device cuda:0 --device cpu --filter conntrack_fw --filter flow_stats --filter syn_flood \
    --batch 1048576 --packets 64 --transfer auto --dispatch pipelined
if [ -n "$no_cuda" ] || timeout 10 "$here/bin/gpu-tool" routes "$work" 1000000; then
    bench router 24 --device cuda:0 --device cpu --filter router_v4 \
        --map "routes=$work/routes.csv" --map "next_hops=$work/next_hops.csv" --batch 1048576 --packets 64 --transfer auto --dispatch pipelined
else
    failed=1
    skip router 24 "its table could not be made"
fi
# XDP-on-GPU's method, from its records and from raw packets, beside ours.
bench peer 38 --device cuda:0 --filter simple_filter --filter port_filter --filter complex_filter --filter hash_lb \
    --batch 1048576 --packets 64 --transfer resident --dispatch pipelined --seeds

others=
for backend in opencl wgpu; do
    [ -z "$(missing $backend)" ] && others="$others --device $backend:0"
done
if [ -n "$others" ]; then
    # shellcheck disable=SC2086 # each word is an argument
    run "opencl and wgpu" 18 "$work/others.json" "$program" bench --json "$work/others.json" --time 13s $others \
        --filter simple_filter --batch 1024,1048576 --packets 64 --transfer auto --transfer resident --dispatch pipelined
else
    skip "opencl and wgpu" 18 "neither has a device"
fi

# Forwards packets of 1,024 bytes in GPU memory with DPDK's virtual device that makes and discards
# them.
l2fwd() { # NAME SECONDS PIPELINES WORKLOADS
    reason=$no_cuda
    [ -z "$reason" ] && [ ! -d "$here/lib/dpdk" ] && reason="the bundle has no DPDK"
    # Preloaded, as DPDK loads no drivers from below a world-writable folder.
    dpdk=$libraries:$here/lib/dpdk
    drivers=$(cd "$here/lib/dpdk" 2>/dev/null && echo "$PWD"/librte_bus_vdev.so.* "$PWD"/librte_mempool_ring.so.* "$PWD"/librte_net_*.so.*)
    # DPDK loads the system's drivers in any case, and none may be loaded twice: use the system's or
    # the bundle's, never both.
    vdev=$(basename "$here"/lib/dpdk/librte_bus_vdev.so.*)
    if [ -z "$reason" ] && ls /usr/lib/*/dpdk/pmds-*/"$vdev" >/dev/null 2>&1; then
        dpdk=$libraries drivers=
        for library in "$here"/lib/dpdk/librte_*; do
            library=$(basename "$library")
            if ! ls /usr/lib/*/"$library" /usr/lib/*/dpdk/pmds-*/"$library" 2>/dev/null | grep -q .; then
                reason="the system's DPDK lacks $library and cannot be mixed with the bundle's"
            fi
        done
    fi
    if [ -n "$reason" ]; then
        skip "$1" "$2" "$reason"
        return
    fi
    run "$1" "$2" "$work/l2fwd.json" \
        env LD_LIBRARY_PATH="$dpdk" LD_PRELOAD="$drivers" "$program" l2fwd --device cuda:0 --gpu cuda:0 --mempool gpu \
        --dpdk net_null0,size=1024 --pipelines "$3" --workload "$4" --burst 16,32,64,256 \
        --warm-up 10000 --packets 0 --duration 400ms --json "$work/l2fwd.json"
    rm -f "$work/l2fwd.json"
}

l2fwd "l2fwd, 1 pipeline" 20 1 inline,pipelined,persistent,waitvalue,graph
l2fwd "l2fwd, 4 pipelines" 16 4 inline,persistent,graph

if [ -n "$no_cuda" ]; then
    skip suites 62 "$no_cuda"
elif [ -z "$nvrtc" ]; then
    skip suites 62 "no NVRTC, which compiles their filters: install it or set PORTCULLIS_NVRTC"
else
    run suites 62 "$work/suites.json" \
        env PORTCULLIS_TEST_ONLY=cuda PORTCULLIS_REQUIRE=cuda \
        "$here/bin/gpu-tool" suites "$here/bin/device-suites" "$work/suites.json"
fi

sanitizer=
for found in "$(command -v compute-sanitizer)" /usr/local/cuda*/bin/compute-sanitizer /opt/cuda/bin/compute-sanitizer \
    /usr/local/cuda*/compute-sanitizer/compute-sanitizer; do
    [ -z "$sanitizer" ] && [ -x "$found" ] && sanitizer=$found
done
if [ -n "$no_cuda" ]; then
    skip memcheck 21 "$no_cuda"
elif [ -z "$sanitizer" ]; then
    skip memcheck 21 "no compute-sanitizer, which is part of the CUDA toolkit"
else
    run memcheck 21 "$work/memcheck.json" "$sanitizer" --tool memcheck --error-exitcode 9 "$program" selftest --quick \
        --device cuda --filter simple_filter --filter hash_lb --filter mac_swap --json "$work/memcheck.json"
fi

# --- The report ---------------------------------------------------------------------------------

or_null() {
    if [ -n "$1" ]; then text "$1"; else printf 'null'; fi
}

{
    printf '{\n'
    printf '  "date": %s,\n' "$(text "$(date -u +%Y-%m-%dT%H:%M:%SZ)")"
    printf '  "commit": %s,\n' "$(quote <"$here/COMMIT")"
    printf '  "device": %s,\n  "driver": %s,\n' "$(or_null "$gpu")" "$(or_null "$driver_version")"
    printf '  "nvidia-smi": %s,\n' "$(text "$query")"
    printf '  "host": {"system": %s, "processor": %s, "libc": %s},\n' "$(text "$(uname -srm)")" \
        "$(text "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)")" \
        "$(text "$( (getconf GNU_LIBC_VERSION || ldd --version) 2>&1 | head -n 1)")"
    printf '  "found": {"libcuda": %s, "nvrtc": %s, "cubins": %d, "vulkan driver": %s, "opencl driver": %s,\n' \
        "$(or_null "$cuda")" "$(or_null "$nvrtc")" "$(find "$here/cubins" -name '*.cubin' | wc -l)" \
        "$(or_null "$vulkan")" "$(or_null "$opencl")"
    printf '    "compute-sanitizer": %s, "loaders": {%s}},\n' "$(or_null "$sanitizer")" "$(cat "$work/loaders")"
    printf '  "steps": [\n'
    cat "$work/steps"
    printf '\n  ],\n  "seconds": %d\n}\n' $(($(date +%s) - began))
} >"$file" || exit 2
"$here/bin/gpu-tool" bars "$file" || failed=1
echo "written: $file, after $(($(date +%s) - began)) seconds"
exit $failed
