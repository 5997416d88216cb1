//! Sources that wrap other sources.

mod fault;
mod limit;
mod repeat;
mod tee;

pub use fault::{Fault, Faults};
pub use limit::Limit;
pub use repeat::Repeat;
pub use tee::Tee;
