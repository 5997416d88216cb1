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

pub(crate) use event_helpers::EventUses;

use std::fmt::Display;

use crate::lang::xdp::analysis::domain::interval::Interval;
use crate::lang::xdp::analysis::domain::offsets::Offsets;
use crate::lang::xdp::analysis::domain::reg_type::{RegType, SymbolicName};
use crate::lang::xdp::analysis::domain::state::{Frame, NOT_LOADED, State, Value};
use crate::lang::xdp::analysis::fixpoint::ProgramFacts;
use crate::lang::xdp::decode::instruction::{CALL, CALLX, Instruction, LDDW, class};
use crate::lang::xdp::decode::linked::LinkedObject;
use crate::lang::xdp::lower::ir::{Argument, BinaryOp, BlockCode, Effect, Id, Variable};
use crate::lang::xdp::object::Reference;
use crate::lang::xdp::rejection::Rejection;

pub(crate) type Result<T> = std::result::Result<T, Rejection>;

/// Registers that no program sees, behind all that an instruction can name (0 to 15): of a `bpf_loop` the round, how many there
/// are, the argument, and the function.
pub(crate) const LOOP_ROUND: u8 = 16;
pub(crate) const LOOP_LIMIT: u8 = 17;
pub(crate) const LOOP_ARGUMENT: u8 = 18;
pub(crate) const LOOP_CALLBACK: u8 = 19;
/// Of all frames: where a packet is to be redirected to, and one; how many tail calls there were; how many bytes of metadata
/// are in front of the packet; how many random numbers there were.
pub(crate) const REDIRECT_TARGET: u8 = 20;
pub(crate) const TAIL_CALL_COUNT: u8 = 21;
pub(crate) const METADATA_LENGTH: u8 = 22;
pub(crate) const RANDOM_DRAWS: u8 = 23;

/// For values whose type says all.
pub(crate) const NO_VARIABLES: (Variable, Variable) = {
    let var = Variable::Register { frame: u8::MAX, register: u8::MAX, half: 0 };
    (var, var)
};

/// A block under way.
pub(crate) struct BlockInterpreter<'a, 'o> {
    pub linked: &'a LinkedObject<'o>,
    pub facts: &'a mut ProgramFacts,
    pub state: State,
    pub code: BlockCode,
    /// Whose call of a function this is.
    pub context: u32,
    pub section: usize,
    /// The instruction under way.
    pub pc: usize,
    /// How many names this instruction has given.
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

    pub fn reject<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(Rejection::new(self.section, self.pc, message))
    }

    /// Refuses what the kernel might take: this is what is missing for it here.
    pub fn reject_unsupported<T>(&self, message: impl Into<String>, feature: impl Display) -> Result<T> {
        Err(Rejection::new(self.section, self.pc, message).missing_feature(feature))
    }

    /// Refuses an instruction that programs cannot have.
    fn reject_unknown<T>(&self, it: Instruction) -> Result<T> {
        let code = it.code;
        if code == CALLX {
            let why = "a call through a register, as clang makes it of helpers' calls without optimisation";
            return self.reject(format!("unknown instruction {code:#04x}, {why}: compile with -O2"));
        }
        self.reject(format!("unknown instruction {code:#04x}"))
    }

    pub fn instruction(&self) -> Instruction {
        self.linked.object.sections[self.section].instructions[self.pc]
    }

    /// A name for what this instruction makes. What went by it in an earlier round is known by no name then.
    pub fn fresh_name(&mut self) -> SymbolicName {
        self.named += 1;
        let name = self.facts.names.intern((self.context, self.section as u32, self.pc as u32, self.named));
        self.state.forget_names(|it| it == name);
        name
    }

    /// A register's variable.
    fn register_variable(&self, register: u8, half: u8) -> Variable {
        let frame = if !(6..REDIRECT_TARGET).contains(&register) { 0 } else { self.current_frame() as u8 };
        Variable::Register { frame, register, half }
    }

    fn register_mut(&mut self, register: u8) -> &mut Value {
        let frame = self.current_frame() as u8;
        self.state.register(frame, register)
    }

    /// A register that is read.
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
                .reject(format!("register r{register} is read, and was not set on every way that leads here"))
                .map_err(|it: Rejection| {
                    it.note(
                        "a call leaves r1 to r5 unset, and so does what moves the packet's ends to pointers into it",
                    )
                });
        }
        let vars = (self.register_variable(register, 0), self.register_variable(register, 1));
        self.materialize(&mut value, vars);
        *self.register_mut(register) = value;
        Ok(value)
    }

    /// Has a value's halves computed.
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

    /// The halves of a value, as far as its type says them.
    pub fn known_halves(&mut self, ty: RegType) -> (Option<Id>, Option<Id>) {
        let low = match ty {
            RegType::Scalar(range) if range.as_constant().is_some() => Some(self.code.constant(range.low as u32)),
            RegType::Context(off) => Some(self.code.constant(off as u32)),
            RegType::Packet { name: crate::lang::xdp::analysis::domain::reg_type::PACKET_START, off, .. } => {
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

    /// Sets a register.
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

    pub fn scalar(&mut self, range: Interval, low: Id, high: Id) -> Value {
        // What is known for certain.
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

    /// A number of 32 bits.
    pub fn scalar32(&mut self, range: Interval, low: Id) -> Value {
        let high = self.code.constant(0);
        self.scalar(range, low, high)
    }

    /// Minus an error's number.
    pub fn error_code(&mut self, error: i32) -> Value {
        self.constant(i64::from(error) as u64)
    }

    /// 0, or minus an error's number, as helpers give it.
    pub fn zero_or_error(&mut self, is_good: Id, error: i32) -> Value {
        let (zero, low, high) = (self.code.constant(0), self.code.constant(error as u32), self.code.constant(u32::MAX));
        let (low, high) = (self.code.select(is_good, zero, low), self.code.select(is_good, zero, high));
        self.scalar(Interval::ANY, low, high)
    }

    /// 0 where all of these hold, else the error of the first that does not.
    pub fn first_error(&mut self, conditions: &[(Id, i32)]) -> Value {
        let (mut low, mut high) = (self.code.constant(0), self.code.constant(0));
        let all = self.code.constant(u32::MAX);
        for &(holds, error) in conditions.iter().rev() {
            let error = self.code.constant(error as u32);
            (low, high) = (self.code.select(holds, low, error), self.code.select(holds, high, all));
        }
        self.scalar(Interval::ANY, low, high)
    }

    /// How long the packet is now.
    pub fn packet_length(&mut self) -> Id {
        self.code.call("pkt_len", vec![Argument::Packet], Effect::Reads)
    }

    /// Has the packet aborted where a pointer is NULL. Behind that it is none.
    pub fn trap_null(&mut self, pointer: Value, reason: &'static str) {
        if pointer.ty.is_nullable() {
            let null = self.code.binary_const(BinaryOp::Eq, pointer.high, 0);
            self.trap(null, reason);
            branch::mark_non_null(&mut self.state, pointer);
        }
    }

    /// Has the packet aborted where this is true.
    pub fn trap(&mut self, when: Id, reason: &'static str) {
        if self.code.as_boolean(when) == Some(false) {
            return;
        }
        let site = self.facts.trap_sites.intern((self.section as u32, self.pc as u32, reason));
        self.code.add(crate::lang::xdp::lower::ir::Op::Trap { when, site });
    }

    /// An instruction that neither leads elsewhere nor calls what does. Gives back the number of the next.
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
                return self.reject("packets are read by `ld_abs` and `ld_ind`, which programs of XDP cannot");
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

    /// A constant of 64 bits, or what it stands for.
    fn load_constant64(&mut self, it: Instruction) -> Result<()> {
        let section = &self.linked.object.sections[self.section];
        let Some(rest) = section.instructions.get(self.pc + 1) else {
            return self.reject("the section ends in the middle of a constant of 64 bits");
        };
        let value = u64::from(rest.imm as u32) << 32 | u64::from(it.imm as u32);
        let value = match section.references.get(&self.pc) {
            None if it.src == 0 => self.constant(value),
            None if it.src == 4 => {
                let first = (self.pc as i64 + 1 + i64::from(it.imm)) as u32;
                self.function_pointer(self.section, first)
            }
            None => {
                return self
                    .reject(format!("a constant refers to something of kind {}, and nothing says what", it.src));
            }
            Some(&Reference::Map(map)) => Value::of(RegType::Map(map as u16)),
            Some(&Reference::Data { map, offset }) => {
                let off = Offsets::constant((offset as i64).saturating_add(i64::from(it.imm)));
                Value::of(RegType::MapValue {
                    map: map as u16,
                    off,
                    name: crate::lang::xdp::analysis::domain::reg_type::ANONYMOUS,
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
                    "what the kernel gives programs by name (`__kconfig`, `__ksym`)",
                );
            }
        };
        let mut value = value;
        // All of these say it by their types.
        self.materialize(&mut value, NO_VARIABLES);
        self.write_register(it.dst, value)
    }

    fn function_pointer(&mut self, section: usize, first: u32) -> Value {
        Value::of(RegType::Function { section: section as u16, first })
    }

    /// A number whose lowest bits are taken with a sign.
    pub fn sign_extend(&mut self, of: Value, bits: u32) -> Value {
        use crate::lang::xdp::lower::ir::BinaryOp::{Sar, Shl};
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

    /// What a register must hold for an operation on numbers.
    pub fn expect_scalar(&mut self, value: Value, what: &str) -> Result<Interval> {
        match value.ty {
            RegType::Scalar(range) => Ok(range),
            ty => self.reject(format!("{what} is {}, and a number is needed", ty.describe())),
        }
    }

    /// The frame of a function that is called; whether it is. Where programs called from functions take those' places, how
    /// deep calls go only the packet decides: it is aborted where they go too deep.
    pub fn push_frame(&mut self) -> Result<bool> {
        if self.state.frames.len() < crate::lang::xdp::analysis::domain::state::MAX_FRAMES {
            self.state.frames.push(Frame::new());
            return Ok(true);
        }
        let calls = self.read_register(TAIL_CALL_COUNT)?;
        if calls.ty.as_scalar().and_then(Interval::as_constant) == Some(0) {
            return self.reject(format!(
                "functions call each other {} deep, which is deeper than the kernel allows",
                crate::lang::xdp::analysis::domain::state::MAX_FRAMES
            ));
        }
        let always = self.code.boolean(true);
        self.trap(always, "functions, and programs in their places, call each other too deep");
        Ok(false)
    }

    /// The function that is called for each round: its section and first instruction.
    pub fn loop_callback(&mut self) -> Result<(u32, u32)> {
        match self.read_register(LOOP_CALLBACK)?.ty {
            RegType::Function { section, first } => Ok((section.into(), first)),
            other => self.reject(format!("what is called for each round is {}", other.describe())),
        }
    }

    /// Registers that a call leaves unset.
    pub fn clear_caller_saved(&mut self) {
        (1..6).for_each(|register| self.state.scratch[register] = Value::of(RegType::Uninit));
    }
}
