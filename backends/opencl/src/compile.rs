//! From a program to the kernel that runs it.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::Arc;

use ocl_core::ffi::{self, cl_uint};
use ocl_core::{Kernel, ProgramBuildInfo, ProgramInfo, Status};
use portcullis_c_writer::{Argument, Kernel as Source, Language, Options, PacketAccess, WriteError};
use portcullis_cache::Cache;
use portcullis_core::device::offload::{self, KernelEffects};
use portcullis_core::device::{DeviceError, DeviceKind, LoadOptions};
use portcullis_core::program::Program;

use crate::device::{Gpu, name_of};
use crate::probe::OpenClDevice;
use crate::signals::Signals;

/// What the compiler is told: the language, and to keep warnings to itself, which some print on the
/// standard error stream. No `-cl-fast-…`: they change what floats are.
const OPTIONS: &str = "-cl-std=CL1.2 -w";

/// Work items in a group on a GPU: a multiple of every GPU's lane count.
const GPU_GROUP: usize = 64;

/// The same on a processor, where a group is a loop on one thread. With PoCL 3.1 any number from 32 to
/// 4,096 is as good; below, what a group costs by itself shows.
const CPU_GROUP: usize = 256;

/// Longest part of a compiler's messages that is shown, in bytes.
const LOG: usize = 4096;

/// A program ready to be launched.
pub(crate) struct Loaded {
    pub kernel: Kernel,
    pub arguments: Vec<Argument>,
    /// What the session has to bring.
    pub effects: KernelEffects,
    /// Work items in a group.
    pub group: usize,
}

/// Opens the device and compiles the program for it.
pub(crate) fn load(
    device: &OpenClDevice,
    program: &Arc<Program>,
    options: &LoadOptions,
) -> Result<(Arc<Gpu>, Loaded), DeviceError> {
    let id = &portcullis_core::device::Device::info(device).id;
    let (device, program, clocks) = (device.clone(), program.clone(), options.record_stages);
    offload::compile_on_thread(id, &options.cancel, move || compile(&device, &program, clocks))
}

/// A kernel by hand in place of the program's own; see [`crate::measure`].
pub(crate) fn load_text(
    device: &OpenClDevice,
    program: &Program,
    text: &str,
    entry: &str,
) -> Result<(Arc<Gpu>, Loaded), DeviceError> {
    let source = Source { source: text.into(), entry: entry.into(), ..source(program, device)? };
    let gpu = Gpu::open(device, false)?;
    let loaded = Loaded::new(&gpu, source, &device.fingerprint(), None)?;
    Ok((Arc::new(gpu), loaded))
}

fn compile(device: &OpenClDevice, program: &Program, clocks: bool) -> Result<(Arc<Gpu>, Loaded), DeviceError> {
    let source = source(program, device)?;
    let _signals = Signals::guard();
    let gpu = Gpu::open(device, clocks)?;
    let loaded = Loaded::new(&gpu, source, &device.fingerprint(), Cache::open("opencl").as_ref())?;
    Ok((Arc::new(gpu), loaded))
}

impl Loaded {
    pub fn new(gpu: &Gpu, source: Source, fingerprint: &str, cache: Option<&Cache>) -> Result<Loaded, DeviceError> {
        let kernel = build(gpu, &source, fingerprint, cache)?;
        Ok(Loaded {
            kernel,
            effects: source.effects(),
            arguments: source.arguments,
            group: if gpu.kind == DeviceKind::Cpu { CPU_GROUP } else { GPU_GROUP },
        })
    }
}

/// The program in OpenCL C.
fn source(program: &Program, device: &OpenClDevice) -> Result<Source, DeviceError> {
    let info = portcullis_core::device::Device::info(device);
    let processor = info.kind == DeviceKind::Cpu && device.shares_memory();
    let packet_access = match processor {
        // Compilers make vectors of work items where words are fetched for each and nothing branches.
        true if has_vectors() => PacketAccess::Vectorizable,
        // A processor's compiler makes one load of bytes. Elsewhere each byte would be a load.
        true => PacketAccess::Bytes,
        false => PacketAccess::Words,
    };
    portcullis_c_writer::write(program, &Options { packet_access, ..Options::new(Language::OpenCl) }).map_err(|error| {
        let (device, reason) = (info.id.clone(), error.to_string());
        match error {
            WriteError::Unsupported(_) => DeviceError::Unsupported { device, reason },
            WriteError::Failed(_) => DeviceError::Failed { device, reason },
        }
    })
}

/// Whether the processor fetches words from several places with one instruction, and in less time than it takes for each:
/// Intel's, where microcode does not hold fetches up (Downfall, INTEL-SA-00828). AMD's take them apart: on Zen 4 kernels of
/// that kind have a third to a half of the rate of others.
fn has_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let is_held_up = std::fs::read_to_string("/sys/devices/system/cpu/vulnerabilities/gather_data_sampling");
        std::arch::is_x86_feature_detected!("avx2") && fetches_fast(vendor(), is_held_up.ok().as_deref())
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The same of a vendor's processor with AVX2, by what Linux says of that vulnerability, if anything.
#[cfg(any(test, target_arch = "x86_64"))]
fn fetches_fast(vendor: [u8; 12], vulnerability: Option<&str>) -> bool {
    vendor == *b"GenuineIntel" && !vulnerability.is_some_and(|text| text.starts_with("Mitigation"))
}

/// The vendor's name, by CPUID's leaf 0.
#[cfg(target_arch = "x86_64")]
fn vendor() -> [u8; 12] {
    let leaf = std::arch::x86_64::__cpuid(0);
    let mut name = [0; 12];
    name.chunks_exact_mut(4)
        .zip([leaf.ebx, leaf.edx, leaf.ecx])
        .for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
    name
}

/// The kernel, from the cache where an earlier run has put it there.
pub(crate) fn build(
    gpu: &Gpu,
    source: &Source,
    fingerprint: &str,
    cache: Option<&Cache>,
) -> Result<Kernel, DeviceError> {
    // Everything that the binary depends on.
    let key = format!("{fingerprint}\n{OPTIONS}\n{}", source.source);
    let cached = cache.and_then(|cache| cache.get(key.as_bytes()));
    // A binary that the driver does not take any more is no fault of anybody's.
    if let Some(kernel) = cached.and_then(|binary| from_binary(gpu, &binary, &source.entry)) {
        return Ok(kernel);
    }
    let text = CString::new(source.source.as_str());
    let text = text.map_err(|_| gpu.gave_up("the filter's source has a zero byte in it".into()))?;
    let program = ocl_core::create_program_with_source(&gpu.context, &[text])
        .map_err(|error| gpu.failed("creating the filter's program failed", &error))?;
    translate(gpu, &program).map_err(|(code, log)| {
        let log = if log.is_empty() { "its compiler says no more".into() } else { log };
        gpu.gave_up(format!("its compiler refuses the filter ({}):\n{log}", name_of(code)))
    })?;
    let kernel = ocl_core::create_kernel(&program, &source.entry)
        .map_err(|error| gpu.failed("creating the kernel failed", &error))?;
    if let Some((cache, binary)) = cache.zip(binary(&program)) {
        cache.put(key.as_bytes(), &binary);
    }
    Ok(kernel)
}

/// `ocl-core`'s own function panics where a driver refuses a binary for a reason it does not know.
fn from_binary(gpu: &Gpu, binary: &[u8], entry: &str) -> Option<Kernel> {
    let (device, length, start) = (gpu.device.as_raw(), binary.len(), binary.as_ptr());
    let (mut taken, mut status) = (0, 0);
    // SAFETY: one device of the context's, and one binary of that length.
    let program = unsafe {
        let context = gpu.context.as_ptr();
        ffi::clCreateProgramWithBinary(context, 1, &device, &length, &start, &mut taken, &mut status)
    };
    if program.is_null() {
        return None;
    }
    // SAFETY: it was made just now, and is nobody else's.
    let program = unsafe { ocl_core::Program::from_raw_create_ptr(program) };
    if (taken, status) != (0, 0) || translate(gpu, &program).is_err() {
        return None;
    }
    ocl_core::create_kernel(&program, entry).ok()
}

/// Builds a program; an error number and the compiler's messages where that fails. `ocl-core`'s own
/// function takes a failure without messages for a success.
fn translate(gpu: &Gpu, program: &ocl_core::Program) -> Result<(), (i32, String)> {
    let options = CString::new(OPTIONS).expect("there is no zero in it");
    let device = gpu.device.as_raw();
    // SAFETY: a program of this device's context, and options that end in a zero; nobody is called.
    let status = unsafe {
        let options: *const c_char = options.as_ptr();
        ffi::clBuildProgram(program.as_ptr(), 1, &device, options, None, ptr::null_mut())
    };
    if status == Status::CL_SUCCESS as i32 {
        return Ok(());
    }
    let what = ProgramBuildInfo::BuildLog as cl_uint;
    let log = sized(|size, value, needed| {
        // SAFETY: as above; the value has room for as many bytes as are said.
        unsafe { ffi::clGetProgramBuildInfo(program.as_ptr(), device, what, size, value, needed) }
    });
    let log = String::from_utf8_lossy(&log.unwrap_or_default()).trim_matches(['\0', '\n', ' ']).to_owned();
    let end = (0..=LOG.min(log.len())).rev().find(|&at| log.is_char_boundary(at)).unwrap_or(0);
    let more = if end < log.len() { "\n…" } else { "" };
    Err((status, format!("{}{more}", &log[..end])))
}

/// What a built program is on its one device.
fn binary(program: &ocl_core::Program) -> Option<Vec<u8>> {
    let sizes = sized(|size, value, needed| {
        let what = ProgramInfo::BinarySizes as cl_uint;
        // SAFETY: a program, and room for as many bytes as are said.
        unsafe { ffi::clGetProgramInfo(program.as_ptr(), what, size, value, needed) }
    })?;
    let size = usize::from_ne_bytes(sizes.try_into().ok()?);
    let mut binary = vec![0_u8; size];
    let mut start = binary.as_mut_ptr();
    let what = ProgramInfo::Binaries as cl_uint;
    // SAFETY: the program has one device, so one pointer is read, which has room for its binary.
    let status = unsafe {
        let value: *mut c_void = (&raw mut start).cast();
        ffi::clGetProgramInfo(program.as_ptr(), what, size_of::<*mut u8>(), value, ptr::null_mut())
    };
    (status == Status::CL_SUCCESS as i32 && !binary.is_empty()).then_some(binary)
}

/// An answer of a size that OpenCL tells when it is asked without room for it.
fn sized(ask: impl Fn(usize, *mut c_void, *mut usize) -> i32) -> Option<Vec<u8>> {
    let success = Status::CL_SUCCESS as i32;
    let mut size = 0;
    (ask(0, ptr::null_mut(), &mut size) == success).then_some(())?;
    let mut bytes = vec![0_u8; size];
    (size == 0 || ask(size, bytes.as_mut_ptr().cast(), ptr::null_mut()) == success).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe;
    use portcullis_core::device::Device;

    fn devices() -> Vec<OpenClDevice> {
        probe().unwrap_or_else(|error| {
            println!("skipped: {error}");
            Vec::new()
        })
    }

    fn source(body: &str) -> Source {
        let source = format!("__kernel void go(__global uint *out)\n{{\n    {body}\n}}\n");
        Source { source, entry: "go".into(), arguments: vec![], size: 1 }
    }

    #[test]
    fn kernels_are_written_side_by_side_where_fetching_pays() {
        let mitigated = Some("Mitigation: Microcode\n");
        for (vendor, vulnerability, pays) in [
            (b"GenuineIntel", None, true),
            (b"GenuineIntel", Some("Not affected\n"), true),
            (b"GenuineIntel", Some("Vulnerable: No microcode\n"), true),
            (b"GenuineIntel", mitigated, false),
            (b"AuthenticAMD", None, false),
            (b"HygonGenuine", Some("Not affected\n"), false),
        ] {
            assert_eq!(fetches_fast(*vendor, vulnerability), pays, "{vendor:?}, {vulnerability:?}");
        }
    }

    #[test]
    fn a_compiler_s_words_are_shown() {
        for device in devices() {
            let gpu = Gpu::open(&device, false).unwrap();
            let Err(error) = build(&gpu, &source("out[0] = no_such_name;"), "", None) else { panic!("taken") };
            let text = error.to_string();
            assert!(text.contains(&device.info().id) && text.contains("no_such_name"), "{text}");
            let Err(error) = build(&gpu, &source(&"out[0] = unknown;".repeat(2000)), "", None) else { panic!("taken") };
            assert!(error.to_string().len() < LOG + 200, "{}", error.to_string().len());
            let missing = Source { entry: "come".into(), ..source("out[0] = 1;") };
            let Err(error) = build(&gpu, &missing, "", None) else { panic!("taken") };
            assert!(error.to_string().contains("CL_INVALID_KERNEL_NAME"), "{error}");
        }
    }

    #[test]
    fn binaries_are_kept_by_source_and_device() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(&folder.path().join("opencl"), 64 << 20).unwrap();
        let files = || std::fs::read_dir(folder.path().join("opencl")).unwrap().count();
        for device in devices() {
            let before = files();
            let gpu = Gpu::open(&device, false).unwrap();
            let kernel = |text: &str, fingerprint: &str| build(&gpu, &source(text), fingerprint, Some(&cache)).unwrap();
            kernel("out[0] = 1;", "driver 1");
            if files() == before {
                println!("{} gives no binaries", device.info().id);
                continue;
            }
            let binary =
                cache.get(format!("driver 1\n{OPTIONS}\n{}", source("out[0] = 1;").source).as_bytes()).unwrap();
            assert!(from_binary(&gpu, &binary, "go").is_some(), "its own binary is taken");
            kernel("out[0] = 1;", "driver 1");
            assert_eq!(files(), before + 1, "it was there");
            kernel("out[0] = 1;", "driver 2");
            kernel("out[0] = 2;", "driver 1");
            assert_eq!(files(), before + 3);
            // What is no binary at all is compiled again, whole as the file may be.
            let key = format!("driver 3\n{OPTIONS}\n{}", source("out[0] = 3;").source);
            assert!(cache.put(key.as_bytes(), b"no binary"));
            kernel("out[0] = 3;", "driver 3");
            assert_ne!(cache.get(key.as_bytes()).unwrap(), b"no binary");
        }
    }
}
