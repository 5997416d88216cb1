//! Instructions, helper functions and maps of an object, decoded for the analysis.

pub mod helper;
pub mod instruction;
pub(crate) mod linked;
pub(crate) mod maps;
