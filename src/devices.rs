//! Which devices there are, and how to get one.
//!
//! Each backend is asked on its own, and only when somebody wants one of its devices: looking for
//! GPUs loads drivers, which takes time and is not always quiet.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use portcullis_core::device::noop::NoopDevice;
use portcullis_core::device::{Device, DeviceError, DeviceInfo, DeviceKind, RUNS_NO_FILTER};
use portcullis_core::interp::InterpDevice;

/// A family of devices behind one piece of code.
#[derive(Debug)]
pub struct Backend {
    /// Its name, the first part of its devices' ids.
    pub name: &'static str,
    /// What it is, in a line.
    pub description: &'static str,
    probe: fn() -> BackendDevices,
}

/// What a backend has found: its devices in the order of their numbers, or why there are none.
pub type BackendDevices = Result<Vec<Arc<dyn Device>>, DeviceError>;

impl Backend {
    /// Looks for the backend's devices.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] with what to install or load; [`DeviceError::Failed`] where a
    /// driver broke down.
    pub fn probe(&self) -> BackendDevices {
        let found = (self.probe)()?;
        if found.is_empty() {
            return Err(DeviceError::Missing(format!("{} has no device on this machine", self.name)));
        }
        Ok(found)
    }
}

/// Every backend that there is, whether this build has it or not.
pub fn backends() -> &'static [Backend] {
    &[
        Backend { name: "cpu", description: "the host's processor, native code by Cranelift", probe: cpu },
        Backend { name: "cuda", description: "NVIDIA GPUs through CUDA", probe: cuda },
        Backend { name: "wgpu", description: "GPUs through Vulkan, Metal or DX12", probe: wgpu },
        Backend { name: "opencl", description: "GPUs and processors through OpenCL", probe: opencl },
        Backend { name: "interp", description: "the reference interpreter: slow, and right", probe: interp },
        Backend { name: "noop", description: "no filter at all: every packet passes", probe: noop },
    ]
}

#[cfg(feature = "cpu")]
fn cpu() -> BackendDevices {
    Ok(vec![Arc::new(portcullis_cpu::Cpu::new())])
}

#[cfg(not(feature = "cpu"))]
fn cpu() -> BackendDevices {
    Err(left_out("cpu"))
}

#[cfg(feature = "cuda")]
fn cuda() -> BackendDevices {
    Ok(portcullis_cuda::probe()?.into_iter().map(|device| Arc::new(device) as Arc<dyn Device>).collect())
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> BackendDevices {
    Err(left_out("cuda"))
}

#[cfg(feature = "wgpu")]
fn wgpu() -> BackendDevices {
    Ok(portcullis_wgpu::probe()?.into_iter().map(|device| Arc::new(device) as Arc<dyn Device>).collect())
}

#[cfg(not(feature = "wgpu"))]
fn wgpu() -> BackendDevices {
    Err(left_out("wgpu"))
}

#[cfg(feature = "opencl")]
fn opencl() -> BackendDevices {
    Ok(portcullis_opencl::probe()?.into_iter().map(|device| Arc::new(device) as Arc<dyn Device>).collect())
}

#[cfg(not(feature = "opencl"))]
fn opencl() -> BackendDevices {
    Err(left_out("opencl"))
}

fn interp() -> BackendDevices {
    Ok(vec![Arc::new(InterpDevice::new())])
}

fn noop() -> BackendDevices {
    Ok(vec![Arc::new(NoopDevice::new())])
}

#[cfg(not(all(feature = "cpu", feature = "cuda", feature = "wgpu", feature = "opencl")))]
fn left_out(feature: &str) -> DeviceError {
    DeviceError::Missing(format!("this build leaves {feature} out; build with `--features {feature}` to have it"))
}

/// What `--device` says: which device is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// A real GPU, else the CPU; never a software device, never the interpreter. What opens devices by a selector takes one of
    /// them; `portcullis run` has both share the work, by a calibration ([`crate::auto`]).
    Auto,
    /// A device of one backend.
    Backend {
        /// The backend's name.
        backend: &'static str,
        /// Which of its devices, from 0; `None` is the best: a real GPU before a software one.
        index: Option<usize>,
    },
}

/// A name that no backend has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no device `{requested}`; there are auto, {}", names())]
pub struct UnknownDevice {
    /// What was asked for.
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
    /// Probes the backend asked for, and no other, and takes the device.
    ///
    /// # Errors
    /// [`DeviceError::Missing`], with what there is or what to install.
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
            None => Ok(found.into_iter().min_by_key(|d| rank(d.info().kind)).expect("probe gives at least one")),
        }
    }
}

/// The device with this id (see [`Selector`]), after probing its backend only.
///
/// # Errors
/// [`DeviceError::Missing`], with what there is or what to install.
pub fn open(id: &str) -> Result<Arc<dyn Device>, DeviceError> {
    id.parse::<Selector>().map_err(|unknown| DeviceError::Missing(unknown.to_string()))?.open()
}

/// A real GPU, the strongest kind first, else the CPU: what `auto` is without a calibration.
///
/// # Errors
/// [`DeviceError::Missing`] where there is neither.
pub fn open_auto() -> Result<Arc<dyn Device>, DeviceError> {
    match gpu() {
        Some(gpu) => Ok(gpu),
        None => processor(),
    }
}

/// What `auto` may choose from, the one first that it takes where nothing is known: a real GPU, if there is one, and the
/// CPU. Never a software device, and of a card that is there under several names the first alone.
///
/// # Errors
/// [`DeviceError::Missing`] where there is neither.
pub fn candidates() -> Result<Vec<Arc<dyn Device>>, DeviceError> {
    match (gpu(), processor()) {
        (Some(gpu), cpu) => Ok([gpu].into_iter().chain(cpu.ok()).collect()),
        (None, cpu) => Ok(vec![cpu?]),
    }
}

/// A real GPU that filters can run on, the strongest kind first.
fn gpu() -> Option<Arc<dyn Device>> {
    if !may_have_gpu() {
        return None;
    }
    // A card may be there under several names: the one with the most ways of reaching it comes first.
    [cuda, wgpu, opencl].into_iter().find_map(|probe| {
        // A GPU that cannot be had, or lacks its compiler, is no reason to fail while there is a CPU.
        let gpus = probe().unwrap_or_default().into_iter().filter(|device| suits(device.info()));
        gpus.min_by_key(|d| rank(d.info().kind))
    })
}

fn processor() -> Result<Arc<dyn Device>, DeviceError> {
    match cpu() {
        Ok(mut found) if !found.is_empty() => Ok(found.swap_remove(0)),
        Ok(_) => Err(DeviceError::Missing("there is neither a GPU nor code for this processor".into())),
        Err(error) => Err(DeviceError::Missing(format!(
            "there is no GPU, and no cpu device: {error}. The reference interpreter runs everywhere: --device interp"
        ))),
    }
}

/// Whether `auto` may take a device: a real GPU that filters can run on.
fn suits(info: &DeviceInfo) -> bool {
    info.kind.is_gpu() && info.limits.iter().all(|(name, _)| *name != RUNS_NO_FILTER)
}

/// The order in which devices are preferred.
fn rank(kind: DeviceKind) -> u8 {
    match kind {
        DeviceKind::DiscreteGpu => 0,
        DeviceKind::IntegratedGpu => 1,
        DeviceKind::VirtualGpu => 2,
        DeviceKind::Cpu => 3,
        DeviceKind::Software => 4,
        DeviceKind::Reference => 5,
    }
}

/// Whether looking for a GPU is worth loading the drivers, which takes some 50 ms: on Linux every
/// real GPU has a device file, and a software renderer needs none.
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
    use super::*;

    #[test]
    fn selectors_read_as_they_are_written() {
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
                    .contains("there are auto, cpu, cuda, cuda:N, wgpu, wgpu:N, opencl, opencl:N, interp, noop"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_number_too_high_says_what_there_is() {
        let error = open("noop:1").err().unwrap().to_string();
        assert!(error.contains("noop:1") && error.contains("there is noop ("), "{error}");
        assert_eq!(open("noop:0").unwrap().info().id, "noop");
    }

    #[test]
    fn auto_takes_no_gpu_without_its_compiler() {
        let noop = open("noop").unwrap();
        let gpu = DeviceInfo { kind: DeviceKind::DiscreteGpu, ..noop.info().clone() };
        assert!(suits(&gpu) && !suits(noop.info()));
        assert!(!suits(&DeviceInfo { limits: vec![(RUNS_NO_FILTER, "no compiler".into())], ..gpu }));
    }

    #[test]
    fn auto_never_takes_a_software_or_reference_device() {
        let candidates = candidates().unwrap_or_default();
        for device in open_auto().iter().chain(&candidates) {
            let kind = device.info().kind;
            assert!(kind.is_gpu() || kind == DeviceKind::Cpu, "{kind:?}");
        }
        // Each of them once, and that first which is taken where nothing is known.
        let id = |device: &Arc<dyn Device>| device.info().id.clone();
        assert_eq!(candidates.first().map(id), open_auto().ok().as_ref().map(id));
        assert!(candidates.len() <= 2, "a GPU and the CPU");
    }
}
