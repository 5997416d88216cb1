//! Packets by DPDK.
//!
//! Packets lie side by side in one piece of memory, which all ports of a run receive into, so that a filter works on them where they
//! are, and one that came in by one port goes out by another without a copy. DPDK's descriptions of them (mbufs) are looked at in C
//! alone (`portcullis-dpdk-sys`), a burst at a time.
//!
//! A process has one DPDK, which begins with the first run and stays.
#![allow(unsafe_code)]

mod advice;
mod captures;
mod eal;
mod error;
mod executor;
pub mod gpudev;
mod interfaces;
mod log;
mod memory;
mod open;
mod pass_to;
mod port;
mod receiver;
mod spec;
mod split;
mod way_back;
mod written;

pub use captures::{CaptureDamage, find_damaged_captures};
pub use eal::{Eal, EalOptions, version};
pub use error::DpdkError;
pub use gpudev::Mempool;
pub use open::{Dpdk, MbufCounts, Options, open};
pub use pass_to::PassTarget;
pub use port::{HeaderSplit, PortInfo};
pub use spec::PortSpec;
pub use split::check_split;
pub use written::WrittenCaptures;
