//! State of the code generator while it lowers one function, and the loop over packets around the
//! filter.

use std::collections::{BTreeMap, HashMap};

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::immediates::Offset32;
use cranelift_codegen::ir::{self, InstBuilder, StackSlot, Value, types as clif};
use cranelift_codegen::isa::TargetIsa;
use cranelift_frontend::{FunctionBuilder, Variable};
use naga::{Function, GlobalVariable, Handle, LocalVariable};
use portcullis_core::program::Program;

use super::cost::CostModel;
use super::value_facts::{LengthFacts, ValueFacts};
use crate::compile::abi::context_offset;
use crate::compile::errors::{Result, Unsupported};
use crate::compile::lowered::{Style, constant_memory, output_memory};

/// Scalar operations that a filter may have after inlining; more would keep the compiler, and its
/// memory, busy for minutes.
const MAX_OPERATIONS: u64 = 1_000_000;

/// Results of lowering, besides the function itself.
pub(super) struct LoweringOutput {
    pub tables: Vec<u8>,
    pub operations: u64,
    pub saves_branches: bool,
}

/// Target of a pointer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// Scalars in consecutive Cranelift variables, from this number on.
    Variables(u32),
    /// Scalars in consecutive memory, from `address + offset` on.
    Memory { address: Value, offset: u32 },
}

/// Where a variable of the filter is stored.
#[derive(Debug, Clone, Copy)]
pub(super) enum VariableLocation {
    /// Consecutive Cranelift variables hold the variable's scalars, from this number on.
    Variables(u32),
    /// The filter's stack slot holds the variable, at this byte offset.
    Stack(u32),
}

/// The value of an expression.
#[derive(Debug, Clone)]
pub(super) enum Operand {
    Value(Vec<Value>),
    Place(Place),
    /// A constant of the module, not yet materialised: tables are better read from memory.
    Constant(Handle<naga::Expression>),
}

/// An inlined call of one of the filter's functions.
pub(super) struct Frame<'a> {
    pub function: Handle<Function>,
    pub code: &'a Function,
    pub info: &'a naga::valid::FunctionInfo,
    /// Number of references to each local variable.
    pub uses: Vec<usize>,
    pub arguments: Vec<Operand>,
    /// Values of the expressions evaluated so far.
    pub values: Vec<Option<Operand>>,
    pub exit: ReturnTarget,
}

/// Target of a `return` statement.
#[derive(Debug, Clone, Copy)]
pub(super) enum ReturnTarget {
    /// The end of the loop's body, with a verdict.
    Verdict,
    /// The block behind an inlined call, with the result. `used` is set by the first `return`.
    Block { block: ir::Block, used: bool },
    /// No block: the call is lowered without branches and its result is a value.
    Collected,
}

/// The packet that the loop's body filters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packet {
    /// Index in the batch, 64 bits.
    pub index: Value,
    /// Address of the first byte on arrival.
    pub start: Value,
    /// Length on arrival.
    pub length: Value,
    /// Current start and length, in filters that change them.
    pub bounds: Option<PacketBounds>,
}

/// Start address and length of a packet whose ends the filter moves.
#[derive(Debug, Clone, Copy)]
pub(super) struct PacketBounds {
    pub start: Variable,
    pub length: Variable,
}

/// Layout of the stack slot for variables that are not in registers. Inlined calls stack up in it
/// as real calls would, so it is as large as the deepest call chain, which the verifier bounds.
#[derive(Debug, Default)]
pub(super) struct StackLayout {
    pub slot: Option<StackSlot>,
    /// Bytes in use by the calls that enclose the current code.
    pub top: u32,
    /// Maximum number of bytes in use.
    pub size: u32,
}

impl StackLayout {
    /// Returns the offset of `bytes` free bytes. They stay free until the caller raises `top`.
    pub fn reserve(&mut self, bytes: u32) -> u32 {
        self.size = self.size.max(self.top + bytes);
        self.top
    }
}

/// Blocks and values of the loop over packets.
pub(super) struct PacketLoop {
    /// Index of the first packet.
    pub start: Value,
    /// Index past the last packet.
    pub end: Value,
    /// Filters one packet.
    pub body: ir::Block,
    /// Ends the body, with `value` as the block's parameter.
    pub verdict: ir::Block,
    pub value: Value,
    /// Behind the loop.
    pub exit: ir::Block,
    /// Whether the filter changes packets' start or length.
    pub changes_bounds: bool,
}

/// Blocks that `break` and `continue` lead to.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoopTargets {
    pub break_block: ir::Block,
    /// `None` for a `switch`, which only catches `break`.
    pub continue_block: Option<ir::Block>,
}

/// State of one function during lowering.
pub(super) struct Codegen<'a, 'f> {
    /// Cranelift's function builder.
    pub b: FunctionBuilder<'f>,
    pub isa: &'a dyn TargetIsa,
    pub style: Style,
    pub program: &'a Program,
    pub module: &'a naga::Module,
    pub known: ValueFacts,
    /// Facts about the packet's length on every path to the current code. Branch-free
    /// conditional code is executed always, so its conditions do not count.
    pub proven: LengthFacts,
    /// Facts about the packet's length if the result of the current code matters: `proven`
    /// and the conditions of enclosing branch-free code.
    pub assumed: LengthFacts,
    /// The function's first parameter.
    pub context: Value,
    pub arena: Value,
    pub packet: Option<Packet>,
    pub verdict: Option<ir::Block>,
    /// Remaining loop iterations, in filters that may run out of fuel.
    pub fuel: Option<Variable>,
    /// `None` in the filter itself; in prefetch code, whether it has found a search to prefetch.
    pub found_search: Option<bool>,
    /// Address of the cursors and position of the first packet; `None` except in prefetch code.
    pub cursors: Option<(Value, Value)>,
    /// The two maps whose first searches are prefetched together, if the filter searches two.
    pub searched_pair: Option<[u32; 2]>,
    pub locals: HashMap<(Handle<Function>, Handle<LocalVariable>), VariableLocation>,
    pub globals: HashMap<Handle<GlobalVariable>, VariableLocation>,
    pub costs: CostModel,
    /// Values that variables had before they were assigned in branch-free conditional code, for
    /// each enclosing arm, the innermost last.
    pub undo_logs: Vec<BTreeMap<u32, Value>>,
    pub loop_targets: Vec<LoopTargets>,
    pub stack: StackLayout,
    pub tables: Vec<u8>,
    pub table_offsets: HashMap<Handle<naga::Expression>, u32>,
    pub operations: u64,
    /// See [`Lowered::saves_branches`](crate::compile::lowered::Lowered::saves_branches).
    pub saves_branches: bool,
}

impl<'a, 'f> Codegen<'a, 'f> {
    pub fn new(b: FunctionBuilder<'f>, program: &'a Program, style: Style, isa: &'a dyn TargetIsa) -> Self {
        let unset = Value::from_u32(0);
        Codegen {
            b,
            isa,
            style,
            program,
            module: program.module(),
            known: ValueFacts::default(),
            proven: LengthFacts::default(),
            assumed: LengthFacts::default(),
            context: unset,
            arena: unset,
            packet: None,
            verdict: None,
            fuel: None,
            found_search: None,
            cursors: None,
            searched_pair: None,
            locals: HashMap::new(),
            globals: HashMap::new(),
            costs: CostModel::new(program, true),
            undo_logs: Vec::new(),
            loop_targets: Vec::new(),
            stack: StackLayout::default(),
            tables: Vec::new(),
            table_offsets: HashMap::new(),
            operations: 0,
            saves_branches: false,
        }
    }

    /// Lowers the filter, in a loop over packets `start..end` that is tested at its end.
    pub fn lower_filter(mut self) -> Result<LoweringOutput> {
        let facts = self.program.facts();
        let packet_loop = self.begin_function(facts.changes_length, clif::I32);
        let verdicts = self.context_field(context_offset::VERDICTS);
        let targets = facts.redirects.then(|| self.context_field(context_offset::TARGETS));
        self.begin_packet_loop(&packet_loop);
        self.lower_body()?;
        self.set_stack_size();

        self.b.switch_to_block(packet_loop.verdict);
        let Packet { index, bounds, .. } = self.packet();
        let byte = self.b.ins().iadd(verdicts, index);
        self.b.ins().istore8(output_memory(), packet_loop.value, byte, 0);
        if let Some(targets) = targets {
            let port = self.b.ins().ushr_imm_u(packet_loop.value, 8);
            let scaled = self.b.ins().ishl_imm_u(index, 2);
            let at = self.b.ins().iadd(targets, scaled);
            self.b.ins().store(output_memory(), port, at, 0);
        }
        if let Some(bounds) = bounds {
            let resized = self.context_field(context_offset::RESIZED);
            let scaled = self.b.ins().ishl_imm_u(index, 3);
            let at = self.b.ins().iadd(resized, scaled);
            let start = self.b.use_var(bounds.start);
            let offset = self.b.ins().isub(start, self.arena);
            self.b.ins().istore32(output_memory(), offset, at, 0);
            let length = self.b.use_var(bounds.length);
            self.b.ins().store(output_memory(), length, at, 4);
        }
        Ok(self.finish_packet_loop(&packet_loop))
    }

    /// Opens the function's entry block, in which fields of the context are read. `value` is the
    /// type of the loop body's result.
    pub fn begin_function(&mut self, changes_bounds: bool, value: ir::Type) -> PacketLoop {
        let entry = self.b.create_block();
        let body = self.b.create_block();
        let verdict = self.b.create_block();
        let exit = self.b.create_block();
        self.b.append_block_params_for_function_params(entry);
        self.b.switch_to_block(entry);
        let (context, start, end) = match *self.b.block_params(entry) {
            [context, start, end] => (context, start, end),
            _ => unreachable!("the signature has three parameters"),
        };
        self.context = context;
        self.arena = self.context_field(context_offset::ARENA);
        let value = self.b.append_block_param(verdict, value);
        self.verdict = Some(verdict);
        PacketLoop { start, end, body, verdict, value, exit, changes_bounds }
    }

    /// Ends the entry block and opens the loop's body.
    pub fn begin_packet_loop(&mut self, packet_loop: &PacketLoop) {
        let descriptors = self.context_field(context_offset::DESCRIPTORS);
        let some = self.b.ins().icmp(IntCC::UnsignedLessThan, packet_loop.start, packet_loop.end);
        self.b.ins().brif(some, packet_loop.body, &[packet_loop.start.into()], packet_loop.exit, &[]);

        let index = self.b.append_block_param(packet_loop.body, clif::I64);
        self.b.switch_to_block(packet_loop.body);
        let scaled = self.b.ins().ishl_imm_u(index, 3);
        let descriptor = self.b.ins().iadd(descriptors, scaled);
        let offset = self.b.ins().uload32(constant_memory(), descriptor, 0);
        let length = self.b.ins().load(clif::I32, constant_memory(), descriptor, 4);
        let address = self.b.ins().iadd(self.arena, offset);
        self.known.info_mut(length).is_length = true;
        let bounds = packet_loop.changes_bounds.then(|| {
            let bounds = PacketBounds { start: self.b.declare_var(clif::I64), length: self.b.declare_var(clif::I32) };
            self.b.def_var(bounds.start, address);
            self.b.def_var(bounds.length, length);
            bounds
        });
        self.packet = Some(Packet { index, start: address, length, bounds });
        if self.program.facts().max_iterations.is_none_or(|most| most > self.program.fuel()) {
            let fuel = self.b.declare_var(clif::I32);
            let full = self.b.ins().iconst(clif::I32, i64::from(self.program.fuel()));
            self.b.def_var(fuel, full);
            self.fuel = Some(fuel);
        }
    }

    /// Ends the loop's body, behind the code that uses its result, and the function.
    pub fn finish_packet_loop(mut self, packet_loop: &PacketLoop) -> LoweringOutput {
        let index = self.packet().index;
        let next = self.b.ins().iadd_imm_u(index, 1);
        let more = self.b.ins().icmp(IntCC::UnsignedLessThan, next, packet_loop.end);
        self.b.ins().brif(more, packet_loop.body, &[next.into()], packet_loop.exit, &[]);

        self.b.switch_to_block(packet_loop.exit);
        self.b.ins().return_(&[]);
        self.b.seal_all_blocks();
        let Codegen { b, isa, tables, operations, saves_branches, .. } = self;
        b.finalize(isa.frontend_config());
        LoweringOutput { tables, operations, saves_branches }
    }

    /// Loads a pointer from the [`BatchContext`](crate::compile::abi::BatchContext).
    pub fn context_field(&mut self, offset: i32) -> Value {
        self.b.ins().load(clif::I64, constant_memory(), self.context, Offset32::new(offset))
    }

    pub fn packet(&self) -> Packet {
        self.packet.expect("set before the filter is lowered")
    }

    /// Adds to the number of operations.
    ///
    /// # Errors
    ///
    /// [`Unsupported`] beyond [`MAX_OPERATIONS`], so that no filter keeps the compiler busy for
    /// ever.
    pub fn count_operations(&mut self, operations: usize) -> Result<()> {
        self.operations += operations as u64;
        if self.operations > MAX_OPERATIONS {
            return Err(Unsupported(format!("more than {MAX_OPERATIONS} scalar operations after inlining")));
        }
        Ok(())
    }

    /// Emits a 32-bit constant.
    pub fn constant(&mut self, value: u32) -> Value {
        let v = self.b.ins().iconst(clif::I32, i64::from(value));
        self.known.set_range(v, value, value);
        v
    }

    /// Emits a boolean constant.
    pub fn boolean(&mut self, value: bool) -> Value {
        let v = self.b.ins().iconst(clif::I8, i64::from(value));
        self.known.set_range(v, value.into(), value.into());
        v
    }

    /// Assigns a variable, logging its old value for the innermost branch-free arm.
    pub fn assign(&mut self, variable: Variable, value: Value) {
        if self.undo_logs.last().is_some_and(|journal| !journal.contains_key(&variable.as_u32())) {
            let old = self.b.use_var(variable);
            if let Some(journal) = self.undo_logs.last_mut() {
                journal.insert(variable.as_u32(), old);
            }
        }
        self.b.def_var(variable, value);
    }
}
