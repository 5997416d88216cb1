//! Memory that both host and device use.
//!
//! There are three kinds: device memory (`cuMemAlloc`); pinned host memory, which the device copies
//! by DMA and kernels access over the bus (`cuMemHostAlloc`); and memory of a packet source, pinned
//! where it lies (`cuMemHostRegister`). There is no managed memory: every transfer is explicit. If
//! no memory can be pinned, copies go through pageable memory (`HostMemory::for_copies`).
//!
//! The public part is for sources whose packets are in a GPU's memory, or in host memory that a GPU
//! is to access: see [`Gpu`]. Its allocations belong to the device's primary context, in which all
//! sessions run, so sessions use them in place once a [`Span`](portcullis_core::packet::Span) names
//! their address ([`DeviceBuffer::view`]). Allocating and freeing wait until resident kernels have
//! left the device.

mod buffers;
mod gdrcopy;
mod gpu;
mod registration;
mod unpinned;

pub use gpu::{CpuMapping, DeviceBuffer, Gpu, GpuDirect, HostRegistration};
pub use registration::EVERY_DEVICE;

pub(crate) use buffers::{Buffer, DeviceMemory, HostMemory, ensure_capacity, ensure_capacity_by};
pub(crate) use registration::{PinnedSpan, PinnedSpanCache, SpanAddress};
pub(crate) use unpinned::UnpinnedMemory;
