//! Compiles a program for a device: writes it in OpenCL C, and builds it with the driver or loads
//! the cached binary.

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

use crate::driver::gpu::{Gpu, GpuProperties, status_name};

use crate::driver::signals::SignalHandlers;

/// Options for the compiler: the language version, and no warnings, which some drivers print to
/// standard error. No `-cl-fast-…`: they change the results of float operations.
const BUILD_OPTIONS: &str = "-cl-std=CL1.2 -w";

/// Work items in a group on a GPU: a multiple of every GPU's SIMD width.
const GPU_GROUP_SIZE: usize = 64;

/// Packets of a group on a CPU, where a group is a loop on one thread. With PoCL 3.1 anything from
/// 32 to 4,096 performs alike; below, the cost per group shows.
const CPU_GROUP_PACKETS: usize = 256;

/// Longest part of the compiler's messages that is shown, in bytes.
const MAX_LOG_BYTES: usize = 4096;

/// A program loaded on a device, ready to be launched.
pub(crate) struct LoadedProgram {
    pub kernel: Kernel,
    pub arguments: Vec<Argument>,
    /// Effects of the kernel, which determine what the session transfers.
    pub effects: KernelEffects,
    /// Whether the kernel finds descriptors by a rule; else they are a table.
    pub takes_descriptor_rule: bool,
    /// Work items in a group.
    pub group_size: usize,
    /// Packets, or runs, that a work item filters.
    pub packets_per_item: usize,
}

/// Opens the device and compiles the program for it.
pub(crate) fn load(
    device: &GpuProperties,
    program: &Arc<Program>,
    options: &LoadOptions,
) -> Result<(Arc<Gpu>, LoadedProgram), DeviceError> {
    let id = &device.id;
    let (device, program, profiles) = (device.clone(), program.clone(), options.measure.record_stages);
    offload::compile_on_thread(id, &options.cancel, move || compile(&device, &program, profiles))
}

/// Loads a hand-written kernel in place of the program's; see [`crate::measure`].
pub(crate) fn load_source(
    device: &GpuProperties,
    program: &Program,
    text: &str,
    entry: &str,
) -> Result<(Arc<Gpu>, LoadedProgram), DeviceError> {
    let mut source =
        Source { source: text.into(), entry: entry.into(), packets_per_item: 1, ..source(program, device)? };
    // Hand-written kernels read tables.
    source.arguments.retain(|argument| !matches!(argument, Argument::DescriptorRule | Argument::MetadataRule(_)));
    let gpu = Gpu::open(device, false)?;
    let loaded = LoadedProgram::new(&gpu, source, &device.fingerprint(), None)?;
    Ok((Arc::new(gpu), loaded))
}

fn compile(
    device: &GpuProperties,
    program: &Program,
    profiles: bool,
) -> Result<(Arc<Gpu>, LoadedProgram), DeviceError> {
    let source = source(program, device)?;
    let _signals = SignalHandlers::restore_on_drop();
    let gpu = Gpu::open(device, profiles)?;
    let loaded = LoadedProgram::new(&gpu, source, &device.fingerprint(), Cache::open("opencl").as_ref())?;
    Ok((Arc::new(gpu), loaded))
}

impl LoadedProgram {
    pub fn new(
        gpu: &Gpu,
        source: Source,
        fingerprint: &str,
        cache: Option<&Cache>,
    ) -> Result<LoadedProgram, DeviceError> {
        let kernel = build_kernel(gpu, &source.source, &source.entry, fingerprint, cache)?;
        let packets_per_item = source.packets_per_item as usize;
        Ok(LoadedProgram {
            kernel,
            effects: source.effects(),
            takes_descriptor_rule: source.arguments.contains(&Argument::DescriptorRule),
            arguments: source.arguments,
            group_size: match gpu.kind {
                DeviceKind::Cpu => (CPU_GROUP_PACKETS / packets_per_item).max(1),
                _ => GPU_GROUP_SIZE,
            },
            packets_per_item,
        })
    }
}

/// Writes the program in OpenCL C.
fn source(program: &Program, device: &GpuProperties) -> Result<Source, DeviceError> {
    let processor = device.kind == DeviceKind::Cpu && device.shares_memory;
    let packet_access = match processor {
        // The compiler vectorises work items if loads are gathers of words and nothing branches.
        true if device.has_fast_gather => PacketAccess::Vectorizable,
        // It vectorises one of a work item's two loops.
        true => PacketAccess::LoopFission,
        false => PacketAccess::Words,
    };
    let options = Options::new(Language::OpenCl).with_packet_access(packet_access);
    // A device that shares memory can read the batch's own descriptors. A rule saves 8 bytes a
    // packet (PoCL runs `mac_swap` at 1.4 times the rate), but it is a branch in work items that
    // are to be vectorised.
    let is_table = device.shares_memory && packet_access != PacketAccess::LoopFission;
    let options = if is_table { options } else { options.with_descriptor_rules() };
    let options = if device.shares_memory { options } else { options.with_metadata_rules() };
    portcullis_c_writer::write(program, &options).map_err(|error| {
        let (device, reason) = (device.id.clone(), error.to_string());
        match error {
            WriteError::Unsupported(_) => DeviceError::Unsupported { device, reason },
            WriteError::Failed(_) => DeviceError::Failed { device, reason },
        }
    })
}

/// Whether the host CPU's gather instructions are faster than scalar loads. Intel's are, unless
/// microcode mitigates Downfall (INTEL-SA-00828). AMD's are split into scalar loads: on Zen 4 and 5
/// such kernels reach a third to a half of the rate of others.
pub(crate) fn has_fast_gather() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let vulnerability = std::fs::read_to_string("/sys/devices/system/cpu/vulnerabilities/gather_data_sampling");
        std::arch::is_x86_feature_detected!("avx2") && is_gather_fast(cpu_vendor(), vulnerability.ok().as_deref())
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Decides [`has_fast_gather`] for a vendor's CPU with AVX2, by what Linux reports about the
/// vulnerability, if anything.
#[cfg(any(test, target_arch = "x86_64"))]
fn is_gather_fast(vendor: [u8; 12], vulnerability: Option<&str>) -> bool {
    vendor == *b"GenuineIntel" && !vulnerability.is_some_and(|text| text.starts_with("Mitigation"))
}

/// The CPU vendor, from CPUID leaf 0.
#[cfg(target_arch = "x86_64")]
fn cpu_vendor() -> [u8; 12] {
    let leaf = std::arch::x86_64::__cpuid(0);
    let mut name = [0; 12];
    name.chunks_exact_mut(4)
        .zip([leaf.ebx, leaf.edx, leaf.ecx])
        .for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
    name
}

/// Builds the kernel, from the cached binary if there is one.
pub(crate) fn build_kernel(
    gpu: &Gpu,
    text: &str,
    entry: &str,
    fingerprint: &str,
    cache: Option<&Cache>,
) -> Result<Kernel, DeviceError> {
    // Everything that the binary depends on.
    let key = format!("{fingerprint}\n{BUILD_OPTIONS}\n{}", text);
    let cached = cache.and_then(|cache| cache.get(key.as_bytes()));
    // A binary that the driver rejects is ignored: the driver may have changed.
    if let Some(kernel) = cached.and_then(|binary| from_binary(gpu, &binary, entry)) {
        return Ok(kernel);
    }
    let source = CString::new(text);
    let source = source.map_err(|_| gpu.failure("the filter's source has a zero byte in it".into()))?;
    let program = ocl_core::create_program_with_source(&gpu.context, &[source])
        .map_err(|error| gpu.error("creating the filter's program failed", &error))?;
    build_program(gpu, &program).map_err(|(code, log)| {
        let log = if log.is_empty() { "there are no further messages".into() } else { log };
        gpu.failure(format!("its compiler rejects the filter ({}):\n{log}", status_name(code)))
    })?;
    let kernel =
        ocl_core::create_kernel(&program, entry).map_err(|error| gpu.error("creating the kernel failed", &error))?;
    if let Some((cache, binary)) = cache.zip(binary(&program)) {
        cache.put(key.as_bytes(), &binary);
    }
    Ok(kernel)
}

/// Loads a binary; `None` if the driver rejects it. `ocl-core`'s own function panics on unknown
/// errors.
fn from_binary(gpu: &Gpu, binary: &[u8], entry: &str) -> Option<Kernel> {
    let (device, length, start) = (gpu.device.as_raw(), binary.len(), binary.as_ptr());
    let (mut taken, mut status) = (0, 0);
    // SAFETY: one device of the context, and one binary of that length; the pointers outlive the
    // call.
    let program = unsafe {
        let context = gpu.context.as_ptr();
        ffi::clCreateProgramWithBinary(context, 1, &device, &length, &start, &mut taken, &mut status)
    };
    if program.is_null() {
        return None;
    }
    // SAFETY: the object is new, and nothing else refers to it.
    let program = unsafe { ocl_core::Program::from_raw_create_ptr(program) };
    if (taken, status) != (0, 0) || build_program(gpu, &program).is_err() {
        return None;
    }
    ocl_core::create_kernel(&program, entry).ok()
}

/// Builds a program; on failure, returns the status and the compiler's messages. `ocl-core`'s own
/// function takes a failure without messages for success.
fn build_program(gpu: &Gpu, program: &ocl_core::Program) -> Result<(), (i32, String)> {
    let options = CString::new(BUILD_OPTIONS).expect("there is no zero in it");
    let device = gpu.device.as_raw();
    // SAFETY: the program belongs to this device's context, and the options end in a zero; there is
    // no callback.
    let status = unsafe {
        let options: *const c_char = options.as_ptr();
        ffi::clBuildProgram(program.as_ptr(), 1, &device, options, None, ptr::null_mut())
    };
    if status == Status::CL_SUCCESS as i32 {
        return Ok(());
    }
    let what = ProgramBuildInfo::BuildLog as cl_uint;
    let log = read_sized(|size, value, needed| {
        // SAFETY: as above; the buffer has `size` bytes.
        unsafe { ffi::clGetProgramBuildInfo(program.as_ptr(), device, what, size, value, needed) }
    });
    let log = String::from_utf8_lossy(&log.unwrap_or_default()).trim_matches(['\0', '\n', ' ']).to_owned();
    let end = (0..=MAX_LOG_BYTES.min(log.len())).rev().find(|&at| log.is_char_boundary(at)).unwrap_or(0);
    let more = if end < log.len() { "\n…" } else { "" };
    Err((status, format!("{}{more}", &log[..end])))
}

/// Returns the binary of a built program for its one device.
fn binary(program: &ocl_core::Program) -> Option<Vec<u8>> {
    let sizes = read_sized(|size, value, needed| {
        let what = ProgramInfo::BinarySizes as cl_uint;
        // SAFETY: the program is valid, and the buffer has `size` bytes.
        unsafe { ffi::clGetProgramInfo(program.as_ptr(), what, size, value, needed) }
    })?;
    let size = usize::from_ne_bytes(sizes.try_into().ok()?);
    let mut binary = vec![0_u8; size];
    let mut start = binary.as_mut_ptr();
    let what = ProgramInfo::Binaries as cl_uint;
    // SAFETY: the program has one device, so one pointer is read, to a buffer of the binary's size.
    let status = unsafe {
        let value: *mut c_void = (&raw mut start).cast();
        ffi::clGetProgramInfo(program.as_ptr(), what, size_of::<*mut u8>(), value, ptr::null_mut())
    };
    (status == Status::CL_SUCCESS as i32 && !binary.is_empty()).then_some(binary)
}

/// Reads a value whose size OpenCL reports when it is asked without a buffer.
fn read_sized(ask: impl Fn(usize, *mut c_void, *mut usize) -> i32) -> Option<Vec<u8>> {
    let success = Status::CL_SUCCESS as i32;
    let mut size = 0;
    (ask(0, ptr::null_mut(), &mut size) == success).then_some(())?;
    let mut bytes = vec![0_u8; size];
    (size == 0 || ask(size, bytes.as_mut_ptr().cast(), ptr::null_mut()) == success).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::OpenClDevice;
    use crate::probe;
    use portcullis_core::device::Device;

    fn devices() -> Vec<OpenClDevice> {
        probe().unwrap_or_else(|error| {
            println!("skipped: {error}");
            Vec::new()
        })
    }

    fn source(body: &str) -> String {
        format!("__kernel void go(__global uint *out)\n{{\n    {body}\n}}\n")
    }

    #[test]
    fn vectorizable_kernels_are_written_for_cpus_with_fast_gather() {
        let mitigated = Some("Mitigation: Microcode\n");
        for (vendor, vulnerability, pays) in [
            (b"GenuineIntel", None, true),
            (b"GenuineIntel", Some("Not affected\n"), true),
            (b"GenuineIntel", Some("Vulnerable: No microcode\n"), true),
            (b"GenuineIntel", mitigated, false),
            (b"AuthenticAMD", None, false),
            (b"HygonGenuine", Some("Not affected\n"), false),
        ] {
            assert_eq!(is_gather_fast(*vendor, vulnerability), pays, "{vendor:?}, {vulnerability:?}");
        }
    }

    #[test]
    fn compiler_messages_are_shown_and_truncated() {
        for device in devices() {
            let gpu = Gpu::open(device.properties(), false).unwrap();
            let Err(error) = build_kernel(&gpu, &source("out[0] = no_such_name;"), "go", "", None) else {
                panic!("the source was accepted")
            };
            let text = error.to_string();
            assert!(text.contains(&device.info().id) && text.contains("no_such_name"), "{text}");
            let Err(error) = build_kernel(&gpu, &source(&"out[0] = unknown;".repeat(2000)), "go", "", None) else {
                panic!("the source was accepted")
            };
            assert!(error.to_string().len() < MAX_LOG_BYTES + 200, "{}", error.to_string().len());
            let Err(error) = build_kernel(&gpu, &source("out[0] = 1;"), "come", "", None) else {
                panic!("the source was accepted")
            };
            assert!(error.to_string().contains("CL_INVALID_KERNEL_NAME"), "{error}");
        }
    }

    #[test]
    fn binaries_are_cached_by_source_and_driver() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(&folder.path().join("opencl"), 64 << 20).unwrap();
        let files = || std::fs::read_dir(folder.path().join("opencl")).unwrap().count();
        for device in devices() {
            let before = files();
            let gpu = Gpu::open(device.properties(), false).unwrap();
            let kernel = |text: &str, fingerprint: &str| {
                build_kernel(&gpu, &source(text), "go", fingerprint, Some(&cache)).unwrap()
            };
            kernel("out[0] = 1;", "driver 1");
            if files() == before {
                println!("skipped: {} returns no binaries", device.info().id);
                continue;
            }
            let binary = cache.get(format!("driver 1\n{BUILD_OPTIONS}\n{}", source("out[0] = 1;")).as_bytes()).unwrap();
            assert!(from_binary(&gpu, &binary, "go").is_some(), "the driver accepts its own binary");
            kernel("out[0] = 1;", "driver 1");
            assert_eq!(files(), before + 1, "the binary was cached");
            kernel("out[0] = 1;", "driver 2");
            kernel("out[0] = 2;", "driver 1");
            assert_eq!(files(), before + 3);
            // An entry that is not a binary is replaced by compiling again, although its checksum
            // is right.
            let key = format!("driver 3\n{BUILD_OPTIONS}\n{}", source("out[0] = 3;"));
            assert!(cache.put(key.as_bytes(), b"no binary"));
            kernel("out[0] = 3;", "driver 3");
            assert_ne!(cache.get(key.as_bytes()).unwrap(), b"no binary");
        }
    }
}
