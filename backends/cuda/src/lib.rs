//! Portcullis on NVIDIA GPUs, through the CUDA driver API.
//!
//! Design:
//! - The driver and NVRTC, CUDA's run-time compiler, are loaded at run time. Without them the
//!   program builds and starts all the same, and [`probe`] says what to install.
//! - The filter is written as CUDA C++, which NVRTC compiles for the device's own architecture. The
//!   binary is cached on disk. A machine without NVRTC can use binaries that were compiled
//!   elsewhere ([`CUBIN_FOLDER_ENV`], [`cubins`]).
//! - The device gets only those bytes of each packet that the filter may access, from pinned
//!   memory: the source's own if packets lie close together, else a copy. Only what the filter may
//!   have changed is copied back. Packets in device memory, put there by a network card, are
//!   filtered in place (the module [`memory`] is for such sources).
//! - Batches are dispatched by one of five methods (`session`): copies and launches in streams, one
//!   batch at a time or several at once; a CUDA graph for each slot; kernels queued ahead that wait
//!   for a value in memory; or one persistent kernel that polls.
//! - All sessions share the device's primary context, so their kernels run concurrently. Resident
//!   kernels leave the device while memory is allocated or freed (`driver::context`).
//! - No launch takes longer than a fraction of a second, whatever the filter does. Cancellation
//!   takes effect between launches and while the host waits. If the device is still busy half a
//!   second later, the session is abandoned and a thread frees its resources once the device is
//!   done.
//!
//! Only the types of the crate `cudarc` are used: its functions panic if the driver is older than
//! they are (`driver::api`).
//!
//! Modules import only those after them in this list: `measure`, `probe`, `device`, `session`,
//! `compile`, `maps`, `memory`, `driver`.
// Calls of the driver, and kernels that run without bounds checks: each block says why it is sound.
#![allow(unsafe_code)]

mod compile;
mod device;
mod driver;
mod maps;
pub mod memory;
mod probe;
mod session;

pub use compile::{CUBIN_FOLDER_ENV, CubinSource, NvrtcError, cubins, nvrtc_version};
pub use device::CudaDevice;
pub use probe::probe;

#[doc(hidden)]
pub mod measure;
