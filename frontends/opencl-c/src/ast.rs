//! Syntax tree, as the parser builds it; names are not resolved yet.

use super::files::Span;
use super::token::Name;
use super::types::{Scalar, Space};

/// Maximum nesting depth of expressions, statements and types. Operators count: each operator of `a
/// + b + c` adds a level, because it does in the tree.
pub const MAX_DEPTH: u16 = 256;

/// A parsed translation unit.
pub struct Unit {
    pub items: Vec<Item>,
}

pub enum Item {
    Function(Function),
    Declaration(Declaration),
}

/// A function definition. A prototype is a [`Declaration`].
pub struct Function {
    pub specifiers: Specifiers,
    pub declarator: Declarator,
    pub body: Vec<Statement>,
}

/// `uint x = 1, *p;`, or a `struct` or `enum` definition without declarators.
pub struct Declaration {
    pub specifiers: Specifiers,
    pub declarators: Vec<Declarator>,
}

pub struct Specifiers {
    pub base: Base,
    pub space: Option<Space>,
    pub constant: bool,
    pub typedef: bool,
    /// `static` or `extern`, and its place.
    pub storage: Option<(&'static str, Span)>,
    pub span: Span,
}

pub enum Base {
    Void,
    Scalar(Scalar),
    Vector(Scalar, u8),
    Struct(Struct),
    Enum(Enum),
    /// A `typedef` name.
    Named(Name),
}

pub struct Struct {
    pub name: Option<(Name, Span)>,
    /// `None` for a reference without braces, `struct s`.
    pub fields: Option<Vec<Declaration>>,
    pub packed: bool,
}

pub struct Enum {
    pub name: Option<(Name, Span)>,
    pub values: Option<Vec<(Name, Span, Option<Expr>)>>,
}

pub struct Declarator {
    pub name: Name,
    pub name_span: Span,
    pub pointers: Vec<Pointer>,
    /// Array sizes, outermost first; `None` for `[]`.
    pub sizes: Vec<Option<Expr>>,
    pub parameters: Option<Vec<Parameter>>,
    pub init: Option<Init>,
}

/// One `*` of a declarator, and whether `const` follows it.
#[derive(Clone, Copy)]
pub struct Pointer {
    pub constant: bool,
    pub span: Span,
}

pub struct Parameter {
    pub specifiers: Specifiers,
    pub name: Option<(Name, Span)>,
    pub pointers: Vec<Pointer>,
    pub sizes: Vec<Option<Expr>>,
    pub span: Span,
}

pub enum Init {
    Value(Expr),
    List(Vec<Entry>, Span),
}

/// An entry of an initialiser list, with its designators (C11 6.7.9).
pub struct Entry {
    pub designators: Vec<Designator>,
    pub init: Init,
}

pub enum Designator {
    Index(Expr),
    Field(Name, Span),
}

/// A type name without an identifier, in casts and `sizeof`.
pub struct TypeName {
    pub specifiers: Specifiers,
    pub pointers: Vec<Pointer>,
    pub sizes: Vec<Option<Expr>>,
    pub span: Span,
}

pub struct Statement {
    pub kind: StatementKind,
    pub span: Span,
}

pub enum StatementKind {
    Empty,
    Block(Vec<Statement>),
    Declaration(Declaration),
    Expression(Expr),
    If {
        condition: Expr,
        accept: Box<Statement>,
        reject: Option<Box<Statement>>,
    },
    While {
        condition: Expr,
        body: Box<Statement>,
    },
    DoWhile {
        body: Box<Statement>,
        condition: Expr,
    },
    For {
        init: Option<Box<Statement>>,
        condition: Option<Expr>,
        step: Option<Expr>,
        body: Box<Statement>,
    },
    Switch {
        value: Expr,
        body: Box<Statement>,
    },
    /// A label alone; the labelled statement is the next one.
    Case(Expr),
    /// `default:`, a label alone.
    Default,
    Break,
    Continue,
    Return(Option<Expr>),
}

pub struct Expr {
    pub kind: ExprKind,
    pub span: Span,
    /// Depth of the tree, this node included.
    pub depth: u16,
}

pub enum ExprKind {
    Integer {
        value: u64,
        unsigned: bool,
        long: bool,
    },
    Float(f64),
    Character(u32),
    String(Vec<u8>),
    Name(Name),
    Unary(UnaryOp, Box<Expr>),
    /// `++` or `--`.
    Step {
        up: bool,
        prefix: bool,
        operand: Box<Expr>,
    },
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Conditional(Box<Expr>, Box<Expr>, Box<Expr>),
    Assign(Option<BinaryOp>, Box<Expr>, Box<Expr>),
    Comma(Box<Expr>, Box<Expr>),
    Call(Box<Expr>, Vec<Expr>),
    Index(Box<Expr>, Box<Expr>),
    Member {
        base: Box<Expr>,
        name: Name,
        name_span: Span,
        arrow: bool,
    },
    Cast(Box<TypeName>, Box<Expr>),
    SizeofValue(Box<Expr>),
    SizeofType(Box<TypeName>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnaryOp {
    Plus,
    Minus,
    BitNot,
    Not,
    Deref,
    AddressOf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BinaryOp {
    Multiply,
    Divide,
    Modulo,
    Add,
    Subtract,
    ShiftLeft,
    ShiftRight,
    Less,
    Greater,
    LessEqual,
    GreaterEqual,
    Equal,
    NotEqual,
    And,
    Xor,
    Or,
}

impl BinaryOp {
    /// The operator's spelling.
    pub fn text(self) -> &'static str {
        use BinaryOp as Op;
        match self {
            Op::Multiply => "*",
            Op::Divide => "/",
            Op::Modulo => "%",
            Op::Add => "+",
            Op::Subtract => "-",
            Op::ShiftLeft => "<<",
            Op::ShiftRight => ">>",
            Op::Less => "<",
            Op::Greater => ">",
            Op::LessEqual => "<=",
            Op::GreaterEqual => ">=",
            Op::Equal => "==",
            Op::NotEqual => "!=",
            Op::And => "&",
            Op::Xor => "^",
            Op::Or => "|",
        }
    }

    /// Whether the operator is a comparison, whose result is 0 or 1.
    pub fn is_comparison(self) -> bool {
        use BinaryOp as Op;
        matches!(self, Op::Less | Op::Greater | Op::LessEqual | Op::GreaterEqual | Op::Equal | Op::NotEqual)
    }

    /// Whether the operator is a shift, whose right operand is a count.
    pub fn is_shift(self) -> bool {
        matches!(self, BinaryOp::ShiftLeft | BinaryOp::ShiftRight)
    }
}
