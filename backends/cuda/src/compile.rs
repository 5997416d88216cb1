//! From a program to the code that runs it.
//!
//! The filter becomes CUDA C++, which NVRTC makes machine code of, for the very architecture of the
//! device. What it made is kept. Where it knows no such architecture it makes PTX, for the driver to
//! translate. And where there is no NVRTC at all, the folder that [`CUBINS`] names may have what was
//! made elsewhere.

use std::ffi::{CString, c_int, c_void};
use std::fmt;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUfunc_st, CUfunction, CUfunction_attribute, CUmod_st};
use portcullis_c_writer::{Argument, EntryKind, Language, Options, PacketAccess, WriteError};
use portcullis_cache::Cache;
use portcullis_core::device::offload::{self, KernelEffects};
use portcullis_core::device::{CancelToken, DeviceError, Dispatch, LoadOptions};
use portcullis_core::map::declaration::MAX_MAPS;
use portcullis_core::program::Program;

use crate::api::{Code, check};
use crate::context::{Context, Handle};
use crate::device::{Gpu, Stream};
use crate::maps::Maps;
use crate::nvrtc::{Nvrtc, Output};
use crate::probe::CudaDevice;
use crate::wait;

/// Names a folder of cubins that were made elsewhere, which are looked for before anything is
/// compiled: see [`CubinSource`].
pub const CUBINS: &str = "PORTCULLIS_CUBINS";

/// Threads in a block, for which the kernels are compiled, where nobody has said how many.
pub(crate) const BLOCK: u32 = 256;

/// The name of the function that filters a packet.
const FUNCTION: &str = "pc_filter_packet";

/// Longest part of a compiler's messages that is shown, in bytes.
const LOG: usize = 4096;

/// Arguments of a kernel at most, a word of 64 bits each: the packets' and the launch's, and the addresses of all maps, which
/// kernels that stay have as one argument.
pub(crate) const MOST_ARGUMENTS: usize = 7 + MAX_MAPS;

/// Who makes the code for a device, and of what kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// NVRTC, machine code for this architecture.
    Machine { version: (i32, i32), arch: i32 },
    /// NVRTC, PTX for this architecture, which the driver translates.
    Intermediate { version: (i32, i32), arch: i32, device: i32 },
    /// Nobody, for this reason: what is in the folder.
    Prebuilt { folder: PathBuf, arch: i32, reason: String },
}

impl Target {
    /// For a device of this architecture and a driver of this version of CUDA's.
    ///
    /// # Errors
    /// Why there can be no code, and what to do.
    pub fn of(arch: i32, driver: (i32, i32)) -> Result<Target, String> {
        let compiled = Nvrtc::get(driver.0).and_then(|nvrtc| Target::with(nvrtc.version, &nvrtc.archs, arch, driver));
        compiled.or_else(|reason| match std::env::var_os(CUBINS) {
            Some(folder) => Ok(Target::Prebuilt { folder: folder.into(), arch, reason }),
            None => Err(format!("{reason}; or name a folder of prebuilt filters in {CUBINS}")),
        })
    }

    fn with(version: (i32, i32), archs: &[i32], arch: i32, driver: (i32, i32)) -> Result<Target, String> {
        let (major, minor) = version;
        if archs.contains(&arch) {
            return Ok(Target::Machine { version, arch });
        }
        let Some(&below) = archs.iter().filter(|&&known| known <= arch).max() else {
            let first = archs.first().copied().unwrap_or_default();
            return Err(format!(
                "NVRTC {major}.{minor} makes no code for compute capability {}, and begins with {}: install an older one",
                capability(arch),
                capability(first)
            ));
        };
        // PTX of a compiler's own version is taken by drivers of that version on.
        if version > driver {
            return Err(format!(
                "NVRTC {major}.{minor} does not know compute capability {}, and its PTX is too new for the driver (CUDA \
                 {}.{}): update the driver, or install an NVRTC of the driver's version",
                capability(arch),
                driver.0,
                driver.1
            ));
        }
        Ok(Target::Intermediate { version, arch: below, device: arch })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Machine { version, arch } => write!(f, "NVRTC {}.{}, code for sm_{arch}", version.0, version.1),
            Target::Intermediate { version, arch, device } => write!(
                f,
                "NVRTC {}.{}, which does not know sm_{device}: the driver translates its PTX for compute_{arch}; a newer \
                 NVRTC makes better code",
                version.0, version.1
            ),
            Target::Prebuilt { folder, arch, reason } => {
                write!(f, "none ({reason}); filters that {} has for sm_{arch} can be run", folder.display())
            }
        }
    }
}

fn capability(arch: i32) -> String {
    format!("{}.{}", arch / 10, arch % 10)
}

/// A filter in CUDA C++, for one way of handing batches to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub text: String,
    /// The kernel's name.
    pub entry: &'static str,
    /// Threads in a block, for which it is written.
    pub block: u32,
    /// Its arguments, where it is the writer's own kernel.
    pub arguments: Vec<Argument>,
    pub effects: KernelEffects,
}

impl Source {
    /// With `block` threads in a block of the writer's own kernel; what the other ways share out they count on
    /// [`BLOCK`] for. Each packet keeps its thread for so many cycles more, where there are any.
    pub fn new(
        program: &Program,
        dispatch: Dispatch,
        block: u32,
        work: Option<NonZeroU64>,
    ) -> Result<Source, WriteError> {
        let own = matches!(dispatch, Dispatch::Inline | Dispatch::Pipelined);
        let block = if own { block } else { BLOCK };
        // Packets that do not begin at multiples of 4 bytes are packed so that they do.
        let epilogue = work.map(busy);
        let options = Options {
            packet_access: PacketAccess::AlignedWords,
            group_size: Some(block),
            epilogue,
            ..Options::new(Language::Cuda)
        };
        let options = match own {
            true => options,
            false => Options { entry_kind: EntryKind::Function, entry: FUNCTION.into(), ..options },
        };
        let kernel = portcullis_c_writer::write(program, &options)?;
        let effects = kernel.effects();
        let (entry, parts): (_, &[&str]) = match dispatch {
            Dispatch::Inline | Dispatch::Pipelined => ("xdp_kernel", &[]),
            Dispatch::Persistent => ("pc_persistent", &[ENTRIES, include_str!("dispatch/persistent.cu")]),
            Dispatch::WaitValue => ("pc_waitvalue", &[ENTRIES, include_str!("dispatch/waitvalue.cu")]),
            Dispatch::Graph => ("pc_graph", &[include_str!("dispatch/graph.cu")]),
        };
        let mut text = kernel.source;
        if !own {
            let flag = |name: &str, value: bool| format!("#define PC_{name} {}\n", i32::from(value));
            text += "\n";
            text += &flag("SEES", effects.accesses_packets);
            text += &flag("WRITES", effects.writes_packets);
            text += &flag("MOVES", effects.resizes_packets);
            text += &flag("METADATA", effects.metadata);
            text += &flag("REDIRECTS", effects.redirects);
            text += &flag("MAPS", !program.maps().is_empty());
            text += &format!("#define PC_MOST_MAPS {MAX_MAPS}\n");
            text += include_str!("dispatch/slots.cu");
        }
        parts.iter().for_each(|part| text += part);
        Ok(Source { text, entry, block, arguments: kernel.arguments, effects })
    }
}

/// A statement that takes so many cycles, in a scope of its own.
fn busy(cycles: NonZeroU64) -> String {
    format!("{{ long long pc_began = clock64(); while (clock64() - pc_began < {cycles}ll) {{}} }}")
}

const ENTRIES: &str = include_str!("dispatch/entries.cu");

/// What NVRTC is told: the architecture, the language, and to keep products and sums apart, as other
/// devices do.
fn options(arch: i32, output: Output) -> Vec<String> {
    let kind = if output == Output::Cubin { "sm" } else { "compute" };
    vec![format!("--gpu-architecture={kind}_{arch}"), "--std=c++17".into(), "--fmad=false".into()]
}

/// A filter to be compiled ahead, for machines that have a GPU's driver and no NVRTC.
///
/// What NVRTC makes of the source with these options goes into a file of this name, in a folder that
/// the environment variable `PORTCULLIS_CUBINS` names where the filter is to run. The name says which
/// source and which architecture, and not which NVRTC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CubinSource {
    /// How batches are handed to the filter that this is for; `pipelined` is for `inline` as well.
    pub dispatch: Dispatch,
    /// The source, in CUDA C++.
    pub source: String,
    /// What NVRTC is to be told.
    pub options: Vec<String>,
    /// The file's name.
    pub file_name: String,
}

impl CubinSource {
    /// What goes into the file, by the NVRTC of this machine. No GPU is needed.
    ///
    /// # Errors
    /// There is no NVRTC, or its own words.
    pub fn compile(&self) -> Result<Vec<u8>, String> {
        nvrtc()?.compile(&self.file_name, &self.source, &self.options, Output::Cubin)
    }

    /// The same as PTX, for tools that look at it.
    ///
    /// # Errors
    /// As for [`compile`](Self::compile).
    pub fn ptx(&self) -> Result<Vec<u8>, String> {
        let options = self.options.iter().map(|option| option.replace("=sm_", "=compute_"));
        nvrtc()?.compile(&self.file_name, &self.source, &options.collect::<Vec<_>>(), Output::Ptx)
    }
}

/// The version of the NVRTC of this machine, major and minor.
///
/// # Errors
/// There is none; what to install.
pub fn nvrtc_version() -> Result<(i32, i32), String> {
    Ok(nvrtc()?.version)
}

/// NVRTC without regard to any driver: that of the version that has been current for longest.
fn nvrtc() -> Result<&'static Nvrtc, String> {
    Nvrtc::get(12)
}

/// What a program needs for GPUs of an architecture, 90 for compute capability 9.0: a file for each
/// dispatch method that it can be run by.
///
/// # Errors
/// Where the filter has something in it that cannot be written in CUDA C++.
pub fn cubins(program: &Program, arch: u32) -> Result<Vec<CubinSource>, DeviceError> {
    let arch = arch as i32;
    let one = |dispatch| {
        let source = Source::new(program, dispatch, BLOCK, None).map_err(|error| not_written("cuda", error))?;
        Ok(CubinSource {
            dispatch,
            options: options(arch, Output::Cubin),
            file_name: file_name(&source.text, arch),
            source: source.text,
        })
    };
    let methods = [Dispatch::Pipelined, Dispatch::Persistent, Dispatch::WaitValue, Dispatch::Graph];
    // The other methods' kernels take packets side by side, and refuse flows.
    let methods = if program.has_flows() { &methods[..1] } else { &methods[..] };
    methods.iter().copied().map(one).collect()
}

/// `HASH-sm_90.cubin`, of the source and of what all architectures are compiled with.
fn file_name(source: &str, arch: i32) -> String {
    let text = format!("{}\n{}", options(0, Output::Cubin).join(" "), nameless(source));
    // FNV-1a of 128 bits (RFC 9923).
    let prime = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let start = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    let hash = text.bytes().fold(start, |hash: u128, byte| (hash ^ u128::from(byte)).wrapping_mul(prime));
    format!("{hash:032x}-sm_{arch}.cubin")
}

/// The source without its first line, a comment with the filter's name in it: what a filter is called changes nothing.
fn nameless(source: &str) -> &str {
    source.split_once('\n').map_or(source, |(_, rest)| rest)
}

/// A program's code on a device.
pub(crate) struct Loaded {
    pub kernel: Kernel,
    pub arguments: Vec<Argument>,
    pub effects: KernelEffects,
    pub maps: Maps,
}

/// Opens the device and compiles the program for it, for one dispatch method, whatever the options say of that.
pub(crate) fn load(
    device: &CudaDevice,
    program: &Arc<Program>,
    dispatch: Dispatch,
    options: &LoadOptions,
) -> Result<(Arc<Gpu>, Loaded), DeviceError> {
    let id = portcullis_core::device::Device::info(device).id.clone();
    let work = options.synthetic_work_ns(&id)?.map(|nanos| device.cycles(nanos));
    let (device, program, token) = (device.clone(), program.clone(), options.cancel.clone());
    offload::compile_on_thread(&id.clone(), &options.cancel, move || {
        let source = Source::new(&program, dispatch, device.block(), work).map_err(|error| not_written(&id, error))?;
        let gpu = Arc::new(device.open(dispatch, &token)?);
        let target = Target::of(device.arch(), device.version());
        let target = target.map_err(|reason| DeviceError::Unsupported { device: id.clone(), reason })?;
        let kernel = build(&gpu, &device, &program.source().name, &source, &target, Cache::open("cuda").as_ref())?;
        kernel.warm(&gpu, &token)?;
        let maps = Maps::new(&gpu, program.maps(), &token)?;
        Ok((gpu, Loaded { kernel, arguments: source.arguments, effects: source.effects, maps }))
    })
}

/// A kernel that somebody wrote by hand, for benches.
pub(crate) fn by_hand(
    gpu: &Gpu,
    device: &CudaDevice,
    text: String,
    entry: &'static str,
    block: u32,
) -> Result<Kernel, DeviceError> {
    let source = Source { text, entry, block, arguments: Vec::new(), effects: KernelEffects::default() };
    let target = Target::of(device.arch(), device.version());
    let target = target.map_err(|reason| DeviceError::Unsupported { device: gpu.id.clone(), reason })?;
    build(gpu, device, entry, &source, &target, Cache::open("cuda").as_ref())
}

fn not_written(device: &str, error: WriteError) -> DeviceError {
    let (device, reason) = (device.to_owned(), error.to_string());
    match error {
        WriteError::Unsupported(_) => DeviceError::Unsupported { device, reason },
        WriteError::Failed(_) => DeviceError::Failed { device, reason },
    }
}

/// The kernel: prebuilt, from the cache, or compiled now.
fn build(
    gpu: &Gpu,
    device: &CudaDevice,
    name: &str,
    source: &Source,
    target: &Target,
    cache: Option<&Cache>,
) -> Result<Kernel, DeviceError> {
    // A binary that the driver does not take, or not any more, is no fault of anybody's; that it cannot be asked is.
    let taken = |binary: &[u8]| match Kernel::load(&gpu.context, binary, source) {
        Ok(kernel) => Ok(Some(kernel)),
        Err(code @ Code(..0)) => Err(gpu.failed("cannot be used", code)),
        Err(_) => Ok(None),
    };
    for binary in prebuilt(device.arch(), source) {
        if let Some(kernel) = taken(&binary)? {
            return Ok(kernel);
        }
    }
    let (version, arch, output) = match target {
        Target::Machine { version, arch } => (*version, *arch, Output::Cubin),
        Target::Intermediate { version, arch, .. } => (*version, *arch, Output::Ptx),
        Target::Prebuilt { folder, arch, reason } => {
            return Err(gpu.gave_up(format!(
                "{reason}; and {} does not have the filter as {}, nor for an earlier GPU of this generation",
                folder.display(),
                file_name(&source.text, *arch)
            )));
        }
    };
    let options = options(arch, output);
    // Everything that the binary depends on. The driver translates PTX anew each time, and keeps that.
    let key = format!("NVRTC {}.{}\n{}\n{}", version.0, version.1, options.join(" "), nameless(&source.text));
    let cached = cache.and_then(|cache| cache.get(key.as_bytes()));
    if let Some(kernel) = cached.map(|binary| taken(&binary)).transpose()?.flatten() {
        return Ok(kernel);
    }
    let nvrtc = Nvrtc::get(device.version().0).map_err(|reason| gpu.gave_up(reason))?;
    let made = nvrtc.compile(name, &source.text, &options, output);
    let binary = made.map_err(|log| gpu.gave_up(shortened(&log)))?;
    let kernel = Kernel::load(&gpu.context, &binary, source).map_err(|code| {
        let hint = match code {
            Code::INVALID_IMAGE | Code::NO_BINARY_FOR_GPU | Code::UNSUPPORTED_PTX_VERSION | Code::INVALID_PTX
                if version.0 > device.version().0 =>
            {
                format!(
                    "; the driver is one for CUDA {}.{}, and NVRTC is {}.{}: update the driver, or install an NVRTC of \
                     its version",
                    device.version().0,
                    device.version().1,
                    version.0,
                    version.1
                )
            }
            Code::JIT_COMPILER_NOT_FOUND => {
                "; the driver's PTX compiler is not installed (libnvidia-ptxjitcompiler.so.1): install it, or an NVRTC \
                 that knows this GPU"
                    .into()
            }
            Code(..0) => return gpu.failed("cannot be used", code),
            _ => String::new(),
        };
        gpu.gave_up(format!("the driver does not take the filter that NVRTC has compiled: {code}{hint}"))
    })?;
    if let Some(cache) = cache {
        cache.put(key.as_bytes(), &binary);
    }
    Ok(kernel)
}

/// What the folder of prebuilt ones has, the best first. Code for an earlier architecture of the same generation
/// runs as well.
fn prebuilt(arch: i32, source: &Source) -> impl Iterator<Item = Vec<u8>> + '_ {
    let folder = std::env::var_os(CUBINS).map(PathBuf::from);
    folder.into_iter().flat_map(move |folder| {
        let archs = (arch / 10 * 10..=arch).rev();
        archs.filter_map(move |arch| std::fs::read(folder.join(file_name(&source.text, arch))).ok())
    })
}

fn shortened(log: &str) -> String {
    let end = (0..=LOG.min(log.len())).rev().find(|&at| log.is_char_boundary(at)).unwrap_or(0);
    let more = if end < log.len() { "\n…" } else { "" };
    format!("{}{more}", &log[..end])
}

/// A kernel in the device's code.
#[derive(Debug)]
pub(crate) struct Kernel {
    function: Handle<CUfunc_st>,
    module: Handle<CUmod_st>,
    /// Threads in a block.
    block: u32,
    context: Arc<Context>,
}

impl Kernel {
    fn load(context: &Arc<Context>, image: &[u8], source: &Source) -> Result<Kernel, Code> {
        if !is_whole(image) {
            return Err(Code::INVALID_IMAGE);
        }
        let (_quiet, driver) = (context.quiet()?, context.driver);
        let mut module = ptr::null_mut();
        // SAFETY: room for a module, an image that is whole, and no options.
        check(unsafe {
            (driver.cuModuleLoadDataEx)(&mut module, image.as_ptr().cast(), 0, ptr::null_mut(), ptr::null_mut())
        })?;
        let (function, block) = (Handle(ptr::null_mut()), source.block);
        let mut kernel = Kernel { function, module: Handle(module), block, context: context.clone() };
        let entry = CString::new(source.entry).map_err(|_| Code::INVALID_VALUE)?;
        // SAFETY: room for a function; the module was loaded above, and the name ends in a zero.
        check(unsafe { (driver.cuModuleGetFunction)(&mut kernel.function.0, module, entry.as_ptr()) })?;
        Ok(kernel)
    }

    /// Launches it once over nothing. Drivers load a kernel's code, and make room for its arrays, when it is first
    /// launched, and may wait for the device then.
    fn warm(&self, gpu: &Arc<Gpu>, cancel: &CancelToken) -> Result<(), DeviceError> {
        let failed = |code: Code| match code {
            Code::OUT_OF_MEMORY => gpu.gave_up(format!(
                "has no memory for the filter's own arrays and variables, {} bytes for each packet that is filtered at \
                 a time: {code}",
                self.local_bytes()
            )),
            _ => gpu.failed("does not launch the filter", code),
        };
        let quiet = self.context.quiet().map_err(failed)?;
        // Zeros for whatever arguments there are: no packets, and nowhere to look for any.
        let mut zeros = [0_u64; MOST_ARGUMENTS];
        let mut arguments: [*mut c_void; MOST_ARGUMENTS] = [zeros.as_mut_ptr().cast(); MOST_ARGUMENTS];
        // SAFETY: kernels take fewer arguments, none of which is longer: the longest has all maps' addresses. Told of no packets,
        // or of no memory, they end.
        unsafe { self.launch(1, &mut arguments, &gpu.kernels) }.map_err(failed)?;
        // The driver has done what it does at a first launch.
        drop(quiet);
        let end = gpu.kernels.record().map_err(failed)?;
        let ended = wait::until(&gpu.id, cancel, || end.has_come().map_err(failed));
        if ended.is_err() {
            gpu.abandon(end, || ());
        }
        ended
    }

    /// Bytes of memory that a thread has to itself.
    fn local_bytes(&self) -> i32 {
        let mut bytes = 0;
        let what = CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
        // SAFETY: room for a number; the function is the module's, which is loaded.
        unsafe { (self.context.driver.cuFuncGetAttribute)(&mut bytes, what, self.function()) };
        bytes
    }

    pub fn function(&self) -> CUfunction {
        self.function.get()
    }

    /// Blocks that a multiprocessor holds at once.
    pub fn blocks_each(&self) -> Result<u32, Code> {
        let _here = self.context.enter()?;
        let mut blocks = 0;
        let ask = self.context.driver.cuOccupancyMaxActiveBlocksPerMultiprocessor;
        // SAFETY: room for a number; the function is the module's, which is loaded.
        check(unsafe { ask(&mut blocks, self.function(), self.block as c_int, 0) })?;
        Ok(blocks.max(1).unsigned_abs())
    }

    /// Blocks that have a thread for each of so many lanes.
    pub fn blocks_for(&self, lanes: u32) -> u32 {
        lanes.div_ceil(self.block)
    }

    /// Queues the kernel, in `blocks` blocks.
    ///
    /// # Safety
    /// The arguments are the kernel's, in type and number; and with them it stays within memory that is
    /// there until it has ended, and that nobody else uses meanwhile but as the kernel allows.
    pub unsafe fn launch(&self, blocks: u32, arguments: &mut [*mut c_void], stream: &Stream) -> Result<(), Code> {
        let _here = self.context.enter()?;
        // SAFETY: the driver copies the arguments before it returns; the rest is the caller's promise.
        check(unsafe {
            (self.context.driver.cuLaunchKernel)(
                self.function(),
                blocks,
                1,
                1,
                self.block,
                1,
                1,
                0,
                stream.handle(),
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        })
    }
}

/// Whether the driver, which is not told how long the image is, finds its end: PTX ends in a zero, and machine
/// code is ELF of 64 bits, whose head says where the tables of its segments and sections are.
fn is_whole(image: &[u8]) -> bool {
    if !image.starts_with(b"\x7fELF") {
        return image.last() == Some(&0);
    }
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let field = image.get(at..at + bytes)?;
        Some(field.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    };
    // e_phoff, e_phentsize and e_phnum; e_shoff, e_shentsize and e_shnum (elf(5)).
    let ends = [(0x20, 0x36, 0x38), (0x28, 0x3a, 0x3c)].map(|(start, size, count)| {
        let table = number(size, 2)? * number(count, 2)?;
        number(start, 8)?.checked_add(table)
    });
    ends.iter().all(|end| end.is_some_and(|end| end <= image.len() as u64))
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let module = self.module;
        self.context.release(move |driver| {
            // SAFETY: it was loaded here, and nothing of it is queued: sessions see to that.
            unsafe { (driver.cuModuleUnload)(module.get()) };
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_core::diagnostics::Source as Text;
    use portcullis_core::program::ProgramOptions;
    use portcullis_wgsl as wgsl;

    #[test]
    fn the_device_s_own_code_comes_first_and_ptx_only_where_the_driver_takes_it() {
        let archs = [75, 80, 90];
        let target = |version, arch, driver| Target::with(version, &archs, arch, driver);
        assert_eq!(target((12, 4), 90, (12, 2)), Ok(Target::Machine { version: (12, 4), arch: 90 }));
        let newer = target((12, 4), 100, (12, 8)).unwrap();
        assert_eq!(newer, Target::Intermediate { version: (12, 4), arch: 90, device: 100 });
        assert!(newer.to_string().contains("does not know sm_100") && newer.to_string().contains("newer NVRTC"));
        // 8.6 runs what was made for 8.0, but NVRTC's own words for it are PTX.
        assert_eq!(target((12, 4), 86, (12, 4)), Ok(Target::Intermediate { version: (12, 4), arch: 80, device: 86 }));
        let error = target((12, 9), 100, (12, 8)).unwrap_err();
        assert!(error.contains("PTX is too new for the driver (CUDA 12.8)") && error.contains("update"), "{error}");
        let error = target((13, 0), 61, (13, 0)).unwrap_err();
        assert!(error.contains("no code for compute capability 6.1") && error.contains("begins with 7.5"), "{error}");
    }

    fn program(name: &str, body: &str) -> Program {
        let text = format!("fn xdp_filter(pkt: u32) -> u32 {{ {body} }}");
        wgsl::compile(&Text::new(name, text), &ProgramOptions::default()).unwrap()
    }

    #[test]
    fn prebuilt_filters_go_by_their_source_and_architecture() {
        let files = |name, body, arch| cubins(&program(name, body), arch).unwrap();
        let some = files("a.wgsl", "return XDP_PASS;", 90);
        assert_eq!(some.len(), 4);
        let mut names: Vec<_> = some.iter().map(|cubin| cubin.file_name.clone()).collect();
        names.dedup();
        assert_eq!(names.len(), 4, "a file for each way");
        assert!(names.iter().all(|name| name.len() == 32 + 12 && name.ends_with("-sm_90.cubin")), "{names:?}");
        assert_eq!(some[0].options, ["--gpu-architecture=sm_90", "--std=c++17", "--fmad=false"]);
        let same = |other: Vec<CubinSource>| other[0].file_name == some[0].file_name;
        assert!(same(files("folder/b.wgsl", "return XDP_PASS;", 90)), "its name is not its meaning");
        assert!(!same(files("a.wgsl", "return XDP_DROP;", 90)));
        assert!(!same(files("a.wgsl", "return XDP_PASS;", 75)));
    }

    #[test]
    fn filters_with_flows_are_prebuilt_for_what_keeps_them_in_order() {
        let text = "fn xdp_flow(pkt: u32) -> u32 { return load_u8(pkt, 0u); }
            fn xdp_filter(pkt: u32) -> u32 { return XDP_PASS; }";
        let program = wgsl::compile(&Text::new("flows.wgsl", text), &ProgramOptions::default()).unwrap();
        let cubins = cubins(&program, 90).unwrap();
        assert_eq!(cubins.iter().map(|cubin| cubin.dispatch).collect::<Vec<_>>(), [Dispatch::Pipelined]);
    }

    #[test]
    fn an_image_that_was_cut_off_is_not_shown_to_the_driver() {
        let mut elf = vec![0_u8; 200];
        elf[..4].copy_from_slice(b"\x7fELF");
        elf[0x20] = 64;
        (elf[0x36], elf[0x38]) = (56, 1);
        elf[0x28] = 120;
        (elf[0x3a], elf[0x3c]) = (40, 2);
        assert!(is_whole(&elf));
        assert!(!is_whole(&elf[..199]));
        assert!(!is_whole(&elf[..20]) && !is_whole(b""));
        elf[0x20 + 7] = 255;
        assert!(!is_whole(&elf));
        assert!(is_whole(b".version 8.0\n\0") && !is_whole(b".version 8.0\n"));
    }
}
