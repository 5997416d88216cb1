//! Finding devices, without a panic and without a word on a machine that has none.

use std::ffi::{c_char, c_int};
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::{CUdevice, CUdevice_attribute as Attribute};
use portcullis_core::device::{
    CancelToken, Device, DeviceError, DeviceInfo, DeviceKind, Dispatch, LoadOptions, READS_IN_PLACE, RUNS_NO_FILTER,
    Session, load_initial_maps,
};
use portcullis_core::program::Program;

use crate::api::{Absent, Code, Driver, check};
use crate::compile::{BLOCK, Target};
use crate::context::Context;
use crate::device::{Flush, Gpu, Stream};
use crate::session;
use crate::wait;

/// A GPU that CUDA's driver offers.
#[derive(Debug, Clone)]
pub struct CudaDevice {
    info: DeviceInfo,
    device: CUdevice,
    /// 90 for compute capability 9.0.
    arch: i32,
    processors: u32,
    /// Threads in a block.
    block: u32,
    /// Its fastest clock, in thousands of cycles a second.
    clock: u32,
    /// CUDA's version that the driver has, major and minor.
    version: (i32, i32),
    /// Why no filter can be loaded on it, where that is so.
    unfit: Option<String>,
}

#[cfg(not(windows))]
const NO_DRIVER: &str = "no CUDA driver on this machine (libcuda.so.1): install NVIDIA's driver (Debian's packages \
     nvidia-driver and libcuda1), or, in a container, let it see the GPU (`--gpus all`)";
#[cfg(windows)]
const NO_DRIVER: &str = "no CUDA driver on this machine (nvcuda.dll): install NVIDIA's driver";

/// How long others may take to let go of a context in which nothing works any more.
const LETTING_GO: Duration = Duration::from_secs(2);

/// The driver's own numbering of devices; set to nothing, it hides them all.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// All devices, in the driver's order.
///
/// # Errors
/// [`DeviceError::Missing`] where there is none; the text says what to do.
pub fn probe() -> Result<Vec<CudaDevice>, DeviceError> {
    let driver = Driver::get().map_err(|absent| DeviceError::Missing(without_driver(&absent)))?;
    // One at a time: it sets itself up at the first call.
    static ASKING: Mutex<()> = Mutex::new(());
    let _one = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
    let missing = |code| DeviceError::Missing(without_device(code));
    // SAFETY: it may be called any number of times, and fail.
    check(unsafe { (driver.cuInit)(0) }).map_err(missing)?;
    let (mut version, mut count) = (0, 0);
    // SAFETY: room for a number each.
    check(unsafe { (driver.cuDriverGetVersion)(&mut version) }).map_err(missing)?;
    // SAFETY: as above.
    check(unsafe { (driver.cuDeviceGetCount)(&mut count) }).map_err(missing)?;
    if count < 1 {
        return Err(missing(Code::NO_DEVICE));
    }
    // 1000 times the major version and 10 times the minor one (CUDA's driver API, cuDriverGetVersion).
    let version = (version / 1000, version % 1000 / 10);
    let (mut found, mut failed) = (Vec::new(), Vec::new());
    for index in 0..count {
        match CudaDevice::new(driver, index, version, found.len()) {
            Ok(device) => found.push(device),
            // One that is broken hides no other.
            Err(code) => failed.push((index, code)),
        }
    }
    let Some(last) = found.last_mut() else {
        return Err(missing(failed.first().map_or(Code::NO_DEVICE, |&(_, code)| code)));
    };
    last.info.limits.extend(
        failed.iter().map(|(index, code)| ("beside it", format!("CUDA's device {index}, which fails: {code}"))),
    );
    Ok(found)
}

fn without_driver(absent: &Absent) -> String {
    match absent {
        Absent::Library => NO_DRIVER.into(),
        Absent::Functions(missing) => format!(
            "the CUDA driver of this machine lacks {}: CUDA 11.4 or newer is needed, that is NVIDIA's driver 470 or \
             newer",
            missing.join(", ")
        ),
    }
}

/// What to do about a driver that has no device to give.
fn without_device(code: Code) -> String {
    let hidden = std::env::var(VISIBLE).ok().filter(|_| code == Code::NO_DEVICE || code == Code::INVALID_DEVICE);
    let advice = match code {
        _ if hidden.is_some() => {
            format!("{VISIBLE} is `{}`, which may hide it: unset it", hidden.unwrap_or_default().escape_debug())
        }
        Code::NO_DEVICE => "is there an NVIDIA GPU, and does `nvidia-smi` see it? A container needs to be given it \
             (`--gpus all`)"
            .into(),
        Code::SYSTEM_DRIVER_MISMATCH => "the driver's library and the kernel's module are of different versions: \
             restart the machine after the driver's update"
            .into(),
        Code::SYSTEM_NOT_READY => "the GPUs' fabric is not set up: start nvidia-fabricmanager".into(),
        Code::COMPAT_NOT_SUPPORTED => "the package cuda-compat, which is newer than the driver, is in the linker's \
             path, and this GPU does not take it: remove it, or update the driver"
            .into(),
        Code::STUB_LIBRARY => "the libcuda that is found first is the toolkit's stub, which is for linking only: take \
             its folder out of LD_LIBRARY_PATH"
            .into(),
        Code::UNKNOWN => "is the module nvidia_uvm loaded? `nvidia-modprobe -u -c 0`, as root, loads it".into(),
        _ => "`nvidia-smi` may know more".into(),
    };
    format!("the CUDA driver gives no device ({code}); {advice}")
}

/// The driver's release, which its own interface does not tell: `550.54.15`.
fn release() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let is_release = |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.lines().next()?.split_whitespace().find(is_release).map(str::to_owned)
}

/// The methods that a device has. Acquiring and releasing across the bus, which a kernel that talks to the
/// host does, came with compute capability 7.0; waiting for a value with drivers of CUDA 11.7, and not with
/// Windows's, which send what is queued when they see fit.
fn dispatch_methods(driver: &Driver, arch: i32) -> &'static [Dispatch] {
    use Dispatch::{Graph, Inline, Persistent, Pipelined, WaitValue};
    let waits =
        cfg!(not(windows)) && driver.cuStreamWaitValue32_v2.is_some() && driver.cuStreamWriteValue32_v2.is_some();
    match (arch >= 70, waits) {
        (true, true) => &[Pipelined, Inline, Persistent, WaitValue, Graph],
        (true, false) => &[Pipelined, Inline, Persistent, Graph],
        (false, true) => &[Pipelined, Inline, WaitValue, Graph],
        (false, false) => &[Pipelined, Inline, Graph],
    }
}

/// A number that the driver has for a device; 0 where it does not know what is asked for.
pub(crate) fn attribute_of(driver: &Driver, device: CUdevice, attribute: Attribute) -> c_int {
    let mut number = 0;
    // SAFETY: room for a number.
    let known = check(unsafe { (driver.cuDeviceGetAttribute)(&mut number, attribute, device) });
    if known.is_ok() { number } else { 0 }
}

impl CudaDevice {
    fn new(driver: &'static Driver, index: c_int, version: (i32, i32), place: usize) -> Result<CudaDevice, Code> {
        let mut device = 0;
        // SAFETY: room for a device.
        check(unsafe { (driver.cuDeviceGet)(&mut device, index) })?;
        let mut name = [0_u8; 256];
        // SAFETY: room for as many bytes as are said; the name ends in a zero within them.
        check(unsafe { (driver.cuDeviceGetName)(name.as_mut_ptr().cast::<c_char>(), name.len() as c_int, device) })?;
        let name = String::from_utf8_lossy(name.split(|&b| b == 0).next().unwrap_or_default()).into_owned();
        let mut memory = 0;
        // SAFETY: room for a number.
        check(unsafe { (driver.cuDeviceTotalMem_v2)(&mut memory, device) })?;
        let number = |attribute| attribute_of(driver, device, attribute);
        let major = number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
        let minor = number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
        let processors = number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
        let arch = major * 10 + minor;
        let kind = match number(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED) {
            _ if driver.is_emulated => DeviceKind::Software,
            0 => DeviceKind::DiscreteGpu,
            _ => DeviceKind::IntegratedGpu,
        };
        // CU_COMPUTEMODE_PROHIBITED.
        let unfit = if number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) == 2 {
            Some("its compute mode is Prohibited: `nvidia-smi -c DEFAULT`, as root, allows work".into())
        } else if number(Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY) == 0 {
            Some("it cannot reach the host's memory".into())
        } else {
            Target::of(arch, version).err()
        };
        let mut limits = vec![
            ("compute capability", format!("{major}.{minor}")),
            ("memory", format!("{} MiB", memory >> 20)),
            ("multiprocessors", processors.to_string()),
        ];
        if unfit.is_none() {
            // Resident kernels and graphs have slots of their own, which the host fills.
            let how = "yes: its own memory; the host's by pipelined and inline, where it can be pinned";
            limits.push((READS_IN_PLACE, how.into()));
        }
        limits.push(match &unfit {
            Some(reason) => (RUNS_NO_FILTER, reason.clone()),
            None => ("compiler", Target::of(arch, version).map_or_else(|reason| reason, |target| target.to_string())),
        });
        let release = release().map(|release| format!("NVIDIA {release}, ")).unwrap_or_default();
        Ok(CudaDevice {
            info: DeviceInfo {
                id: format!("cuda:{place}"),
                name,
                kind,
                driver: format!("{release}CUDA {}.{}", version.0, version.1),
                dispatch: dispatch_methods(driver, arch),
                limits,
            },
            device,
            arch,
            processors: processors.max(1).unsigned_abs(),
            block: BLOCK,
            clock: number(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE).unsigned_abs(),
            version,
            unfit,
        })
    }

    /// The same device with so many threads in a block, where batches are `inline` or `pipelined`. Which number is best
    /// differs between GPUs; what a filter does is the same with any. One that the device does not take is an error
    /// when a filter is loaded.
    #[must_use]
    pub fn with_group_size(mut self, threads: u32) -> CudaDevice {
        self.block = threads.max(1);
        self
    }

    pub(crate) fn block(&self) -> u32 {
        self.block
    }

    /// Cycles that take so long at least, whatever its clock is set to.
    pub(crate) fn cycles(&self, nanos: NonZeroU64) -> NonZeroU64 {
        // No GPU has a clock of more than 4 GHz, for drivers that do not tell.
        let clock = if self.clock == 0 { 4_000_000 } else { u64::from(self.clock) };
        NonZeroU64::new(nanos.get().saturating_mul(clock).div_ceil(1_000_000)).unwrap_or(NonZeroU64::MIN)
    }

    /// 90 for compute capability 9.0.
    pub(crate) fn arch(&self) -> i32 {
        self.arch
    }

    /// The driver's handle.
    pub(crate) fn handle(&self) -> CUdevice {
        self.device
    }

    /// CUDA's version that the driver has, major and minor.
    pub(crate) fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Opens the device for one session, with a dispatch method. The token ends waiting for what others do at it.
    pub(crate) fn open(&self, dispatch: Dispatch, cancel: &CancelToken) -> Result<Gpu, DeviceError> {
        let driver = Driver::get().map_err(|absent| DeviceError::Missing(without_driver(&absent)))?;
        let failed = |code: Code| DeviceError::Failed {
            device: self.info.id.clone(),
            reason: format!("cannot be opened: {code}"),
        };
        let open = || -> Result<Gpu, (Code, bool)> {
            let context = Context::new(driver, self.device, cancel).map_err(|code| (code, false))?;
            let is_shared = context.is_shared();
            let context = Arc::new(context);
            self.open_in(&context, dispatch).map_err(|code| (code, is_shared && code.is_of_context()))
        };
        let mut opened = open();
        // Where a kernel has failed, all that is done in the context fails from then on. There is a new one when all have let
        // go of it, which sessions that are left behind do in a moment.
        wait::within(LETTING_GO, Some(cancel), || {
            if matches!(opened, Err((_, true))) {
                opened = open();
            }
            !matches!(opened, Err((_, true)))
        });
        opened
            .map_err(|(code, again)| if again && cancel.is_cancelled() { DeviceError::Cancelled } else { failed(code) })
    }

    fn open_in(&self, context: &Arc<Context>, dispatch: Dispatch) -> Result<Gpu, Code> {
        let stream = || Stream::new(context).map(Arc::new);
        let kernels = stream()?;
        // One batch after the other needs no more than one.
        let other = || if dispatch == Dispatch::Inline { Ok(kernels.clone()) } else { stream() };
        Ok(Gpu {
            id: self.info.id.clone(),
            about: format!("{} | {} | {}", self.info.id, self.info.name, self.info.driver),
            kind: self.info.kind,
            processors: self.processors,
            uploads: other()?,
            downloads: other()?,
            kernels,
            flush: Flush::of(context.driver, self.device),
            context: context.clone(),
        })
    }
}

impl Device for CudaDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
        if let Some(reason) = &self.unfit {
            return Err(DeviceError::Unsupported { device: self.info.id.clone(), reason: reason.clone() });
        }
        load_initial_maps(program, session::load(self, program, options)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_without_a_device_says_what_to_do() {
        for (code, hint) in [
            (Code::SYSTEM_DRIVER_MISMATCH, "restart the machine"),
            (Code::SYSTEM_NOT_READY, "nvidia-fabricmanager"),
            (Code::COMPAT_NOT_SUPPORTED, "cuda-compat"),
            (Code::STUB_LIBRARY, "LD_LIBRARY_PATH"),
            (Code::UNKNOWN, "nvidia-modprobe"),
            (Code(12345), "nvidia-smi"),
        ] {
            let text = without_device(code);
            assert!(text.contains(hint), "{text}");
        }
        assert!(without_driver(&Absent::Library).contains("install NVIDIA's driver"));
        let text = without_driver(&Absent::Functions(vec!["cuGraphLaunch"]));
        assert!(text.contains("cuGraphLaunch") && text.contains("470 or newer"), "{text}");
    }
}
