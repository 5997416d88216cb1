//! 64-bit integers as pairs of `u32`, for devices that have none.

use std::collections::HashMap;

use naga::{Function, Handle, Module};

/// Rewrites every 64-bit integer of the module. Gives the functions' new handles where they have
/// moved; a function that is not in the map has kept its own.
pub(super) fn run(_module: &mut Module) -> Option<HashMap<Handle<Function>, Handle<Function>>> {
    None
}
