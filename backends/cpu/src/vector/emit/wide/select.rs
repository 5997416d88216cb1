//! From lane IR to instructions. What the parent's `words`, `rows` and `steps` make for four lanes is made here for eight:
//! both go through the graph in the same order, from what is needed to what it is made of.

use std::collections::HashMap;
use std::mem::offset_of;

use portcullis_core::packet::Metadata;

use super::super::super::dag::{
    Binary, Carry, Compare, Dag, Field, Kind, Lanes, Live, Load, Node, Op, RegionId, Step, Unary,
};
use super::super::plan::{HARMLESS, Plan, in_reach, needed_by};
use super::super::{Result, Unsupported};
use super::arms::Arms;
use super::code::{Base, If, Instruction, Listing, Source, Vector};
use super::encode::{Opcode, Shift};

/// The highest bit of a word.
const SIGN: u32 = 1 << 31;

/// A byte of a shuffle that is zero.
const ZERO: u8 = 0xff;

/// What there is once it was made, in the code that follows.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Node(Node),
    /// Words of all packets, by the offset of their first byte.
    Word(u32),
    /// Rows of a packet and of the one four further on.
    Row(u32, u8),
    /// Half of two rows, interleaved: the first two or the last; the low half or the high one.
    Pair(u32, u8, bool),
    /// Two descriptors, and the same of the packets four further on.
    Descriptors(u8),
    /// The packets' offsets in the arena.
    Starts,
    /// Where a load goes in the arena, such that it may be executed: by the root, what is added, and the size.
    Safe(Node, u32, u32),
}

struct Select<'a> {
    lanes: &'a Lanes,
    plan: &'a Plan,
    /// Where each table begins.
    tables: &'a [u32],
    arms: Arms,
    listing: Listing,
    found: HashMap<Key, Vector>,
    /// The keys of `found`, in order.
    journal: Vec<Key>,
}

/// The code for a group.
///
/// # Errors
/// What is not done eight at a time.
pub(super) fn select(lanes: &Lanes, plan: &Plan, tables: &[u32]) -> Result<Listing> {
    let mut select = Select {
        lanes,
        plan,
        tables,
        arms: Arms::new(lanes),
        listing: Listing::default(),
        found: HashMap::new(),
        journal: Vec::new(),
    };
    select.region(RegionId::ROOT)?;
    let verdict = select.value(lanes.verdict)?;
    select.listing.verdict = Some(verdict);
    Ok(select.listing)
}

impl Select<'_> {
    fn dag(&self) -> &Dag {
        &self.lanes.dag
    }

    fn put(&mut self, instruction: Instruction) {
        self.listing.instructions.push(instruction);
    }

    fn know(&mut self, key: Key, value: Vector) -> Vector {
        if self.found.insert(key, value).is_none() {
            self.journal.push(key);
        }
        value
    }

    /// Code that is not executed for every group: what is made in it is not there any more when it is left.
    fn enter(&mut self) -> usize {
        self.put(Instruction::Enter);
        self.journal.len()
    }

    fn leave(&mut self, mark: usize) {
        self.put(Instruction::Exit);
        self.forget(mark);
    }

    /// What was made since there were so many keys.
    fn forget(&mut self, mark: usize) {
        for key in self.journal.drain(mark..) {
            self.found.remove(&key);
        }
    }

    // Instructions.

    fn splat(&mut self, word: u32) -> Source {
        let mut half = [0; 16];
        half.chunks_exact_mut(4).for_each(|place| place.copy_from_slice(&word.to_le_bytes()));
        Source::Constant(self.listing.constant(half))
    }

    fn binary_of(&mut self, op: Opcode, a: Vector, b: Source) -> Vector {
        let to = self.listing.vector();
        self.put(Instruction::Binary { op, to, a, b });
        to
    }

    fn both_of(&mut self, op: Opcode, a: Vector, b: Vector) -> Vector {
        self.binary_of(op, a, Source::Vector(b))
    }

    fn with(&mut self, op: Opcode, a: Vector, word: u32) -> Vector {
        let word = self.splat(word);
        self.binary_of(op, a, word)
    }

    fn inverted(&mut self, a: Vector) -> Vector {
        self.with(Opcode::Xor, a, u32::MAX)
    }

    fn shifted(&mut self, op: Shift, from: Vector, count: u32) -> Vector {
        if count == 0 {
            return from;
        }
        let to = self.listing.vector();
        self.put(Instruction::Shift { op, to, from, count: count as u8 });
        to
    }

    fn chosen(&mut self, mask: Vector, on: Source, off: Vector) -> Vector {
        let to = self.listing.vector();
        self.put(Instruction::Choose { to, mask, on, off });
        to
    }

    /// In a vector of its own, which may be written again.
    fn copied(&mut self, from: Source) -> Vector {
        let to = self.listing.vector();
        self.put(Instruction::Move { to, from });
        to
    }

    fn in_vector(&mut self, source: Source) -> Vector {
        match source {
            Source::Vector(vector) => vector,
            constant @ Source::Constant(_) => self.copied(constant),
        }
    }

    /// The same bytes of each lane's word: `size` of them from `at` on, turned or not, and zeros.
    fn pick(&mut self, value: Vector, at: u32, size: u32, turned: bool) -> Vector {
        let mut places = [ZERO; 16];
        for (lane, word) in places.chunks_exact_mut(4).enumerate() {
            for byte in 0..size {
                let from = if turned { at + size - 1 - byte } else { at + byte };
                word[byte as usize] = 4 * lane as u8 + from as u8;
            }
        }
        let places = Source::Constant(self.listing.constant(places));
        self.binary_of(Opcode::Shuffle, value, places)
    }

    // Words.

    /// A node's value: a word a lane, or all ones and all zeros for a mask.
    fn value(&mut self, node: Node) -> Result<Vector> {
        let source = self.source(node)?;
        Ok(self.in_vector(source))
    }

    /// The same, where a constant will do.
    fn source(&mut self, node: Node) -> Result<Source> {
        match self.dag().op(node) {
            Op::Constant(value) => return Ok(self.splat(value)),
            Op::Flag(value) => return Ok(self.splat(if value { u32::MAX } else { 0 })),
            _ => {}
        }
        if let Some(&value) = self.found.get(&Key::Node(node)) {
            return Ok(Source::Vector(value));
        }
        let value = self.made(node)?;
        Ok(Source::Vector(self.know(Key::Node(node), value)))
    }

    fn made(&mut self, node: Node) -> Result<Vector> {
        Ok(match self.dag().op(node) {
            Op::Constant(_) | Op::Flag(_) => self.value(node)?,
            Op::Length => self.descriptors(true),
            Op::Metadata(field) => {
                let offset = match field {
                    Field::WireLength => offset_of!(Metadata, wire_length),
                    Field::Port => offset_of!(Metadata, port),
                    Field::TimeLow => offset_of!(Metadata, time_low),
                    Field::TimeHigh => offset_of!(Metadata, time_high),
                    Field::TimeMs => offset_of!(Metadata, time_ms),
                };
                let to = self.listing.vector();
                self.put(Instruction::Metadata { to, offset: offset as u32 });
                to
            }
            Op::Load(load) => self.load(node, load)?,
            Op::Table { table, index } => {
                let index = self.value(index)?;
                let index = self.shifted(Shift::Left, index, 2);
                let displacement = self.tables[table as usize];
                let to = self.listing.vector();
                self.put(Instruction::Gather { to, base: Base::Tables, index, displacement, size: 4 });
                to
            }
            Op::Unary(op, a) => self.unary(op, a)?,
            Op::Binary(op, a, b) => self.binary(op, a, b)?,
            Op::Select { mask, accept, reject } => self.select(mask, accept, reject)?,
            Op::Compare(op, a, b) => self.compare(op, a, b)?,
            Op::And(a, b) => match (self.dag().op(a), self.dag().op(b)) {
                (Op::Not(a), _) => {
                    let (a, b) = (self.value(a)?, self.source(b)?);
                    self.binary_of(Opcode::AndNot, a, b)
                }
                (_, Op::Not(b)) => {
                    let (b, a) = (self.value(b)?, self.source(a)?);
                    self.binary_of(Opcode::AndNot, b, a)
                }
                _ => self.commutative(Opcode::And, a, b)?,
            },
            Op::Or(a, b) => self.commutative(Opcode::Or, a, b)?,
            Op::Not(a) => {
                let a = self.value(a)?;
                self.inverted(a)
            }
            // They are there where what they come out of has been made.
            op @ (Op::Result(_) | Op::Carried { .. } | Op::Live(_) | Op::Out { .. }) => {
                return Err(Unsupported(format!("{op:?} before it is there, which is a fault of Portcullis")));
            }
        })
    }

    fn commutative(&mut self, op: Opcode, a: Node, b: Node) -> Result<Vector> {
        let (a, b) = (self.source(a)?, self.source(b)?);
        Ok(match (a, b) {
            (Source::Vector(a), b) | (b, Source::Vector(a)) => self.binary_of(op, a, b),
            (a, b) => {
                let a = self.in_vector(a);
                self.binary_of(op, a, b)
            }
        })
    }

    fn unary(&mut self, op: Unary, a: Node) -> Result<Vector> {
        if let (Unary::SwapBytes16 | Unary::SwapBytes32, Op::Load(load)) = (op, self.dag().op(a))
            && load.size == (if op == Unary::SwapBytes16 { 2 } else { 4 })
            && let Some(value) = self.load_turned(load)
        {
            return Ok(value);
        }
        let all = self.value(a)?;
        Ok(match op {
            Unary::Invert => self.inverted(all),
            Unary::SwapBytes16 => self.pick(all, 0, 2, true),
            Unary::SwapBytes32 => self.pick(all, 0, 4, true),
            Unary::CountOnes | Unary::LeadingZeros | Unary::TrailingZeros | Unary::ReverseBits => {
                return Err(Unsupported(format!("{op:?} eight at a time")));
            }
        })
    }

    fn binary(&mut self, op: Binary, a: Node, b: Node) -> Result<Vector> {
        let by = |op| match op {
            Binary::ShiftLeft => Some((Shift::Left, Opcode::ShiftLeft)),
            Binary::ShiftRight => Some((Shift::Right, Opcode::ShiftRight)),
            Binary::ShiftRightSigned => Some((Shift::RightSigned, Opcode::ShiftRightSigned)),
            _ => None,
        };
        if let Some((fixed, varying)) = by(op) {
            let a = self.value(a)?;
            return Ok(match self.dag().as_constant(b) {
                Some(count) => self.shifted(fixed, a, count % 32),
                None => {
                    let b = self.value(b)?;
                    let count = self.with(Opcode::And, b, 31);
                    self.both_of(varying, a, count)
                }
            });
        }
        let op = match op {
            Binary::Subtract => {
                let (a, b) = (self.value(a)?, self.source(b)?);
                return Ok(self.binary_of(Opcode::Subtract, a, b));
            }
            Binary::Add => Opcode::Add,
            Binary::Multiply => Opcode::Multiply,
            Binary::And => Opcode::And,
            Binary::Or => Opcode::Or,
            Binary::Xor => Opcode::Xor,
            Binary::Min => Opcode::Min,
            Binary::Max => Opcode::Max,
            Binary::MinSigned => Opcode::MinSigned,
            Binary::MaxSigned => Opcode::MaxSigned,
            Binary::Divide
            | Binary::Modulo
            | Binary::DivideSigned
            | Binary::ModuloSigned
            | Binary::ShiftLeft
            | Binary::ShiftRight
            | Binary::ShiftRightSigned => return Err(Unsupported(format!("{op:?} eight at a time"))),
        };
        self.commutative(op, a, b)
    }

    fn select(&mut self, mask: Node, accept: Node, reject: Node) -> Result<Vector> {
        let (mask, accept, reject) = match self.dag().op(mask) {
            Op::Not(mask) => (mask, reject, accept),
            _ => (mask, accept, reject),
        };
        let m = self.value(mask)?;
        for (arm, other, none) in [(accept, reject, If::None), (reject, accept, If::All)] {
            let found = &self.found;
            let is_there = |node| found.contains_key(&Key::Node(node));
            if let Some(shared) = self.arms.apart(self.lanes, self.plan, arm, is_there) {
                return self.choice_apart(m, (accept, reject), other, none, &shared);
            }
        }
        self.choice(m, accept, reject)
    }

    /// A choice one arm of which is left out if the mask is such that only the other one counts.
    fn choice_apart(
        &mut self,
        mask: Vector,
        (accept, reject): (Node, Node),
        other: Node,
        only_other: If,
        shared: &[Node],
    ) -> Result<Vector> {
        for &node in shared {
            self.source(node)?;
        }
        let other = self.source(other)?;
        let (to, behind) = (self.copied(other), self.listing.label());
        self.put(Instruction::JumpIf { mask, lanes: only_other, to: behind });
        let mark = self.enter();
        let from = Source::Vector(self.choice(mask, accept, reject)?);
        self.put(Instruction::Move { to, from });
        self.leave(mark);
        self.put(Instruction::Label(behind));
        Ok(to)
    }

    /// One where the mask is on, the other where it is off.
    fn choice(&mut self, m: Vector, accept: Node, reject: Node) -> Result<Vector> {
        let constants = (self.dag().as_constant(accept), self.dag().as_constant(reject));
        // A mask is a number, too: -1 where it is on.
        Ok(match constants {
            (Some(on), Some(off)) if off == on.wrapping_add(1) => self.with(Opcode::Add, m, off),
            (Some(on), Some(off)) if on == off.wrapping_add(1) => {
                let off = self.splat(off);
                let off = self.in_vector(off);
                self.both_of(Opcode::Subtract, off, m)
            }
            (_, Some(0)) => {
                let on = self.source(accept)?;
                self.binary_of(Opcode::And, m, on)
            }
            (Some(0), _) => {
                let off = self.source(reject)?;
                self.binary_of(Opcode::AndNot, m, off)
            }
            (Some(u32::MAX), _) => {
                let off = self.source(reject)?;
                self.binary_of(Opcode::Or, m, off)
            }
            (Some(on), Some(off)) => {
                let differ = self.with(Opcode::And, m, on ^ off);
                self.with(Opcode::Xor, differ, off)
            }
            _ => {
                let (on, off) = (self.source(accept)?, self.value(reject)?);
                self.chosen(m, on, off)
            }
        })
    }

    fn compare(&mut self, op: Compare, a: Node, b: Node) -> Result<Vector> {
        let (x, y) = (self.dag().range(a), self.dag().range(b));
        let (constant_a, constant_b) = (self.dag().as_constant(a), self.dag().as_constant(b));
        let small = (x.high | y.high) < SIGN;
        // There are two comparisons: whether words are equal, and whether the first, signed, is greater.
        Ok(match op {
            Compare::Equal => self.commutative(Opcode::Equal, a, b)?,
            Compare::LessSigned => {
                let (a, b) = (self.source(a)?, self.value(b)?);
                self.binary_of(Opcode::Greater, b, a)
            }
            Compare::Less if small => {
                let (a, b) = (self.source(a)?, self.value(b)?);
                self.binary_of(Opcode::Greater, b, a)
            }
            Compare::Less => {
                let not = self.at_most(Opcode::Min, Opcode::Max, b, a)?;
                self.inverted(not)
            }
            Compare::LessEqual => match (constant_a, constant_b) {
                (Some(least), _) if small && least > 0 => {
                    let b = self.value(b)?;
                    self.with(Opcode::Greater, b, least - 1)
                }
                (_, Some(most)) if small && most < SIGN - 1 => {
                    let above = self.splat(most + 1);
                    let (above, a) = (self.in_vector(above), self.value(a)?);
                    self.both_of(Opcode::Greater, above, a)
                }
                _ => self.at_most(Opcode::Min, Opcode::Max, a, b)?,
            },
            Compare::LessEqualSigned => self.at_most(Opcode::MinSigned, Opcode::MaxSigned, a, b)?,
        })
    }

    /// `a <= b`: the lesser of them is a, and the greater is b.
    fn at_most(&mut self, min: Opcode, max: Opcode, a: Node, b: Node) -> Result<Vector> {
        let (a, b) = (self.source(a)?, self.source(b)?);
        Ok(match (a, b) {
            (Source::Vector(a), b) => {
                let least = self.binary_of(min, a, b);
                self.both_of(Opcode::Equal, least, a)
            }
            (a, b) => {
                let b = self.in_vector(b);
                let most = self.binary_of(max, b, a);
                self.both_of(Opcode::Equal, most, b)
            }
        })
    }

    // Packets.

    /// The packets' offsets in the arena, or their lengths.
    fn descriptors(&mut self, lengths: bool) -> Vector {
        let mut pair = |pair| match self.found.get(&Key::Descriptors(pair)) {
            Some(&value) => value,
            None => {
                let to = self.listing.vector();
                self.put(Instruction::Descriptors { to, pair });
                self.know(Key::Descriptors(pair), to)
            }
        };
        let (a, b) = (pair(0), pair(1));
        let to = self.listing.vector();
        self.put(Instruction::EveryOther { to, a, b, odd: lengths });
        to
    }

    fn starts(&mut self) -> Vector {
        if let Some(&value) = self.found.get(&Key::Starts) {
            return value;
        }
        let value = self.descriptors(false);
        self.know(Key::Starts, value)
    }

    fn load(&mut self, node: Node, load: Load) -> Result<Vector> {
        match load.root {
            None if in_reach(load.add, load.size) => Ok(self.bytes(load.add, load.size, false)),
            Some(root) if self.plan.is_guessed(node, root) => self.guessed(node, root),
            _ => self.scattered(load),
        }
    }

    /// A load of a number whose first byte is the highest, if it can be had in less than a load and a turn.
    fn load_turned(&mut self, load: Load) -> Option<Vector> {
        if load.root.is_some() || !in_reach(load.add, load.size) {
            return None;
        }
        let (first, last) = self.plan.words(load.add, load.size);
        (first == last).then(|| self.bytes(load.add, load.size, true))
    }

    /// Bytes at a constant offset; `turned`: the first one is the highest, where they lie in one word.
    fn bytes(&mut self, at: u32, size: u32, turned: bool) -> Vector {
        let (first, last) = self.plan.words(at, size);
        let word = self.row_word(first);
        let skip = at - first;
        if first == last {
            return match (skip, size) {
                _ if turned => self.pick(word, skip, size, true),
                (0, 4) => word,
                (0, _) => self.with(Opcode::And, word, u32::MAX >> (32 - 8 * size)),
                (skip, size) if skip + size == 4 => self.shifted(Shift::Right, word, 8 * skip),
                (skip, size) => self.pick(word, skip, size, false),
            };
        }
        let behind = self.row_word(last);
        let low = self.shifted(Shift::Right, word, 8 * skip);
        // Of the word behind, whose first byte is byte `last - at` of the number.
        let high = self.shifted(Shift::Left, behind, 8 * (last - at));
        // What the first word has beyond its end is also in the one behind it.
        let both = self.both_of(Opcode::Or, low, high);
        match size {
            4 => both,
            _ => self.with(Opcode::And, both, u32::MAX >> (32 - 8 * size)),
        }
    }

    /// A word of every packet of the group, by the offset of its first byte, which the plan knows.
    fn row_word(&mut self, word: u32) -> Vector {
        if let Some(&value) = self.found.get(&Key::Word(word)) {
            return value;
        }
        // A word alone is the first of a row: eight words each for itself take more.
        let row = self.plan.row_of(word).unwrap_or(word);
        let high = word - row >= 8;
        let (first, second) = (self.pair(row, 0, high), self.pair(row, 1, high));
        // Each has, of two packets, a word and the one behind it.
        let op = if (word - row).is_multiple_of(8) { Opcode::LowPairs } else { Opcode::HighPairs };
        let value = self.both_of(op, first, second);
        self.know(Key::Word(word), value)
    }

    fn pair(&mut self, row: u32, pair: u8, high: bool) -> Vector {
        let key = Key::Pair(row, pair, high);
        if let Some(&value) = self.found.get(&key) {
            return value;
        }
        let (first, second) = (self.row(row, 2 * pair), self.row(row, 2 * pair + 1));
        let value = self.both_of(if high { Opcode::HighWords } else { Opcode::LowWords }, first, second);
        self.know(key, value)
    }

    fn row(&mut self, at: u32, lane: u8) -> Vector {
        if let Some(&value) = self.found.get(&Key::Row(at, lane)) {
            return value;
        }
        let to = self.listing.vector();
        self.put(Instruction::Row { to, lane, at });
        self.know(Key::Row(at, lane), to)
    }

    /// A load at an offset that varies, of each packet for itself.
    fn scattered(&mut self, load: Load) -> Result<Vector> {
        let most = load.root.map_or(0, |root| self.dag().range(root).high);
        let harmless = u64::from(most) + u64::from(load.add) + u64::from(load.size) <= u64::from(HARMLESS);
        let (index, displacement) = match load.root.filter(|_| harmless) {
            Some(root) => {
                let (root, starts) = (self.source(root)?, self.starts());
                (self.binary_of(Opcode::Add, starts, root), load.add)
            }
            None => (self.safe(load)?, 0),
        };
        let to = self.listing.vector();
        self.put(Instruction::Gather { to, base: Base::Arena, index, displacement, size: load.size });
        Ok(to)
    }

    /// Where a load goes, in bytes from the arena's first one: the packet's first byte where it would not lie in the packet.
    fn safe(&mut self, load: Load) -> Result<Vector> {
        let key = load.root.map(|root| Key::Safe(root, load.add, load.size));
        if let Some(&value) = key.and_then(|key| self.found.get(&key)) {
            return Ok(value);
        }
        let offset = match load.root {
            None => {
                let add = self.splat(load.add);
                self.in_vector(add)
            }
            Some(root) => {
                let root = self.value(root)?;
                if load.add == 0 { root } else { self.with(Opcode::Add, root, load.add) }
            }
        };
        let lengths = self.length()?;
        // It does not wrap where the packet is as long as the load.
        let room = self.with(Opcode::Subtract, lengths, load.size);
        let greater = self.with(Opcode::Max, lengths, load.size);
        let fits = self.both_of(Opcode::Equal, greater, lengths);
        let lesser = self.both_of(Opcode::Min, offset, room);
        let inside = self.both_of(Opcode::Equal, lesser, offset);
        let fits = self.both_of(Opcode::And, fits, inside);
        let offset = self.both_of(Opcode::And, fits, offset);
        let starts = self.starts();
        let safe = self.both_of(Opcode::Add, starts, offset);
        Ok(match key {
            Some(key) => self.know(key, safe),
            None => safe,
        })
    }

    /// The packets' lengths, whether the filter asks for them or not.
    fn length(&mut self) -> Result<Vector> {
        match self.dag().find(Op::Length) {
            Some(node) => self.value(node),
            None => Ok(self.descriptors(true)),
        }
    }

    /// All loads at an offset for which there is a guess: where it is right in all lanes in which it matters they are a
    /// part of rows, else they are read packet by packet.
    fn guessed(&mut self, node: Node, root: Node) -> Result<Vector> {
        let plan = self.plan;
        let guess = &plan.guesses[&root];
        let offset = self.value(root)?;
        let right = self.with(Opcode::Equal, offset, guess.value);
        let wrong = match guess.lanes {
            Some(lanes) => {
                let lanes = self.source(lanes)?;
                self.binary_of(Opcode::AndNot, right, lanes)
            }
            None => self.inverted(right),
        };
        let (other, behind) = (self.listing.label(), self.listing.label());
        self.put(Instruction::JumpIf { mask: wrong, lanes: If::Any, to: other });
        let loads: Vec<(Load, Vector)> = guess
            .loads
            .iter()
            .map(|&load| match self.lanes.dag.op(load) {
                Op::Load(load) => (load, self.listing.vector()),
                _ => unreachable!("guesses are about loads"),
            })
            .collect();

        let mark = self.journal.len();
        for &(load, to) in &loads {
            let from = Source::Vector(self.bytes(guess.value + load.add, load.size, false));
            self.put(Instruction::Move { to, from });
        }
        self.forget(mark);

        self.put(Instruction::Aside);
        self.put(Instruction::Label(other));
        let mark = self.enter();
        for &(load, to) in &loads {
            let from = Source::Vector(self.scattered(load)?);
            self.put(Instruction::Move { to, from });
        }
        self.leave(mark);
        self.put(Instruction::Jump(behind));
        self.put(Instruction::EndAside);

        self.put(Instruction::Label(behind));
        for (&node, (_, value)) in guess.loads.iter().zip(loads) {
            self.know(Key::Node(node), value);
        }
        Ok(self.found[&Key::Node(node)])
    }

    // Steps.

    fn region(&mut self, region: RegionId) -> Result<()> {
        let lanes = self.lanes;
        for step in &lanes.regions[region.index()].steps {
            match step {
                Step::Effect { effect, .. } => return Err(Unsupported(format!("{effect:?} eight at a time"))),
                Step::When { mask, body, outs } => self.when(*mask, *body, outs)?,
                Step::Loop { live, carried, body } => self.rounds(*live, carried, *body)?,
            }
        }
        Ok(())
    }

    /// Takes note of what a step gave, if anybody asks for it.
    fn found_out(&mut self, op: Op, value: Vector) {
        if let Some(node) = self.dag().find(op) {
            self.know(Key::Node(node), value);
        }
    }

    /// What comes out of a region that was left out is the least of what it can be by its range, as for four lanes.
    fn least(&mut self, node: Node) -> Source {
        let least = match self.dag().kind(node) {
            Kind::Word => self.dag().range(node).low,
            Kind::Mask => 0,
        };
        self.splat(least)
    }

    fn when(&mut self, mask: Node, body: RegionId, outs: &[Node]) -> Result<()> {
        let mask = self.value(mask)?;
        let behind = self.listing.label();
        let mut out = Vec::with_capacity(outs.len());
        for &node in outs {
            let least = self.least(node);
            out.push(self.copied(least));
        }
        self.put(Instruction::JumpIf { mask, lanes: If::None, to: behind });
        let mark = self.enter();
        self.region(body)?;
        let values = outs.iter().map(|&node| self.source(node)).collect::<Result<Vec<_>>>()?;
        for (&to, from) in out.iter().zip(values) {
            self.put(Instruction::Move { to, from });
        }
        self.leave(mark);
        self.put(Instruction::Label(behind));
        for (index, value) in out.into_iter().enumerate() {
            self.found_out(Op::Out { region: body, index: index as u32 }, value);
        }
        Ok(())
    }

    /// Moves vectors into others, none of which is one of them.
    fn assign(&mut self, to: &[Vector], from: &[Vector]) {
        for (&to, &from) in to.iter().zip(from).filter(|(to, from)| to != from) {
            self.put(Instruction::Move { to, from: Source::Vector(from) });
        }
    }

    fn rounds(&mut self, live: Live, carried: &[Carry], body: RegionId) -> Result<()> {
        let mut current = Vec::with_capacity(carried.len() + 1);
        for first in std::iter::once(live.first).chain(carried.iter().map(|carry| carry.first)) {
            let first = self.source(first)?;
            current.push(self.copied(first));
        }
        let (round, last, behind) = (self.listing.label(), self.listing.label(), self.listing.label());
        self.put(Instruction::JumpIf { mask: current[0], lanes: If::None, to: behind });
        let mark = self.enter();
        // What does not change from round to round is made before the first one.
        let needs = needed_by(self.lanes, body, live, carried);
        for node in needs.outside {
            self.source(node)?;
        }
        if needs.loads_anywhere {
            self.starts();
            self.length()?;
        }
        self.put(Instruction::Loop);
        self.put(Instruction::Label(round));
        self.found_out(Op::Live(body), current[0]);
        for (index, &value) in current[1..].iter().enumerate() {
            self.found_out(Op::Carried { body, index: index as u32 }, value);
        }
        self.region(body)?;
        let next = self.source(live.next)?;
        let goes_on = self.binary_of(Opcode::And, current[0], next);
        let mut left = Vec::with_capacity(carried.len());
        for (carry, &before) in carried.iter().zip(&current[1..]) {
            left.push(match self.source(carry.left)? {
                Source::Vector(after) if after == before => before,
                after => self.chosen(current[0], after, before),
            });
        }
        self.put(Instruction::JumpIf { mask: goes_on, lanes: If::None, to: last });
        // What only those need that go on.
        let mut next = vec![goes_on];
        for (carry, &left) in carried.iter().zip(&left) {
            next.push(match carry.next == carry.left {
                true => left,
                false => match self.source(carry.next)? {
                    Source::Vector(after) if after == left => left,
                    after => self.chosen(goes_on, after, left),
                },
            });
        }
        self.assign(&current, &next);
        self.put(Instruction::Jump(round));
        self.put(Instruction::Label(last));
        self.assign(&current[1..], &left);
        self.put(Instruction::EndLoop);
        self.leave(mark);
        self.put(Instruction::Label(behind));
        for (index, &value) in current[1..].iter().enumerate() {
            self.found_out(Op::Out { region: body, index: index as u32 }, value);
        }
        Ok(())
    }
}
