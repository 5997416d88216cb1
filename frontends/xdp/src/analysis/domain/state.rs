//! What is in registers and on the stack: found by going through the program with types in place of values.

use std::collections::{BTreeMap, HashMap};

use crate::analysis::domain::range::{Range, gcd};
use crate::analysis::register_liveness::Registers;
use crate::analysis::transfer::{ROUND, TARGET};
use crate::lower::ir::{Id, Var};
use crate::lower::privatize::Stored;

/// Words of a frame's stack: 512 bytes (`MAX_BPF_STACK`).
pub(crate) const STACK_WORDS: usize = 128;

/// Frames at most (`MAX_CALL_FRAMES`).
pub(crate) const MAX_FRAMES: usize = 8;

/// What is kept like one more frame: the metadata in front of the packet, with the packet's first byte for its top.
pub(crate) const META: u8 = MAX_FRAMES as u8;

/// Frames that may be memory.
pub(crate) const STACKS: usize = MAX_FRAMES + 1;

/// A name for a place in the packet that is known only when the packet is there, so that what was found out about it can be
/// told of every copy. [`FIXED`]: the packet's first byte. [`NOBODY`]: one of which nothing can be told.
pub(crate) type Name = u32;
pub(crate) const FIXED: Name = 0;
pub(crate) const NOBODY: Name = u32::MAX;

/// Beyond this nothing is told of offsets: memory has no such.
pub(crate) const FAR: i64 = 1 << 40;

/// From one offset to another, both included, in steps of so many bytes. One offset has no step: 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offsets {
    pub low: i64,
    pub high: i64,
    step: u64,
}

impl Offsets {
    pub const fn one(at: i64) -> Offsets {
        Offsets { low: at, high: at, step: 0 }
    }

    pub fn exact(self) -> Option<i64> {
        (self.low == self.high).then_some(self.low)
    }

    /// Whether all of them are multiples of a number, so many bytes on.
    pub fn are_multiples(self, of: u32, on: i64) -> bool {
        (self.low + on).rem_euclid(of.into()) == 0 && self.step.is_multiple_of(of.into())
    }

    fn union(self, other: Offsets) -> Offsets {
        let step = gcd(gcd(self.step, other.step), self.low.abs_diff(other.low));
        Offsets { low: self.low.min(other.low), high: self.high.max(other.high), step }
    }

    /// Moved by numbers of 64 bits, with a sign.
    pub fn add(self, by: Range) -> Offsets {
        let (low, high) = by.signed();
        self.moved(by, self.low.saturating_add(low), self.high.saturating_add(high))
    }

    pub fn sub(self, by: Range) -> Offsets {
        let (low, high) = by.signed();
        self.moved(by, self.low.saturating_sub(high), self.high.saturating_sub(low))
    }

    /// Those from one to another that they have become by that. Steps go on from the first, also where that is a little before
    /// what is told apart, as of what was widened; where it is far from there, nothing is told of steps.
    fn moved(self, by: Range, low: i64, high: i64) -> Offsets {
        let step = gcd(self.step, by.step);
        let step = if (-2 * FAR..=FAR).contains(&low) && step <= FAR as u64 { step } else { 1 };
        let rest = (low.min(-FAR) + FAR).rem_euclid(step.max(1) as i64);
        let (low, high) = (low.clamp(-FAR + rest, FAR), high.clamp(-FAR, FAR));
        Offsets { low, high, step: if low == high { 0 } else { step } }
    }

    fn widened(self, before: Offsets) -> Offsets {
        // Steps go on from the end that stays.
        match (self.low < before.low, self.high > before.high) {
            (false, false) => self,
            (false, true) => Offsets { high: FAR, ..self },
            (true, above) => {
                let rest = (self.low + FAR).unsigned_abs() % self.step.max(1);
                Offsets { low: -FAR + rest as i64, high: if above { FAR } else { self.high }, ..self }
            }
        }
    }
}

/// What a register holds. Numbers have their halves; pointers have in the low half an offset, and in the high half what they
/// point into, which is never zero: zero is NULL for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ty {
    /// Nothing that may be read.
    Nothing,
    /// A number.
    Number(Range),
    /// The context, `struct xdp_md`, and bytes from its beginning.
    Context(i64),
    /// In the packet: by name, and bytes from there; and how many bytes from the packet's first byte it is at least.
    Packet { name: Name, off: i64, floor: i64, nullable: bool },
    /// The packet's end.
    End,
    /// A frame's stack, or the packet's metadata ([`META`]), and bytes from its top.
    Stack { frame: u8, off: Offsets },
    /// A map, by its number.
    Map(u16),
    /// A map's value. The low half is the offset, the high half the entry's number and one. `name` is that of the lookup,
    /// where it may be NULL.
    Value { map: u16, off: Offsets, name: Name, nullable: bool },
    /// A function: its section and first instruction.
    Function { section: u16, first: u32 },
    /// In a record for a ring buffer that is not handed over yet, by its number: bytes from its beginning. `name` is that of
    /// what reserved it.
    Record { record: u16, off: Offsets, name: Name, nullable: bool },
    /// Something else on each way that leads here.
    Several(Which, Which),
}

/// What a pointer points into, for words about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Number,
    Context,
    Packet,
    End,
    Stack,
    Map,
    Value,
    Function,
    Record,
    Nothing,
}

impl Which {
    pub fn words(self) -> &'static str {
        match self {
            Which::Number => "a number",
            Which::Context => "the context",
            Which::Packet => "a pointer into the packet",
            Which::End => "the packet's end",
            Which::Stack => "a pointer to the stack",
            Which::Map => "a map",
            Which::Value => "a pointer to a map's value",
            Which::Function => "a function",
            Which::Record => "a pointer to a reserved record",
            Which::Nothing => "nothing that was set",
        }
    }
}

impl Ty {
    pub const UNKNOWN: Ty = Ty::Number(Range::ANY);

    pub fn which(self) -> Which {
        match self {
            Ty::Nothing => Which::Nothing,
            Ty::Number(_) => Which::Number,
            Ty::Context(_) => Which::Context,
            Ty::Packet { .. } => Which::Packet,
            Ty::End => Which::End,
            Ty::Stack { .. } => Which::Stack,
            Ty::Map(_) => Which::Map,
            Ty::Value { .. } => Which::Value,
            Ty::Function { .. } => Which::Function,
            Ty::Record { .. } => Which::Record,
            Ty::Several(first, _) => first,
        }
    }

    /// In words.
    pub fn words(self) -> String {
        match self {
            Ty::Several(a, b) => format!("{} on one way, and {} on another", a.words(), b.words()),
            _ if self.is_nullable() => format!("{}, or NULL", self.which().words()),
            _ => self.which().words().into(),
        }
    }

    pub fn range(self) -> Option<Range> {
        match self {
            Ty::Number(range) => Some(range),
            _ => None,
        }
    }

    pub fn is_pointer(self) -> bool {
        !matches!(self, Ty::Nothing | Ty::Number(_) | Ty::Several(..))
    }

    /// Whether it may be NULL instead.
    pub fn is_nullable(self) -> bool {
        matches!(
            self,
            Ty::Packet { nullable: true, .. } | Ty::Value { nullable: true, .. } | Ty::Record { nullable: true, .. }
        )
    }

    fn is_null(self) -> bool {
        self == Ty::Number(Range::one(0))
    }

    fn or_null(self) -> Option<Ty> {
        match self {
            Ty::Packet { name, off, floor, .. } => Some(Ty::Packet { name, off, floor, nullable: true }),
            Ty::Value { map, off, name, .. } => Some(Ty::Value { map, off, name, nullable: true }),
            Ty::Record { record, off, name, .. } => Some(Ty::Record { record, off, name, nullable: true }),
            _ => None,
        }
    }

    /// Whether nothing could be done with what is one of two, and something with each.
    fn parts(self, other: Ty) -> bool {
        let joined = self.join(other, |_, _| (NOBODY, 0));
        let is_lost = |ty: Ty| matches!(ty, Ty::Nothing | Ty::Several(..));
        // NULL, and a pointer that can be moved as long as it is none.
        let is_null = |a: Ty, b: Ty| a.is_null() && b.is_pointer() && !b.is_nullable();
        is_lost(joined) && !(is_lost(self) && is_lost(other)) || is_null(self, other) || is_null(other, self)
    }

    /// The name that it goes by, and may be asked by.
    pub fn name(self) -> Name {
        match self {
            Ty::Packet { name, .. } | Ty::Value { name, .. } | Ty::Record { name, .. } => name,
            _ => FIXED,
        }
    }

    /// The same by no name.
    pub fn nameless(self) -> Ty {
        match self {
            Ty::Packet { off, floor, nullable, .. } => Ty::Packet { name: NOBODY, off, floor, nullable },
            Ty::Value { map, off, nullable, .. } => Ty::Value { map, off, name: NOBODY, nullable },
            Ty::Record { record, off, nullable, .. } => Ty::Record { record, off, name: NOBODY, nullable },
            other => other,
        }
    }

    /// What is one of two; `name` gives what was known by two names, and distances from there, one of its own.
    fn join(self, other: Ty, name: impl FnOnce((Name, i64), (Name, i64)) -> (Name, i64)) -> Ty {
        if self == other {
            return self;
        }
        match (self, other) {
            (Ty::Nothing, _) | (_, Ty::Nothing) => Ty::Nothing,
            (Ty::Number(a), Ty::Number(b)) => Ty::Number(a.union(b)),
            (
                Ty::Packet { name: a, off, floor, nullable },
                Ty::Packet { name: b, off: there, floor: other, nullable: or },
            ) => {
                let (nullable, floor) = (nullable || or, floor.min(other));
                match (a, off) == (b, there) && a != NOBODY {
                    true => Ty::Packet { name: a, off, floor, nullable },
                    false => {
                        let (name, off) = name((a, off), (b, there));
                        Ty::Packet { name, off, floor, nullable }
                    }
                }
            }
            (Ty::Stack { frame, off: a }, Ty::Stack { frame: other, off: b }) if frame == other => {
                Ty::Stack { frame, off: a.union(b) }
            }
            (Ty::Value { map, off: a, name: x, nullable }, Ty::Value { map: other, off: b, name: y, nullable: or })
                if map == other =>
            {
                let name = if x == y { x } else { NOBODY };
                Ty::Value { map, off: a.union(b), name, nullable: nullable || or }
            }
            (
                Ty::Record { record, off: a, name: x, nullable },
                Ty::Record { record: other, off: b, name: y, nullable: or },
            ) if record == other => {
                let name = if x == y { x } else { NOBODY };
                Ty::Record { record, off: a.union(b), name, nullable: nullable || or }
            }
            // What is found out about others of that name does not hold for this NULL.
            (null, pointer) | (pointer, null) if null.is_null() && pointer.or_null().is_some() => {
                match pointer.or_null() {
                    Some(packet @ Ty::Packet { .. }) => packet,
                    other => other.unwrap_or(pointer).nameless(),
                }
            }
            (Ty::Several(..), _) => self,
            (_, Ty::Several(..)) => other,
            _ => Ty::Several(self.which(), other.which()),
        }
    }

    /// What it may become if it goes on to change as it did from `before`; numbers up or down to the next of some bounds.
    fn widened(self, before: Ty, bounds: &[u64]) -> Ty {
        match (self, before) {
            (Ty::Number(now), Ty::Number(before)) => Ty::Number(now.widened(before, bounds)),
            (Ty::Packet { name, off, floor, nullable }, Ty::Packet { floor: before, .. }) if floor < before => {
                Ty::Packet { name, off, floor: -FAR, nullable }
            }
            (Ty::Stack { frame, off }, Ty::Stack { off: before, .. }) => Ty::Stack { frame, off: off.widened(before) },
            (Ty::Value { map, off, name, nullable }, Ty::Value { off: before, .. }) => {
                Ty::Value { map, off: off.widened(before), name, nullable }
            }
            (Ty::Record { record, off, name, nullable }, Ty::Record { off: before, .. }) => {
                Ty::Record { record, off: off.widened(before), name, nullable }
            }
            _ => self,
        }
    }
}

/// A half that no computation of the block under way has asked for: it is in its variable, unless the type says all of it.
pub(crate) const ASLEEP: Id = Id::MAX;

/// A register: its type, and in the block under way its halves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Value {
    pub ty: Ty,
    pub low: Id,
    pub high: Id,
}

impl Value {
    pub const fn of(ty: Ty) -> Value {
        Value { ty, low: ASLEEP, high: ASLEEP }
    }
}

/// A word of the stack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Word {
    /// The type of all 8 bytes where this is the lower word of a register that was stored; else a number of 32 bits.
    pub ty: Ty,
    /// Whether this is the higher word of such a register.
    pub is_rest: bool,
    pub id: Id,
}

impl Word {
    const FRESH: Word = Word { ty: Ty::Nothing, is_rest: false, id: ASLEEP };
}

/// A number that is what a field of a map's value holds, and perhaps an amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holding {
    /// Where the number is: a register's or a word's lower half.
    pub number: Var,
    pub map: u16,
    pub place: FieldPlace,
    pub size: u32,
    /// The load that it is from.
    pub load: u32,
    /// Whether there may be an amount: it is in its variable ([`Var::Amount`]).
    pub is_more: bool,
}

/// Where a field is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FieldPlace {
    /// The entry's number and one, and bytes from the value's beginning.
    Known { entry: u32, at: u32 },
    /// Bytes behind a pointer that is there.
    Behind { pointer: Var, off: u32 },
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
        Frame { saved: [Value::of(Ty::Nothing); 8], words: vec![Word::FRESH; STACK_WORDS] }
    }
}

/// What has blocks of its own where ways meet, beyond pointers into different things; each with all before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Apart {
    /// Nothing.
    Nothing,
    /// A pointer, and something else; a register that is set, and one that is not.
    Kinds,
    /// Pointers to different places of the stack or of a value, constants among these, and different results of functions.
    Places,
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
    pub length: u32,
    /// Bytes that it is known to have behind places with names.
    pub extents: BTreeMap<Name, u32>,
    /// Numbers that are still what is in maps' values, in order.
    pub holdings: Vec<Holding>,
    /// What this packet has stored in values that it may have copies of.
    pub stored: Stored,
}

impl State {
    /// That at a program's beginning: `r1` is the context.
    pub fn beginning() -> State {
        let mut scratch = [Value::of(Ty::Nothing); 10];
        scratch[1].ty = Ty::Context(0);
        scratch[6..].iter_mut().for_each(|value| value.ty = Ty::Number(Range::one(0)));
        State {
            scratch,
            frames: vec![Frame::new()],
            metadata: Vec::new(),
            length: 0,
            extents: BTreeMap::new(),
            holdings: Vec::new(),
            stored: Stored::default(),
        }
    }

    /// At the beginning of a block, where nothing is computed yet.
    pub fn asleep(&mut self) {
        self.values().for_each(|value| (value.low, value.high) = (ASLEEP, ASLEEP));
        self.frames.iter_mut().flat_map(|frame| &mut frame.words).for_each(|word| word.id = ASLEEP);
        self.metadata.iter_mut().for_each(|word| word.id = ASLEEP);
    }

    /// The words of a frame's stack, or of the metadata.
    pub fn words(&mut self, frame: u8) -> &mut Vec<Word> {
        if frame != META {
            return &mut self.frames[usize::from(frame)].words;
        }
        if self.metadata.is_empty() {
            self.metadata = vec![Word::FRESH; STACK_WORDS];
        }
        &mut self.metadata
    }

    fn values(&mut self) -> impl Iterator<Item = &mut Value> {
        self.scratch.iter_mut().chain(self.frames.iter_mut().flat_map(|frame| &mut frame.saved))
    }

    fn types(&mut self) -> impl Iterator<Item = &mut Ty> {
        let State { scratch, frames, metadata, .. } = self;
        let values = scratch.iter_mut().map(|value| &mut value.ty);
        let framed = frames.iter_mut().flat_map(|frame| {
            let saved = frame.saved.iter_mut().map(|value| &mut value.ty);
            saved.chain(frame.words.iter_mut().map(|word| &mut word.ty))
        });
        values.chain(framed).chain(metadata.iter_mut().map(|word| &mut word.ty))
    }

    /// All of them, in their order. (Much faster than to collect what the iterator gives one by one.)
    fn all_types(&mut self) -> Vec<Ty> {
        let mut all = Vec::with_capacity(self.room());
        self.types().for_each(|ty| all.push(*ty));
        all
    }

    /// How many there are, about.
    fn room(&self) -> usize {
        self.scratch.len() + (self.frames.len() + 1) * (STACK_WORDS + 8)
    }

    /// The places, as [`join`](State::join) numbers them, where pointers into the packet are.
    pub fn slots_of_packets(&mut self) -> Vec<usize> {
        let all = self.types().enumerate();
        all.filter(|(_, ty)| matches!(ty, Ty::Packet { .. })).map(|(slot, _)| slot).collect()
    }

    /// All registers, each by its frame and number.
    fn registers(&self) -> impl Iterator<Item = (u8, u8, &Value)> {
        let scratch = (0..).zip(&self.scratch);
        let scratch = scratch.map(|(at, it)| (0, if at < 6 { at } else { at - 6 + TARGET }, it));
        let framed = (0..).zip(&self.frames).flat_map(|(frame, it)| {
            let saved = (0..).zip(&it.saved);
            saved.map(move |(at, it)| (frame, if at < 4 { at + 6 } else { at - 4 + ROUND }, it))
        });
        scratch.chain(framed)
    }

    /// A register by its frame and number.
    pub fn register(&mut self, frame: u8, register: u8) -> &mut Value {
        match register {
            0..6 => &mut self.scratch[usize::from(register)],
            TARGET.. => &mut self.scratch[usize::from(register - TARGET + 6)],
            // 10 is the frame itself.
            _ => {
                let at = if register < 10 { register - 6 } else { register - ROUND + 4 };
                &mut self.frames[usize::from(frame)].saved[usize::from(at)]
            }
        }
    }

    /// Registers that were computed in the block under way, and registers on the stack, each by its lower half's variable.
    pub fn whole_values(&self) -> Vec<(Var, Value)> {
        let registers = self.registers();
        let registers = registers.map(|(frame, register, it)| (Var::Register { frame, register, half: 0 }, *it));
        let framed = (0..).zip(&self.frames).flat_map(|(frame, it)| {
            let pairs = (0..).zip(it.words.windows(2)).filter(|(_, pair)| pair[1].is_rest);
            pairs.map(move |(word, pair)| {
                (Var::Stack { frame, word }, Value { ty: pair[0].ty, low: pair[0].id, high: pair[1].id })
            })
        });
        registers.chain(framed).filter(|(_, it)| it.low != ASLEEP && it.high != ASLEEP).collect()
    }

    /// What was computed for variables in the block under way.
    pub fn computed(&self) -> Vec<(Var, Id)> {
        let mut all = Vec::new();
        for (frame, register, value) in self.registers() {
            all.push((Var::Register { frame, register, half: 0 }, value.low));
            all.push((Var::Register { frame, register, half: 1 }, value.high));
        }
        let framed = (0..).zip(&self.frames).map(|(frame, it)| (frame, &it.words));
        for (frame, words) in framed.chain([(META, &self.metadata)]) {
            let words = words.iter().enumerate();
            all.extend(words.map(|(word, it)| (Var::Stack { frame, word: word as u8 }, it.id)));
        }
        all.retain(|(_, id)| *id != ASLEEP);
        all
    }

    /// Whether another state may be joined with this one: pointers that are asked for do not point into different things; and
    /// of what else is kept [`Apart`] there is nothing.
    pub fn agrees(&self, other: &State, asked: Registers, apart: Apart) -> bool {
        let same = |a: &Value, b: &Value| match (a.ty, b.ty) {
            (a, b) if apart >= Apart::Kinds && a.parts(b) => false,
            (Ty::Stack { off: a, .. }, Ty::Stack { off: b, .. }) if apart >= Apart::Places && a != b => false,
            (Ty::Value { off: a, .. }, Ty::Value { off: b, .. }) if apart >= Apart::Places && a != b => false,
            (Ty::Map(a), Ty::Map(b)) => a == b,
            (Ty::Value { map: a, .. }, Ty::Value { map: b, .. }) => a == b,
            (Ty::Stack { frame: a, .. }, Ty::Stack { frame: b, .. }) => a == b,
            (Ty::Record { record: a, .. }, Ty::Record { record: b, .. }) => a == b,
            // What a map of maps gives, and NULL.
            (Ty::Map(_), other) | (other, Ty::Map(_)) => other.range().is_none() && !other.is_pointer(),
            (a, b) => !a.is_pointer() || !b.is_pointer() || a.which() == b.which(),
        };
        let is_asked = |register: usize| asked >> register & 1 != 0;
        let mut scratch = self.scratch.iter().zip(&other.scratch).take(6).enumerate();
        if !scratch.all(|(register, (a, b))| !is_asked(register) || same(a, b)) {
            return false;
        }
        let [result, theirs] = [self, other].map(|state| state.scratch[0].ty.range().and_then(Range::exact));
        if apart >= Apart::Places && is_asked(0) && result.zip(theirs).is_some_and(|(a, b)| a != b) {
            return false;
        }
        // Maps that a map of maps gave may have been put away.
        let kept = |word: &Word| match word.ty {
            Ty::Map(map) => Some(Some(map)),
            ty => ty.is_null().then_some(None),
        };
        let differs = |(a, b): (&Word, &Word)| {
            let one = matches!(a.ty, Ty::Map(_)) || matches!(b.ty, Ty::Map(_));
            let lost = apart >= Apart::Kinds && (a.ty.is_pointer() || b.ty.is_pointer()) && a.ty.parts(b.ty);
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
    pub fn keep(&mut self, asked: Registers) {
        let is_asked = |register: usize| asked >> register & 1 != 0;
        let scratch = self.scratch.iter_mut().take(6).enumerate();
        scratch.filter(|(register, _)| !is_asked(*register)).for_each(|(_, it)| it.ty = Ty::Nothing);
        if let Some(frame) = self.frames.last_mut() {
            let saved = frame.saved.iter_mut().take(4).enumerate();
            saved.filter(|(register, _)| !is_asked(register + 6)).for_each(|(_, it)| it.ty = Ty::Nothing);
        }
    }

    /// Behind a loop that a helper goes round: what its rounds alone ask for is gone.
    pub fn without_rounds(mut self) -> State {
        if let Some(frame) = self.frames.last_mut() {
            frame.saved[4..].fill(Value::of(Ty::Nothing));
        }
        self
    }

    /// Makes a name free for another place.
    pub fn forget(&mut self, is_it: impl Fn(Name) -> bool) {
        self.extents.retain(|name, _| !is_it(*name));
        self.types().filter(|ty| ty.is_pointer() && is_it(ty.name())).for_each(|ty| *ty = ty.nameless());
    }

    /// Pointers into the packet lead nowhere any more: its ends have moved. They are numbers, of which differences still say
    /// what they said.
    pub fn forget_packet(&mut self) {
        (self.length, self.extents) = (0, BTreeMap::new());
        self.types().filter(|ty| matches!(ty.which(), Which::Packet | Which::End)).for_each(|ty| *ty = Ty::UNKNOWN);
    }

    /// Whether a record is pointed to.
    pub fn holds_record(&mut self, number: u16) -> bool {
        self.types().any(|ty| matches!(ty, Ty::Record { record, .. } if *record == number))
    }

    /// A record is handed over: pointers to it are numbers now.
    pub fn forget_record(&mut self, number: u16) {
        let all = self.types();
        all.filter(|ty| matches!(ty, Ty::Record { record, .. } if *record == number)).for_each(|ty| *ty = Ty::UNKNOWN);
    }

    /// Changes what every copy of a value is known as: those with the same halves, and those of the same name.
    pub fn refine(&mut self, of: Value, name: Name, to: impl Fn(Ty) -> Ty) {
        let is_named = |ty: Ty| ty.is_pointer() && ty.name() == name && name != FIXED && name != NOBODY;
        let before = of.ty;
        for value in self.values() {
            let is_same = value.low != ASLEEP && (value.low, value.high) == (of.low, of.high) && value.ty == before;
            if is_named(value.ty) || is_same {
                value.ty = to(value.ty);
            }
        }
        for frame in &mut self.frames {
            for at in 0..STACK_WORDS {
                let word = frame.words[at];
                let rest = frame.words.get(at + 1).copied().unwrap_or(Word::FRESH);
                let is_same =
                    rest.is_rest && word.id != ASLEEP && (word.id, rest.id) == (of.low, of.high) && word.ty == before;
                if is_named(word.ty) || is_same {
                    frame.words[at].ty = to(word.ty);
                }
            }
        }
    }

    /// How many bytes the packet is known to have behind each pointer into it, by the places' numbers.
    fn all_behind(&mut self) -> Vec<i64> {
        let (length, extents) = (self.length, self.extents.clone());
        let behind = |ty: &mut Ty| match *ty {
            Ty::Packet { name: FIXED, off, .. } => i64::from(length) - off,
            Ty::Packet { name, off, .. } => extents.get(&name).map_or(0, |&extent| i64::from(extent) - off),
            _ => 0,
        };
        let mut all = Vec::with_capacity(self.room());
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
        name: impl Fn(usize) -> Name,
        is_ours: impl Fn(Name) -> bool,
    ) -> bool {
        if !self.metadata.is_empty() || !other.metadata.is_empty() {
            self.words(META);
            other.words(META);
        }
        let behind = (self.all_behind(), other.all_behind());
        // They are this block's: what comes from a round before is another place.
        other.forget(&is_ours);
        // Pointers at the same distance from each other on both ways stay so: by what they were known, the name for both, and
        // where that is.
        let mut together: HashMap<(Name, Name, i64), (Name, i64)> = HashMap::new();
        let mut extents: BTreeMap<Name, i64> = BTreeMap::new();
        let (others, before) = (other.all_types(), self.all_types());
        let mut number = 0;
        self.types().for_each(|ty| {
            let other = others[number];
            let joined = ty.join(other, |(a, off), (b, there)| {
                if a == NOBODY || b == NOBODY {
                    return (name(number), 0);
                }
                let (name, from) = *together.entry((a, b, off - there)).or_insert_with(|| (name(number), off));
                (name, off - from)
            });
            let joined = widen.map_or(joined, |bounds| joined.widened(*ty, bounds));
            if let Ty::Packet { name, off, .. } = joined
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
                if word.is_rest != other.is_rest {
                    changed |= word.is_rest;
                    (word.is_rest, word.ty) = (false, Ty::UNKNOWN);
                }
            }
            // A register's lower half without the other is a number.
            for at in 0..STACK_WORDS {
                let has_rest = frame.words.get(at + 1).is_some_and(|word| word.is_rest);
                let word = &mut frame.words[at];
                if word.ty.is_pointer() && !has_rest {
                    word.ty = Ty::UNKNOWN;
                }
            }
        }
        // In the end: on the way there a word may have become something else and come back.
        changed |= before != self.all_types();
        let length = self.length.min(other.length);
        changed |= length != self.length;
        self.length = length;
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
        let before = std::mem::take(&mut self.holdings);
        let same = |a: &Holding, b: &Holding| Holding { is_more: false, ..*a } == Holding { is_more: false, ..*b };
        self.holdings.extend(before.iter().filter_map(|it| {
            let there = other.holdings.iter().find(|there| same(it, there))?;
            Some(Holding { is_more: it.is_more || there.is_more, ..*it })
        }));
        changed |= before != self.holdings;
        changed | self.stored.join(&other.stored)
    }
}
