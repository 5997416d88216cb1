//! Types: their sizes in a packet, and C's conversions between them.

use std::rc::Rc;

use super::ast::Space;
use super::token::Name;

/// Arithmetic types (OpenCL C 1.2, 6.1.1). `bool` counts as an integer of one bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scalar {
    Bool,
    Char,
    UChar,
    Short,
    UShort,
    Int,
    UInt,
    Long,
    ULong,
    Float,
}

impl Scalar {
    /// As OpenCL C has it.
    pub fn name(self) -> &'static str {
        use Scalar as S;
        match self {
            S::Bool => "bool",
            S::Char => "char",
            S::UChar => "uchar",
            S::Short => "short",
            S::UShort => "ushort",
            S::Int => "int",
            S::UInt => "uint",
            S::Long => "long",
            S::ULong => "ulong",
            S::Float => "float",
        }
    }

    /// Bytes in a packet.
    pub fn size(self) -> u32 {
        use Scalar as S;
        match self {
            S::Bool | S::Char | S::UChar => 1,
            S::Short | S::UShort => 2,
            S::Int | S::UInt | S::Float => 4,
            S::Long | S::ULong => 8,
        }
    }

    /// Bits of an integer's value.
    pub fn bits(self) -> u32 {
        if self == Scalar::Bool { 1 } else { self.size() * 8 }
    }

    pub fn is_signed(self) -> bool {
        use Scalar as S;
        matches!(self, S::Char | S::Short | S::Int | S::Long)
    }

    pub fn is_integer(self) -> bool {
        self != Scalar::Float
    }

    /// The integer promotions (C11 6.3.1.1): what is narrower than `int` becomes `int`.
    pub fn promoted(self) -> Scalar {
        if self < Scalar::Int { Scalar::Int } else { self }
    }

    /// The usual arithmetic conversions (C11 6.3.1.8).
    pub fn common(self, other: Scalar) -> Scalar {
        // After promotion the order of the enum is that of the ranks, unsigned above signed; a
        // long holds every uint.
        self.promoted().max(other.promoted())
    }

    /// The same width, without a sign.
    pub fn unsigned(self) -> Scalar {
        use Scalar as S;
        match self {
            S::Char => S::UChar,
            S::Short => S::UShort,
            S::Int => S::UInt,
            S::Long => S::ULong,
            other => other,
        }
    }

    /// An integer of twice the width and the same sign; there is none of 128 bits.
    pub fn of_twice_the_width(self) -> Option<Scalar> {
        use Scalar as S;
        Some(match self {
            S::Char => S::Short,
            S::UChar => S::UShort,
            S::Short => S::Int,
            S::UShort => S::UInt,
            S::Int => S::Long,
            S::UInt => S::ULong,
            S::Bool | S::Long | S::ULong | S::Float => return None,
        })
    }

    /// The same width, with a sign: what comparing vectors gives (6.3.d).
    pub fn signed(self) -> Scalar {
        use Scalar as S;
        match self {
            S::UChar | S::Bool => S::Char,
            S::UShort => S::Short,
            S::UInt | S::Float => S::Int,
            S::ULong => S::Long,
            other => other,
        }
    }

    /// Whether every value of `other` is one of this type.
    pub fn holds(self, other: Scalar) -> bool {
        if !self.is_integer() || !other.is_integer() {
            return self == other;
        }
        match (self.is_signed(), other.is_signed()) {
            (false, true) => false,
            (true, false) => self.bits() > other.bits(),
            _ => self.bits() >= other.bits(),
        }
    }

    /// The value of this integer type that is congruent to `value` (C11 6.3.1.3; where C leaves it
    /// to the implementation, it wraps as well).
    pub fn wrap(self, value: i128) -> i128 {
        if self == Scalar::Bool {
            return i128::from(value != 0);
        }
        let bits = self.bits();
        let low = value & ((1i128 << bits) - 1);
        if self.is_signed() && low >> (bits - 1) != 0 { low - (1i128 << bits) } else { low }
    }
}

/// A type of the language.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Type {
    Void,
    Scalar(Scalar),
    Vector(Scalar, u8),
    Pointer(Rc<Pointer>),
    Array(Rc<Type>, u32),
    Struct(StructId),
    /// What an expression has that is wrong: everything goes with it, so that one mistake is told once.
    Wrong,
}

/// What a pointer points to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pointer {
    pub to: Type,
    /// `None` without a qualifier: whatever it is made of (OpenCL C 2.0, 6.5.5).
    pub space: Option<Space>,
    /// Whether it may not be written through.
    pub constant: bool,
}

/// A structure's index among [`Structs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StructId(pub u32);

pub struct Struct {
    pub name: Option<Name>,
    /// `None` until its braces are closed.
    pub fields: Option<Vec<Field>>,
    /// Bytes.
    pub size: u32,
    pub align: u32,
    /// How deep structures and arrays nest in it, itself included.
    pub depth: usize,
    /// How many scalars a value has, saturated.
    pub scalars: u32,
    /// Whether there are integers of 64 bits in it.
    pub wide: bool,
}

impl Struct {
    /// One whose braces are not closed yet.
    pub fn new(name: Option<Name>) -> Struct {
        Struct { name, fields: None, size: 0, align: 1, depth: 1, scalars: 0, wide: false }
    }
}

pub struct Field {
    pub name: Name,
    pub ty: Type,
    /// Bytes from the structure's first.
    pub offset: u32,
}

/// Every structure of a text.
#[derive(Default)]
pub struct Structs {
    pub list: Vec<Struct>,
}

/// The largest type, in bytes: more than the largest packet.
pub const MAX_SIZE: u32 = 1 << 20;

pub const INT: Type = Type::Scalar(Scalar::Int);
pub const UINT: Type = Type::Scalar(Scalar::UInt);
pub const BOOL: Type = Type::Scalar(Scalar::Bool);

impl Type {
    pub fn pointer(to: Type, space: Option<Space>, constant: bool) -> Type {
        Type::Pointer(Rc::new(Pointer { to, space, constant }))
    }

    pub fn scalar(&self) -> Option<Scalar> {
        match self {
            Type::Scalar(scalar) => Some(*scalar),
            _ => None,
        }
    }

    /// Of a scalar or vector, what its components are.
    pub fn element(&self) -> Option<Scalar> {
        match self {
            Type::Scalar(scalar) | Type::Vector(scalar, _) => Some(*scalar),
            _ => None,
        }
    }

    /// This scalar or vector with other components.
    pub fn with_element(&self, scalar: Scalar) -> Type {
        match self {
            Type::Vector(_, size) => Type::Vector(scalar, *size),
            _ => Type::Scalar(scalar),
        }
    }

    pub fn is_integer(&self) -> bool {
        matches!(self, Type::Scalar(scalar) if scalar.is_integer())
    }
}

impl Structs {
    pub fn get(&self, id: StructId) -> &Struct {
        &self.list[id.0 as usize]
    }

    /// Size and alignment in bytes, as C lays it out in a packet (OpenCL C 1.2, 6.1.5). `None` for
    /// what has none.
    pub fn layout(&self, ty: &Type) -> Option<(u32, u32)> {
        Some(match ty {
            Type::Scalar(scalar) => (scalar.size(), scalar.size()),
            Type::Vector(scalar, size) => {
                let size = scalar.size() * if *size == 3 { 4 } else { u32::from(*size) };
                (size, size)
            }
            Type::Array(of, count) => {
                let (size, align) = self.layout(of)?;
                (size.saturating_mul(*count), align)
            }
            Type::Struct(id) => {
                let it = self.get(*id);
                it.fields.as_ref()?;
                (it.size, it.align)
            }
            Type::Void | Type::Pointer(_) | Type::Wrong => return None,
        })
    }

    /// How deep structures and arrays nest in a type. The check of every type that is made keeps it
    /// from going deeper than [`MAX_TYPE_DEPTH`](portcullis_core::program::MAX_TYPE_DEPTH).
    pub fn depth(&self, ty: &Type) -> usize {
        match ty {
            Type::Array(of, _) => 1 + self.depth(of),
            Type::Struct(id) => self.get(*id).depth,
            Type::Pointer(it) => self.depth(&it.to),
            _ => 0,
        }
    }

    pub fn size(&self, ty: &Type) -> u32 {
        self.layout(ty).map_or(1, |(size, _)| size)
    }

    /// Closes a structure's braces.
    pub fn define(&mut self, id: StructId, fields: Vec<(Name, Type)>, packed: bool) {
        let (mut size, mut align) = (0u32, 1u32);
        let mut laid_out = Vec::with_capacity(fields.len());
        for (name, ty) in fields {
            let (bytes, natural) = self.layout(&ty).unwrap_or((1, 1));
            let natural = if packed { 1 } else { natural };
            let offset = size.next_multiple_of(natural);
            size = offset.saturating_add(bytes).min(2 * MAX_SIZE);
            align = align.max(natural);
            laid_out.push(Field { name, ty, offset });
        }
        let depth = 1 + laid_out.iter().map(|field: &Field| self.depth(&field.ty)).max().unwrap_or_default();
        let scalars = laid_out.iter().map(|field| self.scalars(&field.ty)).fold(0, u32::saturating_add);
        let wide = laid_out.iter().any(|field| self.is_wide(&field.ty));
        let it = &mut self.list[id.0 as usize];
        (it.depth, it.scalars, it.wide) = (depth, scalars, wide);
        (it.size, it.align, it.fields) = (size.next_multiple_of(align), align, Some(laid_out));
    }

    /// Whether there are integers of 64 bits in it.
    pub fn is_wide(&self, ty: &Type) -> bool {
        match ty {
            Type::Array(of, _) => self.is_wide(of),
            Type::Struct(id) => self.get(*id).wide,
            other => matches!(other.element(), Some(Scalar::Long | Scalar::ULong)),
        }
    }

    /// How many scalars a value has, saturated.
    pub fn scalars(&self, ty: &Type) -> u32 {
        match ty {
            Type::Vector(_, size) => u32::from(*size),
            Type::Array(of, count) => self.scalars(of).saturating_mul(*count),
            Type::Struct(id) => self.get(*id).scalars,
            _ => 1,
        }
    }
}
