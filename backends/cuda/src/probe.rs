//! Device discovery. A machine without a driver or a device gets an error that says what to do,
//! never a panic or output.

use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use portcullis_core::device::{CancelToken, DeviceError, DeviceInfo, DeviceKind, DeviceLimit, Dispatch, InPlaceReads};

use crate::compile::{BLOCK_SIZE, Target};
use crate::device::CudaDevice;
use crate::driver::gpu::Gpu as OpenGpu;
use crate::driver::gpu::GpuProperties;
use crate::driver::{Driver, ErrorCode, check};
use crate::memory::Gpu;

/// Environment variable by which the driver selects and numbers devices; empty, it hides them all.
const VISIBLE_DEVICES_ENV: &str = "CUDA_VISIBLE_DEVICES";

/// `CU_COMPUTEMODE_PROHIBITED`.
const COMPUTE_MODE_PROHIBITED: c_int = 2;

/// Lists all devices, in the driver's order.
///
/// # Errors
/// [`DeviceError::Missing`] if there is none; the text says what to do.
pub fn probe() -> Result<Vec<CudaDevice>, DeviceError> {
    let driver = Driver::get().map_err(|unavailable| DeviceError::Missing(unavailable.to_string()))?;
    // One thread at a time: the driver initialises itself at the first call.
    static PROBE_LOCK: Mutex<()> = Mutex::new(());
    let _lock = PROBE_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let missing = |code| DeviceError::Missing(no_device_message(code));
    // SAFETY: `cuInit` may be called any number of times, and may fail.
    check(unsafe { (driver.cuInit)(0) }).map_err(missing)?;
    let (mut version, mut count) = (0, 0);
    // SAFETY: the pointer is to a number that outlives the call.
    check(unsafe { (driver.cuDriverGetVersion)(&mut version) }).map_err(missing)?;
    // SAFETY: as above.
    check(unsafe { (driver.cuDeviceGetCount)(&mut count) }).map_err(missing)?;
    if count < 1 {
        return Err(missing(ErrorCode::NO_DEVICE));
    }
    // 1000 times the major version and 10 times the minor one (CUDA driver API,
    // cuDriverGetVersion).
    let version = (version / 1000, version % 1000 / 10);
    let (mut devices, mut failed) = (Vec::new(), Vec::new());
    for index in 0..count {
        match describe(driver, index, version, devices.len()) {
            Ok(device) => devices.push(device),
            // A broken device must not hide the others.
            Err(code) => failed.push((index, code)),
        }
    }
    let Some(last) = devices.last_mut() else {
        return Err(missing(failed.first().map_or(ErrorCode::NO_DEVICE, |&(_, code)| code)));
    };
    for (index, code) in failed {
        last.add_limit(DeviceLimit::new("beside it", format!("CUDA's device {index}, which fails: {code}")));
    }
    Ok(devices)
}

/// Returns the next step if the driver has no usable device.
fn no_device_message(code: ErrorCode) -> String {
    let may_be_hidden = code == ErrorCode::NO_DEVICE || code == ErrorCode::INVALID_DEVICE;
    let visible = std::env::var(VISIBLE_DEVICES_ENV).ok().filter(|_| may_be_hidden);
    let advice = match code {
        _ if visible.is_some() => {
            let visible = visible.unwrap_or_default();
            format!("{VISIBLE_DEVICES_ENV} is `{}`, which may hide it: unset it", visible.escape_debug())
        }
        ErrorCode::NO_DEVICE => "is there an NVIDIA GPU, and does `nvidia-smi` see it? A container needs to be given \
             it (`--gpus all`)"
            .into(),
        ErrorCode::SYSTEM_DRIVER_MISMATCH => "the driver's library and its kernel module have different versions: \
             restart the machine after the driver's update"
            .into(),
        ErrorCode::SYSTEM_NOT_READY => "the GPUs' fabric is not set up: start nvidia-fabricmanager".into(),
        ErrorCode::COMPAT_NOT_SUPPORTED => "the package cuda-compat, which is newer than the driver, is in the \
             linker's path, and this GPU does not support it: remove it, or update the driver"
            .into(),
        ErrorCode::STUB_LIBRARY => "the first libcuda in the linker's path is the toolkit's stub, which is for \
             linking only: remove its folder from LD_LIBRARY_PATH"
            .into(),
        ErrorCode::UNKNOWN => "is the module nvidia_uvm loaded? `nvidia-modprobe -u -c 0`, as root, loads it".into(),
        _ => "see what `nvidia-smi` reports".into(),
    };
    format!("the CUDA driver gives no device ({code}); {advice}")
}

/// The driver's release, such as `550.54.15`, which the driver API does not report.
fn driver_release() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let is_release = |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.lines().next()?.split_whitespace().find(is_release).map(str::to_owned)
}

/// Returns the dispatch methods that a device supports.
///
/// A persistent kernel synchronises with the host by acquire and release at system scope, which
/// compute capability 7.0 introduced. Stream memory operations came with drivers of CUDA 11.7, and
/// are useless on Windows, whose driver submits queued commands when it sees fit.
fn dispatch_methods(driver: &Driver, arch: i32) -> &'static [Dispatch] {
    use Dispatch::{Graph, Inline, Persistent, Pipelined, WaitValue};
    let has_wait_value = cfg!(not(windows)) && driver.cuStreamWaitValue32_v2.is_some();
    match (arch >= 70, has_wait_value) {
        (true, true) => &[Pipelined, Inline, Persistent, WaitValue, Graph],
        (true, false) => &[Pipelined, Inline, Persistent, Graph],
        (false, true) => &[Pipelined, Inline, WaitValue, Graph],
        (false, false) => &[Pipelined, Inline, Graph],
    }
}

/// Describes the driver's device number `index`, as `cuda:NUMBER`.
fn describe(
    driver: &'static Driver,
    index: c_int,
    version: (i32, i32),
    number: usize,
) -> Result<CudaDevice, ErrorCode> {
    let mut handle = 0;
    // SAFETY: the pointer is to a device that outlives the call.
    check(unsafe { (driver.cuDeviceGet)(&mut handle, index) })?;
    let mut name = [0_u8; 256];
    // SAFETY: the buffer has the size that is passed; the driver ends the name with a zero within
    // it.
    check(unsafe { (driver.cuDeviceGetName)(name.as_mut_ptr().cast::<c_char>(), name.len() as c_int, handle) })?;
    let name = String::from_utf8_lossy(name.split(|&b| b == 0).next().unwrap_or_default()).into_owned();
    let mut memory = 0;
    // SAFETY: the pointer is to a number that outlives the call.
    check(unsafe { (driver.cuDeviceTotalMem_v2)(&mut memory, handle) })?;
    let attribute = |attribute| driver.attribute(handle, attribute);
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    let arch = major * 10 + minor;
    let kind = match attribute(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED) {
        _ if driver.is_emulated => DeviceKind::Software,
        0 => DeviceKind::DiscreteGpu,
        _ => DeviceKind::IntegratedGpu,
    };
    let unsupported_reason = if attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) == COMPUTE_MODE_PROHIBITED {
        Some("its compute mode is Prohibited: `nvidia-smi -c DEFAULT`, as root, allows work".into())
    } else if attribute(Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY) == 0 {
        Some("it cannot access host memory".into())
    } else {
        Target::of_device(arch, version).err()
    };
    let mut limits = vec![
        DeviceLimit::new("compute capability", format!("{major}.{minor}")),
        DeviceLimit::new("memory", format!("{} MiB", memory >> 20)),
        DeviceLimit::new("multiprocessors", multiprocessors.to_string()),
    ];
    if unsupported_reason.is_none() {
        // Resident kernels and graphs read from slots, which the host fills.
        let how = "yes: its own memory; the host's by pipelined and inline, where it can be pinned";
        limits.push(DeviceLimit::ReadsInPlace(InPlaceReads::Sometimes(how)));
    }
    limits.push(match &unsupported_reason {
        Some(reason) => DeviceLimit::RunsNoFilter(reason.clone()),
        None => {
            let target = Target::of_device(arch, version);
            DeviceLimit::new("compiler", target.map_or_else(|reason| reason, |target| target.to_string()))
        }
    });
    let release = driver_release().map(|release| format!("NVIDIA {release}, ")).unwrap_or_default();
    let info = DeviceInfo {
        id: format!("cuda:{number}"),
        name,
        kind,
        driver: format!("{release}CUDA {}.{}", version.0, version.1),
        dispatch: dispatch_methods(driver, arch),
        limits,
    };
    let properties = GpuProperties {
        id: info.id.clone(),
        name: info.name.clone(),
        identity: format!("{} | {} | {}", info.id, info.name, info.driver),
        kind,
        handle,
        arch,
        multiprocessors: multiprocessors.max(1).unsigned_abs(),
        block_size: BLOCK_SIZE,
        clock_khz: attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE).unsigned_abs(),
        driver_version: version,
    };
    Ok(CudaDevice::new(info, properties, unsupported_reason))
}

// Here and not in `memory`, which is below device discovery.
impl Gpu {
    /// Opens the GPU of this number: 0 for `cuda:0`.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] if there is none, with what to do; [`DeviceError::Failed`] if it
    /// cannot be opened.
    pub fn open(number: usize) -> Result<Gpu, DeviceError> {
        let devices = probe()?;
        let count = devices.len();
        let device = devices.get(number).ok_or_else(|| {
            DeviceError::Missing(format!("there is no cuda:{number}: the CUDA driver gives {count}, counted from 0"))
        })?;
        Gpu::from_device(device)
    }

    /// Opens a GPU that [`probe`] has found.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    pub fn from_device(device: &CudaDevice) -> Result<Gpu, DeviceError> {
        let gpu = OpenGpu::open(device.properties(), Dispatch::Inline, &CancelToken::new())?;
        Gpu::from_open_gpu(Arc::new(gpu))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_of_a_driver_without_a_device_says_what_to_do() {
        for (code, hint) in [
            (ErrorCode::SYSTEM_DRIVER_MISMATCH, "restart the machine"),
            (ErrorCode::SYSTEM_NOT_READY, "nvidia-fabricmanager"),
            (ErrorCode::COMPAT_NOT_SUPPORTED, "cuda-compat"),
            (ErrorCode::STUB_LIBRARY, "LD_LIBRARY_PATH"),
            (ErrorCode::UNKNOWN, "nvidia-modprobe"),
            (ErrorCode(12345), "nvidia-smi"),
        ] {
            let text = no_device_message(code);
            assert!(text.contains(hint), "{text}");
        }
    }
}
