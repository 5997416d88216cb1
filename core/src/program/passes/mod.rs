//! Passes: from a program's module to one that a device can take.
//!
//! A pass works on a copy of [`Program::module`]; what it makes validates again. The order is
//! fixed, because each pass leans on the ones before it: returns are joined while there are only the
//! filter's own statements, indices are clamped while the validator's
//! types of the original module still hold, the fuel counter is added, functions that are called with
//! pointers to parts of variables are copied, then the 64-bit integers go, whatever the passes before
//! them have added, and last the shift counts are masked.

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

/// Where functions have gone: the new handles by the old ones.
type FunctionMap = HashMap<Handle<Function>, Handle<Function>>;

/// What a device needs done to a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lowering {
    /// Count loop iterations and end a packet that uses up its fuel. For devices that cannot leave
    /// the filter in the middle. Left out where the facts prove that no packet uses it up.
    pub fuel: bool,
    /// Clamp dynamic indices into arrays, vectors and matrices of the filter, so that the device
    /// needs no bounds checks of its own for them.
    pub clamp_indices: bool,
    /// Call functions with pointers to whole variables only. For SPIR-V.
    pub whole_pointers: bool,
    /// Make pairs of `u32` of 64-bit integers.
    pub int64: bool,
    /// Take shift counts modulo the width. For devices on which too large a count is undefined.
    pub mask_shifts: bool,
    /// Return without a branch where what comes after is cheap and harmless. For compilers that cannot
    /// know that loads are.
    pub if_convert: bool,
    /// The same whatever it costs, for compilers that filter several packets side by side, which go both ways in any
    /// case: only where packets and maps are not written.
    pub if_convert_all: bool,
}

impl Lowering {
    /// Nothing.
    pub const NONE: Lowering = Lowering {
        fuel: false,
        clamp_indices: false,
        whole_pointers: false,
        int64: false,
        mask_shifts: false,
        if_convert: false,
        if_convert_all: false,
    };

    /// What naga's SPIR-V writer needs, and devices behind it.
    pub const SPIRV: Lowering = Lowering {
        fuel: true,
        clamp_indices: true,
        whole_pointers: true,
        int64: true,
        mask_shifts: true,
        if_convert: false,
        if_convert_all: false,
    };
}

/// A module after its passes, with the handles that a backend needs to find its way in it. They are
/// handles of this module, not of [`Program::module`].
#[derive(Debug, Clone)]
pub struct Lowered {
    /// The module: filter, helpers and prelude, no entry point.
    pub module: Module,
    /// What naga's validator found out about it.
    pub info: ModuleInfo,
    /// The filter.
    pub filter: Handle<Function>,
    /// The prelude's inner parts.
    pub internals: PreludeInternals,
    /// The prelude functions that filters may call.
    pub intrinsics: HashMap<Handle<Function>, Intrinsic>,
    /// Every function of the prelude, the machinery and what passes have added included.
    pub prelude: HashSet<Handle<Function>>,
    /// What the fuel pass added, if it ran and the filter needs it.
    pub fuel: Option<FuelState>,
    /// Whether an entry point has to write the packet's ends back.
    changes_length: bool,
}

/// A pass made a module that does not validate: a fault of Portcullis, not of the filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the filter could not be lowered, which is a fault of Portcullis: {reason}")]
pub struct LowerError {
    /// The validator's words, or the pass's.
    pub reason: String,
}

/// Runs the passes that `lowering` asks for.
///
/// # Errors
/// See [`LowerError`].
pub fn lower(program: &Program, lowering: Lowering) -> Result<Lowered, LowerError> {
    let mut module = program.module.clone();
    let own = |f: Handle<Function>| !program.is_prelude(f);
    let mut info = Cow::Borrowed(&program.info);
    let joins = lowering.if_convert || lowering.if_convert_all;
    if joins && if_convert::run(&mut module, &program.intrinsics, own, lowering.if_convert_all) {
        info = Cow::Owned(validate(&module, super::CAPABILITIES)?);
    }
    if lowering.clamp_indices {
        clamp_indices::run(&mut module, &info, own);
    }
    let mut fuel = None;
    if lowering.fuel && program.facts.may_exhaust(program.fuel) {
        fuel = fuel::run(&mut module, program.fuel, &program.internals, own);
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
            lowered.move_functions(&moved);
        }
    }
    let mut capabilities = super::CAPABILITIES;
    if lowering.int64 {
        let run = int64::run(&mut lowered.module);
        if let Some(moved) = run.map_err(|error| LowerError { reason: error.to_string() })? {
            lowered.move_functions(&moved);
            // What the pass has put in is the machinery's too, and right as it stands.
            let moved: HashSet<_> = moved.into_values().collect();
            let all = lowered.module.functions.iter().map(|(function, _)| function);
            lowered.prelude.extend(all.filter(|function| !moved.contains(function)));
        }
        capabilities.remove(Capabilities::SHADER_INT64);
    }
    lowered.info = validate(&lowered.module, capabilities)?;
    if lowering.mask_shifts {
        // Last, with the types of what the other passes have made: some of that may shift as well.
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
    /// Follows a pass that had to put functions in front of others (a function stands before its
    /// callers): old handles and the new ones.
    fn move_functions(&mut self, moved: &FunctionMap) {
        let at = |f: Handle<Function>| moved.get(&f).copied().unwrap_or(f);
        self.filter = at(self.filter);
        for function in [&mut self.internals.enter, &mut self.internals.leave, &mut self.internals.verdict] {
            *function = at(*function);
        }
        self.intrinsics = self.intrinsics.iter().map(|(&f, &i)| (at(f), i)).collect();
        self.prelude = self.prelude.iter().map(|&f| at(f)).collect();
    }
}
