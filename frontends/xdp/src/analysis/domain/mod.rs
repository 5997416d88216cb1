//! The abstract domain: value ranges, pointer types, and the state of registers, stack and packet.

pub(crate) mod range;
pub(crate) mod state;
