//! The filter's module in the form that is traced.

use std::collections::{HashMap, HashSet};

use naga::valid::ModuleInfo;
use naga::{Function, Handle, Module};
use portcullis_core::program::prelude::Intrinsic;

/// What the filter's module is, its 64-bit integers made pairs.
pub(super) struct Code {
    pub module: Module,
    pub info: ModuleInfo,
    pub filter: Handle<Function>,
    pub intrinsics: HashMap<Handle<Function>, Intrinsic>,
    pub prelude: HashSet<Handle<Function>>,
}
