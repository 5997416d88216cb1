//! From blocks to the filter's function.
//!
//! A register is a variable where a block leaves it for another, and a value within a block. One that no other block reads is
//! no variable at all.

use std::collections::HashMap;

use naga::{
    BinaryOperator, Expression, Function, FunctionArgument, FunctionResult, Handle, Module, Span, UnaryOperator,
};

use super::flow::{Asked, Block, End, Flow, Step, To};
use super::instruction::{Alu, Comparison, Op, Operand, Register};
use super::text::Listed;
use super::values::{self, Registers};
use portcullis_core::ir::builder::{Builder, Value};
use portcullis_core::ir::structure::emit::{Blocks, Types, emit};
use portcullis_core::ir::structure::{Graph, TooDeep, structure};
use portcullis_core::packet::Verdict;
use portcullis_core::program::{FILTER, prelude};

/// The filter's module.
pub(super) fn module(flow: &Flow, listed: &Listed) -> Result<Module, TooDeep> {
    let structured = structure(&graph(flow))?;
    let mut module = prelude::module(&[], "");
    let types = Types::of(&mut module);
    let named = module.functions.iter().filter_map(|(handle, f)| Some((f.name.clone()?, handle))).collect();
    let mut b = Builder::default();
    b.function.name = Some(FILTER.to_owned());
    b.function.arguments.push(FunctionArgument { name: Some("pkt".to_owned()), ty: types.u32, binding: None });
    b.function.result = Some(FunctionResult { ty: types.u32, binding: None });
    let packet = b.add(Expression::FunctionArgument(0));
    let mut lowering = Lowering {
        flow,
        listed,
        live: values::live(flow),
        enters_once: !flow.blocks.iter().flat_map(|it| it.end.targets()).any(|to| to == To::Block(0)),
        named,
        types,
        packet,
        variables: [None; Register::COUNT],
        values: [None; Register::COUNT],
        loaded: HashMap::new(),
        offsets: HashMap::new(),
        answers: Vec::new(),
    };
    emit(&structured, types, &mut b, &mut lowering);
    module.functions.append(b.finish(), Span::UNDEFINED);
    Ok(module)
}

/// The blocks, and behind them the two outcomes.
fn graph(flow: &Flow) -> Graph {
    let count = flow.blocks.len();
    let number = |to: To| match to {
        To::Block(block) => block,
        To::Pass => count,
        To::Drop => count + 1,
    };
    let mut successors: Vec<Vec<usize>> =
        flow.blocks.iter().map(|block| block.end.targets().map(number).collect()).collect();
    successors.extend([Vec::new(), Vec::new()]);
    let copied = (0..successors.len()).map(|block| block >= count).collect();
    Graph { successors, copied }
}

struct Lowering<'a> {
    flow: &'a Flow,
    listed: &'a Listed,
    /// What is read of what the registers hold where each block begins.
    live: Vec<Registers>,
    /// Whether nothing leads back to the first block.
    enters_once: bool,
    /// The prelude's functions.
    named: HashMap<String, Handle<Function>>,
    types: Types,
    packet: Value,
    variables: [Option<Value>; Register::COUNT],
    /// What is known of the registers in the block under way.
    values: [Option<Value>; Register::COUNT],
    /// What has been loaded in it, by offset and size: a list of networks loads an address for each of them.
    loaded: HashMap<(Value, u32), Value>,
    /// Its sums of X and a number.
    offsets: HashMap<(Value, u32), Value>,
    /// Its truth values.
    answers: Vec<Value>,
}

impl Blocks for Lowering<'_> {
    fn block(&mut self, b: &mut Builder, block: usize) {
        self.answers.clear();
        self.loaded.clear();
        self.offsets.clear();
        self.values = [None; Register::COUNT];
        // One of the outcomes.
        let Some(Block { steps, .. }) = self.flow.blocks.get(block) else { return };
        if block == 0 && self.enters_once {
            // All are zero at first.
            self.values = [Some(b.u32(0)); Register::COUNT];
        }
        let mut set = Registers::default();
        let mut rest = steps.as_slice();
        while let [(step, number), ..] = rest {
            let same = rest.iter().take_while(|(next, _)| next == step && matches!(next, Step::And | Step::Or)).count();
            rest = &rest[same.max(1)..];
            b.span = match self.listed.places.get(*number) {
                Some(place) => Span::new(place.start as u32, place.end as u32),
                None => Span::UNDEFINED,
            };
            match step {
                Step::And | Step::Or => self.join(b, *step == Step::And, same),
                _ => self.step(b, *step),
            }
            set = step.sets().into_iter().fold(set, Registers::with);
        }
        let live = values::live_behind(self.flow, &self.live, block);
        for register in Register::all().filter(|&it| set.has(it) && live.has(it)) {
            let value = self.get(b, register);
            let variable = self.variable(b, register);
            b.store(variable, value);
        }
    }

    fn condition(&mut self, b: &mut Builder, _block: usize) -> Value {
        // Every block that ends so has asked something.
        self.answers.pop().unwrap_or_else(|| b.literal(naga::Literal::Bool(false)))
    }

    fn result(&mut self, b: &mut Builder, block: usize) -> Value {
        let count = self.flow.blocks.len();
        let (pass, drop) = (b.u32(Verdict::Pass.to_return()), b.u32(Verdict::Drop.to_return()));
        match block.checked_sub(count) {
            Some(0) => pass,
            Some(_) => drop,
            None => {
                debug_assert_eq!(self.flow.blocks[block].end, End::Return);
                let (a, zero) = (self.get(b, Register::A), b.u32(0));
                let none = b.binary(BinaryOperator::Equal, a, zero);
                b.select(none, drop, pass)
            }
        }
    }

    fn any_result(&self) -> u32 {
        Verdict::Drop.to_return()
    }
}

impl Lowering<'_> {
    fn variable(&mut self, b: &mut Builder, register: Register) -> Value {
        let ty = self.types.u32;
        *self.variables[register.index()].get_or_insert_with(|| b.local(Some(&register.name()), ty))
    }

    fn get(&mut self, b: &mut Builder, register: Register) -> Value {
        if let Some(value) = self.values[register.index()] {
            return value;
        }
        let variable = self.variable(b, register);
        let value = b.load(variable);
        self.values[register.index()] = Some(value);
        value
    }

    fn set(&mut self, register: Register, value: Value) {
        self.values[register.index()] = Some(value);
    }

    /// A function of the prelude's.
    fn call(&mut self, b: &mut Builder, name: &str, offset: Option<Value>) -> Value {
        let arguments = [Some(self.packet), offset].into_iter().flatten().collect();
        let function = self.named[name];
        b.call(function, arguments, true).unwrap_or(self.packet)
    }

    fn load(&mut self, b: &mut Builder, size: u32, offset: Value) -> Value {
        if let Some(&value) = self.loaded.get(&(offset, size)) {
            return value;
        }
        let name = match size {
            1 => "load_u8",
            2 => "load_be16",
            _ => "load_be32",
        };
        let value = self.call(b, name, Some(offset));
        self.loaded.insert((offset, size), value);
        value
    }

    fn operand(&mut self, b: &mut Builder, operand: Operand) -> Value {
        match operand {
            Operand::K(k) => b.u32(k),
            Operand::X => self.get(b, Register::X),
        }
    }

    fn step(&mut self, b: &mut Builder, step: Step) {
        match step {
            Step::Do(op) => {
                let value = self.op(b, op);
                self.set(op.sets(), value);
            }
            Step::Ask { asked, is } => {
                let answer = self.ask(b, asked, is);
                self.answers.push(answer);
            }
            Step::Not => {
                if let Some(answer) = self.answers.pop() {
                    let answer = b.unary(UnaryOperator::LogicalNot, answer);
                    self.answers.push(answer);
                }
            }
            // By `join`, as many as there are in a row.
            Step::And | Step::Or => {}
        }
    }

    /// One answer for so many and one more. In halves: a list may be long, and what nests deep is more than compilers take.
    fn join(&mut self, b: &mut Builder, and: bool, times: usize) {
        let op = if and { BinaryOperator::LogicalAnd } else { BinaryOperator::LogicalOr };
        let mut answers = self.answers.split_off(self.answers.len().saturating_sub(times + 1));
        while answers.len() > 1 {
            let halves = answers.chunks(2).map(|pair| match *pair {
                [left, right] => b.binary(op, left, right),
                _ => pair[0],
            });
            answers = halves.collect();
        }
        self.answers.append(&mut answers);
    }

    fn op(&mut self, b: &mut Builder, op: Op) -> Value {
        match op {
            Op::Load { at, size } => {
                let at = b.u32(at);
                self.load(b, size, at)
            }
            Op::LoadBehind { at, size } => {
                let x = self.get(b, Register::X);
                let more = b.u32(at);
                let offset = *self.offsets.entry((x, at)).or_insert_with(|| b.sum(x, more));
                self.load(b, size, offset)
            }
            Op::Header { at } => {
                let at = b.u32(at);
                let (byte, low, two) = (self.load(b, 1, at), b.u32(0xf), b.u32(2));
                let words = b.binary(BinaryOperator::And, byte, low);
                b.binary(BinaryOperator::ShiftLeft, words, two)
            }
            Op::Set { value, .. } => b.u32(value),
            Op::Copy { from, .. } => self.get(b, from),
            Op::WireLength { .. } => self.call(b, "pkt_wire_len", None),
            Op::Port => self.call(b, "pkt_port", None),
            Op::Negate => {
                let (zero, a) = (b.u32(0), self.get(b, Register::A));
                b.binary(BinaryOperator::Subtract, zero, a)
            }
            Op::Alu(alu, operand) => self.alu(b, alu, operand),
            Op::Protocol => self.protocol(b),
        }
    }

    fn alu(&mut self, b: &mut Builder, alu: Alu, operand: Operand) -> Value {
        let (left, right) = (self.get(b, Register::A), self.operand(b, operand));
        let op = match alu {
            Alu::Add => return b.sum(left, right),
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
        match (alu, b.known_u32(right)) {
            // Control does not come here, and naga takes no such constant.
            (Alu::Divide | Alu::Modulo, Some(0)) => zero,
            // Here a count is taken modulo 32; there, nothing is left from 32 on.
            (Alu::ShiftLeft | Alu::ShiftRight, Some(32..)) => zero,
            (Alu::ShiftLeft | Alu::ShiftRight, None) => {
                let shifted = b.binary(op, left, right);
                let is_less = b.binary(BinaryOperator::Less, right, width);
                b.select(is_less, shifted, zero)
            }
            _ => b.binary(op, left, right),
        }
    }

    /// What Linux takes for the protocol of a frame (`eth_type_trans`, net/ethernet/eth.c): its type, or of one with a length
    /// in that place whether an 802.2 header is behind it.
    fn protocol(&mut self, b: &mut Builder) -> Value {
        const ETH_P_802_3_MIN: u32 = 0x600;
        const ETH_P_802_3: u32 = 1;
        const ETH_P_802_2: u32 = 4;
        let (type_at, payload_at) = (b.u32(12), b.u32(14));
        let (ty, first) = (self.load(b, 2, type_at), self.load(b, 2, payload_at));
        let (least, ones) = (b.u32(ETH_P_802_3_MIN), b.u32(0xffff));
        let (raw, llc) = (b.u32(ETH_P_802_3), b.u32(ETH_P_802_2));
        let is_raw = b.binary(BinaryOperator::Equal, first, ones);
        let length = b.select(is_raw, raw, llc);
        let is_type = b.binary(BinaryOperator::GreaterEqual, ty, least);
        b.select(is_type, ty, length)
    }

    fn ask(&mut self, b: &mut Builder, asked: Asked, is: bool) -> Value {
        let pick = |yes, no| if is { yes } else { no };
        match asked {
            Asked::Compare(comparison, operand) => {
                let (mut left, mut right) = (self.get(b, Register::A), self.operand(b, operand));
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
            Asked::Shorter(bytes) => {
                let (length, bytes) = (self.call(b, "pkt_len", None), b.u32(bytes));
                b.binary(pick(BinaryOperator::Less, BinaryOperator::GreaterEqual), length, bytes)
            }
            Asked::ShorterThanX { more, most } => {
                let (length, x, more_value) = (self.call(b, "pkt_len", None), self.get(b, Register::X), b.u32(more));
                let shorter = if most.checked_add(more).is_some() {
                    let end = b.sum(x, more_value);
                    b.binary(BinaryOperator::Less, length, end)
                } else {
                    // The sum would wrap.
                    let none = b.binary(BinaryOperator::Less, length, more_value);
                    let rest = b.binary(BinaryOperator::Subtract, length, more_value);
                    let beyond = b.binary(BinaryOperator::Greater, x, rest);
                    b.binary(BinaryOperator::LogicalOr, none, beyond)
                };
                if is { shorter } else { b.unary(UnaryOperator::LogicalNot, shorter) }
            }
            Asked::XIsZero => {
                let (x, zero) = (self.get(b, Register::X), b.u32(0));
                b.binary(pick(BinaryOperator::Equal, BinaryOperator::NotEqual), x, zero)
            }
        }
    }
}
