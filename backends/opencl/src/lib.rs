//! Portcullis on OpenCL devices: GPUs, and CPUs (PoCL, Intel's CPU runtime).
//!
//! Design:
//! - The OpenCL library is loaded at run time. A program without it builds and starts all the same,
//!   and [`probe`] says what to install (`build.rs`, `driver::loader`).
//! - The filter is written as OpenCL C 1.2 and compiled by the driver. The binary is cached on
//!   disk, by source, device and driver.
//! - A device that shares the host's memory filters packets in place. Others get a copy of what the
//!   filter may access, through pinned memory, and changed bytes are copied back; several batches
//!   are in flight at once.
//! - No launch takes longer than a fraction of a second, whatever the filter does: batches of
//!   filters with long loops are split into several launches.
//! - Cancellation takes effect between launches and while the host waits. If the device is still
//!   busy half a second later, the session is abandoned and a thread frees its resources once the
//!   driver is done.
//!
//! Of the crate `ocl` only the lower half is used, `ocl-core`: OpenCL's functions, and handles that
//! release themselves. Where it panics, takes a failure for success or waits for a driver that does
//! not exist, OpenCL's functions are called directly.
//!
//! Modules import only those after them in this list: `measure`, `probe`, `device`, `session`,
//! `compile`, `maps`, `memory`, `driver`.
// Calls of OpenCL, and kernels that run without bounds checks: each block says why it is sound.
#![allow(unsafe_code)]

mod compile;
mod device;
mod driver;
mod maps;
mod memory;
mod probe;
mod session;

pub use device::OpenClDevice;
pub use probe::probe;

#[doc(hidden)]
pub mod measure;
