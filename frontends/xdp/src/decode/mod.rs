//! The object's maps and functions, linked to maps of a filter.

pub(crate) mod linked;
pub(crate) mod maps;
pub(crate) mod variable_types;
