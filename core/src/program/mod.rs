//! A filter that has been checked: its module, what is known about it, and what readies it for a
//! device.

pub mod facts;
pub mod passes;

use std::collections::HashMap;

use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{Function, GlobalVariable, Handle, Module};

pub use facts::Facts;
pub use passes::{LowerError, Lowered, Lowering, lower};

use crate::lang::prelude::{self, Intrinsic};
use crate::lang::{Diagnostic, Diagnostics, FILTER, Source};

/// Loop iterations that a filter may spend on a packet unless told otherwise. Below 65,535, where
/// llvmpipe leaves a loop without a word.
pub const DEFAULT_FUEL: u32 = 32_768;

/// What a filter's module may use beyond WGSL's core.
const CAPABILITIES: Capabilities = Capabilities::SHADER_INT64;

/// What the host decides about a filter before it is checked.
#[derive(Debug, Clone)]
pub struct ProgramOptions {
    /// Values for the filter's `override`s, by name, as the user wrote them.
    pub parameters: Vec<(String, String)>,
    /// Loop iterations a packet, in the filter and its helpers together.
    pub fuel: u32,
}

impl Default for ProgramOptions {
    fn default() -> Self {
        ProgramOptions { parameters: Vec::new(), fuel: DEFAULT_FUEL }
    }
}

/// The machinery of the prelude that is not for filters: what an entry point needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machinery {
    /// `pc_enter(pkt)`: sets the packet's state from its descriptor.
    pub enter: Handle<Function>,
    /// `pc_leave(pkt)`: writes the packet's ends back to its descriptor.
    pub leave: Handle<Function>,
    /// `pc_verdict(value) -> u32`: normalises a filter's return value.
    pub verdict: Handle<Function>,
    /// The arena, `array<u32>`.
    pub arena: Handle<GlobalVariable>,
    /// The descriptors, `array<vec2<u32>>`.
    pub descriptors: Handle<GlobalVariable>,
    /// The metadata, `array<pc_metadata>`.
    pub metadata: Handle<GlobalVariable>,
    /// The packet's first byte in the arena, `u32`, private.
    pub offset: Handle<GlobalVariable>,
    /// The packet's length, `u32`, private.
    pub length: Handle<GlobalVariable>,
    /// The lowest offset that `adjust_head` may reach, `u32`, private.
    pub first: Handle<GlobalVariable>,
    /// The highest end that `adjust_tail` may reach, `u32`, private.
    pub last: Handle<GlobalVariable>,
}

/// A filter, checked and analysed; good for any number of devices.
#[derive(Debug, Clone)]
pub struct Program {
    source: Source,
    module: Module,
    info: ModuleInfo,
    filter: Handle<Function>,
    intrinsics: HashMap<Handle<Function>, Intrinsic>,
    prelude: std::collections::HashSet<Handle<Function>>,
    machinery: Machinery,
    facts: Facts,
    fuel: u32,
}

impl Program {
    /// Validates a module that holds a filter and the prelude, and analyses it.
    pub(crate) fn new(source: &Source, module: Module, options: &ProgramOptions) -> Result<Program, Diagnostics> {
        let one = |error| Diagnostics::one(source, error);
        let info = Validator::new(ValidationFlags::all(), CAPABILITIES)
            .validate(&module)
            .map_err(|error| one(Diagnostic::new(error.as_inner().to_string())))?;
        let function = |name: &str| module.functions.iter().find(|(_, f)| f.name.as_deref() == Some(name)).map(|f| f.0);
        let global =
            |name: &str| module.global_variables.iter().find(|(_, g)| g.name.as_deref() == Some(name)).map(|g| g.0);
        let part = "the prelude is part of every module";
        let machinery = Machinery {
            enter: function("pc_enter").expect(part),
            leave: function("pc_leave").expect(part),
            verdict: function("pc_verdict").expect(part),
            arena: global("pc_arena").expect(part),
            descriptors: global("pc_descriptors").expect(part),
            metadata: global("pc_metadata_of").expect(part),
            offset: global("pc_offset").expect(part),
            length: global("pc_length").expect(part),
            first: global("pc_first").expect(part),
            last: global("pc_last").expect(part),
        };
        let intrinsics: HashMap<_, _> =
            prelude::FUNCTIONS.iter().map(|&(name, intrinsic)| (function(name).expect(part), intrinsic)).collect();
        let prelude = module
            .functions
            .iter()
            .filter(|(h, f)| {
                intrinsics.contains_key(h) || f.name.as_deref().is_some_and(|n| n.starts_with(prelude::RESERVED_PREFIX))
            })
            .map(|(h, _)| h)
            .collect();
        let filter = function(FILTER).expect("the front end looked for it");
        let facts = Facts::unknown();
        Ok(Program {
            source: source.clone(),
            module,
            info,
            filter,
            intrinsics,
            prelude,
            machinery,
            facts,
            fuel: options.fuel,
        })
    }

    /// The text it was made from.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The validated module: the filter, its helpers and the prelude, `override`s resolved, before
    /// any pass.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// What naga's validator found out about the module.
    pub fn info(&self) -> &ModuleInfo {
        &self.info
    }

    /// The filter: `fn(pkt: u32) -> u32`.
    pub fn filter(&self) -> Handle<Function> {
        self.filter
    }

    /// What prelude function this is, if it is one that filters may call.
    pub fn intrinsic(&self, function: Handle<Function>) -> Option<Intrinsic> {
        self.intrinsics.get(&function).copied()
    }

    /// Whether the function belongs to the prelude (the machinery included) and not to the filter.
    /// Loops of the prelude cost no fuel.
    pub fn is_prelude(&self, function: Handle<Function>) -> bool {
        self.prelude.contains(&function)
    }

    /// The prelude's inner parts.
    pub fn machinery(&self) -> &Machinery {
        &self.machinery
    }

    /// What the analysis found out.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Loop iterations that the filter may spend on a packet.
    pub fn fuel(&self) -> u32 {
        self.fuel
    }
}
