//! Compiles a program for a device.
//!
//! The kernel's binary comes from the folder of prebuilt cubins, from the cache, or from NVRTC, in
//! this order. NVRTC compiles for the device's own architecture if it knows it, else to PTX, which
//! the driver compiles (`target`).

use std::path::PathBuf;
use std::sync::Arc;

use portcullis_c_writer::Argument;
use portcullis_cache::Cache;
use portcullis_core::device::offload::{self, KernelEffects};
use portcullis_core::device::{DeviceError, Dispatch, LoadOptions};
use portcullis_core::program::Program;

use crate::driver::ErrorCode;
use crate::driver::gpu::{Gpu, GpuProperties};
use crate::maps::Maps;

mod cubin;
mod kernel;
mod nvrtc;
mod source;
mod target;

pub use cubin::{CubinSource, NvrtcError, cubins, nvrtc_version};
pub use target::CUBIN_FOLDER_ENV;

pub(crate) use kernel::{Kernel, MAX_ARGUMENTS};
pub(crate) use source::{BLOCK_SIZE, SHARED_BYTES};
pub(crate) use target::Target;

use nvrtc::{ImageKind, Nvrtc};
use source::{KernelSource, file_name, nvrtc_options, without_name_comment, write_error};

/// Longest part of the compiler's messages that is shown, in bytes.
const MAX_LOG_BYTES: usize = 4096;

/// A program loaded on a device, ready to be launched.
pub(crate) struct LoadedProgram {
    pub kernel: Kernel,
    pub arguments: Vec<Argument>,
    pub effects: KernelEffects,
    pub maps: Maps,
}

/// Opens the device and compiles the program for one dispatch method, which takes precedence over
/// that of `options`.
pub(crate) fn load(
    device: &GpuProperties,
    program: &Arc<Program>,
    dispatch: Dispatch,
    options: &LoadOptions,
) -> Result<(Arc<Gpu>, LoadedProgram), DeviceError> {
    let id = device.id.clone();
    let work = options.synthetic_work_ns(&id)?.map(|nanos| device.cycles(nanos));
    let (device, program, cancel) = (device.clone(), program.clone(), options.cancel.clone());
    offload::compile_on_thread(&id.clone(), &options.cancel, move || {
        let source = KernelSource::new(&program, dispatch, device.block_size, work);
        let source = source.map_err(|error| write_error(&id, error))?;
        let gpu = Arc::new(Gpu::open(&device, dispatch, &cancel)?);
        let target = Target::of_device(device.arch, device.driver_version);
        let target = target.map_err(|reason| DeviceError::Unsupported { device: id.clone(), reason })?;
        let kernel = build(&gpu, &device, &program.source().name, &source, &target, Cache::open("cuda").as_ref())?;
        kernel.warm_up(&gpu, &cancel)?;
        let maps = Maps::new(&gpu, program.maps(), &cancel)?;
        Ok((gpu, LoadedProgram { kernel, arguments: source.arguments, effects: source.effects, maps }))
    })
}

/// Compiles a hand-written kernel, for benchmarks.
pub(crate) fn compile_text(
    gpu: &Gpu,
    device: &GpuProperties,
    text: String,
    entry: &'static str,
    block_size: u32,
) -> Result<Kernel, DeviceError> {
    let source = KernelSource { text, entry, block_size, arguments: Vec::new(), effects: KernelEffects::default() };
    let target = Target::of_device(device.arch, device.driver_version);
    let target = target.map_err(|reason| DeviceError::Unsupported { device: gpu.id.clone(), reason })?;
    build(gpu, device, entry, &source, &target, Cache::open("cuda").as_ref())
}

/// Loads the kernel: prebuilt, cached, or compiled now.
fn build(
    gpu: &Gpu,
    device: &GpuProperties,
    name: &str,
    source: &KernelSource,
    target: &Target,
    cache: Option<&Cache>,
) -> Result<Kernel, DeviceError> {
    // A binary that the driver rejects is ignored: the driver may have changed. If the driver could
    // not be asked, loading fails.
    let try_load = |binary: &[u8]| match Kernel::load(&gpu.context, binary, source) {
        Ok(kernel) => Ok(Some(kernel)),
        Err(code @ ErrorCode(..0)) => Err(gpu.error("cannot be used", code)),
        Err(_) => Ok(None),
    };
    for binary in prebuilt_cubins(device.arch, source) {
        if let Some(kernel) = try_load(&binary)? {
            return Ok(kernel);
        }
    }
    let (version, arch, output) = match target {
        Target::Cubin { version, arch } => (*version, *arch, ImageKind::Cubin),
        Target::Ptx { version, arch, .. } => (*version, *arch, ImageKind::Ptx),
        Target::Prebuilt { folder, arch, reason } => {
            return Err(gpu.failure(format!(
                "{reason}; and {} does not have the filter as {}, nor for an earlier GPU of this generation",
                folder.display(),
                file_name(&source.text, *arch)
            )));
        }
    };
    let options = nvrtc_options(arch, output);
    // Everything that the binary depends on. PTX is compiled by the driver, which has a cache of
    // its own.
    let key =
        format!("NVRTC {}.{}\n{}\n{}", version.0, version.1, options.join(" "), without_name_comment(&source.text));
    let cached = cache.and_then(|cache| cache.get(key.as_bytes()));
    if let Some(kernel) = cached.map(|binary| try_load(&binary)).transpose()?.flatten() {
        return Ok(kernel);
    }
    let nvrtc = Nvrtc::get(device.driver_version.0).map_err(|reason| gpu.failure(reason))?;
    let made = nvrtc.compile(name, &source.text, &options, output);
    let binary = made.map_err(|log| gpu.failure(truncated(&log)))?;
    let kernel = Kernel::load(&gpu.context, &binary, source).map_err(|code| {
        let hint = match code {
            ErrorCode::INVALID_IMAGE
            | ErrorCode::NO_BINARY_FOR_GPU
            | ErrorCode::UNSUPPORTED_PTX_VERSION
            | ErrorCode::INVALID_PTX
                if version.0 > device.driver_version.0 =>
            {
                format!(
                    "; the driver is one for CUDA {}.{}, and NVRTC is {}.{}: update the driver, or install an NVRTC of \
                     its version",
                    device.driver_version.0, device.driver_version.1, version.0, version.1
                )
            }
            ErrorCode::JIT_COMPILER_NOT_FOUND => {
                "; the driver's PTX compiler is not installed (libnvidia-ptxjitcompiler.so.1): install it, or an NVRTC \
                 that knows this GPU"
                    .into()
            }
            ErrorCode(..0) => return gpu.error("cannot be used", code),
            _ => String::new(),
        };
        gpu.failure(format!("the driver rejects what NVRTC has compiled: {code}{hint}"))
    })?;
    if let Some(cache) = cache {
        cache.put(key.as_bytes(), &binary);
    }
    Ok(kernel)
}

/// Reads the prebuilt cubins that the device can run, best first. A cubin for an earlier
/// architecture of the same generation runs as well.
fn prebuilt_cubins(arch: i32, source: &KernelSource) -> impl Iterator<Item = Vec<u8>> + '_ {
    let folder = std::env::var_os(CUBIN_FOLDER_ENV).map(PathBuf::from);
    folder.into_iter().flat_map(move |folder| {
        let archs = (arch / 10 * 10..=arch).rev();
        archs.filter_map(move |arch| std::fs::read(folder.join(file_name(&source.text, arch))).ok())
    })
}

fn truncated(log: &str) -> String {
    let end = (0..=MAX_LOG_BYTES.min(log.len())).rev().find(|&at| log.is_char_boundary(at)).unwrap_or(0);
    let more = if end < log.len() { "\n…" } else { "" };
    format!("{}{more}", &log[..end])
}
