//! Finds and opens devices.
//!
//! Each backend is probed separately, and only if one of its devices is requested: looking for GPUs
//! loads drivers, which takes time and may print messages.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use portcullis_core::device::noop::NoopDevice;
use portcullis_core::device::{Device, DeviceError, DeviceInfo, DeviceKind, Dispatch, SingleDispatch};
use portcullis_core::interp::InterpDevice;

/// A kind of devices with a common implementation.
#[derive(Debug)]
pub struct Backend {
    /// Name of the backend, which is the first part of its devices' ids.
    pub name: &'static str,
    /// One-line description.
    pub description: &'static str,
    probe: fn() -> BackendDevices,
}

/// A backend's devices in the order of their indices, or why there are none.
pub type BackendDevices = Result<Vec<Arc<dyn Device>>, DeviceError>;

impl Backend {
    /// Looks for the backend's devices.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] with what to install or load; [`DeviceError::Failed`] if a driver
    /// failed.
    pub fn probe(&self) -> BackendDevices {
        let found = (self.probe)()?;
        if found.is_empty() {
            return Err(DeviceError::Missing(format!("{} has no device on this machine", self.name)));
        }
        Ok(found)
    }
}

/// Returns all backends, including those left out of this build.
pub fn backends() -> &'static [Backend] {
    &[
        Backend { name: "cpu", description: "the CPU, native code by Cranelift", probe: cpu },
        Backend { name: "cuda", description: "NVIDIA GPUs through CUDA", probe: cuda },
        Backend { name: "wgpu", description: "GPUs through Vulkan, Metal or DX12", probe: wgpu },
        Backend { name: "opencl", description: "GPUs and CPUs through OpenCL", probe: opencl },
        Backend { name: "interp", description: "the reference interpreter: slow and exact", probe: interp },
        Backend { name: "noop", description: "runs no filter: every packet passes", probe: noop },
    ]
}

#[cfg(feature = "cpu")]
fn cpu() -> BackendDevices {
    Ok(vec![Arc::new(portcullis_cpu::Cpu::new())])
}

#[cfg(not(feature = "cpu"))]
fn cpu() -> BackendDevices {
    Err(not_in_this_build("cpu"))
}

#[cfg(feature = "cuda")]
fn cuda() -> BackendDevices {
    Ok(portcullis_cuda::probe()?.into_iter().map(|device| Arc::new(device) as Arc<dyn Device>).collect())
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> BackendDevices {
    Err(not_in_this_build("cuda"))
}

#[cfg(feature = "wgpu")]
fn wgpu() -> BackendDevices {
    Ok(portcullis_wgpu::probe()?.into_iter().map(|device| Arc::new(device) as Arc<dyn Device>).collect())
}

#[cfg(not(feature = "wgpu"))]
fn wgpu() -> BackendDevices {
    Err(not_in_this_build("wgpu"))
}

#[cfg(feature = "opencl")]
fn opencl() -> BackendDevices {
    Ok(portcullis_opencl::probe()?.into_iter().map(|device| Arc::new(device) as Arc<dyn Device>).collect())
}

#[cfg(not(feature = "opencl"))]
fn opencl() -> BackendDevices {
    Err(not_in_this_build("opencl"))
}

fn interp() -> BackendDevices {
    Ok(vec![Arc::new(InterpDevice::new())])
}

fn noop() -> BackendDevices {
    Ok(vec![Arc::new(NoopDevice::new())])
}

#[cfg(not(all(feature = "cpu", feature = "cuda", feature = "wgpu", feature = "opencl")))]
fn not_in_this_build(feature: &str) -> DeviceError {
    DeviceError::Missing(format!("this build lacks {feature}; build with `--features {feature}`"))
}

/// Selects a device, as the option `--device` does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// A real GPU, or else the CPU; never a software device or the interpreter. [`Selector::open`]
    /// returns one of them; `portcullis run` may use both, by a calibration ([`crate::auto`]).
    Auto,
    /// A device of one backend.
    Backend {
        /// Name of the backend.
        backend: &'static str,
        /// Index of the device; `None` for the best one, with real GPUs before software devices.
        index: Option<usize>,
    },
}

/// No backend has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no device `{requested}`; expected one of auto, {}", names())]
pub struct UnknownDevice {
    /// The requested device.
    pub requested: String,
}

fn names() -> String {
    let mut names = String::new();
    for backend in backends() {
        if !names.is_empty() {
            names += ", ";
        }
        names += backend.name;
        if matches!(backend.name, "cuda" | "wgpu" | "opencl") {
            names += &format!(", {}:N", backend.name);
        }
    }
    names
}

impl FromStr for Selector {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Selector, UnknownDevice> {
        let unknown = || UnknownDevice { requested: text.escape_debug().to_string() };
        if text == "auto" {
            return Ok(Selector::Auto);
        }
        let (name, index) = match text.split_once(':') {
            Some((name, index)) if !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit()) => {
                (name, Some(index.parse().map_err(|_| unknown())?))
            }
            Some(_) => return Err(unknown()),
            None => (text, None),
        };
        let backend = backends().iter().find(|b| b.name == name).ok_or_else(unknown)?.name;
        Ok(Selector::Backend { backend, index })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selector::Auto => f.write_str("auto"),
            Selector::Backend { backend, index: None } => f.write_str(backend),
            Selector::Backend { backend, index: Some(index) } => write!(f, "{backend}:{index}"),
        }
    }
}

impl Selector {
    /// Probes the selected backend, and no other, and opens the device.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] with the devices that exist or what to install.
    pub fn open(&self) -> Result<Arc<dyn Device>, DeviceError> {
        let (name, index) = match *self {
            Selector::Auto => return open_auto(),
            Selector::Backend { backend, index } => (backend, index),
        };
        let backend = backends().iter().find(|b| b.name == name).expect("a selector names a backend");
        let mut found = backend.probe()?;
        match index {
            Some(index) if index < found.len() => Ok(found.swap_remove(index)),
            Some(index) => {
                let there: Vec<_> = found.iter().map(|d| format!("{} ({})", d.info().id, d.info().name)).collect();
                Err(DeviceError::Missing(format!("there is no {name}:{index}; there is {}", there.join(", "))))
            }
            None => Ok(found
                .into_iter()
                .min_by_key(|d| preference_rank(d.info().kind))
                .expect("probe returns at least one device")),
        }
    }
}

/// Opens the device with this id (see [`Selector`]) after probing its backend only.
///
/// # Errors
/// [`DeviceError::Missing`] with the devices that exist or what to install.
pub fn open(id: &str) -> Result<Arc<dyn Device>, DeviceError> {
    id.parse::<Selector>().map_err(|unknown| DeviceError::Missing(unknown.to_string()))?.open()
}

/// Opens the device that `auto` uses without a calibration: the best real GPU, or else the CPU.
///
/// # Errors
/// [`DeviceError::Missing`] if there is neither.
pub fn open_auto() -> Result<Arc<dyn Device>, DeviceError> {
    match best_gpu() {
        Some(gpu) => Ok(gpu),
        None => cpu_device(),
    }
}

/// Opens the devices that `auto` may choose from, the default one first: a real GPU if there is
/// one, and the CPU. Never a software device. A GPU that several backends offer is included once,
/// and if it has a persistent kernel, once more with that as its only dispatch method: it suits
/// other sizes of batches than the default method.
///
/// # Errors
/// [`DeviceError::Missing`] if there is neither.
pub fn candidates() -> Result<Vec<Arc<dyn Device>>, DeviceError> {
    match (best_gpu(), cpu_device()) {
        (Some(gpu), cpu) => Ok(with_persistent(gpu).chain(cpu.ok()).collect()),
        (None, cpu) => Ok(vec![cpu?]),
    }
}

/// A device, and the same with the dispatch method `persistent` only if it has others too.
fn with_persistent(device: Arc<dyn Device>) -> impl Iterator<Item = Arc<dyn Device>> {
    let persistent = SingleDispatch::new(&device, Dispatch::Persistent).ok();
    let persistent = persistent.filter(|_| device.info().dispatch.len() > 1);
    [device].into_iter().chain(persistent.map(|device| Arc::new(device) as Arc<dyn Device>))
}

/// Opens the best real GPU that can run filters.
fn best_gpu() -> Option<Arc<dyn Device>> {
    if !may_have_gpu() {
        return None;
    }
    // Several backends may offer the same GPU; prefer the one with the most transfer and dispatch
    // methods.
    [cuda, wgpu, opencl].into_iter().find_map(|probe| {
        // A GPU that fails to open or lacks its compiler is no error while the CPU can be used.
        let gpus = probe().unwrap_or_default().into_iter().filter(|device| is_auto_candidate(device.info()));
        gpus.min_by_key(|d| preference_rank(d.info().kind))
    })
}

fn cpu_device() -> Result<Arc<dyn Device>, DeviceError> {
    match cpu() {
        Ok(mut found) if !found.is_empty() => Ok(found.swap_remove(0)),
        Ok(_) => Err(DeviceError::Missing("there is neither a GPU nor a JIT for this CPU".into())),
        Err(error) => Err(DeviceError::Missing(format!(
            "there is no GPU, and no cpu device: {error}. The reference interpreter runs everywhere: --device interp"
        ))),
    }
}

/// Whether `auto` may choose a device: a real GPU that can run filters.
fn is_auto_candidate(info: &DeviceInfo) -> bool {
    info.kind.is_gpu() && info.runs_no_filter().is_none()
}

/// Order of preference, best first.
fn preference_rank(kind: DeviceKind) -> u8 {
    match kind {
        DeviceKind::DiscreteGpu => 0,
        DeviceKind::IntegratedGpu => 1,
        DeviceKind::VirtualGpu => 2,
        DeviceKind::Cpu => 3,
        DeviceKind::Software => 4,
        DeviceKind::Reference => 5,
    }
}

/// Whether a GPU may exist. Avoids loading drivers needlessly, which takes about 50 ms: on Linux
/// every real GPU has a device file, and software renderers have none.
fn may_have_gpu() -> bool {
    if !cfg!(target_os = "linux") {
        return true;
    }
    let render_node = || {
        std::fs::read_dir("/dev/dri").is_ok_and(|mut nodes| {
            nodes.any(|n| n.is_ok_and(|n| n.file_name().as_encoded_bytes().starts_with(b"renderD")))
        })
    };
    ["/dev/nvidiactl", "/dev/dxg", "/dev/kfd"].iter().any(|file| std::path::Path::new(file).exists()) || render_node()
}

#[cfg(test)]
mod tests {
    use portcullis_core::device::{DeviceLimit, LoadOptions, Session};
    use portcullis_core::program::Program;

    use super::*;

    #[test]
    fn selectors_parse_their_own_display() {
        for text in
            ["auto", "cpu", "wgpu", "wgpu:0", "wgpu:17", "cuda", "cuda:1", "opencl", "opencl:3", "interp", "noop"]
        {
            assert_eq!(text.parse::<Selector>().unwrap().to_string(), text);
        }
        for text in
            ["", "gpu", "wgpu:", "wgpu:-1", "wgpu:x", "wgpu:1:2", "wgpu:99999999999999999999999", "auto:0", "CPU"]
        {
            let error = text.parse::<Selector>().unwrap_err();
            assert!(
                error
                    .to_string()
                    .contains("expected one of auto, cpu, cuda, cuda:N, wgpu, wgpu:N, opencl, opencl:N, interp, noop"),
                "{error}"
            );
        }
    }

    #[test]
    fn an_index_out_of_range_lists_the_devices() {
        let error = open("noop:1").err().unwrap().to_string();
        assert!(error.contains("noop:1") && error.contains("there is noop ("), "{error}");
        assert_eq!(open("noop:0").unwrap().info().id, "noop");
    }

    #[test]
    fn auto_takes_no_gpu_without_its_compiler() {
        let noop = open("noop").unwrap();
        let gpu = DeviceInfo { kind: DeviceKind::DiscreteGpu, ..noop.info().clone() };
        assert!(is_auto_candidate(&gpu) && !is_auto_candidate(noop.info()));
        let limits = vec![DeviceLimit::RunsNoFilter("no compiler".into())];
        assert!(!is_auto_candidate(&DeviceInfo { limits, ..gpu }));
    }

    #[test]
    fn a_gpu_with_a_persistent_kernel_is_two_candidates() {
        let of = |dispatch: &'static [Dispatch]| {
            let info = DeviceInfo { id: "gpu".into(), dispatch, ..open("noop").unwrap().info().clone() };
            let device: Arc<dyn Device> = Arc::new(Described(info));
            with_persistent(device).map(|device| device.info().id.clone()).collect::<Vec<_>>()
        };
        assert_eq!(of(&[Dispatch::Pipelined, Dispatch::Inline, Dispatch::Persistent]), ["gpu", "gpu persistent"]);
        assert_eq!([of(&[Dispatch::Pipelined]), of(&[Dispatch::Persistent])], [["gpu"], ["gpu"]]);
    }

    /// A device that loads nothing.
    struct Described(DeviceInfo);

    impl Device for Described {
        fn info(&self) -> &DeviceInfo {
            &self.0
        }

        fn load(&self, _: &Arc<Program>, _: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
            Err(DeviceError::Missing("it loads nothing".into()))
        }
    }

    #[test]
    fn auto_never_takes_a_software_or_reference_device() {
        let candidates = candidates().unwrap_or_default();
        for device in open_auto().iter().chain(&candidates) {
            let kind = device.info().kind;
            assert!(kind.is_gpu() || kind == DeviceKind::Cpu, "{kind:?}");
        }
        // Each device occurs once, and the default comes first.
        let id = |device: &Arc<dyn Device>| device.info().id.clone();
        assert_eq!(candidates.first().map(id), open_auto().ok().as_ref().map(id));
        assert!(candidates.len() <= 3, "a GPU, perhaps with a persistent kernel, and the CPU");
    }
}
