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
//!   of filters with long loops are cut into launches, and cancelling takes effect between them.
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
