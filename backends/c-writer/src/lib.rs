//! Portcullis: filters as source for compilers of the C family, OpenCL C 1.2 and CUDA C++.
//!
//! One writer for all of them. What differs is behind a trait of small methods (`dialect`), what a
//! language lacks is written as a helper function, only where it is needed. How the work is divided:
//! - `kernel`: the file as a whole, and the kernel;
//! - `statements`: control flow, and when a value gets a name;
//! - `expressions`: what is in a statement;
//! - `builtins`: operators and built-in functions, with C's undefined cases defined;
//! - `types`: types, zeros, constants;
//! - `prelude`: the functions that reach the packet, by their handles;
//! - `names`, `text`: identifiers and parentheses.
//!
//! The text means the same as the filter, on any packet: nothing in it is undefined by the language (signed
//! overflow, shifts, division, conversions, order of evaluation, aliasing), and it holds without options such as
//! `-fwrapv`. It is meant to be read: the filter's names are kept, `&&` and `for` come back.

mod builtins;
mod dialect;
mod expressions;
mod kernel;
mod names;
mod prelude;
mod statements;
mod text;
mod types;

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use naga::{Constant, Function, GlobalVariable, Handle, Module, Type};
use portcullis_core::device::offload::KernelEffects;
use portcullis_core::program::{Lowered, Lowering, Program, lower};
use portcullis_core::stack::run_on_large_stack;

use dialect::Dialect;
pub use dialect::Language;
use kernel::Shape;
use names::Names;

/// How packets are read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PacketAccess {
    /// Byte by byte. Compilers for processors make one load of them; packets may lie anywhere.
    #[default]
    Bytes,
    /// Read by the aligned words that the bytes are in, written by the widest stores that their addresses allow, for
    /// devices on which each access counts. The arena's first byte is at a multiple of 4.
    Words,
    /// The same, where every packet of a batch begins at a multiple of 4 bytes: then what is at a constant offset is
    /// one load, and what is stored side by side can be one store a word. What this makes is wrong for other batches.
    /// Filters that change lengths are written as with [`PacketAccess::Words`].
    AlignedWords,
    /// Words at any byte, and no branch: what compilers for processors with vectors can do for several packets side by
    /// side, since such processors fetch words for all lanes at once, and nothing smaller. Only for filters that loop
    /// nowhere, change nothing, and whose branches can all be joined; others are written as with [`PacketAccess::Bytes`].
    Vectorizable,
}

/// What the filter is called by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EntryKind {
    /// A kernel, which is all that there is to launch.
    #[default]
    Kernel,
    /// A function that filters one packet, for kernels that the caller puts behind it (`docs/reference/abi.md`, "Kernels in
    /// C").
    Function,
}

/// How to write a filter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Options {
    /// In what.
    pub language: Language,
    /// What there is to call.
    pub entry_kind: EntryKind,
    /// The name of that.
    pub entry: String,
    /// Work items in a group, where the kernel is to be compiled for a number.
    pub group_size: Option<u32>,
    /// Whether a work item takes packet after packet until there are none left; else it takes one, and there have
    /// to be as many as packets.
    pub grid_stride: bool,
    /// How packets are read and written.
    pub packet_access: PacketAccess,
    /// A statement in the language, behind each packet's filter, which names nothing that is not its own: for kernels that
    /// are to be slow.
    pub epilogue: Option<String>,
}

impl Options {
    /// A work item a packet, and groups of any size.
    pub fn new(language: Language) -> Options {
        Options {
            language,
            entry_kind: EntryKind::default(),
            entry: "xdp_kernel".into(),
            group_size: None,
            grid_stride: false,
            packet_access: PacketAccess::default(),
            epilogue: None,
        }
    }
}

/// What a kernel takes (`docs/reference/abi.md`). Buffers are pointers to device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Argument {
    /// The arena's bytes, readable 128 bytes past their end. Left out where the filter looks at none.
    Arena {
        /// Whether the kernel may write to them.
        writes: bool,
    },
    /// The descriptors: two words a packet, at multiples of 8 bytes; and behind them, for filters with flows, two a run.
    Descriptors {
        /// Whether the kernel writes the packets' ends back.
        writes: bool,
    },
    /// The metadata, five words a packet. Only for filters that read it.
    Metadata,
    /// A byte a packet: the verdict. Written for each.
    Verdicts,
    /// A word a packet: the redirect's target, 0 for other verdicts. Only for filters that can redirect. Written
    /// for each.
    Targets,
    /// The words of a map of the filter's, by its number (`docs/guide/maps.md`).
    Map(u32),
    /// `u32`: the index of the launch's first packet, in all the buffers but the arena; for filters with flows that of its
    /// first run's descriptor.
    Base,
    /// `u32`: the number of packets, or of runs.
    Count,
}

/// A filter in C.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// The text.
    pub source: String,
    /// The kernel's or the function's name in it.
    pub entry: String,
    /// The kernel's arguments, in order; those of a function that it has a use for.
    pub arguments: Vec<Argument>,
    /// Expressions in it, all functions inlined.
    pub size: u64,
}

/// Why there is no text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The filter has something in it that the language has no form for.
    #[error("{0}: this cannot be written in C")]
    Unsupported(String),
    /// A fault of Portcullis.
    #[error("the filter could not be written in C, which is a fault of Portcullis: {0}")]
    Failed(String),
}

impl Kernel {
    /// What it does, for the session that launches it.
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
                // What maps do is written as it stands in the prelude.
                lowered.intrinsics.retain(|_, intrinsic| !intrinsic.is_map_function());
                lowered
            })
        };
        let mut lowered = lower(lowering).map_err(failed)?;
        if options.packet_access == PacketAccess::Vectorizable {
            let plain = !program.facts().rewrites() && program.maps().is_empty() && !program.has_flows();
            let joined = lower(Lowering { if_convert_all: true, ..lowering }).map_err(failed)?;
            if plain && kernel::is_straight(&joined) && !kernel::points_into_vectors(&joined) {
                return Writer::new(program, &joined, options).write();
            }
            let bytes = Options { packet_access: PacketAccess::Bytes, ..options.clone() };
            if kernel::points_into_vectors(&lowered) {
                lowered = lower(Lowering { whole_pointers: true, ..lowering }).map_err(failed)?;
            }
            return Writer::new(program, &lowered, &bytes).write();
        }
        if kernel::points_into_vectors(&lowered) {
            lowering.whole_pointers = true;
            lowered = lower(lowering).map_err(failed)?;
        }
        Writer::new(program, &lowered, options).write()
    };
    // Statements and expressions are nested as deep as the filter's text is.
    run_on_large_stack(program.source(), work).map_err(|error| WriteError::Failed(error.to_string()))?
}

/// A file as it is written.
struct Writer<'a> {
    program: &'a Program,
    lowered: &'a Lowered,
    module: &'a Module,
    dialect: &'static dyn Dialect,
    options: &'a Options,
    /// The language's words.
    words: Rc<HashSet<String>>,
    /// Names at file scope.
    names: Names,
    type_names: HashMap<Handle<Type>, String>,
    /// Types whose definition is written.
    defined: HashSet<Handle<Type>>,
    members: HashMap<Handle<Type>, Vec<String>>,
    /// Names that constants have or would have.
    constant_names: HashMap<Handle<Constant>, String>,
    /// Constants whose definition is written.
    constants_written: HashSet<Handle<Constant>>,
    /// Private variables, by their names in the packet's structure.
    globals: HashMap<Handle<GlobalVariable>, String>,
    /// The words of the filter's maps, members as well.
    maps: Vec<Handle<GlobalVariable>>,
    shapes: HashMap<Handle<Function>, Shape>,
    /// Helpers, prelude functions and vector types that are written, by name.
    helpers_known: HashSet<String>,
    types: String,
    constants: String,
    helpers: String,
    /// Whether anything reaches the packet by bytes, and by words.
    uses_bytes: bool,
    uses_words: bool,
}

impl<'a> Writer<'a> {
    fn new(program: &'a Program, lowered: &'a Lowered, options: &'a Options) -> Writer<'a> {
        let dialect = options.language.dialect();
        let words = names::words(dialect);
        Writer {
            program,
            lowered,
            module: &lowered.module,
            dialect,
            options,
            names: Names::inside(&words),
            words,
            type_names: HashMap::new(),
            defined: HashSet::new(),
            members: HashMap::new(),
            constant_names: HashMap::new(),
            constants_written: HashSet::new(),
            globals: HashMap::new(),
            maps: Vec::new(),
            shapes: HashMap::new(),
            helpers_known: HashSet::new(),
            types: String::new(),
            constants: String::new(),
            helpers: String::new(),
            uses_bytes: false,
            uses_words: false,
        }
    }
}
