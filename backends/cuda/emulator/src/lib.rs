//! An emulated CUDA driver, NVRTC and GDRCopy that run on the CPU, for tests on machines without a
//! GPU.
//!
//! The driver is C++ (`driver/`), compiled when a test first needs it into a folder with the names
//! that programs look for: `libcuda.so.1`, `libnvrtc.so.12` and `libgdrapi.so.2`, all the same
//! library. A program started with that folder in `LD_LIBRARY_PATH` takes it for a GPU's driver.
//! Kernels are compiled by the system's C++ compiler with [`SHIM`] prepended, and run under its
//! undefined-behaviour sanitizer, which ends the process at the first misaligned access, among
//! others.
//!
//! The library has only those functions that Portcullis calls. Misuse ends the process with a
//! message: copies from memory that is not pinned, bytes outside an allocation, handles that are
//! invalid or of another context, memory allocated or freed or code loaded while a kernel waits for
//! the host. The environment variable [`BEHAVIOUR`] makes it fail in ways that drivers do.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// CUDA for a CPU: definitions that every kernel needs.
pub const SHIM: &str = include_str!("shim.cuh");

/// Environment variable that sets the emulated driver's behaviour: a comma-separated list of `NAME`
/// or `NAME=NUMBER`.
///
/// - `arch=90`, `version=12040`, `nvrtc=12040`, `newest=120`: the device's compute capability; the
///   driver's and the compiler's version, in the encoding of `cuDriverGetVersion`; the newest
///   architecture that the compiler knows;
/// - `init=803`, `no-device`, `prohibited`: `cuInit` fails with this code; there is no device; its
///   compute mode is Prohibited;
/// - `memory=BYTES`, `no-pinned-memory`, `pinned=BYTES`, `no-registering`, `registered=BYTES`,
///   `local=BYTES`: size of device memory; pinned allocations fail; most bytes of them; registering
///   host memory fails; most bytes that can be registered; local memory of each thread;
/// - `launch-fails=N`, `hang=N`, `hang-plain`: the N-th launch fails; that launch and all later
///   ones never end; no launch of a kernel for `pipelined` or `inline` ever ends;
/// - `no-gdrcopy`, `window=BYTES`: GDRCopy's module is not loaded; most bytes of device memory that
///   can be mapped;
/// - `no-gpudirect`, `dma-buf`, `unordered`: network cards cannot access device memory; they can by
///   dma-buf; their writes are not ordered for the device;
/// - `pageable`: copies of pageable memory, which a driver stages and waits for, are allowed;
/// - `linger=MILLISECONDS`: the process takes that much longer to exit, with its threads running;
/// - `abort-at-exit`: handlers of `exit` abort the process if a context is left, as drivers crash
///   whose threads use what `exit` destroys;
/// - `report`: at exit, print to standard error how many bytes were copied in each direction, how
///   often remote writes were flushed, and how many cycles kernels have waited by their clock,
///   which advances by 100 whenever it is read;
/// - `count`: count the accesses to maps by `pipelined` and `inline`, for `report`.
pub const BEHAVIOUR: &str = "PORTCULLIS_EMULATED_CUDA";

const THREADS: &str = include_str!("threads.cuh");
const BLOCKS: &str = include_str!("blocks.cuh");
const HEADER: &str = include_str!("../driver/emulator.hpp");
const IDLE: &str = include_str!("../driver/idle.cpp");
const SOURCES: [(&str, &str); 7] = [
    ("device", include_str!("../driver/device.cpp")),
    ("memory", include_str!("../driver/memory.cpp")),
    ("stream", include_str!("../driver/stream.cpp")),
    ("module", include_str!("../driver/module.cpp")),
    ("graph", include_str!("../driver/graph.cpp")),
    ("nvrtc", include_str!("../driver/nvrtc.cpp")),
    ("gdr", include_str!("../driver/gdr.cpp")),
];

/// Why there is no emulated driver.
#[derive(Debug)]
pub enum Unavailable {
    /// This machine has no C++ compiler, or does not run Linux.
    NotSupported(String),
    /// The build failed, which is a bug of the emulator.
    Broken(String),
}

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unavailable::NotSupported(reason) => f.write_str(reason),
            Unavailable::Broken(reason) => write!(f, "the emulated CUDA driver cannot be built: {reason}"),
        }
    }
}

/// Builds the driver below `folder`, unless it is there already, and returns the folder to put into
/// `LD_LIBRARY_PATH`. The driver lacks the functions and files named in `without`.
///
/// # Errors
/// See [`Unavailable`].
pub fn build(folder: &Path, without: &[&str]) -> Result<PathBuf, Unavailable> {
    let sources = (without, SHIM, THREADS, BLOCKS, HEADER, SOURCES);
    build_once(folder, sources, |compiler, aside| compile(compiler, aside, without))
}

/// Builds the idle driver below `folder`, unless it is there already, and returns the folder to put
/// into `LD_LIBRARY_PATH`. Its device does nothing, in no time, so that a benchmark over it
/// measures the host's work alone; verdicts are whatever was in memory before.
///
/// # Errors
/// See [`Unavailable`].
pub fn build_idle(folder: &Path) -> Result<PathBuf, Unavailable> {
    build_once(folder, IDLE, |compiler, aside| {
        fs::create_dir_all(aside).and_then(|()| fs::write(aside.join("idle.cpp"), IDLE)).map_err(broken)?;
        link_library(compiler, aside, &["-O2", "idle.cpp"], &[])
    })
}

/// Builds a driver into a folder whose name has a hash of its sources and of the compiler.
fn build_once(
    folder: &Path,
    sources: impl Hash,
    build: impl FnOnce(&str, &Path) -> Result<(), Unavailable>,
) -> Result<PathBuf, Unavailable> {
    if !cfg!(all(target_os = "linux", target_pointer_width = "64")) {
        return Err(Unavailable::NotSupported("the emulated CUDA driver is for Linux of 64 bits".into()));
    }
    let compiler = ["g++", "c++", "clang++"].into_iter().find(|&name| starts(name));
    let compiler =
        compiler.ok_or_else(|| Unavailable::NotSupported("no g++, c++ or clang++ on this machine".into()))?;
    let mut hasher = DefaultHasher::new();
    (compiler, sources).hash(&mut hasher);
    let made = folder.join(format!("cuda-emulator-{:016x}", hasher.finish()));
    if made.join("libcuda.so.1").exists() {
        return Ok(made);
    }
    // Built in a folder of its own and renamed: another test may be building it too.
    let aside = folder.join(format!("cuda-emulator-{}-{:?}", std::process::id(), std::thread::current().id()));
    let built = build(compiler, &aside).and_then(|()| match fs::rename(&aside, &made) {
        Err(_) if made.exists() => Ok(()),
        done => done.map_err(broken),
    });
    let _ = fs::remove_dir_all(&aside);
    built.map(|()| made)
}

fn broken(what: impl std::fmt::Display) -> Unavailable {
    Unavailable::Broken(what.to_string())
}

fn starts(command: &str) -> bool {
    let run = Command::new(command).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    run.is_ok_and(|status| status.success())
}

fn compile(compiler: &str, folder: &Path, without: &[&str]) -> Result<(), Unavailable> {
    fs::create_dir_all(folder).map_err(broken)?;
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).map_err(broken);
    let constant =
        |name: &str, text: &str| format!("extern const char {name}[];\nconst char {name}[] = R\"cuda({text})cuda\";\n");
    write("emulator.hpp", HEADER)?;
    write("strings.cpp", &(constant("SHIM", &format!("{SHIM}{THREADS}")) + &constant("BLOCKS", BLOCKS)))?;
    let hidden: String = without.iter().filter(|name| !name.contains('.')).map(|name| format!("{name}; ")).collect();
    let hidden = if hidden.is_empty() { String::new() } else { format!("local: {hidden}") };
    write("exports", &format!("{{ global: cu*; nvrtc*; gdr_*; portcullis_emulated_driver; {hidden}}};\n"))?;
    let mut files = vec!["-O1".to_owned(), "-Wl,--version-script=exports".to_owned(), "strings.cpp".to_owned()];
    for (name, text) in SOURCES {
        write(&format!("{name}.cpp"), text)?;
        files.push(format!("{name}.cpp"));
    }
    link_library(compiler, folder, &files.iter().map(String::as_str).collect::<Vec<_>>(), without)
}

/// Compiles a driver library in its folder and gives it the names that programs look for.
fn link_library(compiler: &str, folder: &Path, files: &[&str], without: &[&str]) -> Result<(), Unavailable> {
    let mut all = Command::new(compiler);
    all.current_dir(folder).args(["-std=c++17", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden"]);
    let output = all.args(["-pthread", "-o", "libcuda.so.1"]).args(files).arg("-ldl").output().map_err(broken)?;
    if !output.status.success() {
        return Err(broken(String::from_utf8_lossy(&output.stderr)));
    }
    // All names that are searched for, so that no other library is found first.
    let names = ["libcuda.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "libgdrapi.so.2", "libgdrapi.so"];
    for name in names.into_iter().filter(|name| !without.contains(name)) {
        link(&folder.join(name)).map_err(broken)?;
    }
    Ok(())
}

#[cfg(unix)]
fn link(at: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink("libcuda.so.1", at)
}

#[cfg(not(unix))]
fn link(_: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}
