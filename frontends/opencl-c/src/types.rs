//! Types: layout in the packet, and C's conversions between them.

use std::rc::Rc;

use super::token::Name;

/// Arithmetic types (OpenCL C 1.2, 6.1.1). `bool` counts as a one-bit integer.
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
    /// The type's name in OpenCL C.
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

    /// Size in a packet, in bytes.
    pub fn size(self) -> u32 {
        use Scalar as S;
        match self {
            S::Bool | S::Char | S::UChar => 1,
            S::Short | S::UShort => 2,
            S::Int | S::UInt | S::Float => 4,
            S::Long | S::ULong => 8,
        }
    }

    /// Width of an integer's value, in bits.
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

    /// Integer promotion (C11 6.3.1.1): types narrower than `int` become `int`.
    pub fn promoted(self) -> Scalar {
        if self < Scalar::Int { Scalar::Int } else { self }
    }

    /// Common type by the usual arithmetic conversions (C11 6.3.1.8).
    pub fn common(self, other: Scalar) -> Scalar {
        // After promotion the enum's order is that of conversion rank, unsigned above signed; a
        // long represents every uint.
        self.promoted().max(other.promoted())
    }

    /// The unsigned type of the same width.
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

    /// The integer type of twice the width and the same signedness, if there is one.
    pub fn widened_type(self) -> Option<Scalar> {
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

    /// The signed integer type of the same width, the result of vector comparisons (6.3.d).
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

    /// Whether this type can represent every value of `other`.
    pub fn can_represent(self, other: Scalar) -> bool {
        if !self.is_integer() || !other.is_integer() {
            return self == other;
        }
        match (self.is_signed(), other.is_signed()) {
            (false, true) => false,
            (true, false) => self.bits() > other.bits(),
            _ => self.bits() >= other.bits(),
        }
    }

    /// The value of this integer type that is congruent to `value` (C11 6.3.1.3); where C leaves
    /// the conversion implementation-defined, it wraps as well.
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
    /// Type of an erroneous expression. It is compatible with every type, so that one mistake is
    /// reported once.
    Error,
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

/// A pointer type: pointee and qualifiers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pointer {
    pub to: Type,
    /// Address space of the pointee; `None` without a qualifier, which accepts any (OpenCL C 2.0,
    /// 6.5.5).
    pub space: Option<Space>,
    /// Whether the pointee is `const`.
    pub constant: bool,
}

/// Index of a structure in [`Structs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StructId(pub u32);

pub struct Struct {
    pub name: Option<Name>,
    /// `None` until the closing brace.
    pub fields: Option<Vec<Field>>,
    /// Size in a packet, in bytes.
    pub size: u32,
    pub align: u32,
    /// Nesting depth of structures and arrays, this one included.
    pub depth: usize,
    /// Number of scalars in a value, saturated.
    pub scalars: u32,
    /// Whether the structure contains 64-bit integers.
    pub has_wide: bool,
}

impl Struct {
    /// A structure whose fields are not known yet.
    pub fn new(name: Option<Name>) -> Struct {
        Struct { name, fields: None, size: 0, align: 1, depth: 1, scalars: 0, has_wide: false }
    }
}

pub struct Field {
    pub name: Name,
    pub ty: Type,
    /// Offset from the structure's start, in bytes.
    pub offset: u32,
}

/// All structures of a translation unit.
#[derive(Default)]
pub struct Structs {
    pub list: Vec<Struct>,
}

/// Maximum size of a type, in bytes; larger than any packet.
pub const MAX_TYPE_BYTES: u32 = 1 << 20;

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

    /// Component type of a scalar or vector.
    pub fn element(&self) -> Option<Scalar> {
        match self {
            Type::Scalar(scalar) | Type::Vector(scalar, _) => Some(*scalar),
            _ => None,
        }
    }

    /// Returns this scalar or vector type with another component type.
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

    /// Size and alignment in a packet, in bytes, by C's rules (OpenCL C 1.2, 6.1.5). `None` for a
    /// type without a size.
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
            Type::Void | Type::Pointer(_) | Type::Error => return None,
        })
    }

    /// Nesting depth of structures and arrays in a type. Checks at construction keep it within
    /// [`MAX_TYPE_DEPTH`](portcullis_core::program::MAX_TYPE_DEPTH).
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

    /// Lays out a structure's fields, at its closing brace.
    pub fn define(&mut self, id: StructId, fields: Vec<(Name, Type)>, packed: bool) {
        let (mut size, mut align) = (0u32, 1u32);
        let mut laid_out = Vec::with_capacity(fields.len());
        for (name, ty) in fields {
            let (bytes, natural) = self.layout(&ty).unwrap_or((1, 1));
            let natural = if packed { 1 } else { natural };
            let offset = size.next_multiple_of(natural);
            size = offset.saturating_add(bytes).min(2 * MAX_TYPE_BYTES);
            align = align.max(natural);
            laid_out.push(Field { name, ty, offset });
        }
        let depth = 1 + laid_out.iter().map(|field: &Field| self.depth(&field.ty)).max().unwrap_or_default();
        let scalars = laid_out.iter().map(|field| self.scalars(&field.ty)).fold(0, u32::saturating_add);
        let has_wide = laid_out.iter().any(|field| self.is_wide(&field.ty));
        let it = &mut self.list[id.0 as usize];
        (it.depth, it.scalars, it.has_wide) = (depth, scalars, has_wide);
        (it.size, it.align, it.fields) = (size.next_multiple_of(align), align, Some(laid_out));
    }

    /// Whether a type contains 64-bit integers.
    pub fn is_wide(&self, ty: &Type) -> bool {
        match ty {
            Type::Array(of, _) => self.is_wide(of),
            Type::Struct(id) => self.get(*id).has_wide,
            other => matches!(other.element(), Some(Scalar::Long | Scalar::ULong)),
        }
    }

    /// Number of scalars in a value of a type, saturated.
    pub fn scalars(&self, ty: &Type) -> u32 {
        match ty {
            Type::Vector(_, size) => u32::from(*size),
            Type::Array(of, count) => self.scalars(of).saturating_mul(*count),
            Type::Struct(id) => self.get(*id).scalars,
            _ => 1,
        }
    }
}
