//! Typed tree: names are resolved, conversions explicit and constants evaluated. The only errors
//! left to lowering are those about the targets of pointers.

use super::ast::BinaryOp;
use super::files::Span;
use super::types::{Space, Structs, Type};
use portcullis_core::program::prelude::Intrinsic;

/// Index of a local variable or parameter in [`Function::locals`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LocalId(pub u32);

/// Index of a `__constant` table in [`Filter::tables`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TableId(pub u32);

/// Index of a function in [`Filter::functions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FunctionId(pub u32);

/// A checked translation unit.
pub struct Filter {
    pub structs: Structs,
    pub tables: Vec<Table>,
    pub functions: Vec<Function>,
    pub filter: FunctionId,
    /// The function that computes a packet's flow.
    pub flow: Option<FunctionId>,
    /// Whether pointers access 64-bit integers in the packet.
    pub uses_wide: bool,
}

/// A `__constant` array or structure; `__constant` scalars are substituted where they are used.
pub struct Table {
    pub name: String,
    pub ty: Type,
    pub span: Span,
    /// The scalars in memory order, as the bits of their types.
    pub values: Vec<u64>,
}

pub struct Function {
    pub name: String,
    pub span: Span,
    pub result: Type,
    pub parameters: Vec<LocalId>,
    pub locals: Vec<Local>,
    /// `None` if the function is only declared; it is never called then.
    pub body: Option<Vec<Statement>>,
}

pub struct Local {
    pub name: String,
    pub span: Span,
    pub ty: Type,
    /// Whether any expression names the variable.
    pub is_used: bool,
    /// Whether the variable is stored to after its declaration, or its address is taken.
    pub is_mutated: bool,
    /// Whether a `switch` may jump past the declaration.
    pub may_be_skipped: bool,
}

pub struct Statement {
    pub kind: StatementKind,
    pub span: Span,
}

pub enum StatementKind {
    Block(Vec<Statement>),
    /// Declares a local variable, initialised to zero unless there is an initialiser.
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
    /// The selector, of type `int`, `uint`, `long` or `ulong`.
    pub value: Expr,
    /// Segments in the text's order; each falls through to the next unless it ends in a jump.
    pub segments: Vec<Segment>,
}

pub struct Segment {
    /// Case labels as the bits of the selector's type.
    pub labels: Vec<u64>,
    pub default: bool,
    pub body: Vec<Statement>,
}

pub enum Init {
    Value(Expr),
    /// Values by index path; all other parts are zero.
    Parts(Vec<(Vec<u32>, Expr)>),
}

pub struct Expr {
    pub kind: ExprKind,
    pub ty: Type,
    pub span: Span,
}

impl Expr {
    /// A placeholder for an expression whose error has been reported.
    pub fn error(span: Span) -> Expr {
        Expr { kind: ExprKind::Integer(0), ty: Type::Error, span }
    }
}

pub enum ExprKind {
    /// The bits of an integer of the expression's type; of a `bool` 0 or 1.
    Integer(u64),
    Float(f32),
    Load(Box<Place>),
    /// Address of a place, or of an array's first element.
    Address(Box<Place>),
    /// Pointer plus a number of elements; the count is `uint`, modulo 2^32.
    Offset(Box<Expr>, Box<Expr>),
    /// Difference of two pointers in elements, `int`.
    Distance(Box<Expr>, Box<Expr>),
    /// Comparison of two pointers, `bool`.
    ComparePointers(BinaryOp, Box<Expr>, Box<Expr>),
    /// Pointer cast.
    PointerCast(Box<Expr>),
    Negate(Box<Expr>),
    BitNot(Box<Expr>),
    /// Logical negation of a `bool`.
    Not(Box<Expr>),
    /// Operands have one type, or, for shifts, one shape. Comparisons return `bool`, those of
    /// vectors signed integers.
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// Operands are `bool`; the right one is evaluated only if needed.
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Conditional(Box<Expr>, Box<Expr>, Box<Expr>),
    Comma(Box<Expr>, Box<Expr>),
    /// Conversion to the expression's type; of vectors component by component.
    Convert(Box<Expr>),
    /// Saturating conversion, `convert_T_sat`.
    Saturate(Box<Expr>),
    /// Reinterpretation of the bits, `as_T`.
    Reinterpret(Box<Expr>),
    Splat(Box<Expr>),
    /// A vector composed of scalars and vectors.
    Compose(Vec<Expr>),
    /// Components of a vector value.
    Swizzle(Box<Expr>, Vec<u8>),
    /// A member of a structure value.
    Member(Box<Expr>, u32),
    Assign(Box<Place>, Box<Expr>),
    /// Compound assignment: stores `value`, in which [`ExprKind::Old`] stands for the place's old
    /// value. The result is the new value, or the old one.
    Update {
        place: Box<Place>,
        value: Box<Expr>,
        returns_old: bool,
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
    /// Address space, if the type determines it.
    pub space: Option<Space>,
}

pub enum PlaceKind {
    Local(LocalId),
    Table(TableId),
    /// The target of a pointer.
    Deref(Box<Expr>),
    Member(Box<Place>, u32),
    /// An element of an array; the index is `uint`.
    Index(Box<Place>, Box<Expr>),
    /// Components of a vector place, which is not a `Components` itself.
    Components(Box<Place>, Vec<u8>),
}

/// Built-in functions of integers and vectors (OpenCL C 1.2, 6.12.3, 6.12.6). Arguments have the
/// expression's type unless noted.
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
    /// `a * b + c`, saturated.
    MadSat,
    AddSat,
    SubSat,
    /// `(a + b) >> 1` without overflow; `Rhadd` rounds up.
    Hadd,
    Rhadd,
    /// Whether the highest bit of any (`All`: every) component of a vector is set; `int`.
    Any,
    All,
    /// `select(a, b, c)`: `b` where `c` is true; `c` has the same width.
    Select,
    Bitselect,
    /// Concatenates a high and a low value to one of twice the width.
    Upsample,
    /// Byte swap: `ntohs`, `ntohl`.
    Swap,
}

impl Expr {
    /// The value of a constant integer expression.
    pub fn constant(&self) -> Option<i128> {
        let (ExprKind::Integer(bits), Type::Scalar(scalar)) = (&self.kind, &self.ty) else { return None };
        Some(scalar.wrap(i128::from(*bits)))
    }

    /// Whether evaluating the expression has no side effects, calls nothing and has at most
    /// `budget` nodes, so that it may be evaluated speculatively.
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
            | ExprKind::PointerCast(a)
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
    /// Whether reading the place is cheap; a packet access is a call and is not.
    fn is_cheap(&self, budget: &mut u32) -> bool {
        match &self.kind {
            PlaceKind::Local(_) => true,
            PlaceKind::Table(_) | PlaceKind::Deref(_) => false,
            PlaceKind::Member(base, _) | PlaceKind::Components(base, _) => base.is_cheap(budget),
            PlaceKind::Index(base, index) => base.is_cheap(budget) && index.is_cheap(budget),
        }
    }
}
