//! Maps: state that outlives a packet. Binding group 1 is theirs (`docs/abi.md`); no filter can
//! declare one yet.

/// The binding group that maps will be bound in.
pub const BIND_GROUP: u32 = 1;
