//! A block's computations, in numbers of 32 bits: a list in which each is made of those before it. Equal ones are one, what
//! is known is worked out, and what nobody asks for is left out when the filter is written.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use crate::lower::coalesce::Pending;

/// A computation's place in its block.
pub(crate) type Id = u32;

/// A variable that carries a number from block to block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Var {
    /// Half of a register: 0 the low one. Those that functions save (6 to 9) are each frame's own, and so are some that no
    /// program sees (`walk`).
    Register { frame: u8, register: u8, half: u8 },
    /// A word of a frame's stack, from its lowest address on.
    Stack { frame: u8, word: u8 },
    /// Half of what the number in a register, or in two words from this one of a frame's stack on, is more than what the field of
    /// a map's value holds that it was loaded from.
    Amount { frame: u8, register: Option<u8>, word: u8, half: u8 },
    /// A word of the packet's copy of a map's value (`own`).
    Own { map: u16, word: u16 },
    /// What a block has read, for those behind it (`reuse`).
    Read { slot: u32 },
}

/// Operations on two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    /// Both by what is not zero.
    Div,
    Rem,
    And,
    Or,
    Xor,
    /// Shifts by less than 32.
    Shl,
    Shr,
    Sar,
    // From here on they give a bool.
    Eq,
    Ne,
    Lt,
    Le,
    Slt,
    Sle,
    /// Of bools.
    Both,
    Either,
}

/// What is known before the packet is there.
enum Constant {
    Number(u32),
    Truth(bool),
}

impl Binary {
    /// What it gives of two known numbers.
    fn of(self, x: u32, y: u32) -> Constant {
        use Binary::*;
        use Constant::{Number, Truth};
        match self {
            Add => Number(x.wrapping_add(y)),
            Sub => Number(x.wrapping_sub(y)),
            Mul => Number(x.wrapping_mul(y)),
            Div => Number(x.checked_div(y).unwrap_or(0)),
            Rem => Number(x.checked_rem(y).unwrap_or(x)),
            And => Number(x & y),
            Or => Number(x | y),
            Xor => Number(x ^ y),
            Shl => Number(x << (y & 31)),
            Shr => Number(x >> (y & 31)),
            Sar => Number(((x as i32) >> (y & 31)) as u32),
            Eq => Truth(x == y),
            Ne => Truth(x != y),
            Lt => Truth(x < y),
            Le => Truth(x <= y),
            Slt => Truth((x as i32) < y as i32),
            Sle => Truth(x as i32 <= y as i32),
            Both => Truth(x != 0 && y != 0),
            Either => Truth(x != 0 || y != 0),
        }
    }
}

/// Operations on whole numbers of 64 bits: a device that has such numbers does them at once, and of others the halves are made
/// when the filter is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Wide {
    Mul,
    Xor,
}

/// What a call does besides giving a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Effect {
    /// Nothing, and what it gives depends on its arguments alone.
    None,
    /// What it gives depends on the packet or a map.
    Reads,
    /// It changes them.
    Writes,
}

/// A function that is called, by its name in the module; `key` arguments are made a vector or array of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub function: Rc<str>,
    pub arguments: Vec<Argument>,
    pub effect: Effect,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Argument {
    /// The packet.
    Packet,
    One(Id),
    /// A key of so many words.
    Words(Vec<Id>),
}

/// A computation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Known(u32),
    Truth(bool),
    /// What a variable holds when the block begins.
    Var(Var),
    Binary(Binary, Id, Id),
    /// The opposite of a bool.
    Not(Id),
    /// The second where the first, a bool, is true, else the third.
    Select(Id, Id, Id),
    /// The bytes of the low half, or of all, in the other order.
    Swap16(Id),
    Swap32(Id),
    Call(Call),
    /// A part of a pair that a call gave.
    Part(Id, u32),
    /// A whole number of 64 bits of its halves, the low one first.
    Whole(Id, Id),
    Wide(Wide, Id, Id),
    /// Half of a whole number: 0 the low one.
    Half(Id, u32),
    /// The packet is ABORTED, and the trap counted, where this is true.
    Trap {
        when: Id,
        site: u32,
    },
    /// A word of a frame's memory, by its number: where it is known only when the packet is there.
    Recall {
        frame: u16,
        word: Id,
    },
    Keep {
        frame: u16,
        word: Id,
        value: Id,
    },
}

/// A sum of two numbers of 64 bits, or their difference: of these parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sum {
    pub left: (Id, Id),
    pub right: (Id, Id),
    pub is_difference: bool,
}

/// A place in a map's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field {
    pub map: u16,
    /// The entry's number and one.
    pub entry: Id,
    /// Bytes from the value's beginning.
    pub at: Id,
    pub size: u32,
}

/// A number that is what a field holds and an amount, as long as nothing is written there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub field: Field,
    /// The load that the number is from, by its number in the program, and what it gave.
    pub load: u32,
    pub number: (Id, Id),
    /// Whether the load is in this block.
    pub is_own: bool,
    /// Whether nobody else has the number who may not ask for what a fetch-add gives in its place.
    pub is_alone: bool,
    /// The first computation from which on a write makes it another.
    pub since: usize,
    pub amount: (Id, Id),
}

/// How often what may be read was written: the packet, and the maps.
pub(crate) type Epoch = [u32; 2];

impl Call {
    /// What it is about: the packet, and the maps.
    fn is_about(&self) -> [bool; 2] {
        if !self.arguments.contains(&Argument::Packet) {
            return [false, true];
        }
        [true, !["load_", "store_", "pkt_"].iter().any(|name| self.function.starts_with(name))]
    }

    /// What its result depends on besides its arguments, where that was last written then.
    pub fn epoch(&self, written: Epoch) -> Epoch {
        if self.effect == Effect::None {
            return Epoch::default();
        }
        let [packet, maps] = self.is_about();
        [if packet { written[0] } else { 0 }, if maps { written[1] } else { 0 }]
    }
}

/// A block's computations.
#[derive(Debug, Clone, Default)]
pub(crate) struct Code {
    pub ops: Vec<Op>,
    /// Where equal ones are; of those that read, since what they read was last written ([`Code::epoch`]).
    known: HashMap<(Op, Epoch), Id, foldhash::fast::RandomState>,
    /// How often the packet and the maps were written, and frames that are memory, each by itself: what is stored in one says
    /// nothing of another.
    written: Epoch,
    kept: BTreeMap<u16, u32>,
    /// Stores in the packet that were not carried out yet.
    pub pending: Pending,
    /// Sums and differences of 64 bits, by their halves.
    pub sums: HashMap<(Id, Id), Sum>,
    /// Numbers that fields of maps' values hold, by their halves; of those with fewer than 64 bits twice the low one.
    pub held: HashMap<(Id, Id), Held>,
    /// What was stored in words of copies of maps' values, by map and word.
    pub own: BTreeMap<(u16, u16), Id>,
    /// By how much numbers that leave the block are more than what is in their fields.
    pub amounts: Vec<(Var, Id)>,
    /// What was read here and is asked for in blocks behind this one.
    pub carried: BTreeMap<Var, Id>,
    /// Loads that are what a fetch-add behind them gives.
    pub aliases: HashMap<Id, Id>,
    /// The load from the packet in the other byte order, of so many bytes: 2 or 4.
    pub twins: HashMap<Id, (Id, u32)>,
}

impl Code {
    pub fn add(&mut self, op: Op) -> Id {
        if let Op::Call(call) = &op {
            self.before_call(call);
            if call.effect == Effect::Writes {
                return self.append(op);
            }
        }
        if matches!(op, Op::Trap { .. } | Op::Keep { .. }) {
            return self.append(op);
        }
        let epoch = self.epoch(&op);
        match self.known.entry((op, epoch)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let id = self.ops.len() as Id;
                self.ops.push(new.key().0.clone());
                *new.insert(id)
            }
        }
    }

    /// What an operation's result depends on besides its operands: how often that was written.
    fn epoch(&self, op: &Op) -> Epoch {
        match op {
            Op::Call(call) => call.epoch(self.written),
            Op::Recall { frame, .. } => [self.kept.get(frame).copied().unwrap_or(0), 0],
            _ => Epoch::default(),
        }
    }

    /// Whether what was read would be read again.
    pub fn is_current(&self, id: Id) -> bool {
        let op = &self.ops[id as usize];
        self.known.get(&(op.clone(), self.epoch(op))) == Some(&id)
    }

    fn append(&mut self, op: Op) -> Id {
        for (written, is_it) in self.written.iter_mut().zip(Code::writes(&op)) {
            *written += u32::from(is_it);
        }
        if let Op::Keep { frame, .. } = op {
            *self.kept.entry(frame).or_default() += 1;
        }
        self.ops.push(op);
        self.ops.len() as Id - 1
    }

    /// What an operation writes: the packet, and the maps.
    pub fn writes(op: &Op) -> [bool; 2] {
        match op {
            Op::Call(call) if call.effect == Effect::Writes => call.is_about(),
            _ => [false, false],
        }
    }

    pub fn known(&mut self, value: u32) -> Id {
        self.add(Op::Known(value))
    }

    pub fn truth(&mut self, value: bool) -> Id {
        self.add(Op::Truth(value))
    }

    pub fn var(&mut self, var: Var) -> Id {
        self.add(Op::Var(var))
    }

    pub fn value(&self, id: Id) -> Option<u32> {
        match self.ops[id as usize] {
            Op::Known(value) => Some(value),
            _ => None,
        }
    }

    pub fn as_truth(&self, id: Id) -> Option<bool> {
        match self.ops[id as usize] {
            Op::Truth(value) => Some(value),
            _ => None,
        }
    }

    pub fn not(&mut self, of: Id) -> Id {
        use Binary::*;
        match self.ops[of as usize] {
            Op::Truth(value) => self.truth(!value),
            Op::Not(inner) => inner,
            Op::Binary(Eq, a, b) => self.binary(Ne, a, b),
            Op::Binary(Ne, a, b) => self.binary(Eq, a, b),
            Op::Binary(Lt, a, b) => self.binary(Le, b, a),
            Op::Binary(Le, a, b) => self.binary(Lt, b, a),
            Op::Binary(Slt, a, b) => self.binary(Sle, b, a),
            Op::Binary(Sle, a, b) => self.binary(Slt, b, a),
            _ => self.add(Op::Not(of)),
        }
    }

    pub fn select(&mut self, condition: Id, accept: Id, reject: Id) -> Id {
        match self.as_truth(condition) {
            Some(true) => accept,
            Some(false) => reject,
            None if accept == reject => accept,
            None => self.add(Op::Select(condition, accept, reject)),
        }
    }

    pub fn binary(&mut self, op: Binary, a: Id, b: Id) -> Id {
        use Binary::*;
        if matches!(op, Both | Either) {
            return self.of_truths(op, a, b);
        }
        match (self.value(a), self.value(b)) {
            (Some(x), Some(y)) => match op.of(x, y) {
                Constant::Number(value) => self.known(value),
                Constant::Truth(value) => self.truth(value),
            },
            // A known number stands on the right where the sides may change.
            (Some(_), None) if matches!(op, Add | Mul | And | Or | Xor | Eq | Ne) => self.by_known(op, b, a),
            (None, Some(_)) => self.by_known(op, a, b),
            _ => self.of_unknown(op, a, b),
        }
    }

    fn of_truths(&mut self, op: Binary, a: Id, b: Id) -> Id {
        use Binary::{Both, Either};
        match (op, self.as_truth(a), self.as_truth(b)) {
            (Both, Some(true), _) | (Either, Some(false), _) => b,
            (Both, _, Some(true)) | (Either, _, Some(false)) => a,
            (Both, Some(false), _) | (Both, _, Some(false)) => self.truth(false),
            (Either, Some(true), _) | (Either, _, Some(true)) => self.truth(true),
            _ => self.add(Op::Binary(op, a, b)),
        }
    }

    /// An operation with a known number on the right, and none on the left.
    fn by_known(&mut self, op: Binary, a: Id, b: Id) -> Id {
        use Binary::*;
        let n = self.value(b).unwrap_or_default();
        // What the left side is of, where that is a number by a known one.
        let inner = match self.ops[a as usize] {
            Op::Binary(by, inner, m) => self.value(m).map(|m| (by, inner, m)),
            _ => None,
        };
        match (op, n, inner) {
            (Add | Sub | Or | Xor | Shl | Shr | Sar, 0, _) | (Mul | Div, 1, _) | (And, u32::MAX, _) => a,
            (Mul | And, 0, _) | (Rem, 1, _) => self.known(0),
            (Or, u32::MAX, _) => b,
            (Lt, 0, _) => self.truth(false),
            (Le, u32::MAX, _) => self.truth(true),
            // (a + m) + n and (a - m) + n, as offsets come.
            (Sub, ..) => self.by(Add, a, n.wrapping_neg()),
            (Add, _, Some((Add, inner, m))) => self.by(Add, inner, m.wrapping_add(n)),
            // What was shifted down, and perhaps cut, back where it was.
            (Shl, _, Some((And, cut, m))) => match self.ops[cut as usize] {
                Op::Binary(Shr, of, by) if self.value(by) == Some(n) => self.by(And, of, m << (n & 31)),
                _ => self.add(Op::Binary(op, a, b)),
            },
            (Shl, _, Some((Shr, of, m))) if m == n => self.by(And, of, u32::MAX << (n & 31)),
            // The other half of a shift to the left and back: what is left of it.
            (Shr, _, Some((Shl, of, m))) if m == n => self.by(And, of, u32::MAX >> (n & 31)),
            (And, _, Some((And, inner, m))) => self.by(And, inner, m & n),
            // There are no other bits.
            (And, ..) if self.bits(a) & !n == 0 => a,
            // A part of a word that is known, as bytes on the stack are put together.
            (And, _, Some((Or, other, m))) if self.is_without(other, n) => self.known(m & n),
            _ => self.add(Op::Binary(op, a, b)),
        }
    }

    /// An operation of which not both sides are known, nor the right one alone.
    fn of_unknown(&mut self, op: Binary, a: Id, b: Id) -> Id {
        use Binary::*;
        match op {
            Or if self.masked(a).0 == self.masked(b).0 => {
                let ((of, some), (_, more)) = (self.masked(a), self.masked(b));
                self.by(And, of, some | more)
            }
            Sub | Xor if a == b => self.known(0),
            And if a == b => a,
            Eq | Le | Sle if a == b => self.truth(true),
            Ne | Lt | Slt if a == b => self.truth(false),
            Or => self.joined_or(a, b).unwrap_or_else(|| self.add(Op::Binary(op, a, b))),
            _ => self.add(Op::Binary(op, a, b)),
        }
    }

    /// The bits that a number may have, as far as one look tells.
    fn bits(&self, id: Id) -> u32 {
        match &self.ops[id as usize] {
            Op::Known(value) => *value,
            Op::Binary(Binary::Shr, _, by) => self.value(*by).map_or(u32::MAX, |by| u32::MAX >> (by & 31)),
            Op::Binary(Binary::And, _, mask) => self.value(*mask).unwrap_or(u32::MAX),
            Op::Call(call) => match &*call.function {
                "load_u8" => 0xff,
                "load_le16" | "load_be16" => 0xffff,
                _ => u32::MAX,
            },
            _ => u32::MAX,
        }
    }

    /// A number by a mask, and which.
    fn masked(&self, id: Id) -> (Id, u32) {
        match self.ops[id as usize] {
            Op::Binary(Binary::And, of, mask) => self.value(mask).map_or((id, u32::MAX), |mask| (of, mask)),
            _ => (id, u32::MAX),
        }
    }

    /// Whether none of these bits can be set in a number, by how it was made.
    fn is_without(&self, of: Id, bits: u32) -> bool {
        matches!(self.ops[of as usize], Op::Binary(Binary::And, _, m) if self.value(m).is_some_and(|m| m & bits == 0))
    }

    /// The same by a known number.
    pub fn by(&mut self, op: Binary, a: Id, b: u32) -> Id {
        let b = self.known(b);
        self.binary(op, a, b)
    }

    /// 1 or 0.
    pub fn number(&mut self, truth: Id) -> Id {
        let (one, zero) = (self.known(1), self.known(0));
        self.select(truth, one, zero)
    }

    pub fn swap16(&mut self, of: Id) -> Id {
        match (self.value(of), &self.ops[of as usize]) {
            (Some(value), _) => self.known(u32::from((value as u16).swap_bytes())),
            // Of what has no more than 16 bits by itself.
            (_, &Op::Swap16(inner)) => self.by(Binary::And, inner, 0xffff),
            _ => match self.twins.get(&of) {
                Some(&(twin, 2)) => twin,
                _ => self.add(Op::Swap16(of)),
            },
        }
    }

    pub fn swap32(&mut self, of: Id) -> Id {
        match (self.value(of), &self.ops[of as usize]) {
            (Some(value), _) => self.known(value.swap_bytes()),
            (_, &Op::Swap32(inner)) => inner,
            _ => match self.twins.get(&of) {
                Some(&(twin, 4)) => twin,
                _ => self.add(Op::Swap32(of)),
            },
        }
    }

    /// A number of 64 bits of its halves. What was whole before, and was only changed by some bits, stays whole: a hash is a
    /// chain of those.
    pub fn whole(&mut self, low: Id, high: Id) -> Id {
        let half = |code: &Code, id: Id, which: u32| match code.ops[id as usize] {
            Op::Half(of, it) if it == which => Some(of),
            _ => None,
        };
        let of = half(self, low, 0);
        if let Some(of) = of.filter(|&of| half(self, high, 1) == Some(of)) {
            return of;
        }
        // By each half: the whole number that it is of, and what it was changed by.
        let changed = |code: &Code, id: Id, which: u32| match code.ops[id as usize] {
            Op::Half(..) => half(code, id, which).map(|of| (of, None)),
            Op::Binary(Binary::Xor, a, b) => match (half(code, a, which), half(code, b, which)) {
                (Some(of), _) => Some((of, Some(b))),
                (None, Some(of)) => Some((of, Some(a))),
                (None, None) => None,
            },
            _ => None,
        };
        match (changed(self, low, 0), changed(self, high, 1)) {
            (Some((of, by_low)), Some((other, by_high))) if of == other => {
                let zero = self.known(0);
                let by = self.add(Op::Whole(by_low.unwrap_or(zero), by_high.unwrap_or(zero)));
                self.add(Op::Wide(Wide::Xor, of, by))
            }
            _ => self.add(Op::Whole(low, high)),
        }
    }

    /// The halves of what an operation on two numbers gives, of which there are the halves.
    pub fn wide(&mut self, op: Wide, left: (Id, Id), right: (Id, Id)) -> (Id, Id) {
        let (left, right) = (self.whole(left.0, left.1), self.whole(right.0, right.1));
        let all = self.add(Op::Wide(op, left, right));
        (self.add(Op::Half(all, 0)), self.add(Op::Half(all, 1)))
    }

    pub fn call(&mut self, function: &str, arguments: Vec<Argument>, effect: Effect) -> Id {
        self.add(Op::Call(Call { function: function.into(), arguments, effect }))
    }

    /// A call with numbers alone.
    pub fn call_with(&mut self, function: &str, arguments: &[Id], effect: Effect) -> Id {
        self.call(function, arguments.iter().map(|&id| Argument::One(id)).collect(), effect)
    }

    /// What a computation is made of.
    pub fn operands(op: &Op) -> impl Iterator<Item = Id> + '_ {
        let (own, arguments): ([Option<Id>; 3], &[Argument]) = match op {
            Op::Known(_) | Op::Truth(_) | Op::Var(_) => ([None; 3], &[]),
            Op::Binary(_, a, b) | Op::Wide(_, a, b) | Op::Whole(a, b) => ([Some(*a), Some(*b), None], &[]),
            Op::Not(a) | Op::Swap16(a) | Op::Swap32(a) | Op::Part(a, _) | Op::Half(a, _) => {
                ([Some(*a), None, None], &[])
            }
            Op::Select(a, b, c) => ([Some(*a), Some(*b), Some(*c)], &[]),
            Op::Call(call) => ([None; 3], &call.arguments),
            Op::Trap { when, .. } => ([Some(*when), None, None], &[]),
            Op::Recall { word, .. } => ([Some(*word), None, None], &[]),
            Op::Keep { word, value, .. } => ([Some(*word), Some(*value), None], &[]),
        };
        let ids = |argument| match argument {
            &Argument::Packet => &[],
            Argument::One(id) => std::slice::from_ref(id),
            Argument::Words(ids) => &ids[..],
        };
        own.into_iter().flatten().chain(arguments.iter().flat_map(ids).copied())
    }

    /// Puts other computations in the place of those that it is made of.
    pub fn replace_operands(op: &mut Op, mut by: impl FnMut(Id) -> Id) {
        let mut put = |ids: &mut [&mut Id]| ids.iter_mut().for_each(|id| **id = by(**id));
        match op {
            Op::Known(_) | Op::Truth(_) | Op::Var(_) => {}
            Op::Binary(_, a, b) | Op::Wide(_, a, b) | Op::Whole(a, b) => put(&mut [a, b]),
            Op::Not(a) | Op::Swap16(a) | Op::Swap32(a) | Op::Part(a, _) | Op::Half(a, _) => put(&mut [a]),
            Op::Select(a, b, c) => put(&mut [a, b, c]),
            Op::Trap { when, .. } => put(&mut [when]),
            Op::Recall { word, .. } => put(&mut [word]),
            Op::Keep { word, value, .. } => put(&mut [word, value]),
            Op::Call(call) => {
                for argument in &mut call.arguments {
                    match argument {
                        Argument::Packet => {}
                        Argument::One(id) => put(&mut [id]),
                        Argument::Words(ids) => ids.iter_mut().for_each(|id| put(&mut [id])),
                    }
                }
            }
        }
    }

    /// Whether it is done where it stands, if it is done at all: before all that changes what it reads, and behind it.
    pub fn is_in_order(op: &Op) -> bool {
        Code::stays(op)
            || matches!(op, Op::Call(call) if call.effect != Effect::None)
            || matches!(op, Op::Recall { .. })
    }

    /// Whether it stays even where nobody asks for what it gives.
    pub fn stays(op: &Op) -> bool {
        match op {
            Op::Call(call) => call.effect == Effect::Writes,
            Op::Trap { .. } | Op::Keep { .. } => true,
            _ => false,
        }
    }
}
