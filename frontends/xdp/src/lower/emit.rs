//! From a program's blocks to a function of naga's: the filter.

use std::collections::HashMap;

use naga::{
    ArraySize, BinaryOperator as Bo, Expression, Function, FunctionArgument, FunctionResult, Handle, Literal, Module,
    ScalarKind, Span, Statement, Type, TypeInner, UnaryOperator,
};

use crate::analysis::domain::state::{ASLEEP, STACK_WORDS, STACKS, Ty};
use crate::analysis::fixpoint::{End, Flow};
use crate::decode::maps::MapInfo;
use crate::lower::if_convert::{Joined, Link, join};
use crate::lower::ir::{Argument, Binary, Code, Id, Op, Var, Wide};
use crate::lower::liveness::{Needed, REDIRECTED, RESULT};
use crate::lower::privatize::{FIRST_FRAME, frame_of};
use portcullis_core::ir::builder::{Builder, Value};
use portcullis_core::ir::structure::emit::{Blocks, Types, emit};
use portcullis_core::ir::structure::{Graph, TooDeep, structure};
use portcullis_core::program::FILTER_FUNCTION;

/// Computations that a block which returns may have, to be copied to where it is led to.
const COPIED: usize = 6;

/// The program itself, where the filter is what counts its traps.
const PROGRAM: &str = "xdp_program";

/// What a program returns in place of a verdict where it traps; above it is the number of the place. Verdicts have at most 4
/// here.
const TRAPPED: u32 = 0xff;

/// The map that counts traps.
pub(crate) const TRAPS: &str = "traps";

/// Adds the filter to a module that has all that it calls.
pub(crate) fn filter(flow: &Flow, needed: &[Needed], maps: &[MapInfo], module: &mut Module) -> Result<(), TooDeep> {
    let Joined { links, successors } = join(&flow.blocks, needed);
    let count = |needed: &Needed| needed.ops.iter().filter(|needed| **needed).count();
    let copied = needed.iter().map(|needed| count(needed) <= COPIED).collect();
    let structured = structure(&Graph { successors, copied })?;
    let types = Types::of(module);
    let functions = module.functions.iter();
    let named: HashMap<String, _> = functions.filter_map(|(handle, f)| Some((f.name.clone()?, handle))).collect();
    let counts = named.get(&format!("{TRAPS}_add")).copied();
    let (mut builder, packet) = of_packet(if counts.is_some() { PROGRAM } else { FILTER_FUNCTION }, types);
    let b = &mut builder;
    let frame = memory(module, types, STACK_WORDS as u32);
    let records = flow.shared.events.records().iter();
    let records: Vec<_> = records.map(|record| memory(module, types, record.bytes.div_ceil(4).max(1))).collect();
    let copies = flow.shared.copies.in_memory();
    let copies = copies.map(|(map, words)| (map, memory(module, types, 1 + u32::from(*words.last().unwrap_or(&0)))));
    let copies: HashMap<u16, Memory> = copies.collect();
    let mut writing = Writing {
        flow,
        needed,
        links,
        module,
        named,
        types,
        memory: (frame, records, copies),
        packet,
        vars: HashMap::new(),
        frames: HashMap::new(),
        values: Vec::new(),
        condition: None,
    };
    writing.begin(b, maps);
    emit(&structured, types, b, &mut writing);
    let program = module.functions.append(builder.finish(), Span::UNDEFINED);
    if let Some(counts) = counts {
        let filter = counted(program, counts, types);
        module.functions.append(filter, Span::UNDEFINED);
    }
    Ok(())
}

/// A function that takes a packet and gives a verdict, and the packet in it.
fn of_packet(name: &str, types: Types) -> (Builder, Value) {
    let mut builder = Builder::default();
    let function = &mut builder.function;
    function.name = Some(name.to_owned());
    function.arguments.push(FunctionArgument { name: Some("pkt".to_owned()), ty: types.u32, binding: None });
    function.result = Some(FunctionResult { ty: types.u32, binding: None });
    let packet = function.expressions.append(Expression::FunctionArgument(0), Span::UNDEFINED);
    (builder, packet)
}

/// The filter of a program that traps: counts where it did, at one place for all of them, and aborts the packet.
fn counted(program: Handle<Function>, counts: Handle<Function>, types: Types) -> Function {
    let (mut builder, packet) = of_packet(FILTER_FUNCTION, types);
    let b = &mut builder;
    let verdict = b.call(program, vec![packet], true).expect("it gives a verdict");
    let mask = b.u32(TRAPPED);
    let low = b.binary(Bo::And, verdict, mask);
    let condition = b.binary(Bo::Equal, low, mask);
    b.open();
    let (by, one, aborted) = (b.u32(8), b.u32(1), b.u32(0));
    let site = b.binary(Bo::ShiftRight, verdict, by);
    b.call(counts, vec![site, one], false);
    b.push(Statement::Return { value: Some(aborted) });
    let accept = b.close();
    b.push(Statement::If { condition, accept, reject: naga::Block::new() });
    b.push(Statement::Return { value: Some(verdict) });
    builder.finish()
}

/// Memory of a packet's own, and how many words it has.
type Memory = (Handle<Type>, u32);

/// The type of a frame or record that is memory.
fn memory(module: &mut Module, types: Types, words: u32) -> Memory {
    let size = ArraySize::Constant(std::num::NonZeroU32::new(words).expect("there are some"));
    let inner = TypeInner::Array { base: types.u32, size, stride: 4 };
    (module.types.insert(Type { name: None, inner }, Span::UNDEFINED), words)
}

struct Writing<'a> {
    flow: &'a Flow,
    needed: &'a [Needed],
    /// What is done with each block.
    links: Vec<Vec<Link>>,
    module: &'a Module,
    named: HashMap<String, Handle<Function>>,
    types: Types,
    /// Of a frame, of each reserved record, and of copies of maps' values.
    memory: (Memory, Vec<Memory>, HashMap<u16, Memory>),
    packet: Value,
    /// Pointers to variables.
    vars: HashMap<Var, Value>,
    frames: HashMap<u16, Value>,
    /// Of the block under way, by computation.
    values: Vec<Option<Value>>,
    /// The condition of what was written last, where it is several blocks'.
    condition: Option<Value>,
}

impl Blocks for Writing<'_> {
    fn block(&mut self, b: &mut Builder, block: usize) {
        self.single(b, block);
        let mut condition = None;
        for link in 0..self.links[block].len() {
            let Link { block: next, is_and, negated } = self.links[block][link];
            let before = condition.unwrap_or_else(|| self.own_condition(b, block));
            self.single(b, next);
            let mut own = self.own_condition(b, next);
            if negated {
                own = b.unary(UnaryOperator::LogicalNot, own);
            }
            condition = Some(b.binary(if is_and { Bo::LogicalAnd } else { Bo::LogicalOr }, before, own));
        }
        self.condition = condition;
    }

    fn condition(&mut self, b: &mut Builder, block: usize) -> Value {
        match self.condition {
            Some(condition) => condition,
            None => self.own_condition(b, block),
        }
    }

    fn result(&mut self, b: &mut Builder, block: usize) -> Value {
        let flow = self.flow;
        let it = &flow.blocks[block];
        let code = &it.code;
        let scratch = it.state.scratch;
        let mut of = |b: &mut Builder, id: Id, var: Var| match id {
            ASLEEP => {
                let pointer = self.pointer(b, var);
                b.load(pointer)
            }
            id => self.value(b, code, id),
        };
        let Ty::Number(range) = scratch[0].ty else { return b.u32(0) };
        let value = of(b, scratch[0].low, RESULT);
        let may = |verdict: u64| !range.is_word() || range.low <= verdict && verdict <= range.high;
        // XDP_REDIRECT by itself says nowhere to go.
        let redirects = may(4) && !matches!(scratch[6].ty, Ty::Number(range) if range.exact() == Some(0));
        let (zero, three) = (b.u32(0), b.u32(3));
        let plain = if range.is_word() && range.high <= 3 {
            value
        } else if range.low > 3 && range.is_word() {
            zero
        } else {
            let is_plain = b.binary(Bo::LessEqual, value, three);
            b.select(is_plain, value, zero)
        };
        if !redirects {
            return plain;
        }
        let target = of(b, scratch[6].low, REDIRECTED);
        let one = b.u32(1);
        let target = b.binary(Bo::Subtract, target, one);
        let redirect = self.named["redirect"];
        let there = b.call(redirect, vec![target], true).expect("it gives a value");
        if range.exact() == Some(4) {
            return there;
        }
        let four = b.u32(4);
        let is_there = b.binary(Bo::Equal, value, four);
        b.select(is_there, there, plain)
    }
}

impl Writing<'_> {
    /// A block alone.
    fn single(&mut self, b: &mut Builder, block: usize) {
        let flow = self.flow;
        let Needed { ops, sets, .. } = &self.needed[block];
        let it = &flow.blocks[block];
        self.values = vec![None; ops.len()];
        for (id, op) in (0..).zip(&it.code.ops) {
            if Code::is_in_order(op) && ops[id as usize] && !it.code.aliases.contains_key(&id) {
                self.value(b, &it.code, id);
            }
        }
        // All that is asked for, before what it is made of is set.
        if let End::Branch(condition, ..) = it.end {
            self.value(b, &it.code, condition);
        }
        let values: Vec<(Var, Value)> = sets.iter().map(|&(var, id)| (var, self.value(b, &it.code, id))).collect();
        for (var, value) in values {
            let pointer = self.pointer(b, var);
            b.store(pointer, value);
        }
    }

    /// The condition of the block that was written last.
    fn own_condition(&mut self, b: &mut Builder, block: usize) -> Value {
        let it = &self.flow.blocks[block];
        let End::Branch(condition, ..) = it.end else { unreachable!("a block with two ways to go on") };
        self.value(b, &it.code, condition)
    }

    /// What packets have copies of, where that is asked for before it is set.
    fn begin(&mut self, b: &mut Builder, maps: &[MapInfo]) {
        let word_of = |writing: &Self, b: &mut Builder, map: u16, word: u16| {
            let read = writing.named[&format!("{}_read", maps[usize::from(map)].name)];
            let (entry, word) = (b.u32(0), b.u32(word.into()));
            b.call(read, vec![entry, word], true).expect("it gives a value")
        };
        let flow = self.flow;
        for &(map, word) in &flow.first {
            let value = word_of(self, b, map, word);
            let pointer = self.pointer(b, Var::Own { map, word });
            b.store(pointer, value);
        }
        let used = |(map, _): &(u16, _)| flow.shared.used.contains(map);
        for (map, words) in flow.shared.copies.in_memory().filter(used) {
            for &word in words {
                let value = word_of(self, b, map, word);
                let index = b.u32(word.into());
                let pointer = self.element(b, frame_of(map), index);
                b.store(pointer, value);
            }
        }
    }

    /// A variable, or where it is known what it holds at first, that.
    fn pointer(&mut self, b: &mut Builder, var: Var) -> Value {
        if let Some(&pointer) = self.vars.get(&var) {
            return pointer;
        }
        let name = match var {
            Var::Register { frame, register, half } => {
                let of = if frame > 0 { format!("_{frame}") } else { String::new() };
                format!("r{register}{}{of}", if half > 0 { "h" } else { "" })
            }
            Var::Stack { frame, word } => format!("stack{frame}_{}", STACK_WORDS - usize::from(word)),
            Var::Amount { frame, register: Some(register), half, .. } => format!("more_r{register}_{frame}_{half}"),
            Var::Amount { frame, register: None, word, half } => format!("more_stack{frame}_{word}_{half}"),
            Var::Own { map, word } => format!("own{map}_{word}"),
            Var::Read { slot } => format!("read{slot}"),
        };
        let pointer = b.local(Some(&name), self.types.u32);
        self.vars.insert(var, pointer);
        pointer
    }

    fn memory_of(&self, frame: u16) -> Memory {
        let (of_frame, records, copies) = &self.memory;
        match frame.checked_sub(FIRST_FRAME) {
            Some(map) => copies[&map],
            None => usize::from(frame).checked_sub(STACKS).map_or(*of_frame, |record| records[record]),
        }
    }

    fn frame(&mut self, b: &mut Builder, frame: u16) -> Value {
        if let Some(&pointer) = self.frames.get(&frame) {
            return pointer;
        }
        let name = match frame.checked_sub(FIRST_FRAME) {
            Some(map) => format!("own{map}"),
            None => format!("stack{frame}"),
        };
        let pointer = b.local(Some(&name), self.memory_of(frame).0);
        self.frames.insert(frame, pointer);
        pointer
    }

    /// A computation's value; whatever it is made of comes before. No recursion: chains may be as long as a block.
    fn value(&mut self, b: &mut Builder, code: &Code, id: Id) -> Value {
        let real = |id: Id| code.aliases.get(&id).copied().unwrap_or(id);
        let mut work = vec![real(id)];
        while let Some(&at) = work.last() {
            if self.values[at as usize].is_some() {
                work.pop();
                continue;
            }
            let op = &code.ops[at as usize];
            let open = Code::operands(op).map(real).filter(|it| self.values[*it as usize].is_none());
            let open: Vec<Id> = open.collect();
            if open.is_empty() {
                let value = self.written(b, code, op);
                self.values[at as usize] = Some(value);
                work.pop();
            } else {
                work.extend(open);
            }
        }
        self.values[real(id) as usize].expect("it was made above")
    }

    /// A computation whose operands are there.
    fn written(&mut self, b: &mut Builder, code: &Code, op: &Op) -> Value {
        let values = &self.values;
        let of = |id: Id| {
            let id = code.aliases.get(&id).copied().unwrap_or(id);
            values[id as usize].expect("operands come before")
        };
        match op {
            Op::Known(value) => b.u32(*value),
            Op::Truth(value) => b.literal(Literal::Bool(*value)),
            Op::Var(var) => {
                let pointer = self.pointer(b, *var);
                b.load(pointer)
            }
            Op::Binary(op, x, y) => binary(b, *op, of(*x), of(*y)),
            Op::Not(of_it) => b.unary(UnaryOperator::LogicalNot, of(*of_it)),
            Op::Select(condition, accept, reject) => b.select(of(*condition), of(*accept), of(*reject)),
            Op::Swap16(it) => {
                let it = of(*it);
                let (low, high) = (shifted(b, it, 0, 0xff, Some(8)), shifted(b, it, 8, 0xff, None));
                b.binary(Bo::InclusiveOr, low, high)
            }
            Op::Swap32(it) => {
                let it = of(*it);
                let parts = [
                    shifted(b, it, 24, u32::MAX, None),
                    shifted(b, it, 8, 0xff00, None),
                    shifted(b, it, 0, 0xff00, Some(8)),
                    shifted(b, it, 0, u32::MAX, Some(24)),
                ];
                let [a, c, d, e] = parts;
                let (high, low) = (b.binary(Bo::InclusiveOr, a, c), b.binary(Bo::InclusiveOr, d, e));
                b.binary(Bo::InclusiveOr, high, low)
            }
            Op::Part(pair, part) => b.at(of(*pair), *part),
            Op::Whole(low, high) => match (code.value(*low), code.value(*high)) {
                (Some(low), Some(high)) => b.literal(Literal::U64(u64::from(high) << 32 | u64::from(low))),
                (_, Some(0)) => b.cast(of(*low), ScalarKind::Uint, Some(8)),
                _ => {
                    let (low, high) = (of(*low), of(*high));
                    let [low, high] = [low, high].map(|half| b.cast(half, ScalarKind::Uint, Some(8)));
                    let by = b.u32(32);
                    let high = b.binary(Bo::ShiftLeft, high, by);
                    b.binary(Bo::InclusiveOr, high, low)
                }
            },
            Op::Wide(op, x, y) => {
                let op = match op {
                    Wide::Mul => Bo::Multiply,
                    Wide::Xor => Bo::ExclusiveOr,
                };
                b.binary(op, of(*x), of(*y))
            }
            Op::Half(all, which) => {
                let mut half = of(*all);
                if *which > 0 {
                    let by = b.u32(32);
                    half = b.binary(Bo::ShiftRight, half, by);
                }
                b.cast(half, ScalarKind::Uint, Some(4))
            }
            Op::Call(call) => {
                let function = self.named[&*call.function];
                let callee = &self.module.functions[function];
                let mut arguments = Vec::new();
                for (argument, given) in callee.arguments.iter().zip(&call.arguments) {
                    arguments.push(match given {
                        Argument::Packet => self.packet,
                        Argument::One(id) => of(*id),
                        Argument::Words(ids) => {
                            let components = ids.iter().map(|&id| of(id)).collect();
                            b.add(Expression::Compose { ty: argument.ty, components })
                        }
                    });
                }
                let gives = callee.result.is_some();
                match b.call(function, arguments, gives) {
                    Some(value) => value,
                    // Nobody asks for it.
                    None => b.u32(0),
                }
            }
            Op::Trap { when, site } => {
                let when = of(*when);
                let trapped = b.u32(site << 8 | TRAPPED);
                b.open();
                b.push(Statement::Return { value: Some(trapped) });
                let accept = b.close();
                b.push(Statement::If { condition: when, accept, reject: naga::Block::new() });
                // Nobody asks for it.
                trapped
            }
            Op::Recall { frame, word } => {
                let index = of(*word);
                let pointer = self.element(b, *frame, index);
                b.load(pointer)
            }
            Op::Keep { frame, word, value } => {
                let (index, value) = (of(*word), of(*value));
                let pointer = self.element(b, *frame, index);
                b.store(pointer, value);
                value
            }
        }
    }

    fn element(&mut self, b: &mut Builder, frame: u16, index: Value) -> Value {
        let base = self.frame(b, frame);
        match b.known_u32(index) {
            Some(index) => b.add(Expression::AccessIndex { base, index: index.min(self.memory_of(frame).1 - 1) }),
            None => b.add(Expression::Access { base, index }),
        }
    }
}

/// ((value >> right) & mask) << left
fn shifted(b: &mut Builder, value: Value, right: u32, mask: u32, left: Option<u32>) -> Value {
    let mut value = value;
    let steps = [(Bo::ShiftRight, right, 0), (Bo::And, mask, u32::MAX), (Bo::ShiftLeft, left.unwrap_or(0), 0)];
    for (op, by, nothing) in steps {
        // What is shifted out at the top need not be masked.
        let is_cut = op == Bo::And && left == Some(24);
        if by != nothing && !is_cut {
            let by = b.u32(by);
            value = b.binary(op, value, by);
        }
    }
    value
}

fn binary(b: &mut Builder, op: Binary, x: Value, y: Value) -> Value {
    use Binary::*;
    let plain = match op {
        Add => Bo::Add,
        Sub => Bo::Subtract,
        Mul => Bo::Multiply,
        Div => Bo::Divide,
        Rem => Bo::Modulo,
        And => Bo::And,
        Or => Bo::InclusiveOr,
        Xor => Bo::ExclusiveOr,
        Shl => Bo::ShiftLeft,
        Shr => Bo::ShiftRight,
        Eq => Bo::Equal,
        Ne => Bo::NotEqual,
        Lt => Bo::Less,
        Le => Bo::LessEqual,
        Both => Bo::LogicalAnd,
        Either => Bo::LogicalOr,
        Sar => {
            let x = b.cast(x, ScalarKind::Sint, None);
            let shifted = b.binary(Bo::ShiftRight, x, y);
            return b.cast(shifted, ScalarKind::Uint, None);
        }
        Slt | Sle => {
            let (x, y) = (b.cast(x, ScalarKind::Sint, None), b.cast(y, ScalarKind::Sint, None));
            return b.binary(if op == Slt { Bo::Less } else { Bo::LessEqual }, x, y);
        }
    };
    b.binary(plain, x, y)
}
