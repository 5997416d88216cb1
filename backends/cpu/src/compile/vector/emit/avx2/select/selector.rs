//! State of instruction selection, and helpers for single instructions.

use std::collections::HashMap;

use super::super::super::plan::Plan;
use super::super::encode::{Opcode, Shift};
use super::super::lazy_arms::Arms;
use super::super::vcode::{Instruction, Listing, Source, Vector};
use crate::compile::vector::ir::{Dag, Lanes, Node};

/// A byte of a shuffle that is zero.
const ZERO: u8 = 0xff;

/// What there is once it was made, in the code that follows.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Key {
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

pub(super) struct Select<'a> {
    pub lanes: &'a Lanes,
    pub plan: &'a Plan,
    /// Where each table begins.
    pub tables: &'a [u32],
    pub arms: Arms,
    pub listing: Listing,
    pub found: HashMap<Key, Vector>,
    /// The keys of `found`, in order.
    pub journal: Vec<Key>,
}

impl Select<'_> {
    pub fn dag(&self) -> &Dag {
        &self.lanes.dag
    }

    pub fn put(&mut self, instruction: Instruction) {
        self.listing.instructions.push(instruction);
    }

    pub fn know(&mut self, key: Key, value: Vector) -> Vector {
        if self.found.insert(key, value).is_none() {
            self.journal.push(key);
        }
        value
    }

    /// Code that is not executed for every group: what is made in it is not there any more when it is left.
    pub fn enter(&mut self) -> usize {
        self.put(Instruction::Enter);
        self.journal.len()
    }

    pub fn leave(&mut self, mark: usize) {
        self.put(Instruction::Exit);
        self.forget(mark);
    }

    /// What was made since there were so many keys.
    pub fn forget(&mut self, mark: usize) {
        for key in self.journal.drain(mark..) {
            self.found.remove(&key);
        }
    }

    pub fn splat(&mut self, word: u32) -> Source {
        let mut half = [0; 16];
        half.chunks_exact_mut(4).for_each(|place| place.copy_from_slice(&word.to_le_bytes()));
        Source::Constant(self.listing.constant(half))
    }

    pub fn binary_of(&mut self, op: Opcode, a: Vector, b: Source) -> Vector {
        let to = self.listing.vector();
        self.put(Instruction::Binary { op, to, a, b });
        to
    }

    pub fn both_of(&mut self, op: Opcode, a: Vector, b: Vector) -> Vector {
        self.binary_of(op, a, Source::Vector(b))
    }

    pub fn with(&mut self, op: Opcode, a: Vector, word: u32) -> Vector {
        let word = self.splat(word);
        self.binary_of(op, a, word)
    }

    pub fn inverted(&mut self, a: Vector) -> Vector {
        self.with(Opcode::Xor, a, u32::MAX)
    }

    pub fn shifted(&mut self, op: Shift, from: Vector, count: u32) -> Vector {
        if count == 0 {
            return from;
        }
        let to = self.listing.vector();
        self.put(Instruction::Shift { op, to, from, count: count as u8 });
        to
    }

    pub fn chosen(&mut self, mask: Vector, on: Source, off: Vector) -> Vector {
        let to = self.listing.vector();
        self.put(Instruction::Choose { to, mask, on, off });
        to
    }

    /// In a vector of its own, which may be written again.
    pub fn copied(&mut self, from: Source) -> Vector {
        let to = self.listing.vector();
        self.put(Instruction::Move { to, from });
        to
    }

    pub fn in_vector(&mut self, source: Source) -> Vector {
        match source {
            Source::Vector(vector) => vector,
            constant @ Source::Constant(_) => self.copied(constant),
        }
    }

    /// The same bytes of each lane's word: `size` of them from `at` on, turned or not, and zeros.
    pub fn pick(&mut self, value: Vector, at: u32, size: u32, turned: bool) -> Vector {
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
}
