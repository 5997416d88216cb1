//! From a program to native code for a whole batch: one function that loops over packets, with
//! the filter, its helpers and the prelude's functions inlined into the loop's body.
//!
//! How the work is divided:
//! - `types`: values as lists of scalars;
//! - `known`: ranges, sums and length facts about values;
//! - `scalar`: operators on scalars, with the peepholes that pay;
//! - `math`: WGSL's built-in functions;
//! - `packet`: the prelude's functions on a packet;
//! - `lookup`: searches for a key in a map;
//! - `ahead`: the part of a filter that leads to its first search, to be run before the filter;
//! - `expressions`, `places`: naga's expressions, variables and what pointers point to;
//! - `cost`: which pieces of a filter have no side effect, and what they cost;
//! - `statements`: control flow, branch-free where that is cheaper;
//! - `threading`: branches without blocks that only jump on.
//!
//! What makes the code safe for any filter and any packet is said at the two places that touch
//! memory: `packet::Codegen::load` and `places::Codegen::element_address`.

pub(crate) mod ahead;
mod cost;
mod expressions;
mod float;
mod known;
mod lookup;
mod math;
mod packet;
mod places;
mod scalar;
mod statements;
mod threading;
pub(crate) mod types;

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Display, Formatter};

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::immediates::Offset32;
use cranelift_codegen::ir::{self, AbiParam, InstBuilder, MemFlagsData, UserFuncName, Value, types as clif};
use cranelift_codegen::isa::TargetIsa;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};
use naga::{Function, GlobalVariable, Handle, LocalVariable};
use portcullis_core::program::Program;

use crate::memory::{Context, context_offset};
use known::{Known, Lengths};

/// Something that a filter does and this code generator does not do, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unsupported(pub String);

pub(crate) type Result<T, E = Unsupported> = std::result::Result<T, E>;

/// What the code for a filter is like. Which is faster is for the traffic to say: see `choice`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Both ways of a condition are executed, where that is harmless and cheap, and one selected:
    /// for traffic whose conditions cannot be foreseen.
    BranchFree,
    /// A branch for every condition: for traffic whose packets are much alike.
    Branching,
    /// Several packets at a time, side by side, and what lies behind a header of no fixed length where it
    /// lies behind the shortest: for traffic in which that is seldom wrong.
    SpeculativeVector,
    /// Several packets at a time, whose bytes are looked for packet by packet where their places vary.
    Vector,
}

impl Style {
    /// In a word or two.
    pub fn name(self) -> &'static str {
        match self {
            Style::BranchFree => "branch-free",
            Style::Branching => "branching",
            Style::SpeculativeVector => "speculative vector",
            Style::Vector => "vector",
        }
    }

    /// Whether it has several packets at a time.
    pub fn is_vector(self) -> bool {
        matches!(self, Style::SpeculativeVector | Style::Vector)
    }
}

/// Scalar operations that a filter may come to, after inlining; more would keep the compiler (and
/// its memory) busy for minutes.
const MAX_OPERATIONS: u64 = 1_000_000;

/// What there is of a function before it can run.
pub(crate) enum Body {
    /// Cranelift's intermediate form.
    Clif(Box<ir::Function>),
    /// Machine code, which needs nothing outside and so many bytes of stack; and as text what it was made of.
    Machine { code: Vec<u8>, stack: usize, text: String },
}

impl Display for Body {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Body::Clif(function) => write!(f, "{}", function.display()),
            Body::Machine { text, .. } => f.write_str(text),
        }
    }
}

/// A function, and what it needs beside it when it runs.
pub(crate) struct Lowered {
    pub body: Body,
    /// Constant tables, read through [`Context::tables`].
    pub tables: Vec<u8>,
    /// Scalar operations that it came to.
    pub operations: u64,
    /// Whether it does without a branch where [`Style::Branching`] would have one.
    pub saves_branches: bool,
    /// Packets that it takes at a time, and leaves out at the end where they are fewer.
    pub group: usize,
}

/// Builds `fn(context: *const Context, start: usize, end: usize)`.
pub(crate) fn lower(program: &Program, style: Style, isa: &dyn TargetIsa) -> Result<Lowered> {
    let mut function = empty(isa)?;
    let mut context = FunctionBuilderContext::new();
    let builder = FunctionBuilder::new(&mut function, &mut context);
    let found = Codegen::new(builder, program, style, isa).run()?;
    Ok(Lowered::new(function, found))
}

/// Builds a function with the same parameters that runs ahead of the filter (see `ahead`); none where it would find
/// nothing to do.
pub(crate) fn lower_ahead(program: &Program, isa: &dyn TargetIsa) -> Result<Option<Lowered>> {
    let mut function = empty(isa)?;
    let mut context = FunctionBuilderContext::new();
    let builder = FunctionBuilder::new(&mut function, &mut context);
    // It has no verdict to choose, and what it computes in vain is little.
    let found = Codegen::new(builder, program, Style::BranchFree, isa).run_ahead()?;
    Ok(found.map(|found| Lowered::new(function, found)))
}

/// A function without code.
pub(crate) fn empty(isa: &dyn TargetIsa) -> Result<ir::Function> {
    let pointer = isa.pointer_type();
    if pointer != clif::I64 {
        return Err(Unsupported("a processor that is not 64 bits wide".into()));
    }
    if isa.endianness() != ir::Endianness::Little {
        return Err(Unsupported("a processor that stores the highest byte first".into()));
    }
    Ok(ir::Function::with_name_signature(UserFuncName::user(0, 0), signature(isa)))
}

/// Of every function: the context, and the numbers of the first packet and of the one behind the last.
pub(crate) fn signature(isa: &dyn TargetIsa) -> ir::Signature {
    let mut signature = ir::Signature::new(isa.default_call_conv());
    signature.params.extend([AbiParam::new(isa.pointer_type()); 3]);
    signature
}

impl Lowered {
    fn new(mut function: ir::Function, found: Found) -> Lowered {
        threading::thread(&mut function);
        Lowered {
            tables: found.tables,
            operations: found.operations,
            saves_branches: found.saves_branches,
            group: 1,
            body: Body::Clif(Box::new(function)),
        }
    }
}

/// What comes out of a [`Codegen`] beside the function.
struct Found {
    tables: Vec<u8>,
    operations: u64,
    saves_branches: bool,
}

/// What a pointer points to.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Scalars in Cranelift variables, numbered on from this one.
    Variables(u32),
    /// Scalars in memory, one after another from `address + offset` on.
    Memory { address: Value, offset: u32 },
}

/// Where a variable of the filter lives.
#[derive(Debug, Clone, Copy)]
enum Home {
    Variables(u32),
    /// So many bytes into the filter's stack.
    Stack(u32),
}

/// What an expression came to.
#[derive(Debug, Clone)]
enum Operand {
    Value(Vec<Value>),
    Place(Place),
    /// A constant of the module, not yet materialised: tables are better read from memory.
    Constant(Handle<naga::Expression>),
}

/// One call of a function of the filter, inlined.
struct Frame<'a> {
    function: Handle<Function>,
    code: &'a Function,
    info: &'a naga::valid::FunctionInfo,
    /// How often each local variable is stored to, read, or pointed to.
    uses: Vec<usize>,
    arguments: Vec<Operand>,
    values: Vec<Option<Operand>>,
    exit: Exit,
}

/// Where `return` goes.
#[derive(Debug, Clone, Copy)]
enum Exit {
    /// To the end of the packet's turn, with a verdict.
    Verdict,
    /// To the block behind an inlined call, with the result.
    Block { block: ir::Block, used: bool },
    /// Nowhere: the call is lowered without branches and its result is collected.
    Collected,
}

/// The packet of the current turn of the loop.
#[derive(Debug, Clone, Copy)]
struct Packet {
    /// Its place among the call's packets, 64 bits.
    place: Value,
    /// Its index in the batch, 64 bits.
    index: Value,
    /// Its first byte's address when the turn began.
    start: Value,
    /// Its length when the turn began.
    length: Value,
    /// Current address and length, for filters that change them.
    moving: Option<Moving>,
}

/// The packet's ends, where a filter moves them.
#[derive(Debug, Clone, Copy)]
struct Moving {
    start: Variable,
    length: Variable,
}

/// The loop over packets.
struct Turns {
    start: Value,
    end: Value,
    /// Where it is found which packet is next.
    seek: ir::Block,
    /// Where a packet's turn begins.
    turn: ir::Block,
    /// Where it comes to, with this.
    verdict: ir::Block,
    value: Value,
    /// Behind the last one.
    done: ir::Block,
    /// Whether packets' ends may move.
    moves: bool,
}

/// Blocks that `break` and `continue` go to.
#[derive(Debug, Clone, Copy)]
struct Jumps {
    leave: ir::Block,
    again: Option<ir::Block>,
}

struct Codegen<'a, 'f> {
    b: FunctionBuilder<'f>,
    isa: &'a dyn TargetIsa,
    style: Style,
    program: &'a Program,
    module: &'a naga::Module,
    known: Known,
    /// What holds where the code is, on every way that leads here; conditional code without
    /// branches is executed always, so this does not hold its conditions.
    firm: Lengths,
    /// The same, and the conditions of conditional code without branches: what holds if the
    /// result matters.
    assumed: Lengths,
    /// The function's first argument.
    context: Value,
    arena: Value,
    packet: Option<Packet>,
    verdict: Option<ir::Block>,
    fuel: Option<Variable>,
    /// Set in code that runs ahead of the filter: whether it has found anything to do.
    ahead: Option<bool>,
    /// The column that such code writes, and the first of the packets that it is for.
    leads: Option<(Value, Value)>,
    locals: HashMap<(Handle<Function>, Handle<LocalVariable>), Home>,
    globals: HashMap<Handle<GlobalVariable>, Home>,
    costs: cost::Costs,
    /// Old values of variables assigned in conditional code without branches, innermost last.
    journals: Vec<BTreeMap<u32, Value>>,
    jumps: Vec<Jumps>,
    stack: places::Stack,
    tables: Vec<u8>,
    table_offsets: HashMap<Handle<naga::Expression>, u32>,
    operations: u64,
    /// See [`Lowered::saves_branches`].
    saves_branches: bool,
}

impl<'a, 'f> Codegen<'a, 'f> {
    fn new(b: FunctionBuilder<'f>, program: &'a Program, style: Style, isa: &'a dyn TargetIsa) -> Self {
        let none = Value::from_u32(0);
        Codegen {
            b,
            isa,
            style,
            program,
            module: program.module(),
            known: Known::default(),
            firm: Lengths::default(),
            assumed: Lengths::default(),
            context: none,
            arena: none,
            packet: None,
            verdict: None,
            fuel: None,
            ahead: None,
            leads: None,
            locals: HashMap::new(),
            globals: HashMap::new(),
            costs: cost::Costs::new(program, true),
            journals: Vec::new(),
            jumps: Vec::new(),
            stack: places::Stack::default(),
            tables: Vec::new(),
            table_offsets: HashMap::new(),
            operations: 0,
            saves_branches: false,
        }
    }

    /// The loop over packets `start..end`, tested at its end.
    fn run(mut self) -> Result<Found> {
        let facts = self.program.facts();
        let turns = self.begin(facts.changes_length, clif::I32);
        let verdicts = self.field(context_offset::VERDICTS);
        let targets = facts.redirects.then(|| self.field(context_offset::TARGETS));
        self.enter_first(&turns);
        self.filter()?;
        self.fit_stack();

        self.b.switch_to_block(turns.verdict);
        let Packet { index, moving, .. } = self.packet();
        let byte = self.b.ins().iadd(verdicts, index);
        self.b.ins().istore8(output_memory(), turns.value, byte, 0);
        if let Some(targets) = targets {
            let port = self.b.ins().ushr_imm_u(turns.value, 8);
            let scaled = self.b.ins().ishl_imm_u(index, 2);
            let at = self.b.ins().iadd(targets, scaled);
            self.b.ins().store(output_memory(), port, at, 0);
        }
        if let Some(moving) = moving {
            let resized = self.field(context_offset::RESIZED);
            let scaled = self.b.ins().ishl_imm_u(index, 3);
            let at = self.b.ins().iadd(resized, scaled);
            let start = self.b.use_var(moving.start);
            let offset = self.b.ins().isub(start, self.arena);
            self.b.ins().istore32(output_memory(), offset, at, 0);
            let length = self.b.use_var(moving.length);
            self.b.ins().store(output_memory(), length, at, 4);
        }
        Ok(self.end(&turns))
    }

    /// The function's first block, in which fields of the context are read; `value` is the type of what a turn gives.
    fn begin(&mut self, moves: bool, value: ir::Type) -> Turns {
        let entry = self.b.create_block();
        let turn = self.b.create_block();
        let seek = if self.program.has_flows() { self.b.create_block() } else { turn };
        let verdict = self.b.create_block();
        let done = self.b.create_block();
        self.b.append_block_params_for_function_params(entry);
        self.b.switch_to_block(entry);
        let (context, start, end) = match *self.b.block_params(entry) {
            [context, start, end] => (context, start, end),
            _ => unreachable!("the signature has three parameters"),
        };
        self.context = context;
        self.arena = self.field(context_offset::ARENA);
        let value = self.b.append_block_param(verdict, value);
        self.verdict = Some(verdict);
        Turns { start, end, seek, turn, verdict, value, done, moves }
    }

    /// Ends that block, and begins a packet's turn.
    fn enter_first(&mut self, turns: &Turns) {
        let descriptors = self.field(context_offset::DESCRIPTORS);
        let list = self.program.has_flows().then(|| self.field(context_offset::LIST));
        let some = self.b.ins().icmp(IntCC::UnsignedLessThan, turns.start, turns.end);
        self.b.ins().brif(some, turns.seek, &[turns.start.into()], turns.done, &[]);
        if let Some(list) = list {
            self.seek(turns, list);
        }

        let place = self.b.append_block_param(turns.turn, clif::I64);
        let index = if list.is_some() { self.b.append_block_param(turns.turn, clif::I64) } else { place };
        self.b.switch_to_block(turns.turn);
        let scaled = self.b.ins().ishl_imm_u(index, 3);
        let descriptor = self.b.ins().iadd(descriptors, scaled);
        let offset = self.b.ins().uload32(constant_memory(), descriptor, 0);
        let length = self.b.ins().load(clif::I32, constant_memory(), descriptor, 4);
        let address = self.b.ins().iadd(self.arena, offset);
        self.known.note(length).is_length = true;
        let moving = turns.moves.then(|| {
            let moving = Moving { start: self.b.declare_var(clif::I64), length: self.b.declare_var(clif::I32) };
            self.b.def_var(moving.start, address);
            self.b.def_var(moving.length, length);
            moving
        });
        self.packet = Some(Packet { place, index, start: address, length, moving });
        if self.program.facts().max_iterations.is_none_or(|most| most > self.program.fuel()) {
            let fuel = self.b.declare_var(clif::I32);
            let full = self.b.ins().iconst(clif::I32, i64::from(self.program.fuel()));
            self.b.def_var(fuel, full);
            self.fuel = Some(fuel);
        }
    }

    /// Goes on to the next packet's turn, behind what is done with what the last one gave.
    fn end(mut self, turns: &Turns) -> Found {
        let place = self.packet().place;
        let next = self.b.ins().iadd_imm_u(place, 1);
        let more = self.b.ins().icmp(IntCC::UnsignedLessThan, next, turns.end);
        self.b.ins().brif(more, turns.seek, &[next.into()], turns.done, &[]);

        self.b.switch_to_block(turns.done);
        self.b.ins().return_(&[]);
        self.b.seal_all_blocks();
        let Codegen { b, isa, tables, operations, saves_branches, .. } = self;
        b.finalize(isa.frontend_config());
        Found { tables, operations, saves_branches }
    }

    /// Finds the number of the packet at a place of the call's list, where there is one.
    fn seek(&mut self, turns: &Turns, list: Value) {
        let look = self.b.create_block();
        let place = self.b.append_block_param(turns.seek, clif::I64);
        self.b.switch_to_block(turns.seek);
        self.b.ins().brif(list, look, &[], turns.turn, &[place.into(), place.into()]);

        self.b.switch_to_block(look);
        let scaled = self.b.ins().ishl_imm_u(place, 2);
        let at = self.b.ins().iadd(list, scaled);
        let index = self.b.ins().uload32(constant_memory(), at, 0);
        self.b.ins().jump(turns.turn, &[place.into(), index.into()]);
    }

    /// A pointer out of the [`Context`].
    fn field(&mut self, offset: i32) -> Value {
        self.b.ins().load(clif::I64, constant_memory(), self.context, Offset32::new(offset))
    }

    fn packet(&self) -> Packet {
        self.packet.expect("set before the filter is lowered")
    }

    /// Counts work done, so that a filter cannot keep the compiler busy for ever.
    fn spend(&mut self, operations: usize) -> Result<()> {
        self.operations += operations as u64;
        if self.operations > MAX_OPERATIONS {
            return Err(Unsupported(format!("more than {MAX_OPERATIONS} scalar operations after inlining")));
        }
        Ok(())
    }

    /// A 32-bit constant.
    fn constant(&mut self, value: u32) -> Value {
        let v = self.b.ins().iconst(clif::I32, i64::from(value));
        self.known.set_range(v, value, value);
        v
    }

    /// A boolean constant.
    fn boolean(&mut self, value: bool) -> Value {
        let v = self.b.ins().iconst(clif::I8, i64::from(value));
        self.known.set_range(v, value.into(), value.into());
        v
    }

    /// Sets a variable, remembering what it was for the innermost conditional code.
    fn assign(&mut self, variable: Variable, value: Value) {
        if self.journals.last().is_some_and(|journal| !journal.contains_key(&variable.as_u32())) {
            let old = self.b.use_var(variable);
            if let Some(journal) = self.journals.last_mut() {
                journal.insert(variable.as_u32(), old);
            }
        }
        self.b.def_var(variable, value);
    }
}

/// Memory that nothing writes to while the function runs: the context, the descriptors, the
/// metadata, the tables.
pub(crate) fn constant_memory() -> MemFlagsData {
    MemFlagsData::new().with_notrap().with_readonly().with_can_move()
}

/// Memory that only the loop's end writes to, and nothing reads.
pub(crate) fn output_memory() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

/// The context's fields are 64 bits wide on every processor that [`lower`] takes.
const _: () = assert!(size_of::<usize>() != 8 || size_of::<Context>() == 80);
