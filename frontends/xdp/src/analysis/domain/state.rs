//! What is in registers and on the stack: found by going through the program with types in place of values.

use std::collections::{BTreeMap, HashMap};

use crate::lang::xdp::analysis::domain::range::{Interval, gcd};
use crate::lang::xdp::analysis::register_liveness::RegisterSet;
use crate::lang::xdp::analysis::transfer::{LOOP_ROUND, REDIRECT_TARGET};
use crate::lang::xdp::lower::ir::{Id, Variable};
use crate::lang::xdp::lower::privatize::StoredBytes;

/// Words of a frame's stack: 512 bytes (`MAX_BPF_STACK`).
pub(crate) const STACK_WORDS: usize = 128;

/// Frames at most (`MAX_CALL_FRAMES`).
pub(crate) const MAX_FRAMES: usize = 8;

/// What is kept like one more frame: the metadata in front of the packet, with the packet's first byte for its top.
pub(crate) const METADATA_FRAME: u8 = MAX_FRAMES as u8;

/// Frames that may be memory.
pub(crate) const STACK_COUNT: usize = MAX_FRAMES + 1;

/// A name for a place in the packet that is known only when the packet is there, so that what was found out about it can be
/// told of every copy. [`PACKET_START`]: the packet's first byte. [`ANONYMOUS`]: one of which nothing can be told.
pub(crate) type SymbolicName = u32;
pub(crate) const PACKET_START: SymbolicName = 0;
pub(crate) const ANONYMOUS: SymbolicName = u32::MAX;

/// Beyond this nothing is told of offsets: memory has no such.
pub(crate) const OFFSET_LIMIT: i64 = 1 << 40;

/// From one offset to another, both included, in steps of so many bytes. One offset has no step: 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offsets {
    pub low: i64,
    pub high: i64,
    step: u64,
}

impl Offsets {
    pub const fn constant(at: i64) -> Offsets {
        Offsets { low: at, high: at, step: 0 }
    }

    pub fn as_constant(self) -> Option<i64> {
        (self.low == self.high).then_some(self.low)
    }

    /// Whether all of them are multiples of a number, so many bytes on.
    pub fn are_multiples_of(self, of: u32, on: i64) -> bool {
        (self.low + on).rem_euclid(of.into()) == 0 && self.step.is_multiple_of(of.into())
    }

    fn join(self, other: Offsets) -> Offsets {
        let step = gcd(gcd(self.step, other.step), self.low.abs_diff(other.low));
        Offsets { low: self.low.min(other.low), high: self.high.max(other.high), step }
    }

    /// Moved by numbers of 64 bits, with a sign.
    pub fn add(self, by: Interval) -> Offsets {
        let (low, high) = by.signed_bounds();
        self.with_bounds(by, self.low.saturating_add(low), self.high.saturating_add(high))
    }

    pub fn sub(self, by: Interval) -> Offsets {
        let (low, high) = by.signed_bounds();
        self.with_bounds(by, self.low.saturating_sub(high), self.high.saturating_sub(low))
    }

    /// Those from one to another that they have become by that. Steps go on from the first, also where that is a little before
    /// what is told apart, as of what was widened; where it is far from there, nothing is told of steps.
    fn with_bounds(self, by: Interval, low: i64, high: i64) -> Offsets {
        let step = gcd(self.step, by.step);
        let step =
            if (-2 * OFFSET_LIMIT..=OFFSET_LIMIT).contains(&low) && step <= OFFSET_LIMIT as u64 { step } else { 1 };
        let rest = (low.min(-OFFSET_LIMIT) + OFFSET_LIMIT).rem_euclid(step.max(1) as i64);
        let (low, high) = (low.clamp(-OFFSET_LIMIT + rest, OFFSET_LIMIT), high.clamp(-OFFSET_LIMIT, OFFSET_LIMIT));
        Offsets { low, high, step: if low == high { 0 } else { step } }
    }

    fn widen(self, before: Offsets) -> Offsets {
        // Steps go on from the end that stays.
        match (self.low < before.low, self.high > before.high) {
            (false, false) => self,
            (false, true) => Offsets { high: OFFSET_LIMIT, ..self },
            (true, above) => {
                let rest = (self.low + OFFSET_LIMIT).unsigned_abs() % self.step.max(1);
                Offsets { low: -OFFSET_LIMIT + rest as i64, high: if above { OFFSET_LIMIT } else { self.high }, ..self }
            }
        }
    }
}

/// Abstract type of a register, in the manner of the kernel verifier's `enum bpf_reg_type`.
///
/// At run time a register is two 32-bit halves. A scalar has its own low and high half. A pointer
/// has its offset in the low half and, in the high half, what it points into; that is never zero, so
/// a zero high half is NULL for every pointer type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RegType {
    /// Not set on every path; must not be read. Bottom of a path, top of the lattice.
    Uninit,
    /// A number within an interval.
    Scalar(Interval),
    /// The context, `struct xdp_md`, plus a byte offset.
    Context(i64),
    /// Into the packet: `off` bytes after the place called `name`, and at least `floor` bytes after
    /// the packet's first byte.
    Packet { name: SymbolicName, off: i64, floor: i64, nullable: bool },
    /// The end of the packet, `data_end`.
    PacketEnd,
    /// Into the stack of a frame, or the packet's metadata ([`METADATA_FRAME`]); offsets count from
    /// the top of the frame.
    Stack { frame: u8, off: Offsets },
    /// A map, by its index in the object.
    Map(u16),
    /// Into a map value. The low half is the byte offset, the high half the entry index plus one.
    /// `name` is that of the lookup while the pointer may be NULL.
    MapValue { map: u16, off: Offsets, name: SymbolicName, nullable: bool },
    /// A function, by section and first instruction.
    Function { section: u16, first: u32 },
    /// Into a reserved ring buffer record that is not submitted yet. `name` is that of the
    /// reservation.
    RingRecord { record: u16, off: Offsets, name: SymbolicName, nullable: bool },
    /// Values of two kinds that cannot be joined, one per path; must not be used.
    Conflict(RegKind, RegKind),
}

/// Kind of a register's contents, for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RegKind {
    Scalar,
    Context,
    Packet,
    PacketEnd,
    Stack,
    Map,
    MapValue,
    Function,
    RingRecord,
    Uninit,
}

impl RegKind {
    pub fn describe(self) -> &'static str {
        match self {
            RegKind::Scalar => "a number",
            RegKind::Context => "the context",
            RegKind::Packet => "a pointer into the packet",
            RegKind::PacketEnd => "the packet's end",
            RegKind::Stack => "a pointer to the stack",
            RegKind::Map => "a map",
            RegKind::MapValue => "a pointer to a map's value",
            RegKind::Function => "a function",
            RegKind::RingRecord => "a pointer to a reserved record",
            RegKind::Uninit => "nothing that was set",
        }
    }
}

impl RegType {
    pub const UNKNOWN: RegType = RegType::Scalar(Interval::ANY);

    pub fn kind(self) -> RegKind {
        match self {
            RegType::Uninit => RegKind::Uninit,
            RegType::Scalar(_) => RegKind::Scalar,
            RegType::Context(_) => RegKind::Context,
            RegType::Packet { .. } => RegKind::Packet,
            RegType::PacketEnd => RegKind::PacketEnd,
            RegType::Stack { .. } => RegKind::Stack,
            RegType::Map(_) => RegKind::Map,
            RegType::MapValue { .. } => RegKind::MapValue,
            RegType::Function { .. } => RegKind::Function,
            RegType::RingRecord { .. } => RegKind::RingRecord,
            RegType::Conflict(first, _) => first,
        }
    }

    /// In words.
    pub fn describe(self) -> String {
        match self {
            RegType::Conflict(a, b) => format!("{} on one way, and {} on another", a.describe(), b.describe()),
            _ if self.is_nullable() => format!("{}, or NULL", self.kind().describe()),
            _ => self.kind().describe().into(),
        }
    }

    pub fn as_scalar(self) -> Option<Interval> {
        match self {
            RegType::Scalar(range) => Some(range),
            _ => None,
        }
    }

    pub fn is_pointer(self) -> bool {
        !matches!(self, RegType::Uninit | RegType::Scalar(_) | RegType::Conflict(..))
    }

    /// Whether it may be NULL instead.
    pub fn is_nullable(self) -> bool {
        matches!(
            self,
            RegType::Packet { nullable: true, .. }
                | RegType::MapValue { nullable: true, .. }
                | RegType::RingRecord { nullable: true, .. }
        )
    }

    fn is_null(self) -> bool {
        self == RegType::Scalar(Interval::constant(0))
    }

    fn with_null(self) -> Option<RegType> {
        match self {
            RegType::Packet { name, off, floor, .. } => Some(RegType::Packet { name, off, floor, nullable: true }),
            RegType::MapValue { map, off, name, .. } => Some(RegType::MapValue { map, off, name, nullable: true }),
            RegType::RingRecord { record, off, name, .. } => {
                Some(RegType::RingRecord { record, off, name, nullable: true })
            }
            _ => None,
        }
    }

    /// Whether nothing could be done with what is one of two, and something with each.
    fn conflicts_with(self, other: RegType) -> bool {
        let joined = self.join(other, |_, _| (ANONYMOUS, 0));
        let is_lost = |ty: RegType| matches!(ty, RegType::Uninit | RegType::Conflict(..));
        // NULL, and a pointer that can be moved as long as it is none.
        let is_null = |a: RegType, b: RegType| a.is_null() && b.is_pointer() && !b.is_nullable();
        is_lost(joined) && !(is_lost(self) && is_lost(other)) || is_null(self, other) || is_null(other, self)
    }

    /// The name that it goes by, and may be asked by.
    pub fn name(self) -> SymbolicName {
        match self {
            RegType::Packet { name, .. } | RegType::MapValue { name, .. } | RegType::RingRecord { name, .. } => name,
            _ => PACKET_START,
        }
    }

    /// The same by no name.
    pub fn without_name(self) -> RegType {
        match self {
            RegType::Packet { off, floor, nullable, .. } => RegType::Packet { name: ANONYMOUS, off, floor, nullable },
            RegType::MapValue { map, off, nullable, .. } => RegType::MapValue { map, off, name: ANONYMOUS, nullable },
            RegType::RingRecord { record, off, nullable, .. } => {
                RegType::RingRecord { record, off, name: ANONYMOUS, nullable }
            }
            other => other,
        }
    }

    /// What is one of two; `name` gives what was known by two names, and distances from there, one of its own.
    fn join(
        self,
        other: RegType,
        name: impl FnOnce((SymbolicName, i64), (SymbolicName, i64)) -> (SymbolicName, i64),
    ) -> RegType {
        if self == other {
            return self;
        }
        match (self, other) {
            (RegType::Uninit, _) | (_, RegType::Uninit) => RegType::Uninit,
            (RegType::Scalar(a), RegType::Scalar(b)) => RegType::Scalar(a.join(b)),
            (
                RegType::Packet { name: a, off, floor, nullable },
                RegType::Packet { name: b, off: there, floor: other, nullable: or },
            ) => {
                let (nullable, floor) = (nullable || or, floor.min(other));
                match (a, off) == (b, there) && a != ANONYMOUS {
                    true => RegType::Packet { name: a, off, floor, nullable },
                    false => {
                        let (name, off) = name((a, off), (b, there));
                        RegType::Packet { name, off, floor, nullable }
                    }
                }
            }
            (RegType::Stack { frame, off: a }, RegType::Stack { frame: other, off: b }) if frame == other => {
                RegType::Stack { frame, off: a.join(b) }
            }
            (
                RegType::MapValue { map, off: a, name: x, nullable },
                RegType::MapValue { map: other, off: b, name: y, nullable: or },
            ) if map == other => {
                let name = if x == y { x } else { ANONYMOUS };
                RegType::MapValue { map, off: a.join(b), name, nullable: nullable || or }
            }
            (
                RegType::RingRecord { record, off: a, name: x, nullable },
                RegType::RingRecord { record: other, off: b, name: y, nullable: or },
            ) if record == other => {
                let name = if x == y { x } else { ANONYMOUS };
                RegType::RingRecord { record, off: a.join(b), name, nullable: nullable || or }
            }
            // What is found out about others of that name does not hold for this NULL.
            (null, pointer) | (pointer, null) if null.is_null() && pointer.with_null().is_some() => {
                match pointer.with_null() {
                    Some(packet @ RegType::Packet { .. }) => packet,
                    other => other.unwrap_or(pointer).without_name(),
                }
            }
            (RegType::Conflict(..), _) => self,
            (_, RegType::Conflict(..)) => other,
            _ => RegType::Conflict(self.kind(), other.kind()),
        }
    }

    /// What it may become if it goes on to change as it did from `before`; numbers up or down to the next of some bounds.
    fn widen(self, before: RegType, bounds: &[u64]) -> RegType {
        match (self, before) {
            (RegType::Scalar(now), RegType::Scalar(before)) => RegType::Scalar(now.widen(before, bounds)),
            (RegType::Packet { name, off, floor, nullable }, RegType::Packet { floor: before, .. })
                if floor < before =>
            {
                RegType::Packet { name, off, floor: -OFFSET_LIMIT, nullable }
            }
            (RegType::Stack { frame, off }, RegType::Stack { off: before, .. }) => {
                RegType::Stack { frame, off: off.widen(before) }
            }
            (RegType::MapValue { map, off, name, nullable }, RegType::MapValue { off: before, .. }) => {
                RegType::MapValue { map, off: off.widen(before), name, nullable }
            }
            (RegType::RingRecord { record, off, name, nullable }, RegType::RingRecord { off: before, .. }) => {
                RegType::RingRecord { record, off: off.widen(before), name, nullable }
            }
            _ => self,
        }
    }
}

/// A half that no computation of the block under way has asked for: it is in its variable, unless the type says all of it.
pub(crate) const NOT_LOADED: Id = Id::MAX;

/// A register: its type, and in the block under way its halves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Value {
    pub ty: RegType,
    pub low: Id,
    pub high: Id,
}

impl Value {
    pub const fn of(ty: RegType) -> Value {
        Value { ty, low: NOT_LOADED, high: NOT_LOADED }
    }
}

/// A word of the stack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Word {
    /// The type of all 8 bytes where this is the lower word of a register that was stored; else a number of 32 bits.
    pub ty: RegType,
    /// Whether this is the higher word of such a register.
    pub is_high_half: bool,
    pub id: Id,
}

impl Word {
    const UNINIT: Word = Word { ty: RegType::Uninit, is_high_half: false, id: NOT_LOADED };
}

/// A number that is what a field of a map's value holds, and perhaps an amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CarriedAlias {
    /// Where the number is: a register's or a word's lower half.
    pub number: Variable,
    pub map: u16,
    pub place: FieldLocation,
    pub size: u32,
    /// The load that it is from.
    pub load: u32,
    /// Whether there may be an amount: it is in its variable ([`Var::Amount`]).
    pub has_amount: bool,
}

/// Where a field is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FieldLocation {
    /// The entry index plus one, and the byte offset in the value.
    Constant { entry: u32, at: u32 },
    /// `off` bytes after the pointer that a variable holds.
    Relative { pointer: Variable, off: u32 },
}

/// A function under way.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    /// Registers 6 to 9, and behind them four that no program sees: a loop's round, its rounds, its argument, its function.
    pub saved: [Value; 8],
    pub words: Vec<Word>,
}

impl Frame {
    pub fn new() -> Frame {
        Frame { saved: [Value::of(RegType::Uninit); 8], words: vec![Word::UNINIT; STACK_WORDS] }
    }
}

/// What has blocks of its own where ways meet, beyond pointers into different things; each with all before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sensitivity {
    /// Nothing more.
    Minimal,
    /// A pointer and a scalar; an initialised register and an uninitialised one.
    Types,
    /// Pointers to different constant offsets in the stack or a map value, and different constant
    /// results of functions.
    Offsets,
}

/// All that is known at a place of the program.
#[derive(Debug, Clone)]
pub(crate) struct State {
    /// Registers 0 to 5; and behind them where a packet is to be redirected to, how many tail calls there were, how
    /// many bytes of metadata there are, and how many random numbers there were.
    pub scratch: [Value; 10],
    pub frames: Vec<Frame>,
    /// The words of the metadata, as a frame has them; none as long as nobody has accessed it.
    pub metadata: Vec<Word>,
    /// Bytes that the packet is known to have.
    pub proven_length: u32,
    /// Bytes that it is known to have behind places with names.
    pub extents: BTreeMap<SymbolicName, u32>,
    /// Numbers that are still what is in maps' values, in order.
    pub field_aliases: Vec<CarriedAlias>,
    /// What this packet has stored in values that it may have copies of.
    pub stored: StoredBytes,
}

impl State {
    /// That at a program's beginning: `r1` is the context.
    pub fn at_entry() -> State {
        let mut scratch = [Value::of(RegType::Uninit); 10];
        scratch[1].ty = RegType::Context(0);
        scratch[6..].iter_mut().for_each(|value| value.ty = RegType::Scalar(Interval::constant(0)));
        State {
            scratch,
            frames: vec![Frame::new()],
            metadata: Vec::new(),
            proven_length: 0,
            extents: BTreeMap::new(),
            field_aliases: Vec::new(),
            stored: StoredBytes::default(),
        }
    }

    /// At the beginning of a block, where nothing is computed yet.
    pub fn unload(&mut self) {
        self.values().for_each(|value| (value.low, value.high) = (NOT_LOADED, NOT_LOADED));
        self.frames.iter_mut().flat_map(|frame| &mut frame.words).for_each(|word| word.id = NOT_LOADED);
        self.metadata.iter_mut().for_each(|word| word.id = NOT_LOADED);
    }

    /// The words of a frame's stack, or of the metadata.
    pub fn words(&mut self, frame: u8) -> &mut Vec<Word> {
        if frame != METADATA_FRAME {
            return &mut self.frames[usize::from(frame)].words;
        }
        if self.metadata.is_empty() {
            self.metadata = vec![Word::UNINIT; STACK_WORDS];
        }
        &mut self.metadata
    }

    fn values(&mut self) -> impl Iterator<Item = &mut Value> {
        self.scratch.iter_mut().chain(self.frames.iter_mut().flat_map(|frame| &mut frame.saved))
    }

    fn types(&mut self) -> impl Iterator<Item = &mut RegType> {
        let State { scratch, frames, metadata, .. } = self;
        let values = scratch.iter_mut().map(|value| &mut value.ty);
        let framed = frames.iter_mut().flat_map(|frame| {
            let saved = frame.saved.iter_mut().map(|value| &mut value.ty);
            saved.chain(frame.words.iter_mut().map(|word| &mut word.ty))
        });
        values.chain(framed).chain(metadata.iter_mut().map(|word| &mut word.ty))
    }

    /// All of them, in their order. (Much faster than to collect what the iterator gives one by one.)
    fn all_types(&mut self) -> Vec<RegType> {
        let mut all = Vec::with_capacity(self.type_count());
        self.types().for_each(|ty| all.push(*ty));
        all
    }

    /// How many there are, about.
    fn type_count(&self) -> usize {
        self.scratch.len() + (self.frames.len() + 1) * (STACK_WORDS + 8)
    }

    /// The places, as [`join`](State::join) numbers them, where pointers into the packet are.
    pub fn packet_pointer_slots(&mut self) -> Vec<usize> {
        let all = self.types().enumerate();
        all.filter(|(_, ty)| matches!(ty, RegType::Packet { .. })).map(|(slot, _)| slot).collect()
    }

    /// All registers, each by its frame and number.
    fn registers(&self) -> impl Iterator<Item = (u8, u8, &Value)> {
        let scratch = (0..).zip(&self.scratch);
        let scratch = scratch.map(|(at, it)| (0, if at < 6 { at } else { at - 6 + REDIRECT_TARGET }, it));
        let framed = (0..).zip(&self.frames).flat_map(|(frame, it)| {
            let saved = (0..).zip(&it.saved);
            saved.map(move |(at, it)| (frame, if at < 4 { at + 6 } else { at - 4 + LOOP_ROUND }, it))
        });
        scratch.chain(framed)
    }

    /// A register by its frame and number.
    pub fn register(&mut self, frame: u8, register: u8) -> &mut Value {
        match register {
            0..6 => &mut self.scratch[usize::from(register)],
            REDIRECT_TARGET.. => &mut self.scratch[usize::from(register - REDIRECT_TARGET + 6)],
            // 10 is the frame itself.
            _ => {
                let at = if register < 10 { register - 6 } else { register - LOOP_ROUND + 4 };
                &mut self.frames[usize::from(frame)].saved[usize::from(at)]
            }
        }
    }

    /// Registers that were computed in the block under way, and registers on the stack, each by its lower half's variable.
    pub fn loaded_values(&self) -> Vec<(Variable, Value)> {
        let registers = self.registers();
        let registers = registers.map(|(frame, register, it)| (Variable::Register { frame, register, half: 0 }, *it));
        let framed = (0..).zip(&self.frames).flat_map(|(frame, it)| {
            let pairs = (0..).zip(it.words.windows(2)).filter(|(_, pair)| pair[1].is_high_half);
            pairs.map(move |(word, pair)| {
                (Variable::Stack { frame, word }, Value { ty: pair[0].ty, low: pair[0].id, high: pair[1].id })
            })
        });
        registers.chain(framed).filter(|(_, it)| it.low != NOT_LOADED && it.high != NOT_LOADED).collect()
    }

    /// What was computed for variables in the block under way.
    pub fn loaded_variables(&self) -> Vec<(Variable, Id)> {
        let mut all = Vec::new();
        for (frame, register, value) in self.registers() {
            all.push((Variable::Register { frame, register, half: 0 }, value.low));
            all.push((Variable::Register { frame, register, half: 1 }, value.high));
        }
        let framed = (0..).zip(&self.frames).map(|(frame, it)| (frame, &it.words));
        for (frame, words) in framed.chain([(METADATA_FRAME, &self.metadata)]) {
            let words = words.iter().enumerate();
            all.extend(words.map(|(word, it)| (Variable::Stack { frame, word: word as u8 }, it.id)));
        }
        all.retain(|(_, id)| *id != NOT_LOADED);
        all
    }

    /// Whether another state may be joined with this one: pointers that are asked for do not point into different things; and
    /// of what else is kept [`Apart`] there is nothing.
    pub fn can_join(&self, other: &State, asked: RegisterSet, sensitivity: Sensitivity) -> bool {
        let same = |a: &Value, b: &Value| match (a.ty, b.ty) {
            (a, b) if sensitivity >= Sensitivity::Types && a.conflicts_with(b) => false,
            (RegType::Stack { off: a, .. }, RegType::Stack { off: b, .. })
                if sensitivity >= Sensitivity::Offsets && a != b =>
            {
                false
            }
            (RegType::MapValue { off: a, .. }, RegType::MapValue { off: b, .. })
                if sensitivity >= Sensitivity::Offsets && a != b =>
            {
                false
            }
            (RegType::Map(a), RegType::Map(b)) => a == b,
            (RegType::MapValue { map: a, .. }, RegType::MapValue { map: b, .. }) => a == b,
            (RegType::Stack { frame: a, .. }, RegType::Stack { frame: b, .. }) => a == b,
            (RegType::RingRecord { record: a, .. }, RegType::RingRecord { record: b, .. }) => a == b,
            // What a map of maps gives, and NULL.
            (RegType::Map(_), other) | (other, RegType::Map(_)) => other.as_scalar().is_none() && !other.is_pointer(),
            (a, b) => !a.is_pointer() || !b.is_pointer() || a.kind() == b.kind(),
        };
        let is_asked = |register: usize| asked >> register & 1 != 0;
        let mut scratch = self.scratch.iter().zip(&other.scratch).take(6).enumerate();
        if !scratch.all(|(register, (a, b))| !is_asked(register) || same(a, b)) {
            return false;
        }
        let [result, theirs] =
            [self, other].map(|state| state.scratch[0].ty.as_scalar().and_then(Interval::as_constant));
        if sensitivity >= Sensitivity::Offsets && is_asked(0) && result.zip(theirs).is_some_and(|(a, b)| a != b) {
            return false;
        }
        // Maps that a map of maps gave may have been put away.
        let kept = |word: &Word| match word.ty {
            RegType::Map(map) => Some(Some(map)),
            ty => ty.is_null().then_some(None),
        };
        let differs = |(a, b): (&Word, &Word)| {
            let one = matches!(a.ty, RegType::Map(_)) || matches!(b.ty, RegType::Map(_));
            let lost = sensitivity >= Sensitivity::Types
                && (a.ty.is_pointer() || b.ty.is_pointer())
                && a.ty.conflicts_with(b.ty);
            lost || one && kept(a).zip(kept(b)).is_some_and(|(a, b)| a != b)
        };
        if self.frames.iter().zip(&other.frames).any(|(a, b)| a.words.iter().zip(&b.words).any(differs)) {
            return false;
        }
        let last = self.frames.len() - 1;
        self.frames.iter().zip(&other.frames).enumerate().all(|(frame, (a, b))| {
            let mut saved = a.saved.iter().zip(&b.saved).enumerate();
            saved.all(|(register, (a, b))| frame == last && register < 4 && !is_asked(register + 6) || same(a, b))
        })
    }

    /// Lets go of registers that nobody asks for.
    pub fn drop_dead_registers(&mut self, asked: RegisterSet) {
        let is_asked = |register: usize| asked >> register & 1 != 0;
        let scratch = self.scratch.iter_mut().take(6).enumerate();
        scratch.filter(|(register, _)| !is_asked(*register)).for_each(|(_, it)| it.ty = RegType::Uninit);
        if let Some(frame) = self.frames.last_mut() {
            let saved = frame.saved.iter_mut().take(4).enumerate();
            saved.filter(|(register, _)| !is_asked(register + 6)).for_each(|(_, it)| it.ty = RegType::Uninit);
        }
    }

    /// Behind a loop that a helper goes round: what its rounds alone ask for is gone.
    pub fn without_loop_registers(mut self) -> State {
        if let Some(frame) = self.frames.last_mut() {
            frame.saved[4..].fill(Value::of(RegType::Uninit));
        }
        self
    }

    /// Makes a name free for another place.
    pub fn forget_names(&mut self, is_it: impl Fn(SymbolicName) -> bool) {
        self.extents.retain(|name, _| !is_it(*name));
        self.types().filter(|ty| ty.is_pointer() && is_it(ty.name())).for_each(|ty| *ty = ty.without_name());
    }

    /// Pointers into the packet lead nowhere any more: its ends have moved. They are numbers, of which differences still say
    /// what they said.
    pub fn invalidate_packet_pointers(&mut self) {
        (self.proven_length, self.extents) = (0, BTreeMap::new());
        self.types()
            .filter(|ty| matches!(ty.kind(), RegKind::Packet | RegKind::PacketEnd))
            .for_each(|ty| *ty = RegType::UNKNOWN);
    }

    /// Whether a record is pointed to.
    pub fn has_record_pointer(&mut self, number: u16) -> bool {
        self.types().any(|ty| matches!(ty, RegType::RingRecord { record, .. } if *record == number))
    }

    /// A record is handed over: pointers to it are numbers now.
    pub fn invalidate_record(&mut self, number: u16) {
        let all = self.types();
        all.filter(|ty| matches!(ty, RegType::RingRecord { record, .. } if *record == number))
            .for_each(|ty| *ty = RegType::UNKNOWN);
    }

    /// Changes what every copy of a value is known as: those with the same halves, and those of the same name.
    pub fn refine(&mut self, of: Value, name: SymbolicName, to: impl Fn(RegType) -> RegType) {
        let is_named = |ty: RegType| ty.is_pointer() && ty.name() == name && name != PACKET_START && name != ANONYMOUS;
        let before = of.ty;
        for value in self.values() {
            let is_same = value.low != NOT_LOADED && (value.low, value.high) == (of.low, of.high) && value.ty == before;
            if is_named(value.ty) || is_same {
                value.ty = to(value.ty);
            }
        }
        for frame in &mut self.frames {
            for at in 0..STACK_WORDS {
                let word = frame.words[at];
                let rest = frame.words.get(at + 1).copied().unwrap_or(Word::UNINIT);
                let is_same = rest.is_high_half
                    && word.id != NOT_LOADED
                    && (word.id, rest.id) == (of.low, of.high)
                    && word.ty == before;
                if is_named(word.ty) || is_same {
                    frame.words[at].ty = to(word.ty);
                }
            }
        }
    }

    /// How many bytes the packet is known to have behind each pointer into it, by the places' numbers.
    fn bytes_after_pointers(&mut self) -> Vec<i64> {
        let (length, extents) = (self.proven_length, self.extents.clone());
        let behind = |ty: &mut RegType| match *ty {
            RegType::Packet { name: PACKET_START, off, .. } => i64::from(length) - off,
            RegType::Packet { name, off, .. } => extents.get(&name).map_or(0, |&extent| i64::from(extent) - off),
            _ => 0,
        };
        let mut all = Vec::with_capacity(self.type_count());
        self.types().for_each(|ty| all.push(behind(ty)));
        all
    }

    /// Takes in another state that leads to the same block; whether that changed this one. What changes is let go, numbers up
    /// or down to the next of the bounds, where `widen` has these. `name` gives a place that was known by two names its name at
    /// this block, by its number.
    pub fn join(
        &mut self,
        mut other: State,
        widen: Option<&[u64]>,
        name: impl Fn(usize) -> SymbolicName,
        is_ours: impl Fn(SymbolicName) -> bool,
    ) -> bool {
        if !self.metadata.is_empty() || !other.metadata.is_empty() {
            self.words(METADATA_FRAME);
            other.words(METADATA_FRAME);
        }
        let behind = (self.bytes_after_pointers(), other.bytes_after_pointers());
        // They are this block's: what comes from a round before is another place.
        other.forget_names(&is_ours);
        // Pointers at the same distance from each other on both ways stay so: by what they were known, the name for both, and
        // where that is.
        let mut together: HashMap<(SymbolicName, SymbolicName, i64), (SymbolicName, i64)> = HashMap::new();
        let mut extents: BTreeMap<SymbolicName, i64> = BTreeMap::new();
        let (others, before) = (other.all_types(), self.all_types());
        let mut number = 0;
        self.types().for_each(|ty| {
            let other = others[number];
            let joined = ty.join(other, |(a, off), (b, there)| {
                if a == ANONYMOUS || b == ANONYMOUS {
                    return (name(number), 0);
                }
                let (name, from) = *together.entry((a, b, off - there)).or_insert_with(|| (name(number), off));
                (name, off - from)
            });
            let joined = widen.map_or(joined, |bounds| joined.widen(*ty, bounds));
            if let RegType::Packet { name, off, .. } = joined
                && is_ours(name)
            {
                let extent = behind.0[number].min(behind.1[number]) + off;
                extents.entry(name).and_modify(|known| *known = extent.min(*known)).or_insert(extent);
            }
            *ty = joined;
            number += 1;
        });
        let mut changed = false;
        for (frame, other) in self.frames.iter_mut().zip(&other.frames) {
            for (word, other) in frame.words.iter_mut().zip(&other.words) {
                // Half of a register here, and something else there.
                if word.is_high_half != other.is_high_half {
                    changed |= word.is_high_half;
                    (word.is_high_half, word.ty) = (false, RegType::UNKNOWN);
                }
            }
            // A register's lower half without the other is a number.
            for at in 0..STACK_WORDS {
                let has_high_half = frame.words.get(at + 1).is_some_and(|word| word.is_high_half);
                let word = &mut frame.words[at];
                if word.ty.is_pointer() && !has_high_half {
                    word.ty = RegType::UNKNOWN;
                }
            }
        }
        // In the end: on the way there a word may have become something else and come back.
        changed |= before != self.all_types();
        let length = self.proven_length.min(other.proven_length);
        changed |= length != self.proven_length;
        self.proven_length = length;
        let before = self.extents.clone();
        self.extents.retain(|name, extent| match other.extents.get(name) {
            Some(&there) => {
                *extent = (*extent).min(there);
                true
            }
            None => false,
        });
        for (name, extent) in extents {
            let shrinks = before.get(&name).is_some_and(|&before| extent < i64::from(before));
            if extent > 0 && !(widen.is_some() && shrinks) {
                self.extents.insert(name, extent as u32);
            }
        }
        changed |= before != self.extents;
        let before = std::mem::take(&mut self.field_aliases);
        let same = |a: &CarriedAlias, b: &CarriedAlias| {
            CarriedAlias { has_amount: false, ..*a } == CarriedAlias { has_amount: false, ..*b }
        };
        self.field_aliases.extend(before.iter().filter_map(|it| {
            let there = other.field_aliases.iter().find(|there| same(it, there))?;
            Some(CarriedAlias { has_amount: it.has_amount || there.has_amount, ..*it })
        }));
        changed |= before != self.field_aliases;
        changed | self.stored.join(&other.stored)
    }
}
