//! Finds DPDK, compiles the C shim, and generates bindings.

use std::path::{Path, PathBuf};
use std::{env, fs, process};

/// The oldest supported DPDK, because of gpudev: that of Debian 12.
const OLDEST: &str = "22.11";

pub fn main() {
    for file in [
        "build.rs",
        "build/link.rs",
        "c/split.h",
        "c/dpdk.h",
        "c/shim.h",
        "c/shim.c",
        "c/gpudev.h",
        "c/gpudev.c",
        "c/split.c",
    ] {
        println!("cargo::rerun-if-changed={file}");
    }
    for variable in ["LIBCLANG_PATH", "PKG_CONFIG_PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let dpdk = pkg_config::Config::new().atleast_version(OLDEST).cargo_metadata(false).probe("libdpdk");
    let dpdk = dpdk.unwrap_or_else(|error| {
        fail(&format!(
            "DPDK {OLDEST} or newer is needed, with its headers (Debian: libdpdk-dev; if built from source: set \
             PKG_CONFIG_PATH to the folder of libdpdk.pc).\n{error}"
        ))
    });
    println!("cargo::metadata=version={}", dpdk.version);

    // Flags of `pkg-config --cflags` other than folders: `-include rte_config.h`, and the CPU that
    // DPDK was built for, whose instructions its inline functions use.
    let flags = pkg_config_flags();
    let mut shim = cc::Build::new();
    shim.files(["c/shim.c", "c/gpudev.c", "c/split.c"])
        .includes(&dpdk.include_paths)
        .flag_if_supported("-Wno-deprecated-declarations");
    // Fail on functions that a release of DPDK lacks, or declares in another header.
    shim.flag_if_supported("-Werror=implicit-function-declaration");
    for flag in &flags {
        shim.flag(flag);
    }
    shim.define("ALLOW_EXPERIMENTAL_API", None).compile("portcullis_dpdk");

    // After the shim, which needs these libraries. DPDK loads the drivers itself, from its own
    // folder.
    for folder in &dpdk.link_paths {
        println!("cargo::rustc-link-search=native={}", folder.display());
    }
    for library in ["rte_eal", "rte_ethdev", "rte_mbuf", "rte_mempool", "rte_ring", "rte_gpudev", "rte_kvargs"] {
        println!("cargo::rustc-link-lib=dylib={library}");
    }

    let mut bindings = bindgen::Builder::default()
        .header("c/dpdk.h")
        .clang_args(dpdk.include_paths.iter().map(|path| format!("-I{}", path.display())))
        .clang_args(&flags)
        .clang_arg("-DALLOW_EXPERIMENTAL_API")
        // Only the shim accesses mbufs: their layout depends on the release.
        .opaque_type("rte_mbuf")
        .opaque_type("rte_mempool")
        .allowlist_function(FUNCTIONS)
        .allowlist_function("pc_.*")
        .allowlist_type("pc_.*")
        .allowlist_var("RTE_(ETH_NAME_MAX_LEN|PKTMBUF_HEADROOM|GPU_.*)|pc_.*|PC_.*")
        .default_enum_style(bindgen::EnumVariation::ModuleConsts)
        .prepend_enum_name(false)
        .layout_tests(false)
        .generate_comments(false)
        .derive_default(true)
        .detect_include_paths(false);
    // The compiler headers must match the libclang that reads them: with others its intrinsics are
    // unknown.
    if let Some(clang) = Clang::find() {
        if env::var_os("LIBCLANG_PATH").is_none() {
            // SAFETY: the build script has a single thread.
            unsafe { env::set_var("LIBCLANG_PATH", &clang.library) };
        }
        bindings = bindings.clang_arg("-isystem").clang_arg(clang.headers.display().to_string());
    } else {
        bindings = bindings.detect_include_paths(true);
    }
    let made = bindings.generate().unwrap_or_else(|error| {
        fail(&format!(
            "libclang cannot read DPDK's headers (Debian: install libclang-dev, or set LIBCLANG_PATH):\n{error}"
        ))
    });
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("bindings.rs");
    made.write_to_file(out).expect("OUT_DIR is writable");
}

/// The DPDK functions to bind; none of them is inline.
const FUNCTIONS: &str = "rte_(eal_(init|cleanup|has_hugepages|iova_mode|get_runtime_dir)|strerror|version|openlog_stream|log_set_global_level\
    |thread_(register|unregister)|socket_id|malloc_socket|free|dev_probe|dev_remove|dev_devargs|dev_bus|bus_name\
    |eth_dev_(count_avail|get_port_by_name|get_name_by_port|info_get|configure|adjust_nb_rx_tx_desc|start|stop|close|is_valid_port|set_mtu|get_mtu|socket_id)\
    |eth_(rx_queue_setup|tx_queue_setup|promiscuous_enable|stats_get|stats_reset|link_get_nowait|macaddr_get|find_next_owned_by)\
    |pktmbuf_(pool_create|pool_create_extbuf)|mempool_(free|avail_count|in_use_count)\
    |extmem_(register|unregister)|dev_dma_(map|unmap)\
    |gpu_(init|count_avail|is_valid|find_next|close|info_get|mem_alloc|mem_free|mem_register|mem_unregister|mem_cpu_map|mem_cpu_unmap|wmb\
    |comm_(create|destroy|populate|cleanup|set|get).*))";

/// A libclang and its compiler headers.
struct Clang {
    /// Folder of the library.
    library: PathBuf,
    headers: PathBuf,
}

impl Clang {
    /// Finds the one that LIBCLANG_PATH names, or the newest one with headers.
    fn find() -> Option<Clang> {
        if let Some(named) = env::var_os("LIBCLANG_PATH") {
            let named = PathBuf::from(named);
            let folder = if named.is_file() { named.parent()?.to_owned() } else { named };
            return Clang::at(&folder.canonicalize().ok()?);
        }
        let version = |path: &Path| path.file_name()?.to_str()?.strip_prefix("llvm-")?.parse::<u32>().ok();
        let mut folders: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib")
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter_map(|path| Some((version(&path)?, path)))
            .collect();
        folders.sort();
        folders.into_iter().rev().find_map(|(_, path)| Clang::at(&path.join("lib")))
    }

    fn at(folder: &Path) -> Option<Clang> {
        let files =
            |folder: &Path| fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        let is_library = |path: &PathBuf| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| {
                name.starts_with("libclang.so") || name.starts_with("libclang-") && name.contains(".so")
            })
        };
        files(folder).find(is_library)?;
        let headers = files(&folder.join("clang")).map(|version| version.join("include"));
        let headers = headers.filter(|headers| headers.join("stddef.h").is_file()).max()?;
        Some(Clang { library: folder.to_owned(), headers })
    }
}

/// Compiler flags other than folders and definitions.
fn pkg_config_flags() -> Vec<String> {
    let output = process::Command::new(env::var_os("PKG_CONFIG").unwrap_or("pkg-config".into()))
        .args(["--cflags-only-other", "libdpdk"])
        .output();
    let output = output.unwrap_or_else(|error| fail(&format!("cannot run pkg-config: {error}")));
    String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect()
}

fn fail(what: &str) -> ! {
    println!("cargo::error={}", what.replace('\n', " "));
    process::exit(1)
}
