//! Device discovery. A machine without a loader, a driver or a device gets an error that says what
//! to do, never a panic, nor a wait for a loader that has nothing to load.

use std::ptr;
use std::sync::{Mutex, PoisonError};

use num_traits::FromPrimitive;
use ocl_core::ffi::{self, cl_device_id, cl_platform_id, cl_uint};
use ocl_core::{DeviceId, DeviceInfo as Query, DeviceType, PlatformId, PlatformInfo, Status};
use portcullis_core::device::{DeviceError, DeviceInfo, DeviceKind, DeviceLimit, Dispatch};

use crate::compile::has_fast_gather;
use crate::device::OpenClDevice;
use crate::driver::gpu::{GpuProperties, error_text, status_name};
use crate::driver::loader;
use crate::driver::signals::SignalHandlers;

/// Size in bytes that every device supports for a buffer (the OpenCL specification, table 4.3: that
/// of the embedded profile).
const GUARANTEED_BUFFER_SIZE: u64 = 1 << 20;

#[cfg(target_os = "linux")]
const NO_LOADER: &str = "no OpenCL on this machine: install ocl-icd-libopencl1 and the OpenCL driver of your GPU's \
     vendor, or pocl-opencl-icd, which needs no GPU (Debian's package names)";
#[cfg(not(target_os = "linux"))]
const NO_LOADER: &str = "no OpenCL on this machine: install the driver of your GPU's vendor";

#[cfg(target_os = "linux")]
const NO_DRIVER: &str = "OpenCL's loader is installed, but no driver: install that of your GPU's vendor, or \
     pocl-opencl-icd, which needs no GPU (Debian's package name)";
#[cfg(not(target_os = "linux"))]
const NO_DRIVER: &str = "OpenCL's loader is installed, but no driver: install that of your GPU's vendor";

/// Lists the devices of all platforms, `opencl:0` first: real GPUs before the rest, else in the
/// order of loader and drivers.
///
/// # Errors
/// [`DeviceError::Missing`] if there is none; the text says what to install.
pub fn probe() -> Result<Vec<OpenClDevice>, DeviceError> {
    if let Err(reason) = loader::library() {
        return Err(DeviceError::Missing(format!("{NO_LOADER}: {reason}")));
    }
    // One thread at a time: drivers initialise themselves at the first call, not always
    // thread-safely (PoCL 3.1 with ocl-icd 2.3).
    static PROBE_LOCK: Mutex<()> = Mutex::new(());
    let _lock = PROBE_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let _signals = SignalHandlers::restore_on_drop();
    let mut found: Vec<(DeviceKind, OpenClDevice)> = Vec::new();
    let mut empty = Vec::new();
    for platform in platforms()? {
        let name = text(ocl_core::get_platform_info(platform, PlatformInfo::Name));
        match devices(platform) {
            Ok(devices) => found.extend(devices.into_iter().map(|device| describe(platform, device))),
            Err(reason) => empty.push(format!("{name}: {reason}")),
        }
    }
    if found.is_empty() {
        let text = match empty.as_slice() {
            [] => NO_DRIVER.into(),
            _ => format!("OpenCL's drivers offer no device ({}); pocl-opencl-icd needs no GPU", empty.join("; ")),
        };
        return Err(DeviceError::Missing(text));
    }
    if let Some((_, last)) = found.last_mut().filter(|_| !empty.is_empty()) {
        last.add_limit(DeviceLimit::new("platforms without devices", empty.join("; ")));
    }
    // The sort is stable: the order within a kind stays.
    found.sort_by_key(|&(kind, _)| rank(kind));
    let number = |(index, (_, mut device)): (usize, (_, OpenClDevice))| {
        device.set_id(format!("opencl:{index}"));
        device
    };
    Ok(found.into_iter().enumerate().map(number).collect())
}

/// Lists the platforms. `ocl-core`'s own function is not used: without a driver it retries for ten
/// seconds.
fn platforms() -> Result<Vec<PlatformId>, DeviceError> {
    let query = |ids: &mut [cl_platform_id]| {
        let mut count: cl_uint = 0;
        let to = if ids.is_empty() { ptr::null_mut() } else { ids.as_mut_ptr() };
        // SAFETY: the buffer has room for `ids.len()` ids, and the pointers outlive the call.
        let status = unsafe { ffi::clGetPlatformIDs(ids.len() as cl_uint, to, &mut count) };
        match Status::from_i32(status) {
            Some(Status::CL_SUCCESS) => Ok(count as usize),
            Some(Status::CL_PLATFORM_NOT_FOUND_KHR) => Ok(0),
            _ => Err(DeviceError::Missing(format!("{NO_DRIVER} ({})", status_name(status)))),
        }
    };
    let mut ids = vec![ptr::null_mut(); query(&mut [])?];
    if !ids.is_empty() {
        let count = query(&mut ids)?;
        ids.truncate(count);
    }
    // SAFETY: the loader has just returned the ids.
    Ok(ids.into_iter().filter(|id| !id.is_null()).map(|id| unsafe { PlatformId::from_raw(id) }).collect())
}

/// Lists the devices of a platform. `ocl-core`'s own function is not used: it returns at most 64.
fn devices(platform: PlatformId) -> Result<Vec<DeviceId>, String> {
    let query = |ids: &mut [cl_device_id]| {
        let mut count: cl_uint = 0;
        let to = if ids.is_empty() { ptr::null_mut() } else { ids.as_mut_ptr() };
        let all = DeviceType::ALL.bits();
        // SAFETY: the platform is valid, the buffer has room for `ids.len()` ids, and the pointers
        // outlive the call.
        let status = unsafe { ffi::clGetDeviceIDs(platform.as_ptr(), all, ids.len() as cl_uint, to, &mut count) };
        match Status::from_i32(status) {
            Some(Status::CL_SUCCESS) if count > 0 => Ok(count as usize),
            Some(Status::CL_SUCCESS | Status::CL_DEVICE_NOT_FOUND) => Err("no device".into()),
            _ => Err(status_name(status)),
        }
    };
    let mut ids = vec![ptr::null_mut(); query(&mut [])?];
    let count = query(&mut ids)?;
    ids.truncate(count);
    // SAFETY: the platform has just returned the ids, which are valid as long as it is.
    Ok(ids.into_iter().filter(|id| !id.is_null()).map(|id| unsafe { DeviceId::from_raw(id) }).collect())
}

/// The text of a query about a platform, or that of the error.
fn text<T: ToString>(answer: Result<T, ocl_core::Error>) -> String {
    answer.map_or_else(|error| error_text(&error), |answer| answer.to_string()).trim().to_owned()
}

/// The value of a numeric query about a device, which has 4 or 8 bytes in host byte order; 0 on an
/// error.
fn number(device: DeviceId, what: Query) -> u64 {
    let bytes = ocl_core::get_device_info_raw(device, what as cl_uint).unwrap_or_default();
    match bytes.as_slice() {
        [a, b, c, d] => u32::from_ne_bytes([*a, *b, *c, *d]).into(),
        bytes => bytes.try_into().map_or(0, u64::from_ne_bytes),
    }
}

/// Sort key of a kind of device.
fn rank(kind: DeviceKind) -> u32 {
    match kind {
        DeviceKind::DiscreteGpu => 0,
        DeviceKind::IntegratedGpu => 1,
        DeviceKind::VirtualGpu => 2,
        DeviceKind::Cpu | DeviceKind::Software | DeviceKind::Reference => 3,
    }
}

/// Describes a device, which has no id yet.
fn describe(platform: PlatformId, device: DeviceId) -> (DeviceKind, OpenClDevice) {
    let string = |what| {
        let bytes = ocl_core::get_device_info_raw(device, what as cl_uint).unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').trim().to_owned()
    };
    let shares_memory = number(device, Query::HostUnifiedMemory) != 0;
    let types = DeviceType::from_bits_truncate(number(device, Query::Type));
    let kind = if types.contains(DeviceType::GPU) {
        if shares_memory { DeviceKind::IntegratedGpu } else { DeviceKind::DiscreteGpu }
    } else if types.contains(DeviceType::CPU) {
        DeviceKind::Cpu
    } else {
        // Accelerators are only used if the user names them.
        DeviceKind::Software
    };
    let (max_buffer_size, memory) = (number(device, Query::MaxMemAllocSize), number(device, Query::GlobalMemSize));
    let language = string(Query::OpenclCVersion);
    let unsupported_reason = unsupported_reason(device, &language);
    let platform = text(ocl_core::get_platform_info(platform, PlatformInfo::Name));
    let mut limits = vec![
        DeviceLimit::new("buffer", format!("{} MiB", max_buffer_size >> 20)),
        DeviceLimit::new("memory", format!("{} MiB", memory >> 20)),
        DeviceLimit::new("compute units", number(device, Query::MaxComputeUnits).to_string()),
        DeviceLimit::ReadsInPlace(shares_memory.into()),
    ];
    limits.extend(unsupported_reason.clone().map(DeviceLimit::RunsNoFilter));
    let info = DeviceInfo {
        id: String::new(),
        name: string(Query::Name),
        kind,
        driver: format!("{platform}, {}, {}", string(Query::DriverVersion), language),
        dispatch: Dispatch::COMMON,
        limits,
    };
    let properties = GpuProperties {
        id: String::new(),
        name: info.name.clone(),
        driver: info.driver.clone(),
        kind,
        device,
        max_buffer_size: max_buffer_size.max(GUARANTEED_BUFFER_SIZE),
        shares_memory,
        group_size: None,
        has_fast_gather: has_fast_gather(),
    };
    (kind, OpenClDevice::new(info, properties, unsupported_reason))
}

/// The reason why filters cannot run on the device, if there is one.
fn unsupported_reason(device: DeviceId, language: &str) -> Option<String> {
    // "OpenCL C 1.2 …" (the OpenCL specification, table 4.3).
    let version = language.split(' ').nth(2).and_then(|version| {
        let (major, minor) = version.split_once('.')?;
        Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    });
    if number(device, Query::Available) == 0 {
        Some("its driver reports that it is not available".into())
    } else if number(device, Query::CompilerAvailable) == 0 {
        Some("its driver has no compiler".into())
    } else if number(device, Query::EndianLittle) == 0 || cfg!(target_endian = "big") {
        Some("it is not little-endian, or the host is not".into())
    } else if version.is_none_or(|version| version < (1, 2)) {
        Some(format!("its compiler supports `{language}`, and OpenCL C 1.2 is needed"))
    } else {
        None
    }
}
