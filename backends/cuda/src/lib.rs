//! Portcullis on NVIDIA GPUs, through CUDA's driver.
//!
//! How it works:
//! - the driver and NVRTC, CUDA's compiler, are found when the program runs. A machine without them builds
//!   and starts it all the same, and is told what to install;
//! - the filter becomes CUDA C++, and NVRTC makes machine code of it for the device's own architecture. That
//!   is kept in a folder of the user's for the next run. A machine without NVRTC can be given what was made
//!   elsewhere ([`CUBINS`], [`cubins`]);
//! - the device gets what the filter may touch of each packet and no more, out of memory that is pinned:
//!   the source's own where packets lie close together, else a copy. Only what may have changed comes back. Packets in
//!   the device's own memory, where a network card has put them, are filtered there ([`memory`] is for sources);
//! - batches are handed over in one of five ways (the modules of `dispatch`): copies and launches in
//!   streams, one batch at a time or several at once; a graph for each slot; kernels queued ahead that wait
//!   for a value in memory; or one kernel that stays and polls;
//! - all sessions share the device's primary context, so their kernels run side by side. Kernels that stay
//!   leave for as long as it takes where memory comes or goes (`context`);
//! - no launch takes longer than a fraction of a second, whatever the filter does. Cancelling takes effect
//!   between launches and while the host waits. A device that is still busy half a second later is left
//!   behind with what it uses, and a thread frees that when the device is done.
//!
//! Of the crate `cudarc` the types are used. Its own functions panic where a driver is older than they are (`api`
//! says more).
//!
//! [`probe`] finds the devices. A machine without any gets a message that says what to do.
// The driver's own functions, and kernels that run without checks but their own: each block says why it holds.
#![allow(unsafe_code)]

mod api;
mod compile;
mod context;
mod device;
mod dispatch;
mod maps;
pub mod memory;
mod nvrtc;
mod probe;
mod session;
mod wait;

pub use compile::{CUBINS, CubinSource, cubins, nvrtc_version};
pub use probe::{CudaDevice, probe};

#[doc(hidden)]
pub mod measure;
