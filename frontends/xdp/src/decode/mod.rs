//! Instructions and helper functions, and the object's maps linked to maps of a filter.

pub mod helper;
pub mod instruction;
pub(crate) mod linked;
pub(crate) mod maps;
pub(crate) mod variable_types;
