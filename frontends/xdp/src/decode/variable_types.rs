//! C types of global variables and of their sections.

use std::sync::Arc;

use crate::object::{MapDefinition, Object, Variable};
use portcullis_core::map::typed::CType;

/// Type of a variable: from BTF, or a number of the symbol's size.
pub(crate) fn variable_type(object: &Object, variable: &Variable) -> Arc<CType> {
    let known = variable.ty.and_then(|ty| object.btf.c_type(ty)).filter(|ty| ty.size == variable.size);
    known.unwrap_or_else(|| CType::unknown(variable.size))
}

/// The structure type of a section of variables.
pub(crate) fn section_type(object: &Object, map: &MapDefinition) -> Arc<CType> {
    let members = map.variables.iter().map(|it| (it.name.clone(), it.at, variable_type(object, it)));
    CType::section(&map.name, map.value_size, members)
}
