//! Lowers the control-flow graph to the filter function, in naga's IR.
//!
//! Within a block registers are SSA values. A register becomes a local variable only if it is live
//! out of a block that writes it.

use std::collections::HashMap;

use naga::{
    BinaryOperator, Expression, Function, FunctionArgument, FunctionResult, Handle, Module, Span, UnaryOperator,
};

use super::cfg::{Block, Cfg, Predicate, Step, Target, Terminator};
use super::dataflow::{self, RegisterSet};
use super::instruction::{Alu, Comparison, Op, Operand, Register};
use super::parser::ParsedListing;
use portcullis_core::ir::builder::{FunctionBuilder, Value};
use portcullis_core::ir::structure::emit::{BlockEmitter, Types, emit};
use portcullis_core::ir::structure::{Graph, TooDeep, structure};
use portcullis_core::packet::Verdict;
use portcullis_core::program::{FILTER_FUNCTION, prelude};

/// Builds the filter's module: the prelude and the filter function.
///
/// # Errors
/// If the structured control flow nests too deep.
pub(super) fn lower(cfg: &Cfg, listing: &ParsedListing) -> Result<Module, TooDeep> {
    let structured = structure(&flow_graph(cfg))?;
    let mut module = prelude::module(&[], "");
    let types = Types::of(&mut module);
    let prelude_functions = module.functions.iter().filter_map(|(handle, f)| Some((f.name.clone()?, handle))).collect();
    let mut b = FunctionBuilder::default();
    b.function.name = Some(FILTER_FUNCTION.to_owned());
    b.function.arguments.push(FunctionArgument { name: Some("pkt".to_owned()), ty: types.u32, binding: None });
    b.function.result = Some(FunctionResult { ty: types.u32, binding: None });
    let packet = b.add(Expression::FunctionArgument(0));
    let mut lowering = Lowering {
        cfg,
        listing,
        live: dataflow::live_in(cfg),
        entry_runs_once: !cfg
            .blocks
            .iter()
            .flat_map(|it| it.terminator.targets())
            .any(|target| target == Target::Block(0)),
        prelude_functions,
        types,
        packet,
        variables: [None; Register::COUNT],
        register_values: [None; Register::COUNT],
        loads: HashMap::new(),
        offsets: HashMap::new(),
        conditions: Vec::new(),
    };
    emit(&structured, types, &mut b, &mut lowering);
    module.functions.append(b.finish(), Span::UNDEFINED);
    Ok(module)
}

/// The graph to structure: the blocks, then the outcomes pass and drop as two more blocks.
fn flow_graph(cfg: &Cfg) -> Graph {
    let count = cfg.blocks.len();
    let number = |target: Target| match target {
        Target::Block(block) => block,
        Target::Pass => count,
        Target::Drop => count + 1,
    };
    let mut successors: Vec<Vec<usize>> =
        cfg.blocks.iter().map(|block| block.terminator.targets().map(number).collect()).collect();
    successors.extend([Vec::new(), Vec::new()]);
    let copied = (0..successors.len()).map(|block| block >= count).collect();
    Graph { successors, duplicated: copied }
}

struct Lowering<'a> {
    cfg: &'a Cfg,
    listing: &'a ParsedListing,
    /// Registers that are live at each block's entry.
    live: Vec<RegisterSet>,
    /// Whether the entry block has no predecessors.
    entry_runs_once: bool,
    /// The prelude's functions by name.
    prelude_functions: HashMap<String, Handle<Function>>,
    types: Types,
    packet: Value,
    variables: [Option<Value>; Register::COUNT],
    /// Values of the registers at the current point of the current block, where known.
    register_values: [Option<Value>; Register::COUNT],
    /// Packet loads of the current block by offset and size; a list of networks repeats the same
    /// load for each network.
    loads: HashMap<(Value, u32), Value>,
    /// Sums X + constant of the current block.
    offsets: HashMap<(Value, u32), Value>,
    /// The current block's stack of booleans.
    conditions: Vec<Value>,
}

impl BlockEmitter for Lowering<'_> {
    fn block(&mut self, b: &mut FunctionBuilder, block: usize) {
        self.conditions.clear();
        self.loads.clear();
        self.offsets.clear();
        self.register_values = [None; Register::COUNT];
        // The outcomes have no steps.
        let Some(Block { steps, .. }) = self.cfg.blocks.get(block) else { return };
        if block == 0 && self.entry_runs_once {
            // Registers and scratch memory start at zero.
            self.register_values = [Some(b.u32(0)); Register::COUNT];
        }
        let mut written = RegisterSet::default();
        let mut rest = steps.as_slice();
        while let [(step, number), ..] = rest {
            let same = rest.iter().take_while(|(next, _)| next == step && matches!(next, Step::And | Step::Or)).count();
            rest = &rest[same.max(1)..];
            b.span = match self.listing.spans.get(*number) {
                Some(span) => Span::new(span.start as u32, span.end as u32),
                None => Span::UNDEFINED,
            };
            match step {
                Step::And | Step::Or => self.combine_conditions(b, *step == Step::And, same),
                _ => self.lower_step(b, *step),
            }
            written = step.defined_register().into_iter().fold(written, RegisterSet::with);
        }
        let live = dataflow::live_out(self.cfg, &self.live, block);
        for register in Register::all().filter(|&it| written.contains(it) && live.contains(it)) {
            let value = self.read_register(b, register);
            let variable = self.variable(b, register);
            b.store(variable, value);
        }
    }

    fn condition(&mut self, b: &mut FunctionBuilder, _block: usize) -> Value {
        // The stack is empty only if the block's test was lost, which `Cfg` rules out.
        self.conditions.pop().unwrap_or_else(|| b.literal(naga::Literal::Bool(false)))
    }

    fn result(&mut self, b: &mut FunctionBuilder, block: usize) -> Value {
        let count = self.cfg.blocks.len();
        let (pass, drop) = (b.u32(Verdict::Pass.to_return()), b.u32(Verdict::Drop.to_return()));
        match block.checked_sub(count) {
            Some(0) => pass,
            Some(_) => drop,
            None => {
                debug_assert_eq!(self.cfg.blocks[block].terminator, Terminator::Return);
                let (a, zero) = (self.read_register(b, Register::A), b.u32(0));
                let is_zero = b.binary(BinaryOperator::Equal, a, zero);
                b.select(is_zero, drop, pass)
            }
        }
    }

    fn placeholder_result(&self) -> u32 {
        Verdict::Drop.to_return()
    }
}

impl Lowering<'_> {
    fn variable(&mut self, b: &mut FunctionBuilder, register: Register) -> Value {
        let ty = self.types.u32;
        *self.variables[register.index()].get_or_insert_with(|| b.local(Some(&register.name()), ty))
    }

    fn read_register(&mut self, b: &mut FunctionBuilder, register: Register) -> Value {
        if let Some(value) = self.register_values[register.index()] {
            return value;
        }
        let variable = self.variable(b, register);
        let value = b.load(variable);
        self.register_values[register.index()] = Some(value);
        value
    }

    fn write_register(&mut self, register: Register, value: Value) {
        self.register_values[register.index()] = Some(value);
    }

    /// Calls a function of the prelude on the packet.
    fn call_prelude(&mut self, b: &mut FunctionBuilder, name: &str, offset: Option<Value>) -> Value {
        let arguments = [Some(self.packet), offset].into_iter().flatten().collect();
        let function = self.prelude_functions[name];
        b.call(function, arguments, true).unwrap_or(self.packet)
    }

    fn load_packet(&mut self, b: &mut FunctionBuilder, size: u32, offset: Value) -> Value {
        if let Some(&value) = self.loads.get(&(offset, size)) {
            return value;
        }
        let name = match size {
            1 => "load_u8",
            2 => "load_be16",
            _ => "load_be32",
        };
        let value = self.call_prelude(b, name, Some(offset));
        self.loads.insert((offset, size), value);
        value
    }

    fn operand(&mut self, b: &mut FunctionBuilder, operand: Operand) -> Value {
        match operand {
            Operand::K(k) => b.u32(k),
            Operand::X => self.read_register(b, Register::X),
        }
    }

    fn lower_step(&mut self, b: &mut FunctionBuilder, step: Step) {
        match step {
            Step::Op(op) => {
                let value = self.lower_op(b, op);
                self.write_register(op.defined_register(), value);
            }
            Step::Test { predicate, expected } => {
                let condition = self.lower_predicate(b, predicate, expected);
                self.conditions.push(condition);
            }
            Step::Not => {
                if let Some(condition) = self.conditions.pop() {
                    let condition = b.unary(UnaryOperator::LogicalNot, condition);
                    self.conditions.push(condition);
                }
            }
            // `block` hands runs of these to `combine_conditions`.
            Step::And | Step::Or => {}
        }
    }

    /// Combines the top `times` + 1 conditions into one, as a balanced tree: a long list as a chain
    /// would nest deeper than shader compilers accept.
    fn combine_conditions(&mut self, b: &mut FunctionBuilder, and: bool, times: usize) {
        let op = if and { BinaryOperator::LogicalAnd } else { BinaryOperator::LogicalOr };
        let mut conditions = self.conditions.split_off(self.conditions.len().saturating_sub(times + 1));
        while conditions.len() > 1 {
            let halves = conditions.chunks(2).map(|pair| match *pair {
                [left, right] => b.binary(op, left, right),
                _ => pair[0],
            });
            conditions = halves.collect();
        }
        self.conditions.append(&mut conditions);
    }

    fn lower_op(&mut self, b: &mut FunctionBuilder, op: Op) -> Value {
        match op {
            Op::Load { offset, size } => {
                let offset = b.u32(offset);
                self.load_packet(b, size, offset)
            }
            Op::LoadIndexed { offset, size } => {
                let x = self.read_register(b, Register::X);
                let offset_value = b.u32(offset);
                let sum = *self.offsets.entry((x, offset)).or_insert_with(|| b.add_u32(x, offset_value));
                self.load_packet(b, size, sum)
            }
            Op::HeaderLength { offset } => {
                let offset = b.u32(offset);
                let (byte, mask, two) = (self.load_packet(b, 1, offset), b.u32(0xf), b.u32(2));
                let words = b.binary(BinaryOperator::And, byte, mask);
                b.binary(BinaryOperator::ShiftLeft, words, two)
            }
            Op::Set { value, .. } => b.u32(value),
            Op::Copy { from, .. } => self.read_register(b, from),
            Op::WireLength { .. } => self.call_prelude(b, "pkt_wire_len", None),
            Op::Port => self.call_prelude(b, "pkt_port", None),
            Op::Negate => {
                let (zero, a) = (b.u32(0), self.read_register(b, Register::A));
                b.binary(BinaryOperator::Subtract, zero, a)
            }
            Op::Alu(alu, operand) => self.lower_alu(b, alu, operand),
            Op::Protocol => self.lower_protocol(b),
        }
    }

    fn lower_alu(&mut self, b: &mut FunctionBuilder, alu: Alu, operand: Operand) -> Value {
        let (left, right) = (self.read_register(b, Register::A), self.operand(b, operand));
        let op = match alu {
            Alu::Add => return b.add_u32(left, right),
            Alu::Subtract => BinaryOperator::Subtract,
            Alu::Multiply => BinaryOperator::Multiply,
            Alu::Divide => BinaryOperator::Divide,
            Alu::Modulo => BinaryOperator::Modulo,
            Alu::Or => BinaryOperator::InclusiveOr,
            Alu::And => BinaryOperator::And,
            Alu::Xor => BinaryOperator::ExclusiveOr,
            Alu::ShiftLeft => BinaryOperator::ShiftLeft,
            Alu::ShiftRight => BinaryOperator::ShiftRight,
        };
        let (zero, width) = (b.u32(0), b.u32(32));
        match (alu, b.constant_u32(right)) {
            // Unreachable (the check before it rejects), and naga refuses a division by a constant
            // zero.
            (Alu::Divide | Alu::Modulo, Some(0)) => zero,
            // naga's shifts take the count modulo 32; classic BPF shifts everything out from 32 on.
            (Alu::ShiftLeft | Alu::ShiftRight, Some(32..)) => zero,
            (Alu::ShiftLeft | Alu::ShiftRight, None) => {
                let shifted = b.binary(op, left, right);
                let is_less = b.binary(BinaryOperator::Less, right, width);
                b.select(is_less, shifted, zero)
            }
            _ => b.binary(op, left, right),
        }
    }

    /// The protocol that Linux derives from a frame (`eth_type_trans`, net/ethernet/eth.c): the
    /// EtherType, or, if the field is an 802.3 length, `ETH_P_802_3` or `ETH_P_802_2` by what
    /// follows.
    fn lower_protocol(&mut self, b: &mut FunctionBuilder) -> Value {
        const ETH_P_802_3_MIN: u32 = 0x600;
        const ETH_P_802_3: u32 = 1;
        const ETH_P_802_2: u32 = 4;
        let (type_at, payload_at) = (b.u32(12), b.u32(14));
        let (ty, first) = (self.load_packet(b, 2, type_at), self.load_packet(b, 2, payload_at));
        let (threshold, ones) = (b.u32(ETH_P_802_3_MIN), b.u32(0xffff));
        let (raw, llc) = (b.u32(ETH_P_802_3), b.u32(ETH_P_802_2));
        let is_raw = b.binary(BinaryOperator::Equal, first, ones);
        let length = b.select(is_raw, raw, llc);
        let is_type = b.binary(BinaryOperator::GreaterEqual, ty, threshold);
        b.select(is_type, ty, length)
    }

    fn lower_predicate(&mut self, b: &mut FunctionBuilder, predicate: Predicate, expected: bool) -> Value {
        let pick = |yes, no| if expected { yes } else { no };
        match predicate {
            Predicate::Compare(comparison, operand) => {
                let (mut left, mut right) = (self.read_register(b, Register::A), self.operand(b, operand));
                let op = match comparison {
                    Comparison::Equal => pick(BinaryOperator::Equal, BinaryOperator::NotEqual),
                    Comparison::Greater => pick(BinaryOperator::Greater, BinaryOperator::LessEqual),
                    Comparison::GreaterEqual => pick(BinaryOperator::GreaterEqual, BinaryOperator::Less),
                    Comparison::Set => {
                        left = b.binary(BinaryOperator::And, left, right);
                        right = b.u32(0);
                        pick(BinaryOperator::NotEqual, BinaryOperator::Equal)
                    }
                };
                b.binary(op, left, right)
            }
            Predicate::LengthBelow(bytes) => {
                let (length, bytes) = (self.call_prelude(b, "pkt_len", None), b.u32(bytes));
                b.binary(pick(BinaryOperator::Less, BinaryOperator::GreaterEqual), length, bytes)
            }
            Predicate::LengthBelowX { offset, max_x } => {
                let (length, x, offset_value) =
                    (self.call_prelude(b, "pkt_len", None), self.read_register(b, Register::X), b.u32(offset));
                let shorter = if max_x.checked_add(offset).is_some() {
                    let end = b.add_u32(x, offset_value);
                    b.binary(BinaryOperator::Less, length, end)
                } else {
                    // X + offset may wrap, so compare with length - offset instead.
                    let too_short = b.binary(BinaryOperator::Less, length, offset_value);
                    let rest = b.binary(BinaryOperator::Subtract, length, offset_value);
                    let beyond = b.binary(BinaryOperator::Greater, x, rest);
                    b.binary(BinaryOperator::LogicalOr, too_short, beyond)
                };
                if expected { shorter } else { b.unary(UnaryOperator::LogicalNot, shorter) }
            }
            Predicate::XIsZero => {
                let (x, zero) = (self.read_register(b, Register::X), b.u32(0));
                b.binary(pick(BinaryOperator::Equal, BinaryOperator::NotEqual), x, zero)
            }
        }
    }
}
