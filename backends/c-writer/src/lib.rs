//! Writes filters as source for compilers of the C family: OpenCL C 1.2 and CUDA C++.
//!
//! There is one writer for all languages. Differences are behind a trait of small methods
//! (`dialect`), and what a language lacks is written as a helper function, where needed. The
//! modules:
//! - `kernel`: the file as a whole, and the kernel;
//! - `function`: the state of writing one function;
//! - `statements`, `loops`, `short_circuits`: control flow;
//! - `naming`: which expressions get a name, and when;
//! - `expressions`: the expressions within statements;
//! - `builtins`: operators and built-in functions, with C's undefined cases defined;
//! - `types`: types, zero values, constants;
//! - `prelude`: the functions that access the packet;
//! - `scope`, `c_expr`: identifiers and parentheses.
//!
//! The text has the filter's semantics for any packet. Nothing in it is undefined behaviour of the
//! language (signed overflow, shifts, division, conversions, order of evaluation, aliasing), so it
//! needs no options such as `-fwrapv`. It is meant to be read: the filter's names are kept, and
//! `&&` and `for` are restored.

mod builtins;
mod c_expr;
mod dialect;
mod expressions;
mod function;
mod kernel;
mod loops;
mod naming;
mod prelude;
mod scope;
mod short_circuits;
mod statements;
mod types;

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use naga::{Constant, Function, GlobalVariable, Handle, Module, Type};
use portcullis_core::device::offload::KernelEffects;
use portcullis_core::map::MapFunction;
use portcullis_core::packet::MetadataFields;
use portcullis_core::program::prelude::Intrinsic;
use portcullis_core::program::{Lowered, Lowering, Program, lower};
use portcullis_core::stack::run_on_large_stack;

use dialect::Dialect;
pub use dialect::Language;
use kernel::FunctionSignature;
use scope::Scope;

/// How packets are read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PacketAccess {
    /// Byte by byte, from any address. Compilers for CPUs merge byte loads into one.
    #[default]
    Bytes,
    /// Reads the aligned words that contain the bytes, and writes with the widest stores that the
    /// address allows: for devices where every access counts. The arena starts at a multiple of 4.
    Words,
    /// Like [`PacketAccess::Words`], for batches whose packets all start at multiples of 4 bytes,
    /// empty ones excepted: loads from constant offsets become single loads, and adjacent stores
    /// can become one for each word. The start of any other packet is rounded down, so that no
    /// access is misaligned; its results are wrong. Filters that change lengths are written as for
    /// [`PacketAccess::Words`].
    AlignedWords,
    /// Unaligned word loads without branches, which compilers for CPUs with gather instructions can
    /// vectorise across packets. Only for filters without loops or writes whose branches can all be
    /// if-converted; others are written as for [`PacketAccess::Bytes`].
    Vectorizable,
    /// Like [`PacketAccess::Vectorizable`], for CPUs whose gather instructions are slow. A work
    /// item filters [`FISSION_PACKETS`] packets in two loops (loop fission): the first loads from
    /// the packets into arrays, one packet after the other; the second computes verdicts from the
    /// arrays and is vectorised without gathers. There is no grid-stride loop. Filters with many
    /// loads are written as for [`PacketAccess::Bytes`].
    LoopFission,
}

impl PacketAccess {
    /// Whether filters are written without branches if possible.
    pub fn is_branch_free(self) -> bool {
        matches!(self, PacketAccess::Vectorizable | PacketAccess::LoopFission)
    }
}

/// Packets that a work item of a kernel for [`PacketAccess::LoopFission`] filters: as many words as
/// the widest vectors have. With 8, 32 or 64 PoCL's kernels are slower on Zen 5.
pub const FISSION_PACKETS: u32 = 16;

/// Maximum loads from a packet for [`PacketAccess::LoopFission`]; filters with more are written as
/// for [`PacketAccess::Bytes`]. All loads are executed for every packet. With PoCL on Zen 5 a
/// filter with 16 of them reaches 1.5 times the rate of one with branches if it needs them all, and
/// 0.6 if its first condition decides; with 8, 1.0 or more in both cases.
const MAX_FISSION_LOADS: u32 = 12;

/// The form in which a filter is emitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EntryKind {
    /// A kernel, which is all that a launch needs.
    #[default]
    Kernel,
    /// A function that filters one packet, for kernels that the caller puts behind it
    /// (`docs/reference/abi.md`, "Kernels in C").
    Function,
}

/// Options of [`write()`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Options {
    /// The language to write.
    pub language: Language,
    /// Kind of code around the filter.
    pub entry_kind: EntryKind,
    /// Name of the kernel or function.
    pub entry: String,
    /// Work items in a group, if the kernel is to be compiled for a fixed number.
    pub group_size: Option<u32>,
    /// Whether the kernel has a grid-stride loop, so that any number of work items will do;
    /// otherwise each filters [`Kernel::packets_per_item`] packets.
    pub grid_stride: bool,
    /// How packets are read and written.
    pub packet_access: PacketAccess,
    /// Whether a kernel finds descriptors by a rule ([`Argument::DescriptorRule`]), unless it has
    /// to write them back or takes packets in flow order; else they are a table.
    pub descriptor_rules: bool,
    /// Whether a kernel finds metadata by a rule ([`Argument::MetadataRule`]); else it is a table
    /// of five words per packet.
    pub metadata_rules: bool,
    /// A statement to run after each packet's filter, for kernels that are to be slow. Must be
    /// self-contained.
    pub epilogue: Option<String>,
}

impl Options {
    /// Default options: a kernel, a work item for each packet, groups of any size, byte accesses.
    pub fn new(language: Language) -> Options {
        Options {
            language,
            entry_kind: EntryKind::default(),
            entry: "xdp_kernel".into(),
            group_size: None,
            grid_stride: false,
            packet_access: PacketAccess::default(),
            descriptor_rules: false,
            metadata_rules: false,
            epilogue: None,
        }
    }

    /// Sets the name of the kernel or function.
    pub fn with_entry(mut self, entry: impl Into<String>) -> Options {
        self.entry = entry.into();
        self
    }

    /// Writes a function of this name in place of a kernel.
    pub fn with_function(mut self, entry: impl Into<String>) -> Options {
        self.entry_kind = EntryKind::Function;
        self.with_entry(entry)
    }

    /// Sets the number of work items in a group.
    pub fn with_group_size(mut self, items: u32) -> Options {
        self.group_size = Some(items);
        self
    }

    /// Adds a grid-stride loop.
    pub fn with_grid_stride(mut self) -> Options {
        self.grid_stride = true;
        self
    }

    /// Sets how packets are read and written.
    pub fn with_packet_access(mut self, access: PacketAccess) -> Options {
        self.packet_access = access;
        self
    }

    /// Has the kernel find descriptors by a rule.
    pub fn with_descriptor_rules(mut self) -> Options {
        self.descriptor_rules = true;
        self
    }

    /// Has the kernel find metadata by a rule.
    pub fn with_metadata_rules(mut self) -> Options {
        self.metadata_rules = true;
        self
    }

    /// Sets the statement to run after each packet's filter.
    pub fn with_epilogue(mut self, statement: Option<String>) -> Options {
        self.epilogue = statement;
        self
    }
}

/// An argument of the kernel (`docs/reference/abi.md`). Buffers are pointers to device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Argument {
    /// The arena's bytes, readable 128 bytes past their end. Absent if the filter does not read
    /// packets.
    Arena {
        /// Whether the kernel may write to them.
        writes: bool,
    },
    /// Descriptors, two words for each packet at multiples of 8 bytes; with flows, followed by two
    /// words for each run.
    Descriptors {
        /// Whether the kernel writes the packets' ends back.
        writes: bool,
    },
    /// [`DescriptorRule`](portcullis_core::device::descriptor_format::DescriptorRule) by value,
    /// four words: the format of the descriptors. Absent unless requested
    /// ([`Options::descriptor_rules`]).
    DescriptorRule,
    /// Metadata: five words for each packet, or the tables of a rule. Absent unless the filter
    /// reads it.
    Metadata,
    /// [`MetadataRule`](portcullis_core::device::metadata_format::MetadataRule) by value, 20 words:
    /// the formats of the metadata. Absent unless requested ([`Options::metadata_rules`]) and read.
    MetadataRule(
        /// The fields that the kernel reads. Others need no column.
        MetadataFields,
    ),
    /// Verdicts, a byte for each packet; the kernel writes all of them.
    Verdicts,
    /// Redirect targets, a word for each packet, 0 for other verdicts; the kernel writes all of
    /// them. Absent unless the filter can redirect.
    Targets,
    /// The words of a map of the filter's, by its number (`docs/guide/maps.md`).
    Map(u32),
    /// `u32`: index of the launch's first packet in all buffers but the arena; with flows that of
    /// the first run's descriptor.
    Base,
    /// `u32`: number of packets, or of runs.
    Count,
}

impl Argument {
    /// The fields of metadata that a kernel with these arguments finds by a rule.
    pub fn metadata_fields(arguments: &[Argument]) -> MetadataFields {
        let fields = arguments.iter().find_map(|argument| match argument {
            Argument::MetadataRule(fields) => Some(*fields),
            _ => None,
        });
        fields.unwrap_or_default()
    }
}

/// A filter in C.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// The source text.
    pub source: String,
    /// Name of the kernel or function.
    pub entry: String,
    /// The kernel's arguments, in order; of a function, those that it uses.
    pub arguments: Vec<Argument>,
    /// Packets, or runs, that a work item filters; with a grid-stride loop any number.
    pub packets_per_item: u32,
    /// Number of expressions with all calls inlined.
    pub size: u64,
}

/// Why a filter cannot be written in C.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The language has no form for something in the filter.
    #[error("{0}: this cannot be written in C")]
    Unsupported(String),
    /// A bug in Portcullis.
    #[error("the filter could not be written in C, which is a bug in Portcullis: {0}")]
    Failed(String),
}

impl Kernel {
    /// Effects of the kernel, for the session that launches it.
    pub fn effects(&self) -> KernelEffects {
        let has = |is: fn(&Argument) -> bool| self.arguments.iter().any(is);
        KernelEffects {
            accesses_packets: has(|argument| matches!(argument, Argument::Arena { .. })),
            writes_packets: has(|argument| matches!(argument, Argument::Arena { writes: true })),
            resizes_packets: has(|argument| matches!(argument, Argument::Descriptors { writes: true })),
            metadata: has(|argument| matches!(argument, Argument::Metadata)),
            redirects: has(|argument| matches!(argument, Argument::Targets)),
            size: self.size,
        }
    }
}

type Result<T, E = WriteError> = std::result::Result<T, E>;

/// The functions that add to maps.
#[derive(Default)]
struct Adders {
    /// Functions of counters, each with its map's number.
    counters: HashMap<Handle<Function>, u32>,
    /// Functions that add to a word of a value, and return what it was.
    words: HashSet<Handle<Function>>,
}

/// Writes a filter.
///
/// # Errors
/// See [`WriteError`].
pub fn write(program: &Program, options: &Options) -> Result<Kernel> {
    let work = || {
        let failed = |error: portcullis_core::program::LowerError| WriteError::Failed(error.to_string());
        let mut lowering =
            Lowering { fuel: true, clamp_indices: true, mask_shifts: true, if_convert: true, ..Lowering::default() };
        let lower = |lowering| {
            lower(program, lowering).map(|mut lowered| {
                let mut adders = Adders::default();
                for (&function, intrinsic) in &lowered.intrinsics {
                    match *intrinsic {
                        Intrinsic::Map { map, call: MapFunction::Count } => _ = adders.counters.insert(function, map),
                        Intrinsic::Map { call: MapFunction::Add, .. } => _ = adders.words.insert(function),
                        _ => {}
                    }
                }
                // The prelude's map functions are lowered like the filter's own.
                lowered.intrinsics.retain(|_, intrinsic| !intrinsic.is_map_function());
                (lowered, adders)
            })
        };
        let (mut lowered, mut adders) = lower(lowering).map_err(failed)?;
        if options.packet_access.is_branch_free() {
            let plain = !program.facts().rewrites() && program.maps().is_empty() && !program.has_flows();
            let (joined, adders_of_joined) = lower(Lowering { if_convert_all: true, ..lowering }).map_err(failed)?;
            let is_short = options.packet_access != PacketAccess::LoopFission
                || kernel::load_counts(&joined).get(&joined.filter).is_none_or(|&loads| loads <= MAX_FISSION_LOADS);
            if plain && is_short && kernel::is_straight_line(&joined) && !kernel::passes_vector_components(&joined) {
                return Writer::new(program, &joined, adders_of_joined, options).write();
            }
            let bytes = options.clone().with_packet_access(PacketAccess::Bytes);
            if kernel::passes_vector_components(&lowered) {
                (lowered, adders) = lower(Lowering { whole_pointers: true, ..lowering }).map_err(failed)?;
            }
            return Writer::new(program, &lowered, adders, &bytes).write();
        }
        if kernel::passes_vector_components(&lowered) {
            lowering.whole_pointers = true;
            (lowered, adders) = lower(lowering).map_err(failed)?;
        }
        Writer::new(program, &lowered, adders, options).write()
    };
    // Recursion is as deep as the filter's text is nested.
    run_on_large_stack(program.source(), work).map_err(|error| WriteError::Failed(error.to_string()))?
}

/// State of writing one file.
struct Writer<'a> {
    program: &'a Program,
    lowered: &'a Lowered,
    adders: Adders,
    module: &'a Module,
    dialect: &'static dyn Dialect,
    options: &'a Options,
    /// Reserved words of the language.
    words: Rc<HashSet<String>>,
    /// Names at file scope.
    names: Scope,
    type_names: HashMap<Handle<Type>, String>,
    /// Types that are already defined.
    defined: HashSet<Handle<Type>>,
    members: HashMap<Handle<Type>, Vec<String>>,
    /// Names of constants, defined or not.
    constant_names: HashMap<Handle<Constant>, String>,
    /// Constants that are already defined.
    constants_written: HashSet<Handle<Constant>>,
    /// Members of the packet struct that private variables became.
    globals: HashMap<Handle<GlobalVariable>, String>,
    /// The maps' words, which are members as well.
    maps: Vec<Handle<GlobalVariable>>,
    signatures: HashMap<Handle<Function>, FunctionSignature>,
    /// Helpers, prelude functions and vector types that are already defined, by name.
    defined_helpers: HashSet<String>,
    types: String,
    constants: String,
    helpers: String,
    /// Whether the packet is accessed by bytes, and by words.
    uses_bytes: bool,
    uses_words: bool,
    /// Fields of metadata that functions read.
    metadata_fields: MetadataFields,
    /// For loop fission: the number of loads from packets by each function that has any, those of
    /// the functions it calls included.
    load_counts: HashMap<Handle<Function>, u32>,
}

impl<'a> Writer<'a> {
    fn new(program: &'a Program, lowered: &'a Lowered, adders: Adders, options: &'a Options) -> Writer<'a> {
        let dialect = options.language.dialect();
        let words = scope::reserved_words(dialect);
        Writer {
            program,
            lowered,
            adders,
            module: &lowered.module,
            dialect,
            options,
            names: Scope::within(&words),
            words,
            type_names: HashMap::new(),
            defined: HashSet::new(),
            members: HashMap::new(),
            constant_names: HashMap::new(),
            constants_written: HashSet::new(),
            globals: HashMap::new(),
            maps: Vec::new(),
            signatures: HashMap::new(),
            defined_helpers: HashSet::new(),
            types: String::new(),
            constants: String::new(),
            helpers: String::new(),
            uses_bytes: false,
            uses_words: false,
            metadata_fields: MetadataFields::default(),
            load_counts: HashMap::new(),
        }
    }
}
