//! Operations on 32-bit words, and the variables that carry words from block to block.

use std::rc::Rc;

/// Index of an operation in its block.
pub(crate) type Id = u32;

/// A variable that carries a word from block to block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Variable {
    /// Half of a register, 0 the low one. Registers 6 to 9 exist per frame, and so do the pseudo
    /// registers of a `bpf_loop`.
    Register { frame: u8, register: u8, half: u8 },
    /// A word of a frame's stack, counted from its lowest address.
    Stack { frame: u8, word: u8 },
    /// Half of the amount by which a number exceeds the map field that it was loaded from. The
    /// number is in a register, or in two stack words from `word` on.
    Amount { frame: u8, register: Option<u8>, word: u8, half: u8 },
    /// A word of the packet's private copy of a map value.
    PrivateWord { map: u16, word: u16 },
    /// A read that later blocks reuse; see `value_numbering`.
    CarriedRead { slot: u32 },
}

/// Operations on two words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum BinaryOp {
    Add,
    Sub,
    Mul,
    /// The divisor of `Div` and `Rem` is not zero.
    Div,
    Rem,
    And,
    Or,
    Xor,
    /// Shift counts are below 32.
    Shl,
    Shr,
    Sar,
    // The operations from here on give a bool.
    Eq,
    Ne,
    Lt,
    Le,
    Slt,
    Sle,
    /// Operations on bools.
    LogicalAnd,
    LogicalOr,
}

/// Result of constant folding.
pub(crate) enum Constant {
    Number(u32),
    Bool(bool),
}

impl BinaryOp {
    /// Folds the operation on two constants.
    pub fn fold(self, x: u32, y: u32) -> Constant {
        use BinaryOp::*;
        use Constant::{Bool, Number};
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
            Eq => Bool(x == y),
            Ne => Bool(x != y),
            Lt => Bool(x < y),
            Le => Bool(x <= y),
            Slt => Bool((x as i32) < y as i32),
            Sle => Bool(x as i32 <= y as i32),
            LogicalAnd => Bool(x != 0 && y != 0),
            LogicalOr => Bool(x != 0 || y != 0),
        }
    }
}

/// Operations on 64-bit numbers. A device without such numbers gets them split into halves when the
/// filter is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum WideOp {
    Mul,
    Xor,
}

/// Side effects of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Effect {
    /// None; the result depends on the arguments alone.
    None,
    /// The result depends on the packet or a map.
    Reads,
    /// The call changes the packet or a map.
    Writes,
}

/// A call of a function of the module, by name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub function: Rc<str>,
    pub arguments: Vec<Argument>,
    pub effect: Effect,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Argument {
    /// The packet handle.
    Packet,
    Value(Id),
    /// A vector or array, a map key for example.
    Words(Vec<Id>),
}

/// An operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Constant(u32),
    Bool(bool),
    /// The value of a variable at the start of the block.
    Variable(Variable),
    Binary(BinaryOp, Id, Id),
    /// Negation of a bool.
    Not(Id),
    /// The second operand if the first, a bool, is true, else the third.
    Select(Id, Id, Id),
    /// Byte swap of the low 16 bits, or of the word.
    Swap16(Id),
    Swap32(Id),
    Call(Call),
    /// A component of the vector that a call returned.
    Component(Id, u32),
    /// A 64-bit number from its low and high half.
    Join64(Id, Id),
    Wide(WideOp, Id, Id),
    /// Half of a 64-bit number, 0 the low one.
    Half(Id, u32),
    /// Aborts the packet and counts the trap if the condition holds.
    Trap {
        when: Id,
        site: u32,
    },
    /// Loads a word of an indexed frame.
    LoadIndexed {
        frame: u16,
        word: Id,
    },
    /// Stores a word of an indexed frame.
    StoreIndexed {
        frame: u16,
        word: Id,
        value: Id,
    },
}

/// Operands of a 64-bit sum or difference.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sum {
    pub left: (Id, Id),
    pub right: (Id, Id),
    pub is_difference: bool,
}

/// A field of a map value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field {
    pub map: u16,
    /// The entry index plus one.
    pub entry: Id,
    /// Byte offset in the value.
    pub at: Id,
    pub size: u32,
}

/// A number that equals a field plus an amount, until the field is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FieldAlias {
    pub field: Field,
    /// The map load that the number stems from, by its number in the program.
    pub load: u32,
    pub number: (Id, Id),
    /// Whether the load is in this block.
    pub is_loaded_here: bool,
    /// Whether no other IR value stands for the number, so that it may be replaced by the result of
    /// a fetch-add.
    pub is_unshared: bool,
    /// Writes from this operation on invalidate the alias.
    pub since: usize,
    pub amount: (Id, Id),
}

/// Counts of writes to the packet and to maps. Reads with equal epochs see the same content.
pub(crate) type Epoch = [u32; 2];

impl Call {
    /// Whether the call accesses the packet, and maps.
    pub fn accesses(&self) -> [bool; 2] {
        if !self.arguments.contains(&Argument::Packet) {
            return [false, true];
        }
        [true, !["load_", "store_", "pkt_"].iter().any(|name| self.function.starts_with(name))]
    }

    /// The part of the current epoch that the result depends on.
    pub fn epoch(&self, written: Epoch) -> Epoch {
        if self.effect == Effect::None {
            return Epoch::default();
        }
        let [packet, maps] = self.accesses();
        [if packet { written[0] } else { 0 }, if maps { written[1] } else { 0 }]
    }
}
