//! Instructions on virtual registers, before register allocation.

use super::encode::{CONSTANT_BYTES, Label, ShiftOp, VectorOp};

/// A virtual register: a vector of eight words, one packet per lane. It is in static
/// single-assignment form except where control flow joins and in loops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct VReg(pub usize);

/// A readable operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Vector(VReg),
    /// Index into [`VCode::constants`].
    Constant(usize),
}

/// Base address of a gather.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GatherBase {
    Arena,
    /// The filter's constant tables.
    Tables,
}

/// Condition on a mask's lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LaneCondition {
    Any,
    None,
    All,
}

/// An instruction on virtual registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Instruction {
    Binary {
        op: VectorOp,
        to: VReg,
        a: VReg,
        b: Source,
    },
    Shift {
        op: ShiftOp,
        to: VReg,
        from: VReg,
        count: u8,
    },
    /// `on` in lanes whose mask is all ones, `off` in lanes whose mask is zero.
    Blend {
        to: VReg,
        mask: VReg,
        on: Source,
        off: VReg,
    },
    Move {
        to: VReg,
        from: Source,
    },
    /// Loads 16 bytes from byte `at` on of packet `lane` into the low half, and of packet
    /// `lane + 4` into the high half.
    Row {
        to: VReg,
        lane: u8,
        at: u32,
    },
    /// Loads the descriptors of packets `2 * pair` and `2 * pair + 1` into the low half, and those
    /// of the packets four further on into the high half.
    Descriptors {
        to: VReg,
        pair: u8,
    },
    /// Words 0 and 2 (or 1 and 3, if `odd`) of each half of two vectors.
    EveryOther {
        to: VReg,
        a: VReg,
        b: VReg,
        odd: bool,
    },
    /// Loads `size` bytes at `base + index + displacement` in each lane, zero-extended.
    Gather {
        to: VReg,
        base: GatherBase,
        index: VReg,
        displacement: u32,
        size: u32,
    },
    /// Loads the word at byte `offset` of each packet's metadata.
    Metadata {
        to: VReg,
        offset: u32,
    },
    /// Jumps if the mask's lanes meet a condition.
    JumpIf {
        mask: VReg,
        lanes: LaneCondition,
        to: Label,
    },
    Jump(Label),
    Label(Label),
    /// Starts cold code, which is placed behind the function's hot code.
    BeginCold,
    EndCold,
    /// Starts a conditional range, which some groups skip. Control enters and leaves the range at
    /// its ends only, and no virtual register that is first written inside is read behind it.
    EnterConditional,
    ExitConditional,
    /// Starts the body of a loop.
    BeginLoop,
    EndLoop,
}

impl Instruction {
    /// The virtual register that the instruction writes.
    pub fn writes(&self) -> Option<VReg> {
        match *self {
            Instruction::Binary { to, .. }
            | Instruction::Shift { to, .. }
            | Instruction::Blend { to, .. }
            | Instruction::Move { to, .. }
            | Instruction::Row { to, .. }
            | Instruction::Descriptors { to, .. }
            | Instruction::EveryOther { to, .. }
            | Instruction::Gather { to, .. }
            | Instruction::Metadata { to, .. } => Some(to),
            _ => None,
        }
    }

    /// Approximate number of machine instructions.
    pub fn operations(&self) -> u64 {
        match self {
            Instruction::Gather { .. } | Instruction::Metadata { .. } => 20,
            Instruction::Row { .. } | Instruction::Descriptors { .. } | Instruction::JumpIf { .. } => 2,
            _ => 1,
        }
    }

    /// The virtual registers that the instruction reads.
    pub fn reads(&self) -> impl Iterator<Item = VReg> + use<> {
        let of = |source| match source {
            Source::Vector(vreg) => Some(vreg),
            Source::Constant(_) => None,
        };
        let all = match *self {
            Instruction::Binary { a, b, .. } => [Some(a), of(b), None],
            Instruction::Shift { from, .. } => [Some(from), None, None],
            Instruction::Blend { mask, on, off, .. } => [Some(mask), of(on), Some(off)],
            Instruction::Move { from, .. } => [of(from), None, None],
            Instruction::EveryOther { a, b, .. } => [Some(a), Some(b), None],
            Instruction::Gather { index, .. } => [Some(index), None, None],
            Instruction::JumpIf { mask, .. } => [Some(mask), None, None],
            _ => [None; 3],
        };
        all.into_iter().flatten()
    }
}

/// The code for a group of packets.
#[derive(Debug, Default)]
pub(super) struct VCode {
    pub instructions: Vec<Instruction>,
    pub constants: Vec<[u8; CONSTANT_BYTES]>,
    /// Number of virtual registers.
    pub vregs: usize,
    /// Number of labels.
    pub labels: usize,
    /// The group's verdicts, with redirect targets in the upper 24 bits.
    pub verdict: Option<VReg>,
}

impl VCode {
    /// Creates a virtual register.
    pub fn new_vreg(&mut self) -> VReg {
        self.vregs += 1;
        VReg(self.vregs - 1)
    }

    /// Creates a label.
    pub fn new_label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels - 1)
    }

    /// Returns the index of a constant with the same sixteen bytes in both halves.
    pub fn constant(&mut self, half: [u8; CONSTANT_BYTES / 2]) -> usize {
        let mut constant = [0; CONSTANT_BYTES];
        constant.chunks_exact_mut(half.len()).for_each(|place| place.copy_from_slice(&half));
        // A linear search will do: constants are few.
        self.constants.iter().position(|&known| known == constant).unwrap_or_else(|| {
            self.constants.push(constant);
            self.constants.len() - 1
        })
    }
}
