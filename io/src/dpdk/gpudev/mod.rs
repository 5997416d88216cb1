//! GPUs as DPDK has them (gpudev, `rte_gpudev.h`): their memory, which packets come into, and what a GPU and the host tell each other.
//!
//! ```text
//! GpuDriver ──registered──► Gpu ──► GpuMemory ──► CpuMapping
//! (software, CUDA's)         ▲  ──► Registered (the host's memory)
//! DPDK's own driver ─────────┘  ──► CommList, Flag
//! ```
//!
//! DPDK's own driver knows some GPUs by their numbers at the PCI bus, and is built where CUDA is. So that others work as well, and
//! machines without any, a driver may be of this process ([`GpuDriver`]): DPDK takes it as one of its own.

mod buffers;
mod driver;
mod flag;
mod gpu;
mod ledger;
mod list;
mod memory;
mod software;
#[cfg(test)]
mod tests;

pub(super) use buffers::{Buffers, Writers};
pub use driver::{Block, DriverError, GpuDriver, GpuProperties};
pub use flag::CommFlag;
pub use gpu::{Gpu, GpuInfo, GpuSpec, Mempool};
pub use ledger::GpuMemoryUsage;
pub(super) use list::{CommList, Ready};
pub use memory::{CpuMapping, GpuMemory, RegisteredMemory};
pub use software::SoftwareGpu;
