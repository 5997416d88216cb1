//! Finding devices, without a panic and without a word on the standard streams.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use portcullis_core::device::{
    Device, DeviceError, DeviceInfo, DeviceKind, Dispatch, FlowSession, LoadOptions, READS_IN_PLACE, Session,
    load_initial_maps,
};
use portcullis_core::program::Program;

use crate::compile::WORKGROUP;
use crate::device::Gpu;
use crate::memory::import::HostImport;
use crate::session::{self, SOFTWARE_NESTING, SOFTWARE_SIZE};

/// The backends that are asked. OpenGL has no storage for whole batches, and wgpu's `noop` is no
/// device.
const BACKENDS: wgpu::Backends = wgpu::Backends::VULKAN.union(wgpu::Backends::METAL).union(wgpu::Backends::DX12);

/// No validation layers: their messages are for whoever works on wgpu.
const FLAGS: wgpu::InstanceFlags = wgpu::InstanceFlags::empty();

/// A device that wgpu found.
#[derive(Debug, Clone)]
pub struct WgpuDevice {
    info: DeviceInfo,
    adapter: wgpu::Adapter,
    import: Option<HostImport>,
    /// Invocations in a work group.
    group: u32,
    /// Its memory counts as its own, whatever it is.
    apart: bool,
}

/// All devices of this machine, `wgpu:0` first: real GPUs before software, else in the order in
/// which the drivers name them.
///
/// # Errors
/// [`DeviceError::Missing`] where there is none; the text says what to install.
pub fn probe() -> Result<Vec<WgpuDevice>, DeviceError> {
    let instance = instance()?;
    let mut adapters = ready(instance.enumerate_adapters(BACKENDS))?;
    adapters.retain(can_compute);
    // Stable: drivers name their devices in an order of their own, which stays.
    adapters.sort_by_key(|adapter| rank(kind(adapter.get_info().device_type)));
    if adapters.is_empty() {
        return Err(DeviceError::Missing(NO_DEVICE.into()));
    }
    Ok(adapters.into_iter().enumerate().map(|(index, adapter)| WgpuDevice::new(index, adapter)).collect())
}

#[cfg(target_os = "linux")]
const NO_DEVICE: &str = "Vulkan is installed, but no driver offers a device: install the driver of your GPU's vendor, \
     or mesa-vulkan-drivers (Debian's package for AMD and Intel GPUs, and for lavapipe, which needs no GPU)";
#[cfg(not(target_os = "linux"))]
const NO_DEVICE: &str = "no Vulkan, Metal or DX12 device: install the driver of your GPU's vendor";

/// An instance of Vulkan alone, made so that looking for devices opens no window system: Mesa asks
/// a Wayland or X server which GPU it draws with where the instance could draw there, and complains
/// on the standard error stream where no server answers.
#[cfg(target_os = "linux")]
fn instance() -> Result<wgpu::Instance, DeviceError> {
    use ash::khr;
    let description = wgpu::hal::InstanceDescriptor {
        name: "portcullis",
        flags: FLAGS,
        memory_budget_thresholds: wgpu::MemoryBudgetThresholds::default(),
        backend_options: wgpu::BackendOptions::default(),
        telemetry: None,
        display: None,
    };
    let windows = [khr::wayland_surface::NAME, khr::xcb_surface::NAME, khr::xlib_surface::NAME];
    // SAFETY: the callback changes the list of extensions only. Of those that wgpu asks for it
    // leaves out three that only making a surface uses, which the hal checks for and which never
    // happens here; everything else is as wgpu wants it.
    let hal = unsafe {
        wgpu::hal::vulkan::Instance::init_with_callback(
            &description,
            Some(Box::new(move |args| args.extensions.retain(|name| !windows.contains(name)))),
        )
    };
    let hal = hal.map_err(|error| {
        // Without any driver the loader refuses to make an instance.
        // SAFETY: loads the library that was tried just now; its initialisers run in any program.
        let text = match unsafe { ash::Entry::load() } {
            Ok(_) => format!("{NO_DEVICE} ({error})"),
            Err(_) => format!(
                "no Vulkan on this machine: install libvulkan1 and the driver of your GPU's vendor, or \
                 mesa-vulkan-drivers for AMD, Intel and software devices (Debian's package names; {error})"
            ),
        };
        DeviceError::Missing(text)
    })?;
    // SAFETY: a fresh instance of the Vulkan backend, which wgpu may own.
    Ok(unsafe { wgpu::Instance::from_hal::<wgpu::hal::api::Vulkan>(hal) })
}

#[cfg(not(target_os = "linux"))]
fn instance() -> Result<wgpu::Instance, DeviceError> {
    Ok(wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: BACKENDS,
        flags: FLAGS,
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    }))
}

fn can_compute(adapter: &wgpu::Adapter) -> bool {
    adapter.get_downlevel_capabilities().flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS)
}

fn kind(device_type: wgpu::DeviceType) -> DeviceKind {
    match device_type {
        wgpu::DeviceType::DiscreteGpu => DeviceKind::DiscreteGpu,
        wgpu::DeviceType::IntegratedGpu => DeviceKind::IntegratedGpu,
        wgpu::DeviceType::VirtualGpu => DeviceKind::VirtualGpu,
        // A device that does not say what it is must not be chosen unasked.
        wgpu::DeviceType::Cpu | wgpu::DeviceType::Other => DeviceKind::Software,
    }
}

fn rank(kind: DeviceKind) -> u32 {
    match kind {
        DeviceKind::DiscreteGpu => 0,
        DeviceKind::IntegratedGpu => 1,
        DeviceKind::VirtualGpu => 2,
        DeviceKind::Software | DeviceKind::Cpu | DeviceKind::Reference => 3,
    }
}

/// The result of a future of wgpu's that is always ready on native platforms.
pub(crate) fn ready<F: Future>(future: F) -> Result<F::Output, DeviceError> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => Err(DeviceError::Missing("wgpu does not answer on this platform".into())),
    }
}

impl WgpuDevice {
    fn new(index: usize, adapter: wgpu::Adapter) -> WgpuDevice {
        let import = HostImport::of(&adapter);
        let (about, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
        let megabytes = |bytes: u64| format!("{} MiB", bytes >> 20);
        let yes = |is: bool| if is { "yes" } else { "no" }.to_string();
        let kind = kind(about.device_type);
        let driver = [format!("{:?}", about.backend), about.driver, about.driver_info];
        WgpuDevice {
            info: DeviceInfo {
                id: format!("wgpu:{index}"),
                name: about.name,
                kind,
                driver: driver.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", "),
                dispatch: Dispatch::COMMON,
                limits: [
                    ("storage binding", megabytes(limits.max_storage_buffer_binding_size)),
                    ("buffer", megabytes(limits.max_buffer_size)),
                    ("workgroup", format!("{} invocations", limits.max_compute_invocations_per_workgroup)),
                    ("64-bit integers of its own", yes(features.contains(wgpu::Features::SHADER_INT64))),
                    (READS_IN_PLACE, yes(import.is_some())),
                ]
                .into_iter()
                .chain((kind == DeviceKind::Software).then(|| {
                    ("filter", format!("{SOFTWARE_SIZE} expressions, calls inlined; branches {SOFTWARE_NESTING} deep"))
                }))
                .collect(),
            },
            adapter,
            import,
            group: WORKGROUP,
            apart: false,
        }
    }

    /// The same device, taken for one whose memory is its own and that reaches no other: for tests, where a processor can then
    /// show what a discrete GPU would do.
    #[must_use]
    pub fn as_discrete(mut self) -> WgpuDevice {
        self.apart = true;
        self.import = None;
        self.info.limits.retain(|(name, _)| *name != READS_IN_PLACE);
        self.info.limits.push((READS_IN_PLACE, "no".into()));
        self
    }

    /// The same device with so many invocations in a work group. Which number is best differs between GPUs; what a
    /// filter does is the same with any. One that the device does not take is an error when a filter is loaded.
    #[must_use]
    pub fn with_group_size(mut self, invocations: u32) -> WgpuDevice {
        self.group = invocations.max(1);
        self
    }

    pub(crate) fn group(&self) -> u32 {
        self.group
    }

    /// Opens the device for one session: a session that fails takes no other with it.
    pub(crate) fn open(&self) -> Result<Gpu, DeviceError> {
        Gpu::open(&self.info, &self.adapter, self.import.as_ref(), self.apart)
    }
}

impl Device for WgpuDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load(&self, program: &Arc<Program>, options: &LoadOptions) -> Result<Box<dyn Session>, DeviceError> {
        let dispatch = Dispatch::select(&self.info, options)?;
        options.refuse_synthetic_work(&self.info.id)?;
        let session = session::open(self, program, options)?;
        if program.has_flows() {
            return load_initial_maps(program, dispatch.wrap(FlowSession::new(self, session, program, options)?));
        }
        load_initial_maps(program, dispatch.wrap(session))
    }
}
