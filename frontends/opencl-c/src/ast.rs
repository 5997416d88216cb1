//! The syntax tree: what the parser found, names not yet looked up.

use super::files::Span;
use super::token::Name;
use super::types::Scalar;

/// How deep expressions, statements and types may nest. Operators count: `a + b + c` is one deeper
/// with every operator, because the tree is.
pub const MAX_DEPTH: u16 = 256;

/// A filter's text.
pub struct Unit {
    pub items: Vec<Item>,
}

pub enum Item {
    Function(Function),
    Declaration(Declaration),
}

/// A function with its body. A prototype is a [`Declaration`].
pub struct Function {
    pub specifiers: Specifiers,
    pub declarator: Declarator,
    pub body: Vec<Statement>,
}

/// `uint x = 1, *p;`, also a `struct` or `enum` by itself.
pub struct Declaration {
    pub specifiers: Specifiers,
    pub declarators: Vec<Declarator>,
}

/// Address spaces (OpenCL C 1.2, 6.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// The packet.
    Global,
    /// Tables.
    Constant,
    /// Local variables.
    Private,
}

pub struct Specifiers {
    pub base: Base,
    pub space: Option<Space>,
    pub constant: bool,
    pub typedef: bool,
    /// `static` or `extern`, and where it stands.
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
    /// `None` where it is only mentioned.
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

/// One `*` and whether `const` stands behind it.
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

/// An entry of a list, with what says where it goes (C11 6.7.9).
pub struct Entry {
    pub designators: Vec<Designator>,
    pub init: Init,
}

pub enum Designator {
    Index(Expr),
    Field(Name, Span),
}

/// A type without a name: in casts and `sizeof`.
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
    /// A label alone: what it labels is the next statement.
    Case(Expr),
    /// The same.
    Default,
    Break,
    Continue,
    Return(Option<Expr>),
}

pub struct Expr {
    pub kind: ExprKind,
    pub span: Span,
    /// Of the tree below, itself included.
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
    /// `++` and `--`.
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
    /// As it is written.
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

    /// Whether it compares, and gives 0 or 1.
    pub fn compares(self) -> bool {
        use BinaryOp as Op;
        matches!(self, Op::Less | Op::Greater | Op::LessEqual | Op::GreaterEqual | Op::Equal | Op::NotEqual)
    }

    /// Whether its right operand is a count.
    pub fn shifts(self) -> bool {
        matches!(self, BinaryOp::ShiftLeft | BinaryOp::ShiftRight)
    }
}
