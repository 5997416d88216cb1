//! Device discovery. A machine without a driver or a device gets an error that says what to
//! install, never a panic or output.

use portcullis_core::device::{DeviceError, DeviceInfo, DeviceKind, DeviceLimit, Dispatch};

use crate::compile::{SOFTWARE_MAX_EXPRESSIONS, SOFTWARE_MAX_NESTING, WORKGROUP_SIZE};
use crate::device::WgpuDevice;
use crate::driver::gpu::{GpuProperties, ready};
use crate::driver::host_import::HostImport;
#[cfg(target_os = "linux")]
use crate::driver_manifests;

/// The backends in use. OpenGL has no storage buffers of a batch's size, and wgpu's `noop` is not a
/// device.
const BACKENDS: wgpu::Backends = wgpu::Backends::VULKAN.union(wgpu::Backends::METAL).union(wgpu::Backends::DX12);

/// No validation layers: their messages are for developers of wgpu.
const FLAGS: wgpu::InstanceFlags = wgpu::InstanceFlags::empty();

/// Lists the devices of this machine, `wgpu:0` first: real GPUs before software devices, else in
/// the order of the drivers.
///
/// # Errors
/// [`DeviceError::Missing`] if there is none; the text says what to install.
pub fn probe() -> Result<Vec<WgpuDevice>, DeviceError> {
    let instance = instance()?;
    let mut adapters = ready(instance.enumerate_adapters(BACKENDS))?;
    adapters.retain(can_compute);
    // The sort is stable: the order of the drivers stays within a kind.
    adapters.sort_by_key(|adapter| rank(kind(adapter.get_info().device_type)));
    if adapters.is_empty() {
        return Err(DeviceError::Missing(NO_DEVICE.into()));
    }
    Ok(adapters.into_iter().enumerate().map(|(index, adapter)| describe(index, adapter)).collect())
}

#[cfg(target_os = "linux")]
const NO_DEVICE: &str = "Vulkan is installed, but no driver offers a device: install the driver of your GPU's vendor, \
     or mesa-vulkan-drivers (Debian's package for AMD and Intel GPUs, and for lavapipe, which needs no GPU)";
#[cfg(not(target_os = "linux"))]
const NO_DEVICE: &str = "no Vulkan, Metal or DX12 device: install the driver of your GPU's vendor";

/// Creates an instance of Vulkan alone, without surface extensions: with them, Mesa asks the
/// Wayland or X server which GPU it renders with, and prints to standard error if no server
/// answers.
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
    // SAFETY: the callback only changes the list of extensions. It removes three that are used for
    // nothing but creating a surface, which the hal checks for and which never happens here.
    let hal = unsafe {
        wgpu::hal::vulkan::Instance::init_with_callback(
            &description,
            Some(Box::new(move |args| args.extensions.retain(|name| !windows.contains(name)))),
        )
    };
    let hal = hal.map_err(|error| {
        // Without a driver the loader refuses to create an instance.
        // SAFETY: loads the library that was just tried; its initialisers run in any program.
        let text = match unsafe { ash::Entry::load() } {
            Ok(_) => match driver_manifests::describe_faults() {
                Some(faults) => format!(
                    "Vulkan is installed, but its drivers do not work here: {faults}; mend that, or install \
                     mesa-vulkan-drivers for AMD, Intel and software devices (Debian's package name; {error})"
                ),
                None => {
                    format!("{NO_DEVICE}; if the driver's manifest is elsewhere, name it in VK_DRIVER_FILES ({error})")
                }
            },
            Err(_) => format!(
                "no Vulkan on this machine: install libvulkan1 and the driver of your GPU's vendor, or \
                 mesa-vulkan-drivers for AMD, Intel and software devices (Debian's package names; {error})"
            ),
        };
        DeviceError::Missing(text)
    })?;
    // SAFETY: a new instance of the Vulkan backend, which wgpu may own.
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
        // Devices of unknown type are only used if the user names them.
        wgpu::DeviceType::Cpu | wgpu::DeviceType::Other => DeviceKind::Software,
    }
}

/// Sort key of a kind of device.
fn rank(kind: DeviceKind) -> u32 {
    match kind {
        DeviceKind::DiscreteGpu => 0,
        DeviceKind::IntegratedGpu => 1,
        DeviceKind::VirtualGpu => 2,
        DeviceKind::Software | DeviceKind::Cpu | DeviceKind::Reference => 3,
    }
}

/// Describes an adapter as `wgpu:INDEX`.
fn describe(index: usize, adapter: wgpu::Adapter) -> WgpuDevice {
    let import = HostImport::of_adapter(&adapter);
    let (adapter_info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
    let megabytes = |bytes: u64| format!("{} MiB", bytes >> 20);
    let yes_or_no = |is: bool| if is { "yes" } else { "no" };
    let kind = kind(adapter_info.device_type);
    let driver = [format!("{:?}", adapter_info.backend), adapter_info.driver, adapter_info.driver_info];
    let info = DeviceInfo {
        id: format!("wgpu:{index}"),
        name: adapter_info.name,
        kind,
        driver: driver.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", "),
        dispatch: Dispatch::COMMON,
        limits: [
            DeviceLimit::new("storage binding", megabytes(limits.max_storage_buffer_binding_size)),
            DeviceLimit::new("buffer", megabytes(limits.max_buffer_size)),
            DeviceLimit::new("workgroup", format!("{} invocations", limits.max_compute_invocations_per_workgroup)),
            DeviceLimit::new("64-bit integers of its own", yes_or_no(features.contains(wgpu::Features::SHADER_INT64))),
            DeviceLimit::ReadsInPlace(import.is_some().into()),
        ]
        .into_iter()
        .chain((kind == DeviceKind::Software).then(|| {
            DeviceLimit::new(
                "filter",
                format!("{SOFTWARE_MAX_EXPRESSIONS} expressions, calls inlined; branches {SOFTWARE_MAX_NESTING} deep"),
            )
        }))
        .collect(),
    };
    let properties = GpuProperties {
        id: info.id.clone(),
        identity: format!("{} | {} | {}", info.id, info.name, info.driver),
        kind,
        adapter,
        import,
        group_size: WORKGROUP_SIZE,
        is_discrete: false,
    };
    WgpuDevice::new(info, properties)
}
