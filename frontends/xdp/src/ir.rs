//! IR of a block: a sequence of operations on 32-bit words, each built from earlier ones.
//!
//! [`BlockCode`] is hash-consed and folds constants as operations are added, which amounts to local
//! value numbering. Operations that no one uses stay in the list; liveness analysis leaves them
//! out. [`coalesce`] merges packet accesses while the IR is built; [`privatize`] decides which map
//! values packets copy.

pub(crate) mod coalesce;
mod ops;
pub(crate) mod pending_stores;
pub(crate) mod privatize;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use ops::Constant;
use pending_stores::PendingStores;

pub(crate) use ops::{Argument, BinaryOp, Call, Effect, Epoch, Field, FieldAlias, Id, Op, Sum, Variable, WideOp};

/// The operations of a block, with the facts that building them uses.
#[derive(Debug, Clone, Default)]
pub(crate) struct BlockCode {
    pub ops: Vec<Op>,
    /// Operations by content; reads also by the epoch in which they are valid.
    interned: HashMap<(Op, Epoch), Id, foldhash::fast::RandomState>,
    /// Current epoch of packet and maps, and of each indexed frame, which are independent of each
    /// other.
    epoch: Epoch,
    frame_epochs: BTreeMap<u16, u32>,
    /// Packet stores that are not emitted yet.
    pub pending_stores: PendingStores,
    /// Operands of 64-bit sums and differences, by halves.
    pub sums: HashMap<(Id, Id), Sum>,
    /// Numbers that equal fields of map values, by halves; below 64 bits, twice by the low half.
    pub field_aliases: HashMap<(Id, Id), FieldAlias>,
    /// Words stored in private copies, by map and word.
    pub private_words: BTreeMap<(u16, u16), Id>,
    /// Amounts of the aliases that leave the block.
    pub amounts: Vec<(Variable, Id)>,
    /// Reads that later blocks reuse.
    pub carried_reads: BTreeMap<Variable, Id>,
    /// Loads that are replaced by the result of a later fetch-add.
    pub replaced_loads: HashMap<Id, Id>,
    /// For a packet load of 2 or 4 bytes, the load in the other byte order and its size.
    pub byte_swapped_loads: HashMap<Id, (Id, u32)>,
}

impl BlockCode {
    /// Adds an operation, or returns an equal one that is still valid.
    pub fn add(&mut self, op: Op) -> Id {
        if let Op::Call(call) = &op {
            self.flush_before(call);
            if call.effect == Effect::Writes {
                return self.append(op);
            }
        }
        if matches!(op, Op::Trap { .. } | Op::StoreIndexed { .. }) {
            return self.append(op);
        }
        let epoch = self.epoch(&op);
        match self.interned.entry((op, epoch)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let id = self.ops.len() as Id;
                self.ops.push(new.key().0.clone());
                *new.insert(id)
            }
        }
    }

    /// The epoch that an operation's result depends on.
    fn epoch(&self, op: &Op) -> Epoch {
        match op {
            Op::Call(call) => call.epoch(self.epoch),
            Op::LoadIndexed { frame, .. } => [self.frame_epochs.get(frame).copied().unwrap_or(0), 0],
            _ => Epoch::default(),
        }
    }

    /// Whether repeating a read now would give the same value.
    pub fn is_still_current(&self, id: Id) -> bool {
        let op = &self.ops[id as usize];
        self.interned.get(&(op.clone(), self.epoch(op))) == Some(&id)
    }

    fn append(&mut self, op: Op) -> Id {
        for (written, is_it) in self.epoch.iter_mut().zip(BlockCode::writes(&op)) {
            *written += u32::from(is_it);
        }
        if let Op::StoreIndexed { frame, .. } = op {
            *self.frame_epochs.entry(frame).or_default() += 1;
        }
        self.ops.push(op);
        self.ops.len() as Id - 1
    }

    /// Whether an operation writes the packet, and maps.
    pub fn writes(op: &Op) -> [bool; 2] {
        match op {
            Op::Call(call) if call.effect == Effect::Writes => call.accesses(),
            _ => [false, false],
        }
    }

    pub fn constant(&mut self, value: u32) -> Id {
        self.add(Op::Constant(value))
    }

    pub fn boolean(&mut self, value: bool) -> Id {
        self.add(Op::Bool(value))
    }

    pub fn variable(&mut self, var: Variable) -> Id {
        self.add(Op::Variable(var))
    }

    pub fn as_constant(&self, id: Id) -> Option<u32> {
        match self.ops[id as usize] {
            Op::Constant(value) => Some(value),
            _ => None,
        }
    }

    pub fn as_boolean(&self, id: Id) -> Option<bool> {
        match self.ops[id as usize] {
            Op::Bool(value) => Some(value),
            _ => None,
        }
    }

    pub fn not(&mut self, of: Id) -> Id {
        use BinaryOp::*;
        match self.ops[of as usize] {
            Op::Bool(value) => self.boolean(!value),
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
        match self.as_boolean(condition) {
            Some(true) => accept,
            Some(false) => reject,
            None if accept == reject => accept,
            None => self.add(Op::Select(condition, accept, reject)),
        }
    }

    pub fn binary(&mut self, op: BinaryOp, a: Id, b: Id) -> Id {
        use BinaryOp::*;
        if matches!(op, LogicalAnd | LogicalOr) {
            return self.logical(op, a, b);
        }
        match (self.as_constant(a), self.as_constant(b)) {
            (Some(x), Some(y)) => match op.fold(x, y) {
                Constant::Number(value) => self.constant(value),
                Constant::Bool(value) => self.boolean(value),
            },
            // Constants go to the right of commutative operators.
            (Some(_), None) if matches!(op, Add | Mul | And | Or | Xor | Eq | Ne) => self.binary_by_constant(op, b, a),
            (None, Some(_)) => self.binary_by_constant(op, a, b),
            _ => self.binary_of_unknowns(op, a, b),
        }
    }

    fn logical(&mut self, op: BinaryOp, a: Id, b: Id) -> Id {
        use BinaryOp::{LogicalAnd, LogicalOr};
        match (op, self.as_boolean(a), self.as_boolean(b)) {
            (LogicalAnd, Some(true), _) | (LogicalOr, Some(false), _) => b,
            (LogicalAnd, _, Some(true)) | (LogicalOr, _, Some(false)) => a,
            (LogicalAnd, Some(false), _) | (LogicalAnd, _, Some(false)) => self.boolean(false),
            (LogicalOr, Some(true), _) | (LogicalOr, _, Some(true)) => self.boolean(true),
            _ => self.add(Op::Binary(op, a, b)),
        }
    }

    /// Simplifies an operation with a constant on the right only.
    fn binary_by_constant(&mut self, op: BinaryOp, a: Id, b: Id) -> Id {
        use BinaryOp::*;
        let n = self.as_constant(b).unwrap_or_default();
        // The left operand, if it is itself an operation by a constant.
        let inner = match self.ops[a as usize] {
            Op::Binary(by, inner, m) => self.as_constant(m).map(|m| (by, inner, m)),
            _ => None,
        };
        match (op, n, inner) {
            (Add | Sub | Or | Xor | Shl | Shr | Sar, 0, _) | (Mul | Div, 1, _) | (And, u32::MAX, _) => a,
            (Mul | And, 0, _) | (Rem, 1, _) => self.constant(0),
            (Or, u32::MAX, _) => b,
            (Lt, 0, _) => self.boolean(false),
            (Le, u32::MAX, _) => self.boolean(true),
            // (a + m) + n and (a - m) + n are common in offsets.
            (Sub, ..) => self.binary_const(Add, a, n.wrapping_neg()),
            (Add, _, Some((Add, inner, m))) => self.binary_const(Add, inner, m.wrapping_add(n)),
            // A field that was shifted down, and perhaps masked, back in place.
            (Shl, _, Some((And, cut, m))) => match self.ops[cut as usize] {
                Op::Binary(Shr, of, by) if self.as_constant(by) == Some(n) => self.binary_const(And, of, m << (n & 31)),
                _ => self.add(Op::Binary(op, a, b)),
            },
            (Shl, _, Some((Shr, of, m))) if m == n => self.binary_const(And, of, u32::MAX << (n & 31)),
            // Half of a shift to the left and back: a mask.
            (Shr, _, Some((Shl, of, m))) if m == n => self.binary_const(And, of, u32::MAX >> (n & 31)),
            (And, _, Some((And, inner, m))) => self.binary_const(And, inner, m & n),
            // The mask keeps all bits that may be set.
            (And, ..) if self.possible_bits(a) & !n == 0 => a,
            // A constant part of a word that was assembled from stack bytes.
            (And, _, Some((Or, other, m))) if self.has_no_bits(other, n) => self.constant(m & n),
            _ => self.add(Op::Binary(op, a, b)),
        }
    }

    /// Simplifies an operation whose right operand is not constant.
    fn binary_of_unknowns(&mut self, op: BinaryOp, a: Id, b: Id) -> Id {
        use BinaryOp::*;
        match op {
            Or if self.split_mask(a).0 == self.split_mask(b).0 => {
                let ((of, some), (_, more)) = (self.split_mask(a), self.split_mask(b));
                self.binary_const(And, of, some | more)
            }
            Sub | Xor if a == b => self.constant(0),
            And if a == b => a,
            Eq | Le | Sle if a == b => self.boolean(true),
            Ne | Lt | Slt if a == b => self.boolean(false),
            Or => self.combine_or(a, b).unwrap_or_else(|| self.add(Op::Binary(op, a, b))),
            _ => self.add(Op::Binary(op, a, b)),
        }
    }

    /// Bits that may be set in a number, judged by its last operation.
    fn possible_bits(&self, id: Id) -> u32 {
        match &self.ops[id as usize] {
            Op::Constant(value) => *value,
            Op::Binary(BinaryOp::Shr, _, by) => self.as_constant(*by).map_or(u32::MAX, |by| u32::MAX >> (by & 31)),
            Op::Binary(BinaryOp::And, _, mask) => self.as_constant(*mask).unwrap_or(u32::MAX),
            Op::Call(call) => match &*call.function {
                "load_u8" => 0xff,
                "load_le16" | "load_be16" => 0xffff,
                _ => u32::MAX,
            },
            _ => u32::MAX,
        }
    }

    /// Splits a number into an operand and a constant mask.
    fn split_mask(&self, id: Id) -> (Id, u32) {
        match self.ops[id as usize] {
            Op::Binary(BinaryOp::And, of, mask) => self.as_constant(mask).map_or((id, u32::MAX), |mask| (of, mask)),
            _ => (id, u32::MAX),
        }
    }

    /// Whether a mask guarantees that none of these bits is set.
    fn has_no_bits(&self, of: Id, bits: u32) -> bool {
        matches!(self.ops[of as usize], Op::Binary(BinaryOp::And, _, m) if self.as_constant(m).is_some_and(|m| m & bits == 0))
    }

    /// An operation with a constant on the right.
    pub fn binary_const(&mut self, op: BinaryOp, a: Id, b: u32) -> Id {
        let b = self.constant(b);
        self.binary(op, a, b)
    }

    /// 1 for true, 0 for false.
    pub fn bool_to_u32(&mut self, truth: Id) -> Id {
        let (one, zero) = (self.constant(1), self.constant(0));
        self.select(truth, one, zero)
    }

    pub fn swap16(&mut self, of: Id) -> Id {
        match (self.as_constant(of), &self.ops[of as usize]) {
            (Some(value), _) => self.constant(u32::from((value as u16).swap_bytes())),
            // The inner operand has 16 bits already.
            (_, &Op::Swap16(inner)) => self.binary_const(BinaryOp::And, inner, 0xffff),
            _ => match self.byte_swapped_loads.get(&of) {
                Some(&(twin, 2)) => twin,
                _ => self.add(Op::Swap16(of)),
            },
        }
    }

    pub fn swap32(&mut self, of: Id) -> Id {
        match (self.as_constant(of), &self.ops[of as usize]) {
            (Some(value), _) => self.constant(value.swap_bytes()),
            (_, &Op::Swap32(inner)) => inner,
            _ => match self.byte_swapped_loads.get(&of) {
                Some(&(twin, 4)) => twin,
                _ => self.add(Op::Swap32(of)),
            },
        }
    }

    /// A 64-bit number from its halves. Halves of one 64-bit number, also after a XOR with words,
    /// are not split and joined again: hash functions chain such operations.
    pub fn join64(&mut self, low: Id, high: Id) -> Id {
        let half = |code: &BlockCode, id: Id, which: u32| match code.ops[id as usize] {
            Op::Half(of, it) if it == which => Some(of),
            _ => None,
        };
        let of = half(self, low, 0);
        if let Some(of) = of.filter(|&of| half(self, high, 1) == Some(of)) {
            return of;
        }
        // For each half: the 64-bit number that it stems from, and the word XORed to it.
        let changed = |code: &BlockCode, id: Id, which: u32| match code.ops[id as usize] {
            Op::Half(..) => half(code, id, which).map(|of| (of, None)),
            Op::Binary(BinaryOp::Xor, a, b) => match (half(code, a, which), half(code, b, which)) {
                (Some(of), _) => Some((of, Some(b))),
                (None, Some(of)) => Some((of, Some(a))),
                (None, None) => None,
            },
            _ => None,
        };
        match (changed(self, low, 0), changed(self, high, 1)) {
            (Some((of, by_low)), Some((other, by_high))) if of == other => {
                let zero = self.constant(0);
                let by = self.add(Op::Join64(by_low.unwrap_or(zero), by_high.unwrap_or(zero)));
                self.add(Op::Wide(WideOp::Xor, of, by))
            }
            _ => self.add(Op::Join64(low, high)),
        }
    }

    /// A 64-bit operation on numbers given as halves; returns the halves of the result.
    pub fn wide_op(&mut self, op: WideOp, left: (Id, Id), right: (Id, Id)) -> (Id, Id) {
        let (left, right) = (self.join64(left.0, left.1), self.join64(right.0, right.1));
        let all = self.add(Op::Wide(op, left, right));
        (self.add(Op::Half(all, 0)), self.add(Op::Half(all, 1)))
    }

    pub fn call(&mut self, function: &str, arguments: Vec<Argument>, effect: Effect) -> Id {
        self.add(Op::Call(Call { function: function.into(), arguments, effect }))
    }

    /// A call whose arguments are words.
    pub fn call_values(&mut self, function: &str, arguments: &[Id], effect: Effect) -> Id {
        self.call(function, arguments.iter().map(|&id| Argument::Value(id)).collect(), effect)
    }

    /// The operands of an operation.
    pub fn operands(op: &Op) -> impl Iterator<Item = Id> + '_ {
        let (own, arguments): ([Option<Id>; 3], &[Argument]) = match op {
            Op::Constant(_) | Op::Bool(_) | Op::Variable(_) => ([None; 3], &[]),
            Op::Binary(_, a, b) | Op::Wide(_, a, b) | Op::Join64(a, b) => ([Some(*a), Some(*b), None], &[]),
            Op::Not(a) | Op::Swap16(a) | Op::Swap32(a) | Op::Component(a, _) | Op::Half(a, _) => {
                ([Some(*a), None, None], &[])
            }
            Op::Select(a, b, c) => ([Some(*a), Some(*b), Some(*c)], &[]),
            Op::Call(call) => ([None; 3], &call.arguments),
            Op::Trap { when, .. } => ([Some(*when), None, None], &[]),
            Op::LoadIndexed { word, .. } => ([Some(*word), None, None], &[]),
            Op::StoreIndexed { word, value, .. } => ([Some(*word), Some(*value), None], &[]),
        };
        let ids = |argument| match argument {
            &Argument::Packet => &[],
            Argument::Value(id) => std::slice::from_ref(id),
            Argument::Words(ids) => &ids[..],
        };
        own.into_iter().flatten().chain(arguments.iter().flat_map(ids).copied())
    }

    /// Replaces the operands of an operation.
    pub fn replace_operands(op: &mut Op, mut by: impl FnMut(Id) -> Id) {
        let mut put = |ids: &mut [&mut Id]| ids.iter_mut().for_each(|id| **id = by(**id));
        match op {
            Op::Constant(_) | Op::Bool(_) | Op::Variable(_) => {}
            Op::Binary(_, a, b) | Op::Wide(_, a, b) | Op::Join64(a, b) => put(&mut [a, b]),
            Op::Not(a) | Op::Swap16(a) | Op::Swap32(a) | Op::Component(a, _) | Op::Half(a, _) => put(&mut [a]),
            Op::Select(a, b, c) => put(&mut [a, b, c]),
            Op::Trap { when, .. } => put(&mut [when]),
            Op::LoadIndexed { word, .. } => put(&mut [word]),
            Op::StoreIndexed { word, value, .. } => put(&mut [word, value]),
            Op::Call(call) => {
                for argument in &mut call.arguments {
                    match argument {
                        Argument::Packet => {}
                        Argument::Value(id) => put(&mut [id]),
                        Argument::Words(ids) => ids.iter_mut().for_each(|id| put(&mut [id])),
                    }
                }
            }
        }
    }

    /// Whether an operation must keep its place among others: it reads or writes state.
    pub fn is_ordered(op: &Op) -> bool {
        BlockCode::has_side_effect(op)
            || matches!(op, Op::Call(call) if call.effect != Effect::None)
            || matches!(op, Op::LoadIndexed { .. })
    }

    /// Whether an operation must be kept even if its result is unused.
    pub fn has_side_effect(op: &Op) -> bool {
        match op {
            Op::Call(call) => call.effect == Effect::Writes,
            Op::Trap { .. } | Op::StoreIndexed { .. } => true,
            _ => false,
        }
    }
}
