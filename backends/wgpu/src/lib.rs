//! Portcullis on GPUs, through wgpu: Vulkan, and Metal and DX12 where those are at home.
//!
//! How it works:
//! - the filter stays naga IR: `compile` appends a compute entry point that runs it once for each
//!   packet, drops what the filter does not use, and hands the module to wgpu as it is;
//! - a session has a slot for every batch that may be in flight, with buffers that are
//!   made once and mapped again as soon as the device is done with them;
//! - packets are read where they lie when the driver can import host memory
//!   (`VK_EXT_external_memory_host`) and the filter only reads. Else the device gets a copy, and
//!   for a filter that writes the changed bytes come back through a mapped buffer: wgpu knows no
//!   barrier that would make writes to imported memory visible to the host;
//! - a batch whose memory is larger than a binding may be is run in pieces;
//! - no run of a kernel is longer than a fraction of a second, whatever the filter does: batches
//!   of filters with long loops are cut into launches. Drivers may compile a filter for much longer,
//!   some of them at its first launch, and software devices refuse what would take them minutes;
//! - cancelling takes effect between launches and while the host waits. A device that is still busy
//!   half a second later is left behind with what it uses, the batches in flight included: dropping
//!   the session does not wait, and a thread frees all of it once the driver is done.
//!
//! [`probe`] finds the devices. A machine without any gets a message that says what to install.
// Vulkan's own functions, and kernels that run without wgpu's checks: each block says why it holds.
#![allow(unsafe_code)]

mod compile;
mod device;
mod memory;
mod probe;
mod session;

pub use compile::spirv;
pub use probe::{WgpuDevice, probe};

#[doc(hidden)]
pub mod measure;
