//! A verified filter: its naga module, its static facts, and the passes that lower it for a device.

mod calls;
pub mod facts;
mod flow;
pub mod map_declarations;
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
pub use parameters::{LEADING_ZEROS, Parameter, ParameterValue, has_leading_zeros};
pub use passes::{LowerError, Lowered, Lowering, lower};
pub(crate) use verifier::is_computed;
pub use verifier::{
    MAX_EXPRESSIONS, MAX_FUNCTION_PARAMETERS, MAX_NESTING, MAX_PRIVATE_BYTES, MAX_STATEMENTS, MAX_TYPE_DEPTH,
};
pub use verifier::{child_blocks, for_each_operand};

use crate::diagnostics::{Diagnostics, Source};
use crate::map;
use prelude::Intrinsic;

/// Name of the filter's main function.
pub const FILTER_FUNCTION: &str = "xdp_filter";

/// Name of the optional function that maps a packet to its flow.
pub const FLOW_FUNCTION: &str = "xdp_flow";

/// Default maximum number of loop iterations for a packet. Less than 65,535, after which llvmpipe
/// silently leaves a loop.
pub const DEFAULT_FUEL: u32 = 32_768;

/// Capabilities that a filter's module may use beyond core WGSL.
pub const CAPABILITIES: Capabilities = Capabilities::SHADER_INT64;

/// Options for verifying a filter.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ProgramOptions {
    /// Values for the filter's `override`s: name, and text as the user wrote it.
    pub parameters: Vec<(String, String)>,
    /// Maximum number of loop iterations for a packet, in the filter and its helpers together.
    pub fuel: u32,
    /// Seed for random numbers (`bpf_get_prandom_u32` in an object).
    pub random_seed: u32,
}

impl Default for ProgramOptions {
    fn default() -> Self {
        ProgramOptions { parameters: Vec::new(), fuel: DEFAULT_FUEL, random_seed: 0 }
    }
}

impl ProgramOptions {
    /// Sets [`ProgramOptions::parameters`].
    #[must_use]
    pub fn with_parameters(self, parameters: Vec<(String, String)>) -> ProgramOptions {
        ProgramOptions { parameters, ..self }
    }

    /// Sets [`ProgramOptions::fuel`].
    #[must_use]
    pub fn with_fuel(self, fuel: u32) -> ProgramOptions {
        ProgramOptions { fuel, ..self }
    }

    /// Sets [`ProgramOptions::random_seed`].
    #[must_use]
    pub fn with_random_seed(self, random_seed: u32) -> ProgramOptions {
        ProgramOptions { random_seed, ..self }
    }
}

/// Handles of the prelude's internal functions and variables, which entry points use and filters do
/// not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreludeInternals {
    /// `pc_enter(pkt)`: initialises the packet's state from its descriptor.
    pub enter: Handle<Function>,
    /// `pc_leave(pkt)`: writes the packet's offset and length back to its descriptor.
    pub leave: Handle<Function>,
    /// `pc_verdict(value) -> u32`: normalises a filter's return value.
    pub verdict: Handle<Function>,
    /// The packet arena, `array<u32>`.
    pub arena: Handle<GlobalVariable>,
    /// The descriptors, `array<vec2<u32>>`.
    pub descriptors: Handle<GlobalVariable>,
    /// The metadata, `array<pc_metadata>`.
    pub metadata: Handle<GlobalVariable>,
    /// Offset of the packet's first byte in the arena, `u32`, private.
    pub offset: Handle<GlobalVariable>,
    /// The packet's length, `u32`, private.
    pub length: Handle<GlobalVariable>,
    /// Lowest offset that `adjust_head` may move to, `u32`, private.
    pub first: Handle<GlobalVariable>,
    /// Highest end that `adjust_tail` may move to, `u32`, private.
    pub last: Handle<GlobalVariable>,
}

/// The functions of a module that are found by name.
struct NamedFunctions {
    filter: Handle<Function>,
    flow: Option<Handle<Function>>,
    intrinsics: HashMap<Handle<Function>, Intrinsic>,
    prelude: HashSet<Handle<Function>>,
}

impl NamedFunctions {
    /// `None` if the module has no plain function named [`FILTER_FUNCTION`].
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

    fn verifier_input<'a>(&'a self, source: &'a Source, module: &'a Module) -> verifier::VerifierInput<'a> {
        let NamedFunctions { filter, flow, intrinsics, prelude } = self;
        verifier::VerifierInput { source, module, filter: *filter, flow: *flow, intrinsics, prelude }
    }
}

/// A verified and analysed filter, which any number of devices can load.
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

/// Initial words of a map's memory that are not zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitialMapWords {
    /// Index of the map in the filter's declarations.
    pub map: usize,
    /// Index of the first word in the map's memory.
    pub offset: usize,
    /// The words.
    pub words: Arc<[u32]>,
}

impl Program {
    /// Verifies a module that contains a filter and the prelude, resolves its parameters, and
    /// analyses it. Every front end goes through here. Needs a large stack (see
    /// [`crate::stack::run_on_large_stack`]).
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
        verifier::check_unvalidated(&named.verifier_input(source, &module))?;
        let info = validate(&module)?;
        let (mut module, parameters) = parameters::resolve(source, module, &info, named.filter, &options.parameters)?;
        let flow =
            module.functions.iter().find(|(_, f)| f.name.as_deref() == Some(FLOW_FUNCTION)).map(|(handle, _)| handle);
        let flow = flow.map(|function| flow::add(&mut module, function));
        let info = validate(&module)?;
        let named = NamedFunctions::find(&module, &maps).expect("setting parameters keeps the filter and the prelude");
        verifier::check_validated(&named.verifier_input(source, &module), &info)?;
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
        let input =
            facts::AnalysisInput { module: &module, info: &info, filter, intrinsics: &intrinsics, prelude: &prelude };
        let mut facts = Facts::analyze(&input, options.fuel);
        let flow = flow.map(|function| {
            let input = facts::AnalysisInput { filter: function, ..input };
            flow::Flow { function, facts: Facts::analyze(&input, options.fuel) }
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

    /// The source that the filter was compiled from.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The validated module before any pass: the filter, its helpers and the prelude, with
    /// `override`s resolved.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// The validator's types and analyses of the module.
    pub fn info(&self) -> &ModuleInfo {
        &self.info
    }

    /// The filter's main function, `fn(pkt: u32) -> u32`.
    pub fn filter(&self) -> Handle<Function> {
        self.filter
    }

    /// The prelude function that `function` is, if filters may call it.
    pub fn intrinsic(&self, function: Handle<Function>) -> Option<Intrinsic> {
        self.intrinsics.get(&function).copied()
    }

    /// Whether the function belongs to the prelude, internal functions included, and not to the
    /// filter. Loops of the prelude cost no fuel.
    pub fn is_prelude(&self, function: Handle<Function>) -> bool {
        self.prelude.contains(&function)
    }

    /// The prelude's internal functions and variables.
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

    /// Adds initial words of maps, which override those added before.
    pub fn with_initial_map_words(mut self, maps: impl IntoIterator<Item = InitialMapWords>) -> Program {
        self.initial.extend(maps);
        self
    }

    /// Initial words of the maps, which [`crate::device::load_initial_maps`] writes to a new
    /// session.
    pub fn initial_map_words(&self) -> &[InitialMapWords] {
        &self.initial
    }

    /// Returns what the front end attached with [`Program::with_origin`], if it has this type.
    pub fn origin<T: Any>(&self) -> Option<&T> {
        self.origin.as_deref()?.downcast_ref()
    }

    /// The filter's parameters (`override`s or macros) and their values, in the order of the
    /// source.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The maps that the filter declares, in the order of the source.
    pub fn maps(&self) -> &[map::Declaration] {
        &self.maps
    }

    /// The inferred facts.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Maximum number of loop iterations for a packet.
    pub fn fuel(&self) -> u32 {
        self.fuel
    }
}
