//! CPU backend: compiles a filter to native code for whole batches of packets and runs it on a
//! thread pool.
//!
//! The code for a batch is one loop over packets with everything inlined. A packet access that the
//! filter has already checked against the packet's length is emitted unchecked, every other one
//! with a bounds check, so no filter and no packet can make the code touch memory outside the
//! packet.
//!
//! A filter is compiled in several styles ([`Style`]): scalar code with few branches, scalar code
//! with all of them, and vector code that filters four or eight packets at a time, with and without
//! speculation on header lengths. Which is fastest depends on the traffic, so the session measures
//! them on the packets that it filters anyway and uses the winner. `docs/performance.md` has the
//! figures.
//!
//! Rooms, from the bottom up: `maps` holds the filter's maps, `compile` makes the code, `session`
//! runs it, `probe` describes the processor, `device` puts them together.

#![allow(unsafe_code)]

mod compile;
mod device;
mod maps;
mod probe;
mod session;

pub use compile::cross;
pub use compile::lowered::Style;
pub use compile::pipeline::render_clif;
pub use compile::processor::Processor;
pub use compile::vector;
pub use device::Cpu;
