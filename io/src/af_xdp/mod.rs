//! AF_XDP: packets straight from an interface's receive queues, in memory that kernel and filter share, on Linux.
//!
//! ```text
//!            fill ring ◄────────────────────────── Homes ◄──────────────┐
//!                │                                   ▲                  │
//! a queue ──► the kernel ──► RX ring ──► XdpReceiver │ batch dropped    │ completion ring
//!                                            │       │                  │
//!                                            ▼       │                  │
//!                                    Batch with Held ┘ ──► XdpExecutor ─┴─► TX rings of this and other ports
//! ```
//!
//! All sockets of a run have one memory, so that a packet goes from one port to another without a copy here: a UMEM, which those
//! that only send have been given a second time (`sender`). Each of its frames
//! is somebody's: the kernel's (by the fill, RX, TX and completion rings), a batch's, or it is at home with the lane that it
//! belongs to. [`FrameAudit`] adds them up.
//!
//! - [`rules`]: which frames come to user space, and which stay with the kernel.
//! - [`xdp`]: the program in the kernel that decides it, at an interface.
//! - [`reinject`]: passed frames back into the kernel's stack.
#![allow(unsafe_code)]

mod bpf;
mod error;
mod executor;
mod frame_audit;
mod homes;
mod open;
mod port;
mod receiver;
pub mod reinject;
pub mod rules;
mod rx;
mod sender;
mod socket;
mod tx;
mod umem;
pub mod xdp;

pub use bpf::error::BpfError;
pub use error::XdpError;
pub use frame_audit::{FrameAudit, FrameCounts};
pub use open::{AfXdp, LaneLayout, Options, PortInfo, open};
pub use port::{PortSpec, PortSpecError};
pub use rules::Steering;
pub use socket::{BusyPoll, CopyMode};
