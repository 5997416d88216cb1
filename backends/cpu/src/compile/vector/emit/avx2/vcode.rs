//! The code as instructions on as many vectors as one likes.

use super::encode::{CONSTANT, Opcode, Shift};

/// A vector of eight words, a packet a lane. It is written more than once only where ways meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Vector(pub usize);

/// What can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Vector(Vector),
    /// By its number, see [`Listing::constants`].
    Constant(usize),
}

/// A place in the code.
pub(super) use super::encode::Label;

/// Where words are that are looked for lane by lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    /// The arena.
    Arena,
    /// The filter's tables.
    Tables,
}

/// In which lanes a mask is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum If {
    Any,
    None,
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Instruction {
    Binary {
        op: Opcode,
        to: Vector,
        a: Vector,
        b: Source,
    },
    Shift {
        op: Shift,
        to: Vector,
        from: Vector,
        count: u8,
    },
    /// `on` where the mask is all ones, `off` where it is zero.
    Choose {
        to: Vector,
        mask: Vector,
        on: Source,
        off: Vector,
    },
    Move {
        to: Vector,
        from: Source,
    },
    /// Sixteen bytes, from `at` on, of packets `lane` and `lane + 4`.
    Row {
        to: Vector,
        lane: u8,
        at: u32,
    },
    /// The descriptors of packets `2 * pair` and the one behind it, and those of the packets four further on.
    Descriptors {
        to: Vector,
        pair: u8,
    },
    /// Words 0 and 2, or 1 and 3, of each half of two vectors.
    EveryOther {
        to: Vector,
        a: Vector,
        b: Vector,
        odd: bool,
    },
    /// Bytes at `base + index + displacement`, zero-extended, in each lane.
    Gather {
        to: Vector,
        base: Base,
        index: Vector,
        displacement: u32,
        size: u32,
    },
    /// A word of each packet's metadata.
    Metadata {
        to: Vector,
        offset: u32,
    },
    /// Goes on elsewhere if a mask is on in such lanes.
    JumpIf {
        mask: Vector,
        lanes: If,
        to: Label,
    },
    Jump(Label),
    Label(Label),
    /// What comes next is seldom executed.
    Aside,
    /// And no longer.
    EndAside,
    /// What comes next, to the `Exit` that belongs to it, is not executed for every group. It begins and ends here alone, and no
    /// vector that begins in it is read behind it.
    Enter,
    Exit,
    /// What comes next is executed again and again.
    Loop,
    EndLoop,
}

impl Instruction {
    /// What it writes.
    pub fn writes(&self) -> Option<Vector> {
        match *self {
            Instruction::Binary { to, .. }
            | Instruction::Shift { to, .. }
            | Instruction::Choose { to, .. }
            | Instruction::Move { to, .. }
            | Instruction::Row { to, .. }
            | Instruction::Descriptors { to, .. }
            | Instruction::EveryOther { to, .. }
            | Instruction::Gather { to, .. }
            | Instruction::Metadata { to, .. } => Some(to),
            _ => None,
        }
    }

    /// How many of the processor's it comes to, about.
    pub fn operations(&self) -> u64 {
        match self {
            Instruction::Gather { .. } | Instruction::Metadata { .. } => 20,
            Instruction::Row { .. } | Instruction::Descriptors { .. } | Instruction::JumpIf { .. } => 2,
            _ => 1,
        }
    }

    /// What it reads.
    pub fn reads(&self) -> impl Iterator<Item = Vector> + use<> {
        let of = |source| match source {
            Source::Vector(vector) => Some(vector),
            Source::Constant(_) => None,
        };
        let all = match *self {
            Instruction::Binary { a, b, .. } => [Some(a), of(b), None],
            Instruction::Shift { from, .. } => [Some(from), None, None],
            Instruction::Choose { mask, on, off, .. } => [Some(mask), of(on), Some(off)],
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
pub(super) struct Listing {
    pub instructions: Vec<Instruction>,
    pub constants: Vec<[u8; CONSTANT]>,
    pub vectors: usize,
    pub labels: usize,
    /// What is written for the group in the end: the verdict, its target in the upper 24 bits.
    pub verdict: Option<Vector>,
}

impl Listing {
    pub fn vector(&mut self) -> Vector {
        self.vectors += 1;
        Vector(self.vectors - 1)
    }

    pub fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels - 1)
    }

    /// The same sixteen bytes in both halves.
    pub fn constant(&mut self, half: [u8; CONSTANT / 2]) -> usize {
        let mut constant = [0; CONSTANT];
        constant.chunks_exact_mut(half.len()).for_each(|place| place.copy_from_slice(&half));
        // They are few.
        self.constants.iter().position(|&known| known == constant).unwrap_or_else(|| {
            self.constants.push(constant);
            self.constants.len() - 1
        })
    }
}
