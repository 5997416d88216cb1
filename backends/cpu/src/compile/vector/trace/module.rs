//! The filter's module in the form that is traced.

use std::collections::{HashMap, HashSet};

use naga::valid::ModuleInfo;
use naga::{Function, Handle, Module};
use portcullis_core::program::prelude::Intrinsic;

/// The module after lowering 64-bit integers to pairs of 32-bit ones.
pub(super) struct LoweredModule {
    pub module: Module,
    pub info: ModuleInfo,
    pub filter: Handle<Function>,
    pub intrinsics: HashMap<Handle<Function>, Intrinsic>,
    pub prelude: HashSet<Handle<Function>>,
}
