#!/bin/sh
# Tests Portcullis on this machine's NVIDIA GPU and writes the results to one JSON file.
#
#     ./gpu-check.sh [FILE]      FILE is gpu-check.json by default
#
# Needs Linux on x86-64 with a shell, awk, sed, tr and timeout. Installs nothing, and writes nothing
# but FILE and a temporary folder. Takes less than nine minutes: each step has a time limit, and a
# failed step does not stop the others.
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

# Time limit of all steps together, in seconds.
BUDGET=510
began=$(date +%s)
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
# The bundle's loaders, if the system has none.
for loader in libvulkan.so.1 libOpenCL.so.1; do
    find_library $loader >"$work/loader" || { cp "$here/lib/$loader" "$work/lib/" && echo "the bundle's" >"$work/loader"; }
    cp "$work/loader" "$work/$loader.txt"
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
CRITERION_HOME=$work/criterion
LD_LIBRARY_PATH=$libraries
export PORTCULLIS_CUBINS PORTCULLIS_CACHE CRITERION_HOME LD_LIBRARY_PATH

gpu= driver_version=
query=$(timeout -k 5 20 nvidia-smi --query-gpu=name,driver_version,memory.total,pci.bus_id --format=csv,noheader 2>&1)
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

skip() { # NAME REASON
    echo "$1: skipped: $2"
    entry "$1"
    printf '"skipped": %s}' "$(text "$2")" >>"$work/steps"
}

# Runs a step and adds its exit status, the last lines of its output, and the JSON file that it
# wrote.
run() { # NAME SECONDS RESULT COMMAND...
    name=$1 limit=$2 result=$3
    shift 3
    left=$((BUDGET - ($(date +%s) - began)))
    [ "$limit" -gt "$left" ] && limit=$left
    if [ "$limit" -lt 5 ]; then
        skip "$name" "no time left of $BUDGET seconds"
        return
    fi
    echo "$name: at most $limit seconds"
    start=$(date +%s)
    timeout -k 5 "$limit" "$@" >"$work/output" 2>&1 </dev/null
    rc=$?
    seconds=$(($(date +%s) - start))
    echo "$name: ends with $rc after $seconds seconds"
    [ $rc -ne 0 ] && failed=1
    entry "$name"
    {
        printf '"rc": %d, "seconds": %d, "limit": %d, ' $rc $seconds "$limit"
        printf '"output": %s, "result": ' "$(tail -n 120 "$work/output" | quote)"
        # Results are written at the end of a step: one that timed out may have written a part.
        if [ -s "$result" ] && [ $rc -ne 124 ] && [ $rc -ne 137 ]; then cat "$result"; else printf 'null'; fi
        printf '}'
    } >>"$work/steps"
}

# Prints why a backend has no device; nothing if it has one.
missing() {
    awk -v head="$1: " '
        index($0, head) == 1 { found = 1; on = 1; next }
        /^[^ ]/ { on = 0 }
        on && /^  none: / { sub(/^  none: /, ""); print; exit }
        END { if (!found) print "portcullis devices does not list the backend" }' "$work/devices"
}

run devices 60 "$work/devices.json" \
    sh -c '"$1" devices --json >"$2"; "$1" devices' sh "$here/bin/portcullis" "$work/devices.json"
cp "$work/output" "$work/devices"

# Forwards with DPDK's virtual devices: every dispatch method, packets in host and in GPU memory, by
# burst size.
l2fwd() { # NAME SECONDS RESULT ARGUMENT...
    name=$1 limit=$2 result=$3
    shift 3
    libraries=$here/lib/dpdk:$LD_LIBRARY_PATH
    # Preloaded, as DPDK loads no drivers from below a world-writable folder.
    drivers=$(echo "$here"/lib/dpdk/librte_bus_vdev.so.* "$here"/lib/dpdk/librte_mempool_ring.so.* "$here"/lib/dpdk/librte_net_*.so.*)
    # DPDK loads the system's drivers in any case, and none may be loaded twice: use the system's or
    # the bundle's, never both.
    vdev=$(basename "$here"/lib/dpdk/librte_bus_vdev.so.*)
    if ls /usr/lib/*/dpdk/pmds-*/"$vdev" >/dev/null 2>&1; then
        libraries=$LD_LIBRARY_PATH drivers=
        for library in "$here"/lib/dpdk/librte_*; do
            library=$(basename "$library")
            if ! ls /usr/lib/*/"$library" /usr/lib/*/dpdk/pmds-*/"$library" 2>/dev/null | grep -q .; then
                skip "$name" "the system's DPDK lacks $library and cannot be mixed with the bundle's"
                return
            fi
        done
    fi
    run "$name" "$limit" "$result" \
        env LD_LIBRARY_PATH="$libraries" LD_PRELOAD="$drivers" "$here/bin/portcullis-dpdk" l2fwd --device cuda:0 --gpu cuda:0 --mempool all --json "$result" "$@"
}

for backend in cuda wgpu opencl; do
    reason=$(missing $backend)
    if [ -n "$reason" ]; then
        skip "selftest $backend" "$reason"
        skip "bench $backend" "$reason"
        [ $backend = cuda ] && skip l2fwd "$reason" && skip "l2fwd over a capture" "$reason"
        continue
    fi
    if [ $backend = cuda ] && [ -x "$here/bin/portcullis-dpdk" ]; then
        # Eighty runs. A GPU communication list holds 1,024 packets per item, so longer bursts take
        # several.
        l2fwd l2fwd 150 "$work/l2fwd.json" --dpdk net_null0 --workload inline,pipelined,persistent,waitvalue,graph \
            --burst 16,32,64,128,256,512,1024,8192 --warm-up 10000 --packets 0 --duration 300ms
        l2fwd "l2fwd over a capture" 40 "$work/pcap.json" --workload all --overload wait --burst 256 \
            --dpdk "net_pcap0,rx_pcap=$here/samples/mixed.pcap,tx_pcap=$work/out.pcap"
    elif [ $backend = cuda ]; then
        skip l2fwd "the bundle has no DPDK"
        skip "l2fwd over a capture" "the bundle has no DPDK"
    fi
    run "selftest $backend" 90 "$work/$backend.json" \
        "$here/bin/portcullis" selftest --device $backend --json "$work/$backend.json"
    if [ ! -x "$here/bin/bench-$backend" ]; then
        skip "bench $backend" "the bundle has no such benchmark"
        continue
    fi
    PORTCULLIS_BENCH_JSON=$work/bench-$backend.json
    export PORTCULLIS_BENCH_JSON
    run "bench $backend" 120 "$PORTCULLIS_BENCH_JSON" "$here/bin/bench-$backend" --bench
done

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
    printf '    "vulkan loader": %s, "opencl loader": %s},\n' "$(quote <"$work/libvulkan.so.1.txt")" \
        "$(quote <"$work/libOpenCL.so.1.txt")"
    printf '  "steps": [\n'
    cat "$work/steps"
    printf '\n  ],\n  "seconds": %d\n}\n' $(($(date +%s) - began))
} >"$file" || exit 2
echo "written: $file"
exit $failed
