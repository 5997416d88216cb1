//! System packages that the tests need, and their installation on Debian.

use std::path::Path;
use std::process::{Command, Stdio};

/// A requirement of tests that system packages provide.
struct Need {
    what: &'static str,
    /// Consequence if it is missing.
    without: &'static str,
    /// Debian's packages; `{release}` stands for the running kernel's release.
    packages: &'static [&'static str],
    is_installed: fn() -> bool,
}

/// Requirements of the tests; devices are software, so that the tests run on any machine.
const NEEDS: [Need; 14] = [
    Need {
        what: "Vulkan driver",
        without: "the wgpu device is missing",
        packages: &["mesa-vulkan-drivers", "libvulkan1"],
        is_installed: || has_library("libvulkan.so.1") && has_vulkan_driver(),
    },
    Need {
        what: "OpenCL driver",
        without: "the opencl device is missing",
        packages: &["pocl-opencl-icd", "ocl-icd-libopencl1"],
        is_installed: || has_library("libOpenCL.so.1") && has_opencl_driver(),
    },
    Need {
        what: "C++ compiler",
        without: "there is no emulated CUDA device, and generated C is not run",
        packages: &["g++"],
        is_installed: || ["g++", "c++", "clang++"].iter().any(|name| succeeds(name, &["--version"])),
    },
    Need {
        what: "compilers and headers for AF_XDP",
        without: "live traffic by AF_XDP is neither built nor tested",
        packages: &["gcc", "clang", "m4", "make", "pkg-config", "libelf-dev", "zlib1g-dev"],
        is_installed: can_build_af_xdp,
    },
    Need {
        what: "DPDK",
        without: "live traffic by DPDK is neither built nor tested",
        packages: &["libdpdk-dev", "dpdk", "gcc", "libclang-dev", "pkg-config"],
        is_installed: can_build_dpdk,
    },
    Need {
        what: "network tools",
        without: "live traffic is not tested",
        packages: &["iproute2", "ethtool", "iptables"],
        is_installed: || {
            ["ip", "ethtool", "iptables-legacy"]
                .iter()
                .all(|name| succeeds(name, &["--version"]) || succeeds(name, &["-V"]))
        },
    },
    Need {
        what: "peers for live traffic",
        without: "the program is not tested between curl and a server or two iperf3",
        packages: &["curl", "iperf3"],
        is_installed: || ["curl", "iperf3"].iter().all(|name| succeeds(name, &["--version"])),
    },
    Need {
        what: "tcpdump and libpcap",
        without: "expressions are neither compiled nor compared with tcpdump",
        packages: &["tcpdump", "libpcap-dev", "pkg-config"],
        is_installed: || succeeds("tcpdump", &["--version"]) && can_build_pcap(),
    },
    Need {
        what: "clang and headers for XDP programs",
        without: "objects are not compared with the kernel",
        packages: &["clang", "libbpf-dev", "linux-libc-dev"],
        is_installed: || succeeds("clang", &["--version"]) && Path::new("/usr/include/bpf/bpf_helpers.h").exists(),
    },
    Need {
        what: "bpftool",
        without: "maps of objects are not compared with its output",
        packages: &["bpftool"],
        is_installed: has_bpftool,
    },
    // Ubuntu has a bpftool for each kernel, and a wrapper in linux-tools-common that starts it.
    Need {
        what: "bpftool for this kernel",
        without: "maps of objects are not compared with its output",
        packages: &["linux-tools-common", "linux-tools-{release}"],
        is_installed: has_bpftool,
    },
    Need {
        what: "Oclgrind",
        without: "kernels are not checked for races and out-of-bounds accesses",
        packages: &["oclgrind"],
        is_installed: || succeeds("oclgrind-kernel", &["--version"]),
    },
    Need {
        what: "QEMU for aarch64 programs",
        without: "the CPU backend's code for aarch64 is not run",
        packages: &["qemu-user"],
        is_installed: || succeeds("qemu-aarch64", &["--version"]),
    },
    Need {
        what: "pip for Python 3",
        without: "NVIDIA's compilers are not fetched",
        packages: &["python3-pip"],
        is_installed: || succeeds("python3", &["-m", "pip", "--version"]),
    },
];

/// Installs what is missing, if permitted. Prints what it does, or why it does nothing; the tests
/// then run with what is available.
pub fn prepare() {
    if !cfg!(target_os = "linux") {
        return;
    }
    for need in NEEDS.iter().filter(|need| !(need.is_installed)()) {
        need.install();
    }
}

impl Need {
    fn install(&self) {
        let Need { what, without, packages, .. } = self;
        let packages: Vec<String> = packages.iter().map(|name| name.replace("{release}", &release())).collect();
        let names = packages.join(" ");
        if !succeeds("apt-get", &["--version"]) {
            println!("No {what}: {without}. Debian has it in {names}.");
            return;
        }
        let prefix: &[&str] = if is_root() {
            &[]
        } else if succeeds("sudo", &["-n", "true"]) {
            &["sudo", "-n"]
        } else {
            println!(
                "No {what}, and no permission to install it: {without}. To install it: sudo apt-get install {names}"
            );
            return;
        };
        println!("No {what}: installing {names} with apt-get.");
        let apt = |arguments: &[&str]| {
            let words: Vec<&str> = prefix
                .iter()
                .chain(&["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"])
                .chain(arguments)
                .copied()
                .collect();
            let status = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).status();
            status.is_ok_and(|s| s.success())
        };
        // The first try fails if the package lists are old or, on a fresh machine, missing.
        let packages = packages.iter().map(String::as_str);
        let install: Vec<&str> =
            ["install", "--yes", "--quiet", "--no-install-recommends"].into_iter().chain(packages).collect();
        let installed = apt(&install) || (apt(&["update", "--quiet"]) && apt(&install));
        if !installed {
            println!("apt-get failed: {without}.");
        }
    }
}

/// Returns the running kernel's release, as `uname -r` prints it.
fn release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// Returns whether bpftool runs: Ubuntu's wrapper fails without the kernel's own.
fn has_bpftool() -> bool {
    succeeds("bpftool", &["version"])
}

/// Returns whether libxdp and its bindings can be built.
pub fn can_build_af_xdp() -> bool {
    let compilers = ["cc", "clang", "m4"].iter().all(|name| succeeds(name, &["--version"]));
    compilers && succeeds("pkg-config", &["--exists", "libelf", "zlib"])
}

/// Returns whether the bindings of DPDK and the C code for its inline functions can be built
/// (`io/dpdk-sys`).
pub fn can_build_dpdk() -> bool {
    let begins = |entry: &std::fs::DirEntry, start: &str| entry.file_name().to_string_lossy().starts_with(start);
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut versions = entries(Path::new("/usr/lib")).filter(|entry| begins(entry, "llvm-"));
    let has_libclang = std::env::var_os("LIBCLANG_PATH").is_some()
        || versions.any(|version| entries(&version.path().join("lib")).any(|file| begins(&file, "libclang.so")));
    has_libclang && succeeds("cc", &["--version"]) && succeeds("pkg-config", &["--exists", "libdpdk >= 22.11"])
}

/// Returns whether libpcap, which compiles expressions, can be linked.
pub fn can_build_pcap() -> bool {
    succeeds("pkg-config", &["--exists", "libpcap"])
}

/// Runs a command without output, and returns whether it succeeds.
pub fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|s| s.success())
}

fn is_root() -> bool {
    // A process owns its own entry in /proc.
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

fn has_library(name: &str) -> bool {
    crate::find_library(name).is_some()
}

/// Returns whether the environment names a driver, or one of these folders has a file with this
/// extension.
fn has_driver(variables: &[&str], folders: &[&str], extension: &str) -> bool {
    let named = variables.iter().any(|name| std::env::var_os(name).is_some());
    named
        || folders.iter().any(|folder| {
            let entries = std::fs::read_dir(Path::new(folder)).into_iter().flatten().flatten();
            entries.into_iter().any(|entry| entry.path().extension().is_some_and(|e| e == extension))
        })
}

/// Looks where the Vulkan loader looks for manifests (LoaderDriverInterface.md, "Driver Discovery
/// on Linux").
fn has_vulkan_driver() -> bool {
    let folders = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"];
    has_driver(&["VK_DRIVER_FILES", "VK_ICD_FILENAMES"], &folders, "json")
}

/// Looks where OpenCL loaders look (cl_khr_icd, "ICD Loader Vendor Enumeration on Linux").
fn has_opencl_driver() -> bool {
    let variables = ["OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "OPENCL_VENDOR_PATH"];
    has_driver(&variables, &["/etc/OpenCL/vendors"], "icd")
}
