//! A filter that has been checked: its module, what is known about it, and what readies it for a
//! device.

mod calls;
pub mod facts;
mod flow;
mod parameters;
pub mod passes;
pub mod prelude;
mod verifier;

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{Function, GlobalVariable, Handle, Module};

pub use facts::Facts;
pub use flow::FLOW_BITS;
pub use parameters::{Parameter, ParameterValue};
pub use passes::{LowerError, Lowered, Lowering, lower};
pub use verifier::{
    MAX_EXPRESSIONS, MAX_FUNCTION_PARAMETERS, MAX_NESTING, MAX_PRIVATE_BYTES, MAX_STATEMENTS, MAX_TYPE_DEPTH,
};
pub use verifier::{child_blocks, for_each_operand};

use crate::diagnostics::{Diagnostics, Source};
use crate::map;
use prelude::Intrinsic;

/// The name of the function that is the filter.
pub const FILTER_FUNCTION: &str = "xdp_filter";

/// The name of the function that says which flow a packet belongs to, where a filter has one.
pub const FLOW_FUNCTION: &str = "xdp_flow";

/// Loop iterations that a filter may spend on a packet unless told otherwise. Below 65,535, where
/// llvmpipe leaves a loop without a word.
pub const DEFAULT_FUEL: u32 = 32_768;

/// What a filter's module may use beyond WGSL's core.
pub const CAPABILITIES: Capabilities = Capabilities::SHADER_INT64;

/// What the host decides about a filter before it is checked.
#[derive(Debug, Clone)]
pub struct ProgramOptions {
    /// Values for the filter's `override`s, by name, as the user wrote them.
    pub parameters: Vec<(String, String)>,
    /// Loop iterations a packet, in the filter and its helpers together.
    pub fuel: u32,
    /// What random numbers begin with (`bpf_get_prandom_u32` of an object): another one gives others.
    pub random_seed: u32,
}

impl Default for ProgramOptions {
    fn default() -> Self {
        ProgramOptions { parameters: Vec::new(), fuel: DEFAULT_FUEL, random_seed: 0 }
    }
}

/// The machinery of the prelude that is not for filters: what an entry point needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreludeInternals {
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

/// The functions of a module that go by their names.
struct NamedFunctions {
    filter: Handle<Function>,
    flow: Option<Handle<Function>>,
    intrinsics: HashMap<Handle<Function>, Intrinsic>,
    prelude: HashSet<Handle<Function>>,
}

impl NamedFunctions {
    /// `None` where there is no plain function that is the filter.
    fn find(module: &Module, maps: &[map::Declaration]) -> Option<NamedFunctions> {
        let functions: HashMap<&str, _> =
            module.functions.iter().filter_map(|(handle, f)| Some((f.name.as_deref()?, handle))).collect();
        let mut intrinsics: HashMap<_, _> =
            prelude::FUNCTIONS.iter().map(|&(name, intrinsic)| (functions[name], intrinsic)).collect();
        for (number, declared) in (0..).zip(maps) {
            let each = map::functions(declared);
            intrinsics
                .extend(each.map(|(name, call)| (functions[name.as_str()], Intrinsic::Map { map: number, call })));
            let changes = map::AtomicOp::ALL.into_iter().filter_map(|change| {
                let function = functions.get(map::atomic_function_name(&declared.name, change).as_str())?;
                Some((*function, Intrinsic::Map { map: number, call: map::MapFunction::Atomic(change) }))
            });
            intrinsics.extend(changes);
        }
        if !maps.is_empty() {
            intrinsics.insert(functions["map_is_new"], Intrinsic::MapIsNew);
        }
        let is_prelude =
            |name: &str, handle| name.starts_with(prelude::RESERVED_PREFIX) || intrinsics.contains_key(&handle);
        let prelude = functions.iter().filter(|(name, handle)| is_prelude(name, **handle)).map(|(_, handle)| *handle);
        let flow = functions.get(FLOW_FUNCTION).copied();
        Some(NamedFunctions { filter: *functions.get(FILTER_FUNCTION)?, flow, prelude: prelude.collect(), intrinsics })
    }

    fn parts<'a>(&'a self, source: &'a Source, module: &'a Module) -> verifier::VerifierInput<'a> {
        let NamedFunctions { filter, flow, intrinsics, prelude } = self;
        verifier::VerifierInput { source, module, filter: *filter, flow: *flow, intrinsics, prelude }
    }
}

/// A filter, checked and analysed; good for any number of devices.
#[derive(Clone)]
pub struct Program {
    source: Source,
    module: Module,
    info: ModuleInfo,
    filter: Handle<Function>,
    intrinsics: HashMap<Handle<Function>, Intrinsic>,
    prelude: HashSet<Handle<Function>>,
    parameters: Vec<Parameter>,
    internals: PreludeInternals,
    facts: Facts,
    fuel: u32,
    maps: Vec<map::Declaration>,
    initial: Vec<InitialMapWords>,
    origin: Option<Arc<dyn Any + Send + Sync>>,
    flow: Option<flow::Flow>,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("source", &self.source).field("facts", &self.facts).finish_non_exhaustive()
    }
}

/// What a map's memory holds from the beginning, where that is not zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitialMapWords {
    /// The map's number.
    pub map: usize,
    /// The first word, in the map's memory.
    pub offset: usize,
    /// Words.
    pub words: Arc<[u32]>,
}

impl Program {
    /// The single gate: checks a module that holds a filter and the prelude, sets its parameters,
    /// and analyses it. Runs on a large stack (see [`crate::stack::run_on_large_stack`]).
    pub fn new(
        source: &Source,
        module: Module,
        maps: Vec<map::Declaration>,
        options: &ProgramOptions,
    ) -> Result<Program, Diagnostics> {
        let validate = |module: &Module| {
            Validator::new(ValidationFlags::all(), CAPABILITIES)
                .validate(module)
                .map_err(|error| verifier::explain(source, Some(module), &error))
        };
        let named = NamedFunctions::find(&module, &maps)
            .ok_or_else(|| Diagnostics::one(source, verifier::no_filter(source, &module)))?;
        verifier::check_unvalidated(&named.parts(source, &module))?;
        let info = validate(&module)?;
        let (mut module, parameters) = parameters::resolve(source, module, &info, named.filter, &options.parameters)?;
        let flow =
            module.functions.iter().find(|(_, f)| f.name.as_deref() == Some(FLOW_FUNCTION)).map(|(handle, _)| handle);
        let flow = flow.map(|function| flow::add(&mut module, function));
        let info = validate(&module)?;
        let named = NamedFunctions::find(&module, &maps).expect("setting parameters keeps the filter and the prelude");
        verifier::check_validated(&named.parts(source, &module), &info)?;
        let NamedFunctions { filter, intrinsics, prelude, .. } = named;
        let function = |name: &str| module.functions.iter().find(|(_, f)| f.name.as_deref() == Some(name)).map(|f| f.0);
        let global =
            |name: &str| module.global_variables.iter().find(|(_, g)| g.name.as_deref() == Some(name)).map(|g| g.0);
        let part = "the prelude is part of every module";
        let internals = PreludeInternals {
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
        let subject =
            facts::AnalysisInput { module: &module, info: &info, filter, intrinsics: &intrinsics, prelude: &prelude };
        let mut facts = Facts::analyze(&subject, options.fuel);
        let flow = flow.map(|function| {
            let subject = facts::AnalysisInput { filter: function, ..subject };
            flow::Flow { function, facts: Facts::analyze(&subject, options.fuel) }
        });
        if let Some(flow) = &flow {
            facts.include_metadata_of(&flow.facts);
        }
        let mut program = Program {
            source: source.clone(),
            module,
            info,
            filter,
            intrinsics,
            prelude,
            parameters,
            internals,
            facts,
            fuel: options.fuel,
            maps,
            initial: Vec::new(),
            origin: None,
            flow,
        };
        for number in 0..program.maps.len() {
            program.maps[number].read_only = !program.writes_values(number as u32);
        }
        Ok(program)
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
    pub fn internals(&self) -> &PreludeInternals {
        &self.internals
    }

    /// Replaces the parameters, for languages that substitute them before the module is built.
    pub fn with_parameters(self, parameters: Vec<Parameter>) -> Program {
        Program { parameters, ..self }
    }

    /// Attaches what the front end knows of the program's origin, which [`Program::origin`] returns
    /// by its type, and the maps' initial contents.
    pub fn with_origin<T: Any + Send + Sync>(self, origin: T, initial: Vec<InitialMapWords>) -> Program {
        Program { origin: Some(Arc::new(origin)), initial, ..self }
    }

    /// The same where maps begin with this, over what they hold from the beginning.
    pub fn with_initial_map_words(mut self, maps: impl IntoIterator<Item = InitialMapWords>) -> Program {
        self.initial.extend(maps);
        self
    }

    /// What maps hold from the beginning: sessions begin with it ([`crate::device::load_initial_maps`]).
    pub fn initial_map_words(&self) -> &[InitialMapWords] {
        &self.initial
    }

    /// Returns what the front end attached with [`Program::with_origin`], if it has this type.
    pub fn origin<T: Any>(&self) -> Option<&T> {
        self.origin.as_deref()?.downcast_ref()
    }

    /// The filter's parameters (`override`s, or macros) and the values they have, in the order of the text.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The maps that the filter declares, in the order of the text.
    pub fn maps(&self) -> &[map::Declaration] {
        &self.maps
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
