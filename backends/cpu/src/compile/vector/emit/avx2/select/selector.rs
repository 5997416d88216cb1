//! State of instruction selection, and helpers for single instructions.

use std::collections::HashMap;

use super::super::super::plan::Plan;
use super::super::encode::{ShiftOp, VectorOp};
use super::super::lazy_arms::ArmAnalysis;
use super::super::vcode::{Instruction, Source, VCode, VReg};
use crate::compile::vector::ir::{Dag, LaneIr, Node};

/// Index of a byte in a shuffle that is zero.
const ZERO: u8 = 0xff;

/// Identifies a value that has been computed and can be reused in the code that it dominates.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum CacheKey {
    Node(Node),
    /// A word of all packets, by the offset of its first byte.
    Word(u32),
    /// Rows of a packet and of the one four further on.
    Row(u32, u8),
    /// Half of the rows of two pairs of packets, interleaved: row, pair, and whether it is the high
    /// half.
    Pair(u32, u8, bool),
    /// Descriptors of two pairs of packets.
    Descriptors(u8),
    /// The packets' offsets in the arena.
    PacketStarts,
    /// Arena offsets of a load with out-of-bounds ones replaced, by root, constant part and size.
    SafeOffset(Node, u32, u32),
}

pub(super) struct Selector<'a> {
    pub lanes: &'a LaneIr,
    pub plan: &'a Plan,
    /// Byte offset of each table.
    pub tables: &'a [u32],
    pub arm_analysis: ArmAnalysis,
    pub code: VCode,
    pub cache: HashMap<CacheKey, VReg>,
    /// Keys of `cache` in order of insertion.
    pub journal: Vec<CacheKey>,
}

impl Selector<'_> {
    pub fn dag(&self) -> &Dag {
        &self.lanes.dag
    }

    pub fn push(&mut self, instruction: Instruction) {
        self.code.instructions.push(instruction);
    }

    pub fn remember(&mut self, key: CacheKey, value: VReg) -> VReg {
        if self.cache.insert(key, value).is_none() {
            self.journal.push(key);
        }
        value
    }

    /// Starts conditional code: values that are computed in it are not available behind it.
    pub fn enter_conditional(&mut self) -> usize {
        self.push(Instruction::EnterConditional);
        self.journal.len()
    }

    pub fn exit_conditional(&mut self, mark: usize) {
        self.push(Instruction::ExitConditional);
        self.forget_since(mark);
    }

    /// Drops the values that were cached after the mark was taken.
    pub fn forget_since(&mut self, mark: usize) {
        for key in self.journal.drain(mark..) {
            self.cache.remove(&key);
        }
    }

    pub fn splat(&mut self, word: u32) -> Source {
        let mut half = [0; 16];
        half.chunks_exact_mut(4).for_each(|place| place.copy_from_slice(&word.to_le_bytes()));
        Source::Constant(self.code.constant(half))
    }

    pub fn emit_binary(&mut self, op: VectorOp, a: VReg, b: Source) -> VReg {
        let to = self.code.new_vreg();
        self.push(Instruction::Binary { op, to, a, b });
        to
    }

    pub fn emit_binary_vectors(&mut self, op: VectorOp, a: VReg, b: VReg) -> VReg {
        self.emit_binary(op, a, Source::Vector(b))
    }

    pub fn emit_binary_constant(&mut self, op: VectorOp, a: VReg, word: u32) -> VReg {
        let word = self.splat(word);
        self.emit_binary(op, a, word)
    }

    pub fn emit_invert(&mut self, a: VReg) -> VReg {
        self.emit_binary_constant(VectorOp::Xor, a, u32::MAX)
    }

    pub fn emit_shift(&mut self, op: ShiftOp, from: VReg, count: u32) -> VReg {
        if count == 0 {
            return from;
        }
        let to = self.code.new_vreg();
        self.push(Instruction::Shift { op, to, from, count: count as u8 });
        to
    }

    pub fn emit_blend(&mut self, mask: VReg, on: Source, off: VReg) -> VReg {
        let to = self.code.new_vreg();
        self.push(Instruction::Blend { to, mask, on, off });
        to
    }

    /// Copies a value to a virtual register of its own, which may be written again.
    pub fn copy_to_new(&mut self, from: Source) -> VReg {
        let to = self.code.new_vreg();
        self.push(Instruction::Move { to, from });
        to
    }

    pub fn as_vector(&mut self, source: Source) -> VReg {
        match source {
            Source::Vector(vector) => vector,
            constant @ Source::Constant(_) => self.copy_to_new(constant),
        }
    }

    /// Selects `size` bytes of each lane's word from `at` on, zero-extended; with `turned`, in
    /// reverse order.
    pub fn shuffle_in_lanes(&mut self, value: VReg, at: u32, size: u32, turned: bool) -> VReg {
        let mut places = [ZERO; 16];
        for (lane, word) in places.chunks_exact_mut(4).enumerate() {
            for byte in 0..size {
                let from = if turned { at + size - 1 - byte } else { at + byte };
                word[byte as usize] = 4 * lane as u8 + from as u8;
            }
        }
        let places = Source::Constant(self.code.constant(places));
        self.emit_binary(VectorOp::Shuffle, value, places)
    }
}
