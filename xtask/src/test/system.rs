//! What the tests need of the system, and getting it on Debian.

use std::path::Path;
use std::process::{Command, Stdio};

/// Something that tests need and that packages have.
struct Need {
    what: &'static str,
    /// Consequence if it is missing.
    without: &'static str,
    /// Debian's packages; `{release}` is the running kernel's.
    packages: &'static [&'static str],
    is_there: fn() -> bool,
}

/// In software, so that they run on any machine.
const NEEDS: [Need; 14] = [
    Need {
        what: "Vulkan driver",
        without: "the wgpu device is missing",
        packages: &["mesa-vulkan-drivers", "libvulkan1"],
        is_there: || has_library("libvulkan.so.1") && has_vulkan_driver(),
    },
    Need {
        what: "OpenCL driver",
        without: "the opencl device is missing",
        packages: &["pocl-opencl-icd", "ocl-icd-libopencl1"],
        is_there: || has_library("libOpenCL.so.1") && has_opencl_driver(),
    },
    Need {
        what: "C++ compiler",
        without: "there is no emulated CUDA device, and generated C is not run",
        packages: &["g++"],
        is_there: || ["g++", "c++", "clang++"].iter().any(|name| quiet(name, &["--version"])),
    },
    Need {
        what: "compilers and headers for AF_XDP",
        without: "live traffic by AF_XDP is neither built nor tested",
        packages: &["gcc", "clang", "m4", "make", "pkg-config", "libelf-dev", "zlib1g-dev"],
        is_there: can_build_af_xdp,
    },
    Need {
        what: "DPDK",
        without: "live traffic by DPDK is neither built nor tested",
        packages: &["libdpdk-dev", "dpdk", "gcc", "libclang-dev", "pkg-config"],
        is_there: can_build_dpdk,
    },
    Need {
        what: "tools for networks",
        without: "live traffic is not tested",
        packages: &["iproute2", "ethtool", "iptables"],
        is_there: || {
            ["ip", "ethtool", "iptables-legacy"].iter().all(|name| quiet(name, &["--version"]) || quiet(name, &["-V"]))
        },
    },
    Need {
        what: "peers for live traffic",
        without: "the program is not tested between curl and a server, and between two iperf3",
        packages: &["curl", "iperf3"],
        is_there: || ["curl", "iperf3"].iter().all(|name| quiet(name, &["--version"])),
    },
    Need {
        what: "tcpdump and libpcap",
        without: "expressions are neither compiled nor held to tcpdump",
        packages: &["tcpdump", "libpcap-dev", "pkg-config"],
        is_there: || quiet("tcpdump", &["--version"]) && can_build_pcap(),
    },
    Need {
        what: "clang and headers for programs of XDP",
        without: "objects are not held to the kernel",
        packages: &["clang", "libbpf-dev", "linux-libc-dev"],
        is_there: || quiet("clang", &["--version"]) && Path::new("/usr/include/bpf/bpf_helpers.h").exists(),
    },
    Need {
        what: "bpftool",
        without: "maps of objects are not held to what it prints",
        packages: &["bpftool"],
        is_there: has_bpftool,
    },
    // Ubuntu has one for each kernel, and by the name above what starts that.
    Need {
        what: "bpftool for this kernel",
        without: "maps of objects are not held to what it prints",
        packages: &["linux-tools-common", "linux-tools-{release}"],
        is_there: has_bpftool,
    },
    Need {
        what: "Oclgrind",
        without: "kernels are not looked at for races and accesses out of bounds",
        packages: &["oclgrind"],
        is_there: || quiet("oclgrind-kernel", &["--version"]),
    },
    Need {
        what: "QEMU for programs of aarch64",
        without: "the CPU's code for Arm's processors is not run",
        packages: &["qemu-user"],
        is_there: || quiet("qemu-aarch64", &["--version"]),
    },
    Need {
        what: "pip for Python 3",
        without: "NVIDIA's compilers are not fetched",
        packages: &["python3-pip"],
        is_there: || quiet("python3", &["-m", "pip", "--version"]),
    },
];

/// Installs what is missing where it may. What it does, or why it does nothing, is printed: the
/// tests then run with what is there.
pub fn prepare() {
    if !cfg!(target_os = "linux") {
        return;
    }
    for need in NEEDS.iter().filter(|need| !(need.is_there)()) {
        need.install();
    }
}

impl Need {
    fn install(&self) {
        let Need { what, without, packages, .. } = self;
        let packages: Vec<String> = packages.iter().map(|name| name.replace("{release}", &release())).collect();
        let names = packages.join(" ");
        if !quiet("apt-get", &["--version"]) {
            println!("No {what}: without one {without}. Debian has it in {names}.");
            return;
        }
        let prefix: &[&str] = if is_root() {
            &[]
        } else if quiet("sudo", &["-n", "true"]) {
            &["sudo", "-n"]
        } else {
            println!("No {what}, and no right to install one: {without}. To have it: sudo apt-get install {names}");
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
        // The lists of packages may be old, so that the first try fails; a fresh machine has none.
        let packages = packages.iter().map(String::as_str);
        let install: Vec<&str> =
            ["install", "--yes", "--quiet", "--no-install-recommends"].into_iter().chain(packages).collect();
        let installed = apt(&install) || (apt(&["update", "--quiet"]) && apt(&install));
        if !installed {
            println!("That did not work: {without}.");
        }
    }
}

/// The running kernel's release, as `uname -r` says it.
fn release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// Whether there is one that runs: Ubuntu's looks for the kernel's first.
fn has_bpftool() -> bool {
    quiet("bpftool", &["version"])
}

/// Whether there is what builds libxdp and its bindings.
pub fn can_build_af_xdp() -> bool {
    let compilers = ["cc", "clang", "m4"].iter().all(|name| quiet(name, &["--version"]));
    compilers && quiet("pkg-config", &["--exists", "libelf", "zlib"])
}

/// Whether there is what builds the declarations of DPDK and the C for what is inline there
/// (`io/dpdk-sys`).
pub fn can_build_dpdk() -> bool {
    let begins = |entry: &std::fs::DirEntry, start: &str| entry.file_name().to_string_lossy().starts_with(start);
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut versions = entries(Path::new("/usr/lib")).filter(|entry| begins(entry, "llvm-"));
    let has_libclang = std::env::var_os("LIBCLANG_PATH").is_some()
        || versions.any(|version| entries(&version.path().join("lib")).any(|file| begins(&file, "libclang.so")));
    has_libclang && quiet("cc", &["--version"]) && quiet("pkg-config", &["--exists", "libdpdk >= 22.11"])
}

/// Whether there is the library that compiles expressions.
pub fn can_build_pcap() -> bool {
    quiet("pkg-config", &["--exists", "libpcap"])
}

/// Whether a command runs and succeeds; what it prints is thrown away.
pub fn quiet(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|s| s.success())
}

fn is_root() -> bool {
    // The owner of one's own entry in /proc is oneself.
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

fn has_library(name: &str) -> bool {
    crate::find_library(name).is_some()
}

/// Whether the environment names any driver, or a folder of these has a file with this ending.
fn has_driver(variables: &[&str], folders: &[&str], ending: &str) -> bool {
    let named = variables.iter().any(|name| std::env::var_os(name).is_some());
    named
        || folders.iter().any(|folder| {
            let entries = std::fs::read_dir(Path::new(folder)).into_iter().flatten().flatten();
            entries.into_iter().any(|entry| entry.path().extension().is_some_and(|e| e == ending))
        })
}

/// Where the Vulkan loader looks for manifests (LoaderDriverInterface.md, "Driver Discovery on
/// Linux").
fn has_vulkan_driver() -> bool {
    let folders = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"];
    has_driver(&["VK_DRIVER_FILES", "VK_ICD_FILENAMES"], &folders, "json")
}

/// Where OpenCL's loaders look (cl_khr_icd, "ICD Loader Vendor Enumeration on Linux").
fn has_opencl_driver() -> bool {
    let variables = ["OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "OPENCL_VENDOR_PATH"];
    has_driver(&variables, &["/etc/OpenCL/vendors"], "icd")
}
