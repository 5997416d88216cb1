//! Lowering passes: from a program's module to one that a device's compiler accepts.
//!
//! A pass works on a copy of [`Program::module`] and produces a module that validates. The order is
//! fixed, because each pass depends on those before it:
//!
//! 1. If-conversion of early returns, while the functions contain only the filter's own statements.
//! 2. Clamping of indices, which needs the validator's types of the original module.
//! 3. The fuel counter.
//! 4. Specialisation of functions that take pointers to parts of variables.
//! 5. 64-bit integers, which the passes before may have added.
//! 6. Masking of shift counts.

mod clamp_indices;
mod entry_point;
mod fuel;
mod if_convert;
mod inlined_size;
mod int64;
mod mask_shifts;
mod nesting;
mod pointers;
mod rewrite;
#[cfg(test)]
mod testing;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{Function, Handle, Module};

pub use fuel::FuelState;
pub use inlined_size::inlined_size;
pub use nesting::inlined_nesting;

use super::{PreludeInternals, Program};
use crate::program::prelude::Intrinsic;

/// New function handles, by the old ones.
type FunctionMap = HashMap<Handle<Function>, Handle<Function>>;

/// The passes that a device needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lowering {
    /// Count loop iterations and abort a packet that uses up its fuel, for devices that cannot
    /// leave a filter in the middle. Skipped if the facts prove that no packet does.
    pub fuel: bool,
    /// Clamp the filter's dynamic indices into arrays, vectors and matrices, so that the device
    /// needs no bounds checks for them.
    pub clamp_indices: bool,
    /// Pass only pointers to whole variables to functions, as SPIR-V requires.
    pub whole_pointers: bool,
    /// Replace 64-bit integers by pairs of `u32`.
    pub int64: bool,
    /// Mask shift counts, for devices on which a count of the type's width or more is undefined.
    pub mask_shifts: bool,
    /// Convert early returns to selects if the code in between is cheap to speculate, for compilers
    /// that cannot prove its loads safe.
    pub if_convert: bool,
    /// Convert early returns at any cost, calls of pure helpers included, for compilers that
    /// vectorise over packets and execute both branches anyway. For filters that write neither
    /// packets nor maps.
    pub if_convert_all: bool,
}

impl Lowering {
    /// No passes.
    pub const NONE: Lowering = Lowering {
        fuel: false,
        clamp_indices: false,
        whole_pointers: false,
        int64: false,
        mask_shifts: false,
        if_convert: false,
        if_convert_all: false,
    };

    /// The passes that naga's SPIR-V writer and Vulkan drivers need.
    pub const SPIRV: Lowering = Lowering {
        fuel: true,
        clamp_indices: true,
        whole_pointers: true,
        int64: true,
        mask_shifts: true,
        ..Lowering::NONE
    };
}

/// A lowered module, with the handles that a backend needs. They belong to this module, not to
/// [`Program::module`].
#[derive(Debug, Clone)]
pub struct Lowered {
    /// The filter, its helpers and the prelude, without an entry point.
    pub module: Module,
    /// The validator's types and analyses of the module.
    pub info: ModuleInfo,
    /// The filter's function.
    pub filter: Handle<Function>,
    /// The prelude's internal functions and variables.
    pub internals: PreludeInternals,
    /// The prelude functions that filters may call.
    pub intrinsics: HashMap<Handle<Function>, Intrinsic>,
    /// All functions of the prelude, internal ones and those added by passes included.
    pub prelude: HashSet<Handle<Function>>,
    /// Variables of the fuel counter, if the filter needs one.
    pub fuel: Option<FuelState>,
    /// Whether an entry point has to write the packet's offset and length back.
    changes_length: bool,
}

/// A pass failed or produced an invalid module: a bug in Portcullis, not in the filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot lower the filter, which is a bug in Portcullis: {reason}")]
pub struct LowerError {
    /// The validator's or the pass's message.
    pub reason: String,
}

/// Runs the passes that `lowering` selects, in their fixed order.
///
/// # Errors
/// If a pass fails or its module does not validate.
pub fn lower(program: &Program, lowering: Lowering) -> Result<Lowered, LowerError> {
    let mut module = program.module.clone();
    let is_own = |f: Handle<Function>| !program.is_prelude(f);
    let mut info = Cow::Borrowed(&program.info);
    let converts_returns = lowering.if_convert || lowering.if_convert_all;
    if converts_returns && if_convert::run(&mut module, &program.intrinsics, is_own, lowering.if_convert_all) {
        info = Cow::Owned(validate(&module, super::CAPABILITIES)?);
    }
    if lowering.clamp_indices {
        clamp_indices::run(&mut module, &info, is_own);
    }
    let mut fuel = None;
    if lowering.fuel && program.facts.may_exhaust(program.fuel) {
        fuel = fuel::run(&mut module, program.fuel, &program.internals, is_own);
    }
    let mut lowered = Lowered {
        module,
        info: info.into_owned(),
        filter: program.filter,
        internals: program.internals,
        intrinsics: program.intrinsics.clone(),
        prelude: program.prelude.clone(),
        fuel,
        changes_length: program.facts.changes_length,
    };
    if lowering.whole_pointers {
        let run = pointers::run(&mut lowered.module);
        if let Some(moved) = run.map_err(|error| LowerError { reason: error.to_string() })? {
            lowered.remap_functions(&moved);
        }
    }
    let mut capabilities = super::CAPABILITIES;
    if lowering.int64 {
        let run = int64::run(&mut lowered.module);
        if let Some(moved) = run.map_err(|error| LowerError { reason: error.to_string() })? {
            lowered.remap_functions(&moved);
            // The functions that the pass added belong to the prelude and need no further pass.
            let moved: HashSet<_> = moved.into_values().collect();
            let all = lowered.module.functions.iter().map(|(function, _)| function);
            lowered.prelude.extend(all.filter(|function| !moved.contains(function)));
        }
        capabilities.remove(Capabilities::SHADER_INT64);
    }
    lowered.info = validate(&lowered.module, capabilities)?;
    if lowering.mask_shifts {
        // Last, because other passes may have added shifts; it needs the types of the module they
        // produced.
        let prelude = &lowered.prelude;
        if mask_shifts::run(&mut lowered.module, &lowered.info, |f| !prelude.contains(&f)) {
            lowered.info = validate(&lowered.module, capabilities)?;
        }
    }
    Ok(lowered)
}

fn validate(module: &Module, capabilities: Capabilities) -> Result<ModuleInfo, LowerError> {
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    validator.validate(module).map_err(|error| LowerError { reason: error.emit_to_string("") })
}

impl Lowered {
    /// Updates all handles after a pass that inserted functions before others (a function precedes
    /// its callers).
    fn remap_functions(&mut self, moved: &FunctionMap) {
        let at = |f: Handle<Function>| moved.get(&f).copied().unwrap_or(f);
        self.filter = at(self.filter);
        for function in [&mut self.internals.enter, &mut self.internals.leave, &mut self.internals.verdict] {
            *function = at(*function);
        }
        self.intrinsics = self.intrinsics.iter().map(|(&f, &i)| (at(f), i)).collect();
        self.prelude = self.prelude.iter().map(|&f| at(f)).collect();
    }
}
