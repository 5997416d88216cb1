//! The checked tree: every name looked up, every conversion written out, constants worked out. What
//! is in it has a meaning; what is left to lowering is where pointers point to.

use super::ast::{BinaryOp, Space};
use super::files::Span;
use super::types::{Structs, Type};
use portcullis_core::program::prelude::Intrinsic;

/// A local variable or parameter, by its place in [`Function::locals`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LocalId(pub u32);

/// A `__constant` table, by its place in [`Filter::tables`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TableId(pub u32);

/// A function, by its place in [`Filter::functions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FunctionId(pub u32);

/// A checked text.
pub struct Filter {
    pub structs: Structs,
    pub tables: Vec<Table>,
    pub functions: Vec<Function>,
    pub filter: FunctionId,
    /// What says which flow a packet belongs to.
    pub flow: Option<FunctionId>,
    /// Whether 64 bits may be read or written at once through a pointer.
    pub wide: bool,
}

/// A `__constant` array or structure. (A `__constant` number is a constant where it is used.)
pub struct Table {
    pub name: String,
    pub ty: Type,
    pub span: Span,
    /// Its scalars in the order of memory, as the bits of their types.
    pub values: Vec<u64>,
}

pub struct Function {
    pub name: String,
    pub span: Span,
    pub result: Type,
    pub parameters: Vec<LocalId>,
    pub locals: Vec<Local>,
    /// `None` for what is declared only; nothing calls it then.
    pub body: Option<Vec<Statement>>,
}

pub struct Local {
    pub name: String,
    pub span: Span,
    pub ty: Type,
    /// Whether anything names it.
    pub used: bool,
    /// Whether anything stores to it behind its declaration, or takes its address.
    pub changes: bool,
    /// Whether it is declared where a `switch` may jump past its declaration.
    pub skipped: bool,
}

pub struct Statement {
    pub kind: StatementKind,
    pub span: Span,
}

pub enum StatementKind {
    Block(Vec<Statement>),
    /// A local variable begins, at zero unless there is something else.
    Declare(LocalId, Option<Init>),
    Expression(Expr),
    If(Expr, Box<Statement>, Option<Box<Statement>>),
    /// `for` and `while`: condition, step, body.
    Loop(Option<Expr>, Option<Expr>, Box<Statement>),
    DoWhile(Box<Statement>, Expr),
    Switch(Switch),
    Break,
    Continue,
    Return(Option<Expr>),
}

pub struct Switch {
    /// Of type `int`, `uint`, `long` or `ulong`.
    pub value: Expr,
    /// In the order of the text: each falls through to the next unless it ends in a jump.
    pub segments: Vec<Segment>,
}

pub struct Segment {
    /// As the bits of the value's type.
    pub labels: Vec<u64>,
    pub default: bool,
    pub body: Vec<Statement>,
}

pub enum Init {
    Value(Expr),
    /// What is set, by the path of indices to it; the rest is zero.
    Parts(Vec<(Vec<u32>, Expr)>),
}

pub struct Expr {
    pub kind: ExprKind,
    pub ty: Type,
    pub span: Span,
}

pub enum ExprKind {
    /// The bits of an integer of the expression's type; of `bool` 0 or 1.
    Integer(u64),
    Float(f32),
    Load(Box<Place>),
    /// The address of a place; of an array that of its first element.
    Address(Box<Place>),
    /// A pointer moved by so many of what it points to. The count is `uint`, modulo 2^32.
    Offset(Box<Expr>, Box<Expr>),
    /// How many of these lie between two pointers: `int`.
    Distance(Box<Expr>, Box<Expr>),
    /// Two pointers compared: `bool`.
    ComparePointers(BinaryOp, Box<Expr>, Box<Expr>),
    /// The same pointer to another type.
    Repoint(Box<Expr>),
    Negate(Box<Expr>),
    BitNot(Box<Expr>),
    /// Of `bool`.
    Not(Box<Expr>),
    /// Both of one type, or for shifts of one shape; comparisons give `bool`, of vectors signed integers.
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// Of `bool`, the right one evaluated only if needed.
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Conditional(Box<Expr>, Box<Expr>, Box<Expr>),
    Comma(Box<Expr>, Box<Expr>),
    /// To the expression's type; vectors to vectors of as many components.
    Convert(Box<Expr>),
    /// The same, what is out of range going to the nearest: `convert_T_sat`.
    Saturate(Box<Expr>),
    /// The same bits: `as_T`.
    Reinterpret(Box<Expr>),
    Splat(Box<Expr>),
    /// A vector of these scalars and vectors.
    Compose(Vec<Expr>),
    /// Components of a vector that is no place.
    Swizzle(Box<Expr>, Vec<u8>),
    /// A member of a structure that is no place.
    Member(Box<Expr>, u32),
    Assign(Box<Place>, Box<Expr>),
    /// Stores `value`, in which [`ExprKind::Old`] is what the place held; gives the new value, or the
    /// old one.
    Update {
        place: Box<Place>,
        value: Box<Expr>,
        gives_old: bool,
    },
    Old,
    Call(FunctionId, Vec<Expr>),
    Prelude(Intrinsic, Vec<Expr>),
    Builtin(Builtin, Vec<Expr>),
}

pub struct Place {
    pub kind: PlaceKind,
    pub ty: Type,
    pub span: Span,
    pub constant: bool,
    /// Where it lies, as far as its type says.
    pub space: Option<Space>,
}

pub enum PlaceKind {
    Local(LocalId),
    Table(TableId),
    /// What a pointer points to.
    Deref(Box<Expr>),
    Member(Box<Place>, u32),
    /// An element of an array; the index is `uint`.
    Index(Box<Place>, Box<Expr>),
    /// Components of a vector, which is not given by components itself.
    Components(Box<Place>, Vec<u8>),
}

/// Built-in functions of integers and vectors (OpenCL C 1.2, 6.12.3, 6.12.6). Their arguments are of
/// the expression's type unless something else is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Builtin {
    Min,
    Max,
    Clamp,
    /// The result is unsigned.
    Abs,
    /// The result is unsigned.
    AbsDiff,
    Rotate,
    MulHi,
    Popcount,
    Clz,
    Ctz,
    /// `a * b + c`
    Mad,
    /// The high half of `a * b`, plus `c`.
    MadHi,
    /// `a * b + c`, brought into range.
    MadSat,
    AddSat,
    SubSat,
    /// `(a + b) >> 1` without overflow; rounded up.
    Hadd,
    Rhadd,
    /// Of a vector: whether any (every) component's highest bit is set; `int`.
    Any,
    All,
    /// `select(a, b, c)`: b where c is true; c of the same width.
    Select,
    Bitselect,
    /// Two values side by side in one of twice the width, the high one first.
    Upsample,
    /// Bytes the other way round: `ntohs`, `ntohl`.
    Swap,
}

impl Expr {
    /// The value of an integer that is known.
    pub fn constant(&self) -> Option<i128> {
        let (ExprKind::Integer(bits), Type::Scalar(scalar)) = (&self.kind, &self.ty) else { return None };
        Some(scalar.wrap(i128::from(*bits)))
    }

    /// Whether evaluating it changes nothing and calls nothing; then it may be evaluated where it is
    /// not needed. `budget` bounds how much of it there is.
    pub fn is_cheap(&self, budget: &mut u32) -> bool {
        if *budget == 0 {
            return false;
        }
        *budget -= 1;
        match &self.kind {
            ExprKind::Integer(_) | ExprKind::Float(_) => true,
            ExprKind::Load(place) => place.is_cheap(budget),
            ExprKind::Negate(a)
            | ExprKind::BitNot(a)
            | ExprKind::Not(a)
            | ExprKind::Convert(a)
            | ExprKind::Reinterpret(a)
            | ExprKind::Splat(a)
            | ExprKind::Swizzle(a, _)
            | ExprKind::Repoint(a)
            | ExprKind::Member(a, _) => a.is_cheap(budget),
            ExprKind::Binary(_, a, b)
            | ExprKind::And(a, b)
            | ExprKind::Or(a, b)
            | ExprKind::Offset(a, b)
            | ExprKind::Distance(a, b)
            | ExprKind::ComparePointers(_, a, b) => a.is_cheap(budget) && b.is_cheap(budget),
            ExprKind::Conditional(a, b, c) => a.is_cheap(budget) && b.is_cheap(budget) && c.is_cheap(budget),
            ExprKind::Builtin(_, list) | ExprKind::Compose(list) => list.iter().all(|a| a.is_cheap(budget)),
            ExprKind::Address(place) => place.is_cheap(budget),
            _ => false,
        }
    }
}

impl Place {
    /// The same for reading a place; reading the packet is a call.
    fn is_cheap(&self, budget: &mut u32) -> bool {
        match &self.kind {
            PlaceKind::Local(_) => true,
            PlaceKind::Table(_) | PlaceKind::Deref(_) => false,
            PlaceKind::Member(base, _) | PlaceKind::Components(base, _) => base.is_cheap(budget),
            PlaceKind::Index(base, index) => base.is_cheap(budget) && index.is_cheap(budget),
        }
    }
}
