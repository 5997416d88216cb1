//! GPUs in DPDK (gpudev, `rte_gpudev.h`): GPU memory that packets are received into, and signalling
//! between host and GPU.
//!
//! ```text
//! GpuDriver ──registered──► Gpu ──► GpuMemory ──► CpuMapping
//! (software, CUDA)           ▲  ──► RegisteredMemory (host memory)
//! DPDK's own driver ─────────┘  ──► CommList, CommFlag
//! ```
//!
//! DPDK's own driver supports some GPUs, by PCI device ID, and requires CUDA to be built. For other
//! GPUs, and machines without any, a driver can live in this process ([`GpuDriver`]); DPDK uses it
//! like one of its own.

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

pub(super) use buffers::{Buffers, PacketWriters};
pub use driver::{DriverError, GpuDriver, GpuProperties};
pub use flag::CommFlag;
pub use gpu::{Gpu, GpuInfo, GpuSpec, Mempool};
pub use ledger::{Block, GpuMemoryUsage};
pub(super) use list::{CommList, ReadyItem};
pub use memory::{CpuMapping, GpuMemory, RegisteredMemory};
pub use software::SoftwareGpu;
