//! Types of C as an object's BTF has them, in a form that is easy to walk: qualifiers and other names are resolved, and whatever
//! the BTF says, a type is finite, its members lie in it, and writing a value of it down takes bounded work.

use std::sync::Arc;

/// Parts of a type at most, elements of arrays counted one by one (those of bytes by sixteen).
const MAX_PARTS: u64 = 1 << 18;

/// Letters of the names of all parts of a type at most, from the outermost member on.
const MAX_LETTERS: u64 = 1 << 22;

/// Letters of an element's number.
const INDEX: u64 = 8;

/// Bytes of a type at most, so that its bits can be numbered.
pub const MAX_SIZE: u32 = 1 << 26;

/// Types in types, at most.
pub const MAX_DEPTH: u32 = 32;

/// How an integer is meant (`BTF_INT_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Without a sign.
    Unsigned,
    /// With one.
    Signed,
    /// A character.
    Char,
    /// True or false.
    Bool,
}

/// A type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CType {
    /// As C writes it: `__u32`, `struct flow`, `char[16]`.
    pub name: String,
    /// Bytes.
    pub size: u32,
    /// What it is.
    pub kind: CKind,
    weight: Weight,
}

/// What it takes to write a value of a type down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Weight {
    /// Its own parts and those in it.
    parts: u64,
    /// Letters of their names.
    letters: u64,
    /// Types that it is in at most.
    depth: u32,
}

impl Weight {
    /// Of a type without parts.
    const ONE: Weight = Weight { parts: 1, letters: 0, depth: 0 };

    /// With so many of another type in it, by names of so many letters.
    fn with(self, count: u64, of: Weight, letters: u64) -> Weight {
        let more = letters.saturating_mul(of.parts).saturating_add(of.letters);
        Weight {
            parts: self.parts.saturating_add(count.saturating_mul(of.parts)),
            letters: self.letters.saturating_add(count.saturating_mul(more)),
            depth: self.depth.max(of.depth + 1),
        }
    }

    fn is_too_much(self) -> bool {
        self.parts > MAX_PARTS || self.letters > MAX_LETTERS || self.depth > MAX_DEPTH
    }
}

/// What a type is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CKind {
    /// An integer.
    Int(Encoding),
    /// An integer in the order of the network, by its name: `__be16`, `__be32`, `__be64`.
    Network,
    /// An enumeration.
    Enum {
        /// Whether values have a sign.
        signed: bool,
        /// With their names.
        values: Vec<(String, i64)>,
    },
    /// An address, of which nobody here knows what is there.
    Pointer,
    /// Elements one behind the other.
    Array {
        /// The elements' type.
        of: Arc<CType>,
        /// How many there are.
        count: u32,
        /// Whether they are `char`, and by no other name.
        text: bool,
    },
    /// Members, which lie one behind the other in a structure and over each other in a union.
    Members(Vec<CMember>),
    /// The variables of a section.
    Section(Vec<CMember>),
    /// Bits of which nothing is known.
    Opaque,
}

/// A member of a structure or union, or a variable of a section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CMember {
    /// Its name; empty where it has none, and its own members are meant by their names.
    pub name: String,
    /// Its type.
    pub ty: Arc<CType>,
    /// Where it begins, in bits.
    pub bit: u32,
    /// Its bits, where it is a bit field; else 0.
    pub bits: u32,
}

impl CType {
    /// A type of this name, size in bytes and kind. `None` if it is larger than [`MAX_SIZE`], or if
    /// writing a value of it down would take too many parts, letters or levels.
    pub fn new(name: String, size: u32, kind: CKind) -> Option<CType> {
        let weight = match &kind {
            // Bytes are one part, and many of them.
            CKind::Array { of, count, .. } => match of.is_byte() {
                true => Weight::ONE.with(u64::from(*count).div_ceil(16), Weight::ONE, 0),
                false => Weight::ONE.with((*count).into(), of.weight, INDEX),
            },
            CKind::Members(members) | CKind::Section(members) => members
                .iter()
                .fold(Weight::ONE, |weight, member| weight.with(1, member.ty.weight, member.name.len() as u64 + 1)),
            _ => Weight::ONE,
        };
        (!weight.is_too_much() && size <= MAX_SIZE).then_some(CType { name, size, kind, weight })
    }

    /// Whether it is an integer of one byte other than `_Bool`.
    fn is_byte(&self) -> bool {
        self.size == 1 && matches!(&self.kind, CKind::Int(encoding) if *encoding != Encoding::Bool)
    }

    /// What bytes are where no BTF says it: a number without a sign, where there is one of this size, else the bytes.
    pub fn unknown(size: u32) -> Arc<CType> {
        let int = |size: u32| CType {
            name: format!("__u{}", 8 * size),
            size,
            kind: CKind::Int(Encoding::Unsigned),
            weight: Weight::ONE,
        };
        Arc::new(match size {
            1 | 2 | 4 | 8 => int(size),
            _ => CType {
                name: format!("__u8[{size}]"),
                size,
                kind: CKind::Array { of: Arc::new(int(1)), count: size, text: false },
                weight: Weight::ONE,
            },
        })
    }

    /// A section of variables: name, first byte, type.
    pub fn section(
        name: &str,
        size: u32,
        variables: impl IntoIterator<Item = (String, u32, Arc<CType>)>,
    ) -> Arc<CType> {
        let mut weight = Weight::ONE;
        let members = variables.into_iter().map(|(name, at, mut ty)| {
            let with = |ty: &CType| weight.with(1, ty.weight, name.len() as u64 + 1);
            // Many large ones may lie in the same place: what is too much is bytes.
            if with(&ty).is_too_much() {
                ty = CType::unknown(ty.size);
            }
            weight = with(&ty);
            CMember { name, ty, bit: 8 * at, bits: 0 }
        });
        let kind = CKind::Section(members.collect());
        Arc::new(CType { name: name.to_owned(), size, kind, weight })
    }

    /// Whether it is an array of bytes, which a row has as one cell.
    pub fn is_bytes(&self) -> bool {
        match &self.kind {
            CKind::Array { of, .. } => of.is_byte(),
            CKind::Opaque => true,
            _ => false,
        }
    }

    /// Whether it is an address of IPv6 (`struct in6_addr`, linux/in6.h), which a row has as one cell.
    pub fn is_address(&self) -> bool {
        self.size == 16 && self.name == "struct in6_addr" && matches!(self.kind, CKind::Members(_))
    }

    /// Whether it has parts that values are set of one by one.
    pub fn has_parts(&self) -> bool {
        matches!(self.kind, CKind::Members(_) | CKind::Section(_))
            || matches!(self.kind, CKind::Array { .. }) && !self.is_bytes()
    }
}

impl CMember {
    /// The first bit behind it.
    pub fn end(&self) -> u32 {
        self.bit + if self.bits > 0 { self.bits } else { 8 * self.ty.size }
    }
}
