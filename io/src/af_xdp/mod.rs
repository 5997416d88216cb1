//! AF_XDP: packets directly from an interface's receive queues, in memory (UMEM) shared with the
//! kernel. Linux only.
//!
//! ```text
//!            fill ring ◄──────────────────────────── FramePool ◄───────────────┐
//!                │                                       ▲                     │
//! a queue ──► the kernel ──► RX ring ──► XdpReceiver     │ batch dropped       │ completion ring
//!                                             │          │                     │
//!                                             ▼          │                     │
//!                                    Batch with BatchFrames ──► XdpExecutor ──► ports' TX rings
//! ```
//!
//! All sockets of a run share one memory, so that forwarding a packet between ports takes no copy:
//! a UMEM, which is registered a second time for transmit-only sockets (`tx_only_socket`). Each
//! frame has one owner at a time: the kernel (in the fill, RX, TX or completion ring), a batch, or
//! its lane's free list. [`FrameAudit`] adds them up.
//!
//! - [`rules`]: which frames are redirected to user space and which stay with the kernel.
//! - [`xdp`]: the XDP program at an interface that decides this.
//! - [`StackInjector`]: injects passed frames into the kernel's stack; [`reinject`]: redirects them
//!   there to the ingress of the interface that they came from.
#![allow(unsafe_code)]

mod bpf;
mod error;
mod executor;
mod frame_audit;
mod frame_pool;
mod open;
mod port;
mod receiver;
pub mod reinject;
pub mod rules;
mod rx;
mod socket;
mod stack;
mod tx;
mod tx_only_socket;
mod umem;
pub mod xdp;

pub use bpf::error::BpfError;
pub use error::XdpError;
pub use frame_audit::{FrameAudit, FrameCounts};
pub use open::{AfXdp, LaneLayout, Options, PortInfo, open};
pub use port::{PortSpec, PortSpecError};
pub use rules::Steering;
pub use socket::{BusyPoll, CopyMode};
pub use stack::{InjectionPoint, StackDelivery, StackDevice, StackError, StackInjector};
