//! What a packet filter is and what it means, apart from any file, socket or device.
//!
//! - [`packet`]: arenas, descriptors, batches, verdicts;
//! - [`program`]: the validated filter, what is known about it, and the passes that ready it for a
//!   device;
//! - [`interp`]: the reference interpreter, which says what is right;
//! - [`device`]: the traits that every backend implements;
//! - [`map`]: kept for the state that filters share between packets.

pub mod device;
pub mod diagnostics;
pub mod interp;
pub mod ir;
pub mod map;
pub mod packet;
pub mod program;
mod reason;
pub mod routes;
pub mod spelling;
pub mod stack;
#[cfg(test)]
mod testing;

/// The intermediate representation that front ends make and backends take.
pub use naga;
pub use reason::reason;
