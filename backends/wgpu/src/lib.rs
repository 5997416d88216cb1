//! Portcullis on GPUs through wgpu: Vulkan, and Metal and DX12 on their platforms.
//!
//! Design:
//! - The filter stays naga IR: `compile` adds a compute entry point that runs it once for each
//!   packet, removes what the filter does not use, and passes the module to wgpu as it is.
//! - A session has buffers for every batch that may be in flight; they are created once and mapped
//!   again as soon as the device is done with them.
//! - Packets are read in place if the driver can import host memory (`VK_EXT_external_memory_host`)
//!   and the filter only reads. Otherwise the device gets a copy, and changed bytes come back
//!   through a mapped buffer: wgpu has no barrier that makes writes to imported memory visible to
//!   the host.
//! - A batch whose memory exceeds the largest binding is split into chunks.
//! - No launch takes longer than a fraction of a second, whatever the filter does: batches of
//!   filters with long loops are split into several launches. Drivers may compile a filter for much
//!   longer, some of them at its first launch, and software devices refuse what would take them
//!   minutes.
//! - Cancellation takes effect between launches and while the host waits. If the device is still
//!   busy half a second later, the session is abandoned with the batches in flight: dropping it
//!   does not block, and a thread frees its resources once the driver is done.
//!
//! Modules import only those after them in this list: `measure`, `probe`, `device`, `session`,
//! `compile`, `maps`, `memory`, `driver`, `driver_manifests`.
// Calls of Vulkan, and kernels that run without wgpu's checks: each block says why it is sound.
#![allow(unsafe_code)]

mod compile;
mod device;
mod driver;
#[cfg(target_os = "linux")]
mod driver_manifests;
mod maps;
mod memory;
mod probe;
mod session;

pub use compile::spirv;
pub use device::WgpuDevice;
pub use probe::probe;

#[doc(hidden)]
pub mod measure;
