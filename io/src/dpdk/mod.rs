//! DPDK ports as packet sources and outputs.
//!
//! All ports of a run receive into one memory pool, so that packets are filtered where they were
//! received and forwarded between ports without a copy. Mbufs are only accessed in C
//! (`portcullis-dpdk-sys`), a burst at a time.
//!
//! A process has one EAL instance, which the first run initialises and which lives until the
//! process exits.
#![allow(unsafe_code)]

mod advice;
mod captures;
mod eal;
mod error;
mod executor;
pub mod gpudev;
mod interface_watch;
mod log;
mod memory;
mod open;
mod options;
mod pass_target;
mod port;
mod receiver;
mod spec;
mod split;
mod stack_forwarder;
mod tx_queue;
mod version;
mod written_captures;

pub use captures::{CaptureDamage, find_damaged_captures};
pub use eal::Eal;
pub use error::DpdkError;
pub use gpudev::Mempool;
pub use open::{Dpdk, MbufCounts, open};
pub use options::Options;
pub use pass_target::PassTarget;
pub use port::{HeaderSplit, PortInfo};
pub use spec::PortSpec;
pub use split::check_split;
pub use version::version;
pub use written_captures::WrittenCaptures;
