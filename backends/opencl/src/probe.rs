//! Finding devices, without a panic and without waiting for a loader that has nothing to load.

use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use num_traits::FromPrimitive;
use ocl_core::ffi::{self, cl_device_id, cl_platform_id, cl_uint};
use ocl_core::{DeviceId, DeviceInfo as Asked, DeviceType, PlatformId, PlatformInfo, Status};
use portcullis_core::device::{
    Device, DeviceError, DeviceInfo, DeviceKind, Dispatch, FlowSession, LoadOptions, READS_IN_PLACE, RUNS_NO_FILTER,
    Session, load_initial_maps,
};
use portcullis_core::program::Program;

use crate::device::{name_of, words};
use crate::loader;
use crate::session;
use crate::signals::Signals;

/// A device that an OpenCL platform offers.
#[derive(Debug, Clone)]
pub struct OpenClDevice {
    info: DeviceInfo,
    device: DeviceId,
    largest: u64,
    shares_memory: bool,
    /// Work items in a group, where somebody has said how many.
    group: Option<usize>,
    /// Why no filter can be loaded on it, where that is so.
    unfit: Option<String>,
}

/// Bytes that every device takes for a buffer (the OpenCL specification, table 4.3: the embedded profile's).
const SMALLEST: u64 = 1 << 20;

#[cfg(target_os = "linux")]
const NO_LOADER: &str = "no OpenCL on this machine: install ocl-icd-libopencl1 and the OpenCL driver of your GPU's \
     vendor, or pocl-opencl-icd, which needs no GPU (Debian's package names";
#[cfg(not(target_os = "linux"))]
const NO_LOADER: &str = "no OpenCL on this machine: install the driver of your GPU's vendor (";

#[cfg(target_os = "linux")]
const NO_DRIVER: &str = "OpenCL's loader is installed, but no driver: install that of your GPU's vendor, or \
     pocl-opencl-icd, which needs no GPU (Debian's package name)";
#[cfg(not(target_os = "linux"))]
const NO_DRIVER: &str = "OpenCL's loader is installed, but no driver: install that of your GPU's vendor";

/// All devices of all platforms, `opencl:0` first: real GPUs before the rest, else in the order in
/// which the loader and the drivers name them.
///
/// # Errors
/// [`DeviceError::Missing`] where there is none; the text says what to install.
pub fn probe() -> Result<Vec<OpenClDevice>, DeviceError> {
    if let Err(reason) = loader::library() {
        return Err(DeviceError::Missing(format!("{NO_LOADER}; {reason})")));
    }
    // One at a time: drivers set themselves up at the first question, and not all of them (PoCL 3.1 with
    // ocl-icd 2.3) bear to be asked by two threads then.
    static ASKING: Mutex<()> = Mutex::new(());
    let _one = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
    let _signals = Signals::guard();
    let mut found = Vec::new();
    let mut empty = Vec::new();
    for platform in platforms()? {
        let name = text(ocl_core::get_platform_info(platform, PlatformInfo::Name));
        match devices(platform) {
            Ok(devices) => found.extend(devices.into_iter().map(|device| OpenClDevice::new(platform, device))),
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
    if let Some(last) = found.last_mut().filter(|_| !empty.is_empty()) {
        last.info.limits.push(("platforms without devices", empty.join("; ")));
    }
    // Stable: the order within a kind stays.
    found.sort_by_key(|device| rank(device.info.kind));
    for (index, device) in found.iter_mut().enumerate() {
        device.info.id = format!("opencl:{index}");
    }
    Ok(found)
}

/// OpenCL's own function, not `ocl-core`'s: that one asks again for ten seconds where there is no driver.
fn platforms() -> Result<Vec<PlatformId>, DeviceError> {
    let ask = |ids: &mut [cl_platform_id]| {
        let mut count: cl_uint = 0;
        let to = if ids.is_empty() { ptr::null_mut() } else { ids.as_mut_ptr() };
        // SAFETY: room for as many ids as are asked for, and for their number.
        let status = unsafe { ffi::clGetPlatformIDs(ids.len() as cl_uint, to, &mut count) };
        match Status::from_i32(status) {
            Some(Status::CL_SUCCESS) => Ok(count as usize),
            Some(Status::CL_PLATFORM_NOT_FOUND_KHR) => Ok(0),
            _ => Err(DeviceError::Missing(format!("{NO_DRIVER} ({})", name_of(status)))),
        }
    };
    let mut ids = vec![ptr::null_mut(); ask(&mut [])?];
    if !ids.is_empty() {
        let count = ask(&mut ids)?;
        ids.truncate(count);
    }
    // SAFETY: ids that the loader gave just now.
    Ok(ids.into_iter().filter(|id| !id.is_null()).map(|id| unsafe { PlatformId::from_raw(id) }).collect())
}

/// OpenCL's own function: `ocl-core`'s takes no more than 64 devices.
fn devices(platform: PlatformId) -> Result<Vec<DeviceId>, String> {
    let ask = |ids: &mut [cl_device_id]| {
        let mut count: cl_uint = 0;
        let to = if ids.is_empty() { ptr::null_mut() } else { ids.as_mut_ptr() };
        let all = DeviceType::ALL.bits();
        // SAFETY: a platform of the loader's, room for as many ids as are asked for, and for their number.
        let status = unsafe { ffi::clGetDeviceIDs(platform.as_ptr(), all, ids.len() as cl_uint, to, &mut count) };
        match Status::from_i32(status) {
            Some(Status::CL_SUCCESS) if count > 0 => Ok(count as usize),
            Some(Status::CL_SUCCESS | Status::CL_DEVICE_NOT_FOUND) => Err("no device".into()),
            _ => Err(name_of(status)),
        }
    };
    let mut ids = vec![ptr::null_mut(); ask(&mut [])?];
    let count = ask(&mut ids)?;
    ids.truncate(count);
    // SAFETY: ids that the platform gave just now, and which stay as long as it does.
    Ok(ids.into_iter().filter(|id| !id.is_null()).map(|id| unsafe { DeviceId::from_raw(id) }).collect())
}

/// What a platform or device says of itself, or nothing.
fn text<T: ToString>(answer: Result<T, ocl_core::Error>) -> String {
    answer.map_or_else(|error| words(&error), |answer| answer.to_string()).trim().to_owned()
}

/// A number of a device's; 0 where it has none to give. Numbers have 4 or 8 bytes, in the host's order.
fn number(device: DeviceId, what: Asked) -> u64 {
    let bytes = ocl_core::get_device_info_raw(device, what as cl_uint).unwrap_or_default();
    match bytes.as_slice() {
        [a, b, c, d] => u32::from_ne_bytes([*a, *b, *c, *d]).into(),
        bytes => bytes.try_into().map_or(0, u64::from_ne_bytes),
    }
}

fn rank(kind: DeviceKind) -> u32 {
    match kind {
        DeviceKind::DiscreteGpu => 0,
        DeviceKind::IntegratedGpu => 1,
        DeviceKind::VirtualGpu => 2,
        DeviceKind::Cpu | DeviceKind::Software | DeviceKind::Reference => 3,
    }
}

impl OpenClDevice {
    fn new(platform: PlatformId, device: DeviceId) -> OpenClDevice {
        let told = |what| {
            let bytes = ocl_core::get_device_info_raw(device, what as cl_uint).unwrap_or_default();
            String::from_utf8_lossy(&bytes).trim_end_matches('\0').trim().to_owned()
        };
        let shares_memory = number(device, Asked::HostUnifiedMemory) != 0;
        let types = DeviceType::from_bits_truncate(number(device, Asked::Type));
        let kind = if types.contains(DeviceType::GPU) {
            if shares_memory { DeviceKind::IntegratedGpu } else { DeviceKind::DiscreteGpu }
        } else if types.contains(DeviceType::CPU) {
            DeviceKind::Cpu
        } else {
            // An accelerator must not be chosen unasked.
            DeviceKind::Software
        };
        let (largest, all) = (number(device, Asked::MaxMemAllocSize), number(device, Asked::GlobalMemSize));
        let language = told(Asked::OpenclCVersion);
        let unfit = unfit(device, &language);
        let platform = text(ocl_core::get_platform_info(platform, PlatformInfo::Name));
        let yes = |is: bool| if is { "yes" } else { "no" }.to_string();
        let mut limits = vec![
            ("buffer", format!("{} MiB", largest >> 20)),
            ("memory", format!("{} MiB", all >> 20)),
            ("compute units", number(device, Asked::MaxComputeUnits).to_string()),
            (READS_IN_PLACE, yes(shares_memory)),
        ];
        limits.extend(unfit.clone().map(|reason| (RUNS_NO_FILTER, reason)));
        OpenClDevice {
            info: DeviceInfo {
                id: String::new(),
                name: told(Asked::Name),
                kind,
                driver: format!("{platform}, {}, {}", told(Asked::DriverVersion), language),
                dispatch: Dispatch::COMMON,
                limits,
            },
            device,
            largest: largest.max(SMALLEST),
            shares_memory,
            group: None,
            unfit,
        }
    }

    /// The same device, taken for one whose memory is its own: it gets copies of packets, and gives
    /// copies back. For tests: a processor can then show what a discrete GPU would do.
    #[must_use]
    pub fn as_discrete(mut self) -> OpenClDevice {
        self.shares_memory = false;
        self.info.limits.retain(|(name, _)| *name != READS_IN_PLACE);
        self.info.limits.push((READS_IN_PLACE, "no".into()));
        self
    }

    /// The same device with so many work items in a group. Which number is best differs between devices; what a
    /// filter does is the same with any. One that the device does not take is an error when a batch is run.
    #[must_use]
    pub fn with_group_size(mut self, items: u32) -> OpenClDevice {
        self.group = Some(items.max(1) as usize);
        self
    }

    pub(crate) fn group(&self) -> Option<usize> {
        self.group
    }

    pub(crate) fn device(&self) -> DeviceId {
        self.device
    }

    /// Bytes that one buffer may have.
    pub(crate) fn largest(&self) -> u64 {
        self.largest
    }

    pub(crate) fn shares_memory(&self) -> bool {
        self.shares_memory
    }

    /// What tells its binaries from those of other devices and drivers.
    pub(crate) fn fingerprint(&self) -> String {
        let version = text(ocl_core::get_device_info(self.device, Asked::Version));
        format!("{}\n{}\n{version}", self.info.name, self.info.driver)
    }
}

/// Why filters cannot run on the device, if they cannot.
fn unfit(device: DeviceId, language: &str) -> Option<String> {
    // "OpenCL C 1.2 …" (the OpenCL specification, table 4.3).
    let version = language.split(' ').nth(2).and_then(|version| {
        let (major, minor) = version.split_once('.')?;
        Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    });
    if number(device, Asked::Available) == 0 {
        Some("its driver says that it is not available".into())
    } else if number(device, Asked::CompilerAvailable) == 0 {
        Some("its driver has no compiler".into())
    } else if number(device, Asked::EndianLittle) == 0 || cfg!(target_endian = "big") {
        Some("it is not little-endian, or the host is not".into())
    } else if version.is_none_or(|version| version < (1, 2)) {
        Some(format!("its compiler takes `{language}`, and OpenCL C 1.2 is needed"))
    } else {
        None
    }
}

impl Device for OpenClDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
        if let Some(reason) = &self.unfit {
            return Err(DeviceError::Unsupported { device: self.info.id.clone(), reason: reason.clone() });
        }
        let dispatch = Dispatch::select(&self.info, options)?;
        options.refuse_synthetic_work(&self.info.id)?;
        let session = session::open(self, program, options)?;
        if program.has_flows() {
            return load_initial_maps(program, dispatch.wrap(FlowSession::new(self, session, program, options)?));
        }
        load_initial_maps(program, dispatch.wrap(session))
    }
}
