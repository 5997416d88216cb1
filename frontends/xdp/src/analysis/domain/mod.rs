//! The abstract domain: strided intervals, register types, and the state of registers, stack and
//! packet, with its join.

pub(crate) mod interval;
mod join;
pub(crate) mod offsets;
pub(crate) mod pseudo_registers;
pub(crate) mod reg_type;
pub(crate) mod state;
