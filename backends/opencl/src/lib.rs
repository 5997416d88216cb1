//! Portcullis on OpenCL devices: GPUs, and processors (PoCL, Intel's CPU runtime).
//!
//! How it works:
//! - OpenCL's library is found when the program runs. A machine without one builds and starts it all
//!   the same (`build.rs`, the module `loader`);
//! - the filter becomes OpenCL C 1.2 and the driver compiles it. What that made is kept in a folder of
//!   the user's for the next run, by source, device and driver;
//! - a device that shares the host's memory works on packets where they lie, and writes to them there.
//!   Others get a copy of what the filter may touch, through pinned memory, and changed bytes come back
//!   the same way; several batches are on their way at once;
//! - no run of a kernel is longer than a fraction of a second, whatever the filter does: batches of
//!   filters with long loops are cut into launches;
//! - cancelling takes effect between launches and while the host waits. A device that is still busy
//!   half a second later is left behind with what it uses, and a thread frees all of it when the driver
//!   is done.
//!
//! Of the crate `ocl` only the lower half is used, `ocl-core`: OpenCL's functions, and objects that
//! release themselves. Where it panics, takes a failure for a success or waits for a driver that is
//! not there, OpenCL's functions are called directly.
//!
//! [`probe`] finds the devices. A machine without any gets a message that says what to install.
// OpenCL's own functions, and kernels that run without checks but their own: each block says why it holds.
#![allow(unsafe_code)]

mod column;
mod compile;
mod device;
mod loader;
mod memory;
mod probe;
mod session;
mod signals;
mod wait;

pub use probe::{OpenClDevice, probe};

#[doc(hidden)]
pub mod measure;
