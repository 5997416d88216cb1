//! Filters, packets, devices and maps, independent of any file, socket or device driver.
//!
//! - [`packet`]: packet memory, descriptors, batches and verdicts;
//! - [`program`]: the validated filter, the facts inferred about it, and the lowering passes;
//! - [`interp`]: the reference interpreter, which defines the correct result;
//! - [`device`]: the interface that every backend implements;
//! - [`map`]: maps, the state that filters share between packets.

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
