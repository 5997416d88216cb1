//! Emits the blocks of a program as a naga function, the filter.

use std::collections::HashMap;

use naga::{
    ArraySize, BinaryOperator as Bo, Expression, Function, FunctionArgument, FunctionResult, Handle, Literal, Module,
    ScalarKind, Span, Statement, Type, TypeInner, UnaryOperator,
};

use crate::analysis::domain::reg_type::RegType;
use crate::analysis::domain::state::{NOT_LOADED, STACK_COUNT, STACK_WORDS};
use crate::analysis::liveness::{BlockLiveness, REDIRECT, RESULT};
use crate::analysis::program::{AnalyzedProgram, Terminator};
use crate::decode::maps::{MapInfo, TRAP_MAP};
use crate::ir::privatize::{FIRST_COPY_FRAME, copy_frame};
use crate::ir::{Argument, BinaryOp, BlockCode, Id, Op, Variable, WideOp};
use crate::lower::if_convert::{self, IfConversion, MergedBlock};
use portcullis_core::ir::builder::{FunctionBuilder, Value};
use portcullis_core::ir::structure::emit::{BlockEmitter, Types, emit};
use portcullis_core::ir::structure::{Graph, TooDeep, structure};
use portcullis_core::program::FILTER_FUNCTION;

/// A block that returns is duplicated into its predecessors if it has at most this many operations.
const MAX_DUPLICATED_OPS: usize = 6;

/// Name of the program's function if the filter wraps it to count traps.
const PROGRAM_FUNCTION: &str = "xdp_program";

/// Low byte of what a program with traps returns instead of a verdict; the site is above it.
/// Verdicts are at most 4.
const TRAP_MARKER: u32 = 0xff;

/// Adds the filter to a module that already has the functions it calls.
///
/// # Errors
///
/// Loops are nested too deep.
pub(crate) fn emit_filter(
    flow: &AnalyzedProgram,
    needed: &[BlockLiveness],
    maps: &[MapInfo],
    module: &mut Module,
) -> Result<(), TooDeep> {
    let IfConversion { merged, successors } = if_convert::run(&flow.blocks, needed);
    let count = |needed: &BlockLiveness| needed.live_ops.iter().filter(|needed| **needed).count();
    let copied = needed.iter().map(|needed| count(needed) <= MAX_DUPLICATED_OPS).collect();
    let structured = structure(&Graph { successors, duplicated: copied })?;
    let types = Types::of(module);
    let functions = module.functions.iter();
    let named: HashMap<String, _> = functions.filter_map(|(handle, f)| Some((f.name.clone()?, handle))).collect();
    let counts = named.get(&format!("{TRAP_MAP}_add")).copied();
    let (mut builder, packet) =
        packet_function(if counts.is_some() { PROGRAM_FUNCTION } else { FILTER_FUNCTION }, types);
    let b = &mut builder;
    let frame = array_type(module, types, STACK_WORDS as u32);
    let records = flow.facts.events.records.iter();
    let records: Vec<_> = records.map(|record| array_type(module, types, record.bytes.div_ceil(4).max(1))).collect();
    let copies = flow.facts.privatization.memory_copies();
    let copies =
        copies.map(|(map, words)| (map, array_type(module, types, 1 + u32::from(*words.last().unwrap_or(&0)))));
    let copies: HashMap<u16, MemoryType> = copies.collect();
    let mut emitter = Emitter {
        flow,
        needed,
        merged,
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
    emitter.emit_prologue(b, maps);
    emit(&structured, types, b, &mut emitter);
    let program = module.functions.append(builder.finish(), Span::UNDEFINED);
    if let Some(counts) = counts {
        let filter = count_traps(program, counts, types);
        module.functions.append(filter, Span::UNDEFINED);
    }
    Ok(())
}

/// A function from packet to verdict, with the packet argument.
fn packet_function(name: &str, types: Types) -> (FunctionBuilder, Value) {
    let mut builder = FunctionBuilder::default();
    let function = &mut builder.function;
    function.name = Some(name.to_owned());
    function.arguments.push(FunctionArgument { name: Some("pkt".to_owned()), ty: types.u32, binding: None });
    function.result = Some(FunctionResult { ty: types.u32, binding: None });
    let packet = function.expressions.append(Expression::FunctionArgument(0), Span::UNDEFINED);
    (builder, packet)
}

/// Wraps a program with traps: counts the site of a trap, at one place for all sites, and aborts
/// the packet.
fn count_traps(program: Handle<Function>, counts: Handle<Function>, types: Types) -> Function {
    let (mut builder, packet) = packet_function(FILTER_FUNCTION, types);
    let b = &mut builder;
    let verdict = b.call(program, vec![packet], true).expect("it gives a verdict");
    let mask = b.u32(TRAP_MARKER);
    let low = b.binary(Bo::And, verdict, mask);
    let condition = b.binary(Bo::Equal, low, mask);
    b.begin_block();
    let (by, one, aborted) = (b.u32(8), b.u32(1), b.u32(0));
    let site = b.binary(Bo::ShiftRight, verdict, by);
    b.call(counts, vec![site, one], false);
    b.push(Statement::Return { value: Some(aborted) });
    let accept = b.end_block();
    b.push(Statement::If { condition, accept, reject: naga::Block::new() });
    b.push(Statement::Return { value: Some(verdict) });
    builder.finish()
}

/// Type of an array in private memory, and its number of words.
type MemoryType = (Handle<Type>, u32);

/// The type of an indexed frame.
fn array_type(module: &mut Module, types: Types, words: u32) -> MemoryType {
    let size = ArraySize::Constant(std::num::NonZeroU32::new(words).expect("there are some"));
    let inner = TypeInner::Array { base: types.u32, size, stride: 4 };
    (module.types.insert(Type { name: None, inner }, Span::UNDEFINED), words)
}

struct Emitter<'a> {
    flow: &'a AnalyzedProgram,
    needed: &'a [BlockLiveness],
    /// Blocks that if-conversion merged into each block.
    merged: Vec<Vec<MergedBlock>>,
    module: &'a Module,
    named: HashMap<String, Handle<Function>>,
    types: Types,
    /// Types of stack frames, of each reserved record, and of private copies by map.
    memory: (MemoryType, Vec<MemoryType>, HashMap<u16, MemoryType>),
    packet: Value,
    /// Pointers to local variables.
    vars: HashMap<Variable, Value>,
    frames: HashMap<u16, Value>,
    /// Values of the current block, by operation.
    values: Vec<Option<Value>>,
    /// Condition of the last block, if it combines several blocks' conditions.
    condition: Option<Value>,
}

impl BlockEmitter for Emitter<'_> {
    fn block(&mut self, b: &mut FunctionBuilder, block: usize) {
        self.emit_block(b, block);
        let mut condition = None;
        for link in 0..self.merged[block].len() {
            let MergedBlock { block: next, is_and, negated } = self.merged[block][link];
            let before = condition.unwrap_or_else(|| self.block_condition(b, block));
            self.emit_block(b, next);
            let mut own = self.block_condition(b, next);
            if negated {
                own = b.unary(UnaryOperator::LogicalNot, own);
            }
            condition = Some(b.binary(if is_and { Bo::LogicalAnd } else { Bo::LogicalOr }, before, own));
        }
        self.condition = condition;
    }

    fn condition(&mut self, b: &mut FunctionBuilder, block: usize) -> Value {
        match self.condition {
            Some(condition) => condition,
            None => self.block_condition(b, block),
        }
    }

    fn result(&mut self, b: &mut FunctionBuilder, block: usize) -> Value {
        let flow = self.flow;
        let it = &flow.blocks[block];
        let code = &it.code;
        let scratch = it.exit_state.scratch;
        let mut of = |b: &mut FunctionBuilder, id: Id, var: Variable| match id {
            NOT_LOADED => {
                let pointer = self.variable_pointer(b, var);
                b.load(pointer)
            }
            id => self.value(b, code, id),
        };
        let RegType::Scalar(range) = scratch[0].ty else { return b.u32(0) };
        let value = of(b, scratch[0].low, RESULT);
        let may = |verdict: u64| !range.fits_u32() || range.low <= verdict && verdict <= range.high;
        // Without a target XDP_REDIRECT has nowhere to go.
        let redirects = may(4) && !matches!(scratch[6].ty, RegType::Scalar(range) if range.as_constant() == Some(0));
        let (zero, three) = (b.u32(0), b.u32(3));
        let plain = if range.fits_u32() && range.high <= 3 {
            value
        } else if range.low > 3 && range.fits_u32() {
            zero
        } else {
            let is_plain = b.binary(Bo::LessEqual, value, three);
            b.select(is_plain, value, zero)
        };
        if !redirects {
            return plain;
        }
        let target = of(b, scratch[6].low, REDIRECT);
        let one = b.u32(1);
        let target = b.binary(Bo::Subtract, target, one);
        let redirect = self.named["redirect"];
        let there = b.call(redirect, vec![target], true).expect("it gives a value");
        if range.as_constant() == Some(4) {
            return there;
        }
        let four = b.u32(4);
        let is_there = b.binary(Bo::Equal, value, four);
        b.select(is_there, there, plain)
    }
}

impl Emitter<'_> {
    /// Emits a block without those merged into it.
    fn emit_block(&mut self, b: &mut FunctionBuilder, block: usize) {
        let flow = self.flow;
        let BlockLiveness { live_ops: ops, outputs: sets, .. } = &self.needed[block];
        let it = &flow.blocks[block];
        self.values = vec![None; ops.len()];
        for (id, op) in (0..).zip(&it.code.ops) {
            if BlockCode::is_ordered(op) && ops[id as usize] && !it.code.replaced_loads.contains_key(&id) {
                self.value(b, &it.code, id);
            }
        }
        // Compute all outputs before setting any: they may use variables that are set.
        if let Terminator::Branch(condition, ..) = it.terminator {
            self.value(b, &it.code, condition);
        }
        let values: Vec<(Variable, Value)> = sets.iter().map(|&(var, id)| (var, self.value(b, &it.code, id))).collect();
        for (var, value) in values {
            let pointer = self.variable_pointer(b, var);
            b.store(pointer, value);
        }
    }

    /// The condition of the block that was emitted last.
    fn block_condition(&mut self, b: &mut FunctionBuilder, block: usize) -> Value {
        let it = &self.flow.blocks[block];
        let Terminator::Branch(condition, ..) = it.terminator else { unreachable!("a block with two ways to go on") };
        self.value(b, &it.code, condition)
    }

    /// Initialises private copies from their maps.
    fn emit_prologue(&mut self, b: &mut FunctionBuilder, maps: &[MapInfo]) {
        let word_of = |emitter: &Self, b: &mut FunctionBuilder, map: u16, word: u16| {
            let read = emitter.named[&format!("{}_read", maps[usize::from(map)].name)];
            let (entry, word) = (b.u32(0), b.u32(word.into()));
            b.call(read, vec![entry, word], true).expect("it gives a value")
        };
        let flow = self.flow;
        for &(map, word) in &flow.initial_words {
            let value = word_of(self, b, map, word);
            let pointer = self.variable_pointer(b, Variable::PrivateWord { map, word });
            b.store(pointer, value);
        }
        let used = |(map, _): &(u16, _)| flow.facts.used_maps.contains(map);
        for (map, words) in flow.facts.privatization.memory_copies().filter(used) {
            for &word in words {
                let value = word_of(self, b, map, word);
                let index = b.u32(word.into());
                let pointer = self.frame_element(b, copy_frame(map), index);
                b.store(pointer, value);
            }
        }
    }

    /// The pointer to a variable's local, created on first use.
    fn variable_pointer(&mut self, b: &mut FunctionBuilder, var: Variable) -> Value {
        if let Some(&pointer) = self.vars.get(&var) {
            return pointer;
        }
        let name = match var {
            Variable::Register { frame, register, half } => {
                let of = if frame > 0 { format!("_{frame}") } else { String::new() };
                format!("r{register}{}{of}", if half > 0 { "h" } else { "" })
            }
            Variable::Stack { frame, word } => format!("stack{frame}_{}", STACK_WORDS - usize::from(word)),
            Variable::Amount { frame, register: Some(register), half, .. } => {
                format!("more_r{register}_{frame}_{half}")
            }
            Variable::Amount { frame, register: None, word, half } => format!("more_stack{frame}_{word}_{half}"),
            Variable::PrivateWord { map, word } => format!("own{map}_{word}"),
            Variable::CarriedRead { slot } => format!("read{slot}"),
        };
        let pointer = b.local(Some(&name), self.types.u32);
        self.vars.insert(var, pointer);
        pointer
    }

    fn memory_of(&self, frame: u16) -> MemoryType {
        let (of_frame, records, copies) = &self.memory;
        match frame.checked_sub(FIRST_COPY_FRAME) {
            Some(map) => copies[&map],
            None => usize::from(frame).checked_sub(STACK_COUNT).map_or(*of_frame, |record| records[record]),
        }
    }

    fn frame_pointer(&mut self, b: &mut FunctionBuilder, frame: u16) -> Value {
        if let Some(&pointer) = self.frames.get(&frame) {
            return pointer;
        }
        let name = match frame.checked_sub(FIRST_COPY_FRAME) {
            Some(map) => format!("own{map}"),
            None => format!("stack{frame}"),
        };
        let pointer = b.local(Some(&name), self.memory_of(frame).0);
        self.frames.insert(frame, pointer);
        pointer
    }

    /// The value of an operation. Operands are emitted with an explicit stack, since chains may be
    /// as long as a block.
    fn value(&mut self, b: &mut FunctionBuilder, code: &BlockCode, id: Id) -> Value {
        let real = |id: Id| code.replaced_loads.get(&id).copied().unwrap_or(id);
        let mut work = vec![real(id)];
        while let Some(&at) = work.last() {
            if self.values[at as usize].is_some() {
                work.pop();
                continue;
            }
            let op = &code.ops[at as usize];
            let open = BlockCode::operands(op).map(real).filter(|it| self.values[*it as usize].is_none());
            let open: Vec<Id> = open.collect();
            if open.is_empty() {
                let value = self.emit_op(b, code, op);
                self.values[at as usize] = Some(value);
                work.pop();
            } else {
                work.extend(open);
            }
        }
        self.values[real(id) as usize].expect("it was made above")
    }

    /// Emits an operation whose operands are available.
    fn emit_op(&mut self, b: &mut FunctionBuilder, code: &BlockCode, op: &Op) -> Value {
        let values = &self.values;
        let of = |id: Id| {
            let id = code.replaced_loads.get(&id).copied().unwrap_or(id);
            values[id as usize].expect("operands come before")
        };
        match op {
            Op::Constant(value) => b.u32(*value),
            Op::Bool(value) => b.literal(Literal::Bool(*value)),
            Op::Variable(var) => {
                let pointer = self.variable_pointer(b, *var);
                b.load(pointer)
            }
            Op::Binary(op, x, y) => binary(b, *op, of(*x), of(*y)),
            Op::Not(of_it) => b.unary(UnaryOperator::LogicalNot, of(*of_it)),
            Op::Select(condition, accept, reject) => b.select(of(*condition), of(*accept), of(*reject)),
            Op::Swap16(it) => {
                let it = of(*it);
                let (low, high) = (shift_and_mask(b, it, 0, 0xff, Some(8)), shift_and_mask(b, it, 8, 0xff, None));
                b.binary(Bo::InclusiveOr, low, high)
            }
            Op::Swap32(it) => {
                let it = of(*it);
                let parts = [
                    shift_and_mask(b, it, 24, u32::MAX, None),
                    shift_and_mask(b, it, 8, 0xff00, None),
                    shift_and_mask(b, it, 0, 0xff00, Some(8)),
                    shift_and_mask(b, it, 0, u32::MAX, Some(24)),
                ];
                let [a, c, d, e] = parts;
                let (high, low) = (b.binary(Bo::InclusiveOr, a, c), b.binary(Bo::InclusiveOr, d, e));
                b.binary(Bo::InclusiveOr, high, low)
            }
            Op::Component(pair, part) => b.access_index(of(*pair), *part),
            Op::Join64(low, high) => match (code.as_constant(*low), code.as_constant(*high)) {
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
                    WideOp::Mul => Bo::Multiply,
                    WideOp::Xor => Bo::ExclusiveOr,
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
                        Argument::Value(id) => of(*id),
                        Argument::Words(ids) => {
                            let components = ids.iter().map(|&id| of(id)).collect();
                            b.add(Expression::Compose { ty: argument.ty, components })
                        }
                    });
                }
                let gives = callee.result.is_some();
                match b.call(function, arguments, gives) {
                    Some(value) => value,
                    // The result of such a call is never used.
                    None => b.u32(0),
                }
            }
            Op::Trap { when, site } => {
                let when = of(*when);
                let trapped = b.u32(site << 8 | TRAP_MARKER);
                b.begin_block();
                b.push(Statement::Return { value: Some(trapped) });
                let accept = b.end_block();
                b.push(Statement::If { condition: when, accept, reject: naga::Block::new() });
                // The result of a trap is never used.
                trapped
            }
            Op::LoadIndexed { frame, word } => {
                let index = of(*word);
                let pointer = self.frame_element(b, *frame, index);
                b.load(pointer)
            }
            Op::StoreIndexed { frame, word, value } => {
                let (index, value) = (of(*word), of(*value));
                let pointer = self.frame_element(b, *frame, index);
                b.store(pointer, value);
                value
            }
        }
    }

    fn frame_element(&mut self, b: &mut FunctionBuilder, frame: u16, index: Value) -> Value {
        let base = self.frame_pointer(b, frame);
        match b.constant_u32(index) {
            Some(index) => b.add(Expression::AccessIndex { base, index: index.min(self.memory_of(frame).1 - 1) }),
            None => b.add(Expression::Access { base, index }),
        }
    }
}

/// ((value >> right) & mask) << left
fn shift_and_mask(b: &mut FunctionBuilder, value: Value, right: u32, mask: u32, left: Option<u32>) -> Value {
    let mut value = value;
    let steps = [(Bo::ShiftRight, right, 0), (Bo::And, mask, u32::MAX), (Bo::ShiftLeft, left.unwrap_or(0), 0)];
    for (op, by, nothing) in steps {
        // The shift to the left drops what the mask would.
        let is_cut = op == Bo::And && left == Some(24);
        if by != nothing && !is_cut {
            let by = b.u32(by);
            value = b.binary(op, value, by);
        }
    }
    value
}

fn binary(b: &mut FunctionBuilder, op: BinaryOp, x: Value, y: Value) -> Value {
    use BinaryOp::*;
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
        LogicalAnd => Bo::LogicalAnd,
        LogicalOr => Bo::LogicalOr,
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
