//! C types from an object's BTF, in a form that is easy to traverse: qualifiers and typedefs are
//! resolved. Whatever the BTF says, a type is finite, its members are within it, and writing a
//! value of it takes bounded work.

use std::sync::Arc;

/// Maximum number of parts of a type, elements of arrays counted individually (those of bytes in
/// units of sixteen).
const MAX_PARTS: u64 = 1 << 18;

/// Maximum total length of the paths of all parts of a type.
const MAX_PATH_LENGTH: u64 = 1 << 22;

/// Length assumed for an element's index in a path.
const INDEX_LENGTH: u64 = 8;

/// Maximum size of a type in bytes: bit offsets must fit in 32 bits.
pub const MAX_SIZE: u32 = 1 << 26;

/// Maximum nesting of types.
pub const MAX_DEPTH: u32 = 32;

/// Interpretation of an integer (`BTF_INT_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Unsigned integer.
    Unsigned,
    /// Signed integer.
    Signed,
    /// Character.
    Char,
    /// Boolean.
    Bool,
}

/// A C type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CType {
    /// Name in C: `__u32`, `struct flow`, `char[16]`.
    pub name: String,
    /// Size in bytes.
    pub size: u32,
    /// Kind of the type, with its parts.
    pub kind: CKind,
    cost: TypeCost,
}

/// Cost of writing a value of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TypeCost {
    /// Number of parts, nested ones included.
    parts: u64,
    /// Total length of their paths.
    path_length: u64,
    /// Nesting.
    depth: u32,
}

impl TypeCost {
    /// Cost of a type without parts.
    const ONE: TypeCost = TypeCost { parts: 1, path_length: 0, depth: 0 };

    /// The cost with `count` values of another type added, whose names have `path_length` letters.
    fn with(self, count: u64, of: TypeCost, path_length: u64) -> TypeCost {
        let more = path_length.saturating_mul(of.parts).saturating_add(of.path_length);
        TypeCost {
            parts: self.parts.saturating_add(count.saturating_mul(of.parts)),
            path_length: self.path_length.saturating_add(count.saturating_mul(more)),
            depth: self.depth.max(of.depth + 1),
        }
    }

    fn exceeds_limits(self) -> bool {
        self.parts > MAX_PARTS || self.path_length > MAX_PATH_LENGTH || self.depth > MAX_DEPTH
    }
}

/// The kind of a C type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CKind {
    /// An integer.
    Int(Encoding),
    /// An integer in network byte order, recognised by its name: `__be16`, `__be32`, `__be64`.
    Network,
    /// An enumeration.
    Enum {
        /// Whether values are signed.
        signed: bool,
        /// Enumerators: name and value.
        values: Vec<(String, i64)>,
    },
    /// A pointer, which is opaque here.
    Pointer,
    /// An array.
    Array {
        /// Type of the elements.
        of: Arc<CType>,
        /// Number of elements.
        count: u32,
        /// Whether the elements are `char` itself, not a typedef of it.
        text: bool,
    },
    /// A structure or a union, whose members overlap.
    Members(Vec<CMember>),
    /// The variables of a data section.
    Section(Vec<CMember>),
    /// Bytes of an unknown kind.
    Opaque,
}

/// A member of a structure or union, or a variable of a section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CMember {
    /// Name; empty for an anonymous member, whose own members are accessed directly.
    pub name: String,
    /// Type of the member.
    pub ty: Arc<CType>,
    /// Offset in bits.
    pub bit: u32,
    /// Width of a bit field in bits; otherwise 0.
    pub bits: u32,
}

impl CType {
    /// A type of this name, size in bytes and kind. `None` if it is larger than `MAX_SIZE`, or if
    /// writing a value of it would take too many parts, too long paths or too much nesting.
    pub fn new(name: String, size: u32, kind: CKind) -> Option<CType> {
        let cost = match &kind {
            // An array of bytes is a single part, but a long one.
            CKind::Array { of, count, .. } => match of.is_byte() {
                true => TypeCost::ONE.with(u64::from(*count).div_ceil(16), TypeCost::ONE, 0),
                false => TypeCost::ONE.with((*count).into(), of.cost, INDEX_LENGTH),
            },
            CKind::Members(members) | CKind::Section(members) => members
                .iter()
                .fold(TypeCost::ONE, |cost, member| cost.with(1, member.ty.cost, member.name.len() as u64 + 1)),
            _ => TypeCost::ONE,
        };
        (!cost.exceeds_limits() && size <= MAX_SIZE).then_some(CType { name, size, kind, cost })
    }

    /// Whether the type is an integer of one byte other than `_Bool`.
    fn is_byte(&self) -> bool {
        self.size == 1 && matches!(&self.kind, CKind::Int(encoding) if *encoding != Encoding::Bool)
    }

    /// A type for bytes without BTF: an unsigned integer if there is one of this size, otherwise an
    /// array of bytes.
    pub fn unknown(size: u32) -> Arc<CType> {
        let int = |size: u32| CType {
            name: format!("__u{}", 8 * size),
            size,
            kind: CKind::Int(Encoding::Unsigned),
            cost: TypeCost::ONE,
        };
        Arc::new(match size {
            1 | 2 | 4 | 8 => int(size),
            _ => CType {
                name: format!("__u8[{size}]"),
                size,
                kind: CKind::Array { of: Arc::new(int(1)), count: size, text: false },
                cost: TypeCost::ONE,
            },
        })
    }

    /// A section of variables, given as name, offset and type.
    pub fn section(
        name: &str,
        size: u32,
        variables: impl IntoIterator<Item = (String, u32, Arc<CType>)>,
    ) -> Arc<CType> {
        let mut cost = TypeCost::ONE;
        let members = variables.into_iter().map(|(name, at, mut ty)| {
            let with = |ty: &CType| cost.with(1, ty.cost, name.len() as u64 + 1);
            // Variables may overlap in the BTF; those beyond the limits become plain bytes.
            if with(&ty).exceeds_limits() {
                ty = CType::unknown(ty.size);
            }
            cost = with(&ty);
            CMember { name, ty, bit: 8 * at, bits: 0 }
        });
        let kind = CKind::Section(members.collect());
        Arc::new(CType { name: name.to_owned(), size, kind, cost })
    }

    /// Whether the type is an array of bytes, which is one cell of a row.
    pub fn is_bytes(&self) -> bool {
        match &self.kind {
            CKind::Array { of, .. } => of.is_byte(),
            CKind::Opaque => true,
            _ => false,
        }
    }

    /// Whether the type is an IPv6 address (`struct in6_addr`, linux/in6.h), which is one cell of a
    /// row.
    pub fn is_address(&self) -> bool {
        self.size == 16 && self.name == "struct in6_addr" && matches!(self.kind, CKind::Members(_))
    }
}

impl CMember {
    /// Offset of the first bit behind the member.
    pub fn end(&self) -> u32 {
        self.bit + if self.bits > 0 { self.bits } else { 8 * self.ty.size }
    }
}
