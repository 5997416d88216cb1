//! Maps: state that outlives a packet. `docs/maps.md` says what they mean to a filter and how they lie in memory.
//!
//! - [`declare`]: the lines of a filter's text that declare maps;

pub mod declare;

pub use declare::{Declaration, Kind};

/// The binding group that maps are bound in.
pub const BIND_GROUP: u32 = 1;
