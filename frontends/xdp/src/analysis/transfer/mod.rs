//! Going through a block: what each instruction does to the types of what there is, and what is to be computed for it. The
//! same walk finds the types, when its computations are thrown away, and makes the code, when the types are known.

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

pub(crate) use event_helpers::Events;

use std::fmt::Display;

use crate::Linked;
use crate::analysis::domain::range::Range;
use crate::analysis::domain::state::{ASLEEP, Frame, Name, Offsets, State, Ty, Value};
use crate::analysis::fixpoint::Shared;
use crate::decode::instruction::{CALL, CALLX, Instruction, LDDW, class};
use crate::lower::ir::{Argument, Binary, Code, Effect, Id, Var};
use crate::object::Reference;
use crate::rejection::Refused;

pub(crate) type Result<T> = std::result::Result<T, Refused>;

/// Registers that no program sees, behind all that an instruction can name (0 to 15): of a `bpf_loop` the round, how many there
/// are, the argument, and the function.
pub(crate) const ROUND: u8 = 16;
pub(crate) const ROUNDS: u8 = 17;
pub(crate) const ARGUMENT: u8 = 18;
pub(crate) const FUNCTION: u8 = 19;
/// Of all frames: where a packet is to be redirected to, and one; how many tail calls there were; how many bytes of metadata
/// are in front of the packet; how many random numbers there were.
pub(crate) const TARGET: u8 = 20;
pub(crate) const TAIL_CALLS: u8 = 21;
pub(crate) const METADATA: u8 = 22;
pub(crate) const DRAWS: u8 = 23;

/// For values whose type says all.
pub(crate) const NO_VARS: (Var, Var) = {
    let var = Var::Register { frame: u8::MAX, register: u8::MAX, half: 0 };
    (var, var)
};

/// A block under way.
pub(crate) struct Walk<'a, 'o> {
    pub linked: &'a Linked<'o>,
    pub shared: &'a mut Shared,
    pub state: State,
    pub code: Code,
    /// Whose call of a function this is.
    pub context: u32,
    pub section: usize,
    /// The instruction under way.
    pub at: usize,
    /// How many names this instruction has given.
    named: u32,
}

impl<'a, 'o> Walk<'a, 'o> {
    pub fn new(
        linked: &'a Linked<'o>,
        shared: &'a mut Shared,
        mut state: State,
        context: u32,
        section: usize,
    ) -> Walk<'a, 'o> {
        state.asleep();
        let mut walk = Walk { linked, shared, state, code: Code::default(), context, section, at: 0, named: 0 };
        walk.take_holdings();
        walk
    }

    pub fn frame(&self) -> usize {
        self.state.frames.len() - 1
    }

    pub fn refuse<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(Refused::new(self.section, self.at, message))
    }

    /// Refuses what the kernel might take: this is what is missing for it here.
    pub fn lack<T>(&self, message: impl Into<String>, feature: impl Display) -> Result<T> {
        Err(Refused::new(self.section, self.at, message).missing(feature))
    }

    /// Refuses an instruction that programs cannot have.
    fn unknown<T>(&self, it: Instruction) -> Result<T> {
        let code = it.code;
        if code == CALLX {
            let why = "a call through a register, as clang makes it of helpers' calls without optimisation";
            return self.refuse(format!("unknown instruction {code:#04x}, {why}: compile with -O2"));
        }
        self.refuse(format!("unknown instruction {code:#04x}"))
    }

    pub fn instruction(&self) -> Instruction {
        self.linked.object.sections[self.section].instructions[self.at]
    }

    /// A name for what this instruction makes. What went by it in an earlier round is known by no name then.
    pub fn name(&mut self) -> Name {
        self.named += 1;
        let name = self.shared.names.of((self.context, self.section as u32, self.at as u32, self.named));
        self.state.forget(|it| it == name);
        name
    }

    /// A register's variable.
    fn var(&self, register: u8, half: u8) -> Var {
        let frame = if !(6..TARGET).contains(&register) { 0 } else { self.frame() as u8 };
        Var::Register { frame, register, half }
    }

    fn slot(&mut self, register: u8) -> &mut Value {
        let frame = self.frame() as u8;
        self.state.register(frame, register)
    }

    /// A register that is read.
    pub fn get(&mut self, register: u8) -> Result<Value> {
        if register == 10 {
            let ty = Ty::Stack { frame: self.frame() as u8, off: Offsets::one(0) };
            let (low, high) = (self.code.known(0), self.code.known(1));
            return Ok(Value { ty, low, high });
        }
        if (11..ROUND).contains(&register) {
            return self.refuse(format!("there is no register {register}"));
        }
        let mut value = *self.slot(register);
        if value.ty == Ty::Nothing {
            return self
                .refuse(format!("register r{register} is read, and was not set on every way that leads here"))
                .map_err(|it: Refused| {
                    it.note(
                        "a call leaves r1 to r5 unset, and so does what moves the packet's ends to pointers into it",
                    )
                });
        }
        let vars = (self.var(register, 0), self.var(register, 1));
        self.wake(&mut value, vars);
        *self.slot(register) = value;
        Ok(value)
    }

    /// Has a value's halves computed.
    pub fn wake(&mut self, value: &mut Value, (low, high): (Var, Var)) {
        if value.low != ASLEEP && value.high != ASLEEP {
            return;
        }
        let said = self.said(value.ty);
        if value.low == ASLEEP {
            value.low = said.0.unwrap_or_else(|| self.code.var(low));
        }
        if value.high == ASLEEP {
            value.high = said.1.unwrap_or_else(|| self.code.var(high));
        }
    }

    /// The halves of a value, as far as its type says them.
    pub fn said(&mut self, ty: Ty) -> (Option<Id>, Option<Id>) {
        let low = match ty {
            Ty::Number(range) if range.exact().is_some() => Some(self.code.known(range.low as u32)),
            Ty::Context(off) => Some(self.code.known(off as u32)),
            Ty::Packet { name: crate::analysis::domain::state::FIXED, off, .. } => Some(self.code.known(off as u32)),
            Ty::End => Some(self.length()),
            Ty::Stack { off, .. } | Ty::Value { off, .. } | Ty::Record { off, .. } if off.exact().is_some() => {
                Some(self.code.known(off.low as u32))
            }
            Ty::Map(map) => Some(self.code.known(u32::from(map))),
            Ty::Function { first, .. } => Some(self.code.known(first)),
            _ => None,
        };
        let high = match ty {
            Ty::Number(range) if range.low >> 32 == range.high >> 32 => Some(self.code.known((range.low >> 32) as u32)),
            Ty::Packet { nullable: false, .. }
            | Ty::Record { nullable: false, .. }
            | Ty::Context(_)
            | Ty::End
            | Ty::Stack { .. }
            | Ty::Map(_)
            | Ty::Function { .. } => Some(self.code.known(1)),
            Ty::Value { map, nullable: false, .. } if self.linked.maps[usize::from(map)].is_one_value() => {
                Some(self.code.known(1))
            }
            _ => None,
        };
        (low, high)
    }

    /// Sets a register.
    pub fn set(&mut self, register: u8, value: Value) -> Result<()> {
        if register == 10 {
            return self.refuse("the frame pointer, r10, is written to");
        }
        if (11..ROUND).contains(&register) {
            return self.refuse(format!("there is no register {register}"));
        }
        *self.slot(register) = value;
        Ok(())
    }

    pub fn number(&mut self, range: Range, low: Id, high: Id) -> Value {
        // What is known for certain.
        let (known_low, known_high) = (self.code.value(low), self.code.value(high));
        let range = match (known_low, known_high) {
            (Some(low), Some(high)) => Range::one(u64::from(high) << 32 | u64::from(low)),
            (None, Some(0)) => range.meet(0, u64::from(u32::MAX)).unwrap_or(Range::WORD),
            _ => range,
        };
        let low = range.exact().map_or(low, |value| self.code.known(value as u32));
        let high = if range.low >> 32 == range.high >> 32 { self.code.known((range.low >> 32) as u32) } else { high };
        Value { ty: Ty::Number(range), low, high }
    }

    pub fn constant(&mut self, value: u64) -> Value {
        let (low, high) = (self.code.known(value as u32), self.code.known((value >> 32) as u32));
        Value { ty: Ty::Number(Range::one(value)), low, high }
    }

    /// A number of 32 bits.
    pub fn word(&mut self, range: Range, low: Id) -> Value {
        let high = self.code.known(0);
        self.number(range, low, high)
    }

    /// Minus an error's number.
    pub fn error(&mut self, error: i32) -> Value {
        self.constant(i64::from(error) as u64)
    }

    /// 0, or minus an error's number, as helpers give it.
    pub fn outcome(&mut self, is_good: Id, error: i32) -> Value {
        let (zero, low, high) = (self.code.known(0), self.code.known(error as u32), self.code.known(u32::MAX));
        let (low, high) = (self.code.select(is_good, zero, low), self.code.select(is_good, zero, high));
        self.number(Range::ANY, low, high)
    }

    /// 0 where all of these hold, else the error of the first that does not.
    pub fn first_of(&mut self, conditions: &[(Id, i32)]) -> Value {
        let (mut low, mut high) = (self.code.known(0), self.code.known(0));
        let all = self.code.known(u32::MAX);
        for &(holds, error) in conditions.iter().rev() {
            let error = self.code.known(error as u32);
            (low, high) = (self.code.select(holds, low, error), self.code.select(holds, high, all));
        }
        self.number(Range::ANY, low, high)
    }

    /// How long the packet is now.
    pub fn length(&mut self) -> Id {
        self.code.call("pkt_len", vec![Argument::Packet], Effect::Reads)
    }

    /// Has the packet aborted where a pointer is NULL. Behind that it is none.
    pub fn trap_null(&mut self, pointer: Value, reason: &'static str) {
        if pointer.ty.is_nullable() {
            let null = self.code.by(Binary::Eq, pointer.high, 0);
            self.trap(null, reason);
            branch::there(&mut self.state, pointer);
        }
    }

    /// Has the packet aborted where this is true.
    pub fn trap(&mut self, when: Id, reason: &'static str) {
        if self.code.as_truth(when) == Some(false) {
            return;
        }
        let site = self.shared.sites.of((self.section as u32, self.at as u32, reason));
        self.code.add(crate::lower::ir::Op::Trap { when, site });
    }

    /// An instruction that neither leads elsewhere nor calls what does. Gives back the number of the next.
    pub fn step(&mut self, at: usize) -> Result<usize> {
        (self.at, self.named) = (at, 0);
        let it = self.instruction();
        match it.class() {
            class::ALU | class::ALU64 => self.alu(it)?,
            class::LD if it.code == LDDW => {
                self.constant64(it)?;
                return Ok(at + 2);
            }
            class::LD => {
                return self.refuse("packets are read by `ld_abs` and `ld_ind`, which programs of XDP cannot");
            }
            class::LDX => {
                let (signed, size) = match it.mode() {
                    3 => (false, it.size()),
                    4 if it.size() < 8 => (true, it.size()),
                    _ => return self.unknown(it),
                };
                let from = self.get(it.src)?;
                let value = self.load(from, i64::from(it.off), size)?;
                let value = if signed { self.sign_extended(value, 8 * size) } else { value };
                self.set(it.dst, value)?;
            }
            class::ST | class::STX if it.mode() == 3 => {
                let value = match it.class() {
                    class::ST => self.constant(i64::from(it.imm) as u64),
                    _ => self.get(it.src)?,
                };
                let to = self.get(it.dst)?;
                self.store(to, i64::from(it.off), it.size(), value)?;
            }
            class::STX if it.mode() == 6 => self.atomic(it)?,
            class::JMP if it.code == CALL => self.helper(it)?,
            _ => return self.unknown(it),
        }
        Ok(at + 1)
    }

    /// A constant of 64 bits, or what it stands for.
    fn constant64(&mut self, it: Instruction) -> Result<()> {
        let section = &self.linked.object.sections[self.section];
        let Some(rest) = section.instructions.get(self.at + 1) else {
            return self.refuse("the section ends in the middle of a constant of 64 bits");
        };
        let value = u64::from(rest.imm as u32) << 32 | u64::from(it.imm as u32);
        let value = match section.references.get(&self.at) {
            None if it.src == 0 => self.constant(value),
            None if it.src == 4 => {
                let first = (self.at as i64 + 1 + i64::from(it.imm)) as u32;
                self.function(self.section, first)
            }
            None => {
                return self
                    .refuse(format!("a constant refers to something of kind {}, and nothing says what", it.src));
            }
            Some(&Reference::Map(map)) => Value::of(Ty::Map(map as u16)),
            Some(&Reference::Data { map, offset }) => {
                let off = Offsets::one((offset as i64).saturating_add(i64::from(it.imm)));
                Value::of(Ty::Value {
                    map: map as u16,
                    off,
                    name: crate::analysis::domain::state::NOBODY,
                    nullable: false,
                })
            }
            Some(&Reference::Code { section, offset }) => {
                let first = (offset as i64 / 8).saturating_add(i64::from(it.imm) / 8);
                self.function(section, first as u32)
            }
            Some(Reference::External(name)) => {
                return self.lack(
                    format!("`{name}` is not in the object: the kernel would give it an address or a value"),
                    "what the kernel gives programs by name (`__kconfig`, `__ksym`)",
                );
            }
        };
        let mut value = value;
        // All of these say it by their types.
        self.wake(&mut value, NO_VARS);
        self.set(it.dst, value)
    }

    fn function(&mut self, section: usize, first: u32) -> Value {
        Value::of(Ty::Function { section: section as u16, first })
    }

    /// A number whose lowest bits are taken with a sign.
    pub fn sign_extended(&mut self, of: Value, bits: u32) -> Value {
        use crate::lower::ir::Binary::{Sar, Shl};
        let low = if bits < 32 {
            let up = self.code.by(Shl, of.low, 32 - bits);
            self.code.by(Sar, up, 32 - bits)
        } else {
            of.low
        };
        let high = self.code.by(Sar, low, 31);
        let range = match of.ty.range() {
            Some(range) if range.high < 1 << (bits - 1) => range,
            _ => Range::ANY,
        };
        self.number(range, low, high)
    }

    /// What a register must hold for an operation on numbers.
    pub fn expect_number(&mut self, value: Value, what: &str) -> Result<Range> {
        match value.ty {
            Ty::Number(range) => Ok(range),
            ty => self.refuse(format!("{what} is {}, and a number is needed", ty.words())),
        }
    }

    /// The frame of a function that is called; whether it is. Where programs called from functions take those' places, how
    /// deep calls go only the packet decides: it is aborted where they go too deep.
    pub fn enter(&mut self) -> Result<bool> {
        if self.state.frames.len() < crate::analysis::domain::state::MAX_FRAMES {
            self.state.frames.push(Frame::new());
            return Ok(true);
        }
        let calls = self.get(TAIL_CALLS)?;
        if calls.ty.range().and_then(Range::exact) == Some(0) {
            return self.refuse(format!(
                "functions call each other {} deep, which is deeper than the kernel allows",
                crate::analysis::domain::state::MAX_FRAMES
            ));
        }
        let always = self.code.truth(true);
        self.trap(always, "functions, and programs in their places, call each other too deep");
        Ok(false)
    }

    /// The function that is called for each round: its section and first instruction.
    pub fn callback(&mut self) -> Result<(u32, u32)> {
        match self.get(FUNCTION)?.ty {
            Ty::Function { section, first } => Ok((section.into(), first)),
            other => self.refuse(format!("what is called for each round is {}", other.words())),
        }
    }

    /// Registers that a call leaves unset.
    pub fn after_call(&mut self) {
        (1..6).for_each(|register| self.state.scratch[register] = Value::of(Ty::Nothing));
    }
}
