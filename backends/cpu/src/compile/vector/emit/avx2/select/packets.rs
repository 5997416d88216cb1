//! Selection for descriptors and loads from packets.

use super::super::super::plan::{ALWAYS_READABLE, in_reach};
use super::super::encode::{Opcode, Shift};
use super::super::vcode::{Base, If, Instruction, Source, Vector};
use super::selector::{Key, Select};
use crate::compile::errors::Result;
use crate::compile::vector::ir::{Load, Node, Op};

impl Select<'_> {
    /// The packets' offsets in the arena, or their lengths.
    pub fn descriptors(&mut self, lengths: bool) -> Vector {
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

    pub fn starts(&mut self) -> Vector {
        if let Some(&value) = self.found.get(&Key::Starts) {
            return value;
        }
        let value = self.descriptors(false);
        self.know(Key::Starts, value)
    }

    pub fn load(&mut self, node: Node, load: Load) -> Result<Vector> {
        match load.root {
            None if in_reach(load.add, load.size) => Ok(self.bytes(load.add, load.size, false)),
            Some(root) if self.plan.is_guessed(node, root) => self.guessed(node, root),
            _ => self.scattered(load),
        }
    }

    /// A load of a number whose first byte is the highest, if it can be had in less than a load and a turn.
    pub fn load_turned(&mut self, load: Load) -> Option<Vector> {
        if load.root.is_some() || !in_reach(load.add, load.size) {
            return None;
        }
        let (first, last) = self.plan.words(load.add, load.size);
        (first == last).then(|| self.bytes(load.add, load.size, true))
    }

    /// Bytes at a constant offset; `turned`: the first one is the highest, where they lie in one word.
    pub fn bytes(&mut self, at: u32, size: u32, turned: bool) -> Vector {
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
    pub fn row_word(&mut self, word: u32) -> Vector {
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

    pub fn pair(&mut self, row: u32, pair: u8, high: bool) -> Vector {
        let key = Key::Pair(row, pair, high);
        if let Some(&value) = self.found.get(&key) {
            return value;
        }
        let (first, second) = (self.row(row, 2 * pair), self.row(row, 2 * pair + 1));
        let value = self.both_of(if high { Opcode::HighWords } else { Opcode::LowWords }, first, second);
        self.know(key, value)
    }

    pub fn row(&mut self, at: u32, lane: u8) -> Vector {
        if let Some(&value) = self.found.get(&Key::Row(at, lane)) {
            return value;
        }
        let to = self.listing.vector();
        self.put(Instruction::Row { to, lane, at });
        self.know(Key::Row(at, lane), to)
    }

    /// A load at an offset that varies, of each packet for itself.
    pub fn scattered(&mut self, load: Load) -> Result<Vector> {
        let most = load.root.map_or(0, |root| self.dag().range(root).high);
        let harmless = u64::from(most) + u64::from(load.add) + u64::from(load.size) <= u64::from(ALWAYS_READABLE);
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
    pub fn safe(&mut self, load: Load) -> Result<Vector> {
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
    pub fn length(&mut self) -> Result<Vector> {
        match self.dag().find(Op::Length) {
            Some(node) => self.value(node),
            None => Ok(self.descriptors(true)),
        }
    }

    /// All loads at an offset for which there is a guess: where it is right in all lanes in which it matters they are a
    /// part of rows, else they are read packet by packet.
    pub fn guessed(&mut self, node: Node, root: Node) -> Result<Vector> {
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
}
