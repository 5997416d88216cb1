//! Transfer functions: what each instruction does to the abstract state, and the IR that it
//! becomes.
//!
//! [`BlockInterpreter`] runs a block from its entry state. The solver runs it to find the fixpoint,
//! discarding the IR, and once more with final states, keeping it.

mod alu;
mod atomic;
mod branch;
mod buffer_helpers;
mod event_helpers;
mod fetch_add;
mod fib_helpers;
mod helper_call;
mod map_access;
mod memory;
mod metadata;
mod packet;
mod private_copy;
mod random;
mod redirect;
mod ring_record;
mod stack;

use std::fmt::Display;

use crate::analysis::domain::interval::Interval;
use crate::analysis::domain::offsets::Offsets;
use crate::analysis::domain::pseudo_registers::{LOOP_CALLBACK, LOOP_ROUND, REDIRECT_TARGET, TAIL_CALL_COUNT};
use crate::analysis::domain::reg_type::{RegType, SymbolicName};
use crate::analysis::domain::state::{Frame, NOT_LOADED, State, Value};
use crate::analysis::program::ProgramFacts;
use crate::decode::linked::LinkedObject;
use crate::instruction::{CALL, CALLX, Instruction, LDDW, class};
use crate::ir::{Argument, BinaryOp, BlockCode, Effect, Id, Variable};
use crate::object::Reference;
use crate::rejection::Rejection;

pub(crate) type Result<T> = std::result::Result<T, Rejection>;

/// Stands for the variables of a value that its type determines.
pub(crate) const NO_VARIABLES: (Variable, Variable) = {
    let var = Variable::Register { frame: u8::MAX, register: u8::MAX, half: 0 };
    (var, var)
};

/// State of the interpretation of one block.
pub(crate) struct BlockInterpreter<'a, 'o> {
    pub linked: &'a LinkedObject<'o>,
    pub facts: &'a mut ProgramFacts,
    pub state: State,
    pub code: BlockCode,
    /// Number of the call context.
    pub context: u32,
    pub section: usize,
    /// Index of the current instruction in its section.
    pub pc: usize,
    /// Number of symbolic names that the current instruction has introduced.
    named: u32,
}

impl<'a, 'o> BlockInterpreter<'a, 'o> {
    pub fn new(
        linked: &'a LinkedObject<'o>,
        facts: &'a mut ProgramFacts,
        mut state: State,
        context: u32,
        section: usize,
    ) -> BlockInterpreter<'a, 'o> {
        state.unload();
        let mut interp =
            BlockInterpreter { linked, facts, state, code: BlockCode::default(), context, section, pc: 0, named: 0 };
        interp.restore_field_aliases();
        interp
    }

    pub fn current_frame(&self) -> usize {
        self.state.frames.len() - 1
    }

    /// Rejects the program at the current instruction.
    pub fn reject<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(Rejection::new(self.section, self.pc, message))
    }

    /// Rejects what the kernel may accept, naming the feature that is missing here.
    pub fn reject_unsupported<T>(&self, message: impl Into<String>, feature: impl Display) -> Result<T> {
        Err(Rejection::new(self.section, self.pc, message).missing_feature(feature))
    }

    /// Rejects an instruction that does not exist.
    fn reject_unknown<T>(&self, it: Instruction) -> Result<T> {
        let code = it.code;
        if code == CALLX {
            let why = "a call through a register, which clang emits for helpers without optimisation";
            return self.reject(format!("unknown instruction {code:#04x}, {why}: compile with -O2"));
        }
        self.reject(format!("unknown instruction {code:#04x}"))
    }

    pub fn instruction(&self) -> Instruction {
        self.linked.object.sections[self.section].instructions[self.pc]
    }

    /// A symbolic name for a result of this instruction. Pointers that have it from an earlier
    /// round of a loop become anonymous.
    pub fn fresh_name(&mut self) -> SymbolicName {
        self.named += 1;
        let name = self.facts.names.intern((self.context, self.section as u32, self.pc as u32, self.named));
        self.state.forget_names(|it| it == name);
        name
    }

    /// The variable of half a register.
    fn register_variable(&self, register: u8, half: u8) -> Variable {
        let frame = if !(6..REDIRECT_TARGET).contains(&register) { 0 } else { self.current_frame() as u8 };
        Variable::Register { frame, register, half }
    }

    fn register_mut(&mut self, register: u8) -> &mut Value {
        let frame = self.current_frame() as u8;
        self.state.register(frame, register)
    }

    /// Reads a register, with both halves available.
    pub fn read_register(&mut self, register: u8) -> Result<Value> {
        if register == 10 {
            let ty = RegType::Stack { frame: self.current_frame() as u8, off: Offsets::constant(0) };
            let (low, high) = (self.code.constant(0), self.code.constant(1));
            return Ok(Value { ty, low, high });
        }
        if (11..LOOP_ROUND).contains(&register) {
            return self.reject(format!("there is no register {register}"));
        }
        let mut value = *self.register_mut(register);
        if value.ty == RegType::Uninit {
            return self
                .reject(format!("register r{register} is read, but not set on every path that leads here"))
                .map_err(|it: Rejection| {
                    it.note("a call clobbers r1 to r5, and moving the packet's ends invalidates pointers into it")
                });
        }
        let vars = (self.register_variable(register, 0), self.register_variable(register, 1));
        self.materialize(&mut value, vars);
        *self.register_mut(register) = value;
        Ok(value)
    }

    /// Makes both halves of a value available in this block.
    pub fn materialize(&mut self, value: &mut Value, (low, high): (Variable, Variable)) {
        if value.low != NOT_LOADED && value.high != NOT_LOADED {
            return;
        }
        let known = self.known_halves(value.ty);
        if value.low == NOT_LOADED {
            value.low = known.0.unwrap_or_else(|| self.code.variable(low));
        }
        if value.high == NOT_LOADED {
            value.high = known.1.unwrap_or_else(|| self.code.variable(high));
        }
    }

    /// The halves that the type of a value determines.
    pub fn known_halves(&mut self, ty: RegType) -> (Option<Id>, Option<Id>) {
        let low = match ty {
            RegType::Scalar(range) if range.as_constant().is_some() => Some(self.code.constant(range.low as u32)),
            RegType::Context(off) => Some(self.code.constant(off as u32)),
            RegType::Packet { name: crate::analysis::domain::reg_type::PACKET_START, off, .. } => {
                Some(self.code.constant(off as u32))
            }
            RegType::PacketEnd => Some(self.packet_length()),
            RegType::Stack { off, .. } | RegType::MapValue { off, .. } | RegType::RingRecord { off, .. }
                if off.as_constant().is_some() =>
            {
                Some(self.code.constant(off.low as u32))
            }
            RegType::Map(map) => Some(self.code.constant(u32::from(map))),
            RegType::Function { first, .. } => Some(self.code.constant(first)),
            _ => None,
        };
        let high = match ty {
            RegType::Scalar(range) if range.low >> 32 == range.high >> 32 => {
                Some(self.code.constant((range.low >> 32) as u32))
            }
            RegType::Packet { nullable: false, .. }
            | RegType::RingRecord { nullable: false, .. }
            | RegType::Context(_)
            | RegType::PacketEnd
            | RegType::Stack { .. }
            | RegType::Map(_)
            | RegType::Function { .. } => Some(self.code.constant(1)),
            RegType::MapValue { map, nullable: false, .. } if self.linked.maps[usize::from(map)].has_single_value() => {
                Some(self.code.constant(1))
            }
            _ => None,
        };
        (low, high)
    }

    /// Writes a register.
    pub fn write_register(&mut self, register: u8, value: Value) -> Result<()> {
        if register == 10 {
            return self.reject("the frame pointer, r10, is written to");
        }
        if (11..LOOP_ROUND).contains(&register) {
            return self.reject(format!("there is no register {register}"));
        }
        *self.register_mut(register) = value;
        Ok(())
    }

    /// A scalar with these halves; constants among them tighten the interval, and the other way
    /// round.
    pub fn scalar(&mut self, range: Interval, low: Id, high: Id) -> Value {
        let (known_low, known_high) = (self.code.as_constant(low), self.code.as_constant(high));
        let range = match (known_low, known_high) {
            (Some(low), Some(high)) => Interval::constant(u64::from(high) << 32 | u64::from(low)),
            (None, Some(0)) => range.meet(0, u64::from(u32::MAX)).unwrap_or(Interval::U32),
            _ => range,
        };
        let low = range.as_constant().map_or(low, |value| self.code.constant(value as u32));
        let high =
            if range.low >> 32 == range.high >> 32 { self.code.constant((range.low >> 32) as u32) } else { high };
        Value { ty: RegType::Scalar(range), low, high }
    }

    pub fn constant(&mut self, value: u64) -> Value {
        let (low, high) = (self.code.constant(value as u32), self.code.constant((value >> 32) as u32));
        Value { ty: RegType::Scalar(Interval::constant(value)), low, high }
    }

    /// A scalar whose high half is zero.
    pub fn scalar32(&mut self, range: Interval, low: Id) -> Value {
        let high = self.code.constant(0);
        self.scalar(range, low, high)
    }

    /// A negative error number.
    pub fn error_code(&mut self, error: i32) -> Value {
        self.constant(i64::from(error) as u64)
    }

    /// 0 if a condition holds, else a negative error number, as helpers return it.
    pub fn zero_or_error(&mut self, is_good: Id, error: i32) -> Value {
        let (zero, low, high) = (self.code.constant(0), self.code.constant(error as u32), self.code.constant(u32::MAX));
        let (low, high) = (self.code.select(is_good, zero, low), self.code.select(is_good, zero, high));
        self.scalar(Interval::ANY, low, high)
    }

    /// 0 if all conditions hold, else the error of the first that does not.
    pub fn first_error(&mut self, conditions: &[(Id, i32)]) -> Value {
        let (mut low, mut high) = (self.code.constant(0), self.code.constant(0));
        let all = self.code.constant(u32::MAX);
        for &(holds, error) in conditions.iter().rev() {
            let error = self.code.constant(error as u32);
            (low, high) = (self.code.select(holds, low, error), self.code.select(holds, high, all));
        }
        self.scalar(Interval::ANY, low, high)
    }

    /// The current length of the packet.
    pub fn packet_length(&mut self) -> Id {
        self.code.call("pkt_len", vec![Argument::Packet], Effect::Reads)
    }

    /// Aborts the packet if a pointer is NULL; afterwards it is non-null.
    pub fn trap_null(&mut self, pointer: Value, reason: &'static str) {
        if pointer.ty.is_nullable() {
            let null = self.code.binary_const(BinaryOp::Eq, pointer.high, 0);
            self.trap(null, reason);
            branch::mark_non_null(&mut self.state, pointer);
        }
    }

    /// Aborts the packet if the condition holds.
    pub fn trap(&mut self, when: Id, reason: &'static str) {
        if self.code.as_boolean(when) == Some(false) {
            return;
        }
        let site = self.facts.trap_sites.intern((self.section as u32, self.pc as u32, reason));
        self.code.add(crate::ir::Op::Trap { when, site });
    }

    /// Interprets an instruction that neither jumps nor calls what does. Returns the index of the
    /// next.
    pub fn step(&mut self, at: usize) -> Result<usize> {
        (self.pc, self.named) = (at, 0);
        let it = self.instruction();
        match it.class() {
            class::ALU | class::ALU64 => self.alu(it)?,
            class::LD if it.code == LDDW => {
                self.load_constant64(it)?;
                return Ok(at + 2);
            }
            class::LD => {
                return self.reject("packets are read by `ld_abs` or `ld_ind`, which XDP programs must not use");
            }
            class::LDX => {
                let (signed, size) = match it.mode() {
                    3 => (false, it.size()),
                    4 if it.size() < 8 => (true, it.size()),
                    _ => return self.reject_unknown(it),
                };
                let from = self.read_register(it.src)?;
                let value = self.load(from, i64::from(it.off), size)?;
                let value = if signed { self.sign_extend(value, 8 * size) } else { value };
                self.write_register(it.dst, value)?;
            }
            class::ST | class::STX if it.mode() == 3 => {
                let value = match it.class() {
                    class::ST => self.constant(i64::from(it.imm) as u64),
                    _ => self.read_register(it.src)?,
                };
                let to = self.read_register(it.dst)?;
                self.store(to, i64::from(it.off), it.size(), value)?;
            }
            class::STX if it.mode() == 6 => self.atomic(it)?,
            class::JMP if it.code == CALL => self.call_helper(it)?,
            _ => return self.reject_unknown(it),
        }
        Ok(at + 1)
    }

    /// LDDW: a 64-bit constant, or what its relocation refers to.
    fn load_constant64(&mut self, it: Instruction) -> Result<()> {
        let section = &self.linked.object.sections[self.section];
        let Some(rest) = section.instructions.get(self.pc + 1) else {
            return self.reject("the section ends in the middle of a 64-bit constant");
        };
        let value = u64::from(rest.imm as u32) << 32 | u64::from(it.imm as u32);
        let value = match section.references.get(&self.pc) {
            None if it.src == 0 => self.constant(value),
            None if it.src == 4 => {
                let first = (self.pc as i64 + 1 + i64::from(it.imm)) as u32;
                self.function_pointer(self.section, first)
            }
            None => {
                return self.reject(format!("a constant of kind {} has no relocation", it.src));
            }
            Some(&Reference::Map(map)) => Value::of(RegType::Map(map as u16)),
            Some(&Reference::Data { map, offset }) => {
                let off = Offsets::constant((offset as i64).saturating_add(i64::from(it.imm)));
                Value::of(RegType::MapValue {
                    map: map as u16,
                    off,
                    name: crate::analysis::domain::reg_type::ANONYMOUS,
                    nullable: false,
                })
            }
            Some(&Reference::Code { section, offset }) => {
                let first = (offset as i64 / 8).saturating_add(i64::from(it.imm) / 8);
                self.function_pointer(section, first as u32)
            }
            Some(Reference::External(name)) => {
                return self.reject_unsupported(
                    format!("`{name}` is not in the object: the kernel would give it an address or a value"),
                    "kernel symbols and configuration (`__ksym`, `__kconfig`)",
                );
            }
        };
        let mut value = value;
        // The types of all these values determine them.
        self.materialize(&mut value, NO_VARIABLES);
        self.write_register(it.dst, value)
    }

    fn function_pointer(&mut self, section: usize, first: u32) -> Value {
        Value::of(RegType::Function { section: section as u16, first })
    }

    /// Sign-extends the low `bits` of a number.
    pub fn sign_extend(&mut self, of: Value, bits: u32) -> Value {
        use crate::ir::BinaryOp::{Sar, Shl};
        let low = if bits < 32 {
            let up = self.code.binary_const(Shl, of.low, 32 - bits);
            self.code.binary_const(Sar, up, 32 - bits)
        } else {
            of.low
        };
        let high = self.code.binary_const(Sar, low, 31);
        let range = match of.ty.as_scalar() {
            Some(range) if range.high < 1 << (bits - 1) => range,
            _ => Interval::ANY,
        };
        self.scalar(range, low, high)
    }

    /// Returns the interval of a scalar, rejecting anything else.
    pub fn expect_scalar(&mut self, value: Value, what: &str) -> Result<Interval> {
        match value.ty {
            RegType::Scalar(range) => Ok(range),
            ty => self.reject(format!("{what} is {}; expected a number", ty.describe())),
        }
    }

    /// Pushes the frame of a callee; returns false if the packet is aborted instead. If tail calls
    /// replaced functions, the call depth depends on the packet, so exceeding it is a run-time
    /// check.
    pub fn push_frame(&mut self) -> Result<bool> {
        if self.state.frames.len() < crate::analysis::domain::state::MAX_FRAMES {
            self.state.frames.push(Frame::new());
            return Ok(true);
        }
        let calls = self.read_register(TAIL_CALL_COUNT)?;
        if calls.ty.as_scalar().and_then(Interval::as_constant) == Some(0) {
            return self.reject(format!(
                "functions are nested {} calls deep, more than the kernel allows",
                crate::analysis::domain::state::MAX_FRAMES
            ));
        }
        let always = self.code.boolean(true);
        self.trap(always, "calls and tail calls are nested too deep");
        Ok(false)
    }

    /// Section and first instruction of the callback that the current loop calls.
    pub fn loop_callback(&mut self) -> Result<(u32, u32)> {
        match self.read_register(LOOP_CALLBACK)?.ty {
            RegType::Function { section, first } => Ok((section.into(), first)),
            other => self.reject(format!("the callback is {}", other.describe())),
        }
    }

    /// Marks r1 to r5 uninitialised, as a call leaves them.
    pub fn clear_caller_saved(&mut self) {
        (1..6).for_each(|register| self.state.scratch[register] = Value::of(RegType::Uninit));
    }
}
