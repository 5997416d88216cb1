//! C types from an object's BTF, in a form that is easy to traverse: qualifiers and typedefs are
//! resolved. Whatever the BTF says, a type is finite, its members are within it, and writing a
//! value of it takes bounded work.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};

use crate::lang::xdp::object::btf::{Btf, Encoding, Kind};

/// Maximum number of parts of a type, elements of arrays counted individually (those of bytes in
/// units of sixteen).
const MAX_PARTS: u64 = 1 << 18;

/// Maximum total length of the paths of all parts of a type.
const MAX_PATH_LENGTH: u64 = 1 << 22;

/// Length assumed for an element's index in a path.
const INDEX_LENGTH: u64 = 8;

/// Maximum size of a type in bytes: bit offsets must fit in 32 bits.
const MAX_SIZE: u32 = 1 << 26;

/// Maximum nesting of types.
const MAX_DEPTH: u32 = 32;

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
    /// For a bit field, its width in bits; otherwise 0.
    pub bits: u32,
}

impl CType {
    /// The type with this BTF id; `None` if it is not one that a value can have.
    pub fn of(btf: &Btf, ty: u32) -> Option<Arc<CType>> {
        let mut known = btf.known.lock().unwrap_or_else(PoisonError::into_inner);
        TypeResolver { btf, known: &mut known, in_progress: HashSet::new() }.ty(ty, 0)
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
            CKind::Array { of, .. } => of.size == 1 && matches!(&of.kind, CKind::Int(it) if *it != Encoding::Bool),
            CKind::Opaque => true,
            _ => false,
        }
    }

    /// Whether the type is an IPv6 address (`struct in6_addr`, linux/in6.h), which is one cell of a
    /// row.
    pub fn is_address(&self) -> bool {
        self.size == 16 && self.name == "struct in6_addr" && matches!(self.kind, CKind::Members(_))
    }

    /// Whether parts of a value are set individually.
    pub fn has_parts(&self) -> bool {
        matches!(self.kind, CKind::Members(_) | CKind::Section(_))
            || matches!(self.kind, CKind::Array { .. }) && !self.is_bytes()
    }
}

impl CMember {
    /// Offset of the first bit behind the member.
    pub fn end(&self) -> u32 {
        self.bit + if self.bits > 0 { self.bits } else { 8 * self.ty.size }
    }
}

struct TypeResolver<'a> {
    btf: &'a Btf,
    /// Types resolved before, by BTF id.
    known: &'a mut HashMap<u32, Option<Arc<CType>>>,
    /// Types that are being resolved.
    in_progress: HashSet<u32>,
}

impl TypeResolver<'_> {
    fn ty(&mut self, number: u32, depth: u32) -> Option<Arc<CType>> {
        if let Some(known) = self.known.get(&number) {
            return known.clone();
        }
        // A type that contains itself does not exist.
        if depth > MAX_DEPTH || !self.in_progress.insert(number) {
            return None;
        }
        let resolved = self.resolve(number, depth).map(Arc::new);
        self.in_progress.remove(&number);
        // A failure here may be due to nesting; at the top level the type may resolve.
        if resolved.is_some() || depth == 0 {
            self.known.insert(number, resolved.clone());
        }
        resolved
    }

    fn resolve(&mut self, number: u32, depth: u32) -> Option<CType> {
        let (mut name, mut number) = (String::new(), number);
        // Bounded, because a damaged BTF may contain cycles.
        for _ in 0..64 {
            let ty = self.btf.get(number)?;
            let (Kind::Alias(to) | Kind::Variable(to)) = ty.kind else { break };
            // The outermost typedef's name counts; qualifiers have no name.
            if name.is_empty() && matches!(ty.kind, Kind::Alias(_)) {
                name = ty.name.clone();
            }
            number = to;
        }
        let btf = self.btf;
        let ty = btf.get(number)?;
        let called = |kind: &str| if ty.name.is_empty() { kind.to_owned() } else { format!("{kind} {}", ty.name) };
        let (own, size, kind, cost) = match &ty.kind {
            Kind::Int { size, encoding } => {
                let network = matches!((name.as_str(), size), ("__be16", 2) | ("__be32", 4) | ("__be64", 8));
                let kind = match size {
                    _ if network => CKind::Network,
                    1 | 2 | 4 | 8 => CKind::Int(*encoding),
                    0 => return None,
                    _ => CKind::Opaque,
                };
                (ty.name.clone(), *size, kind, TypeCost::ONE)
            }
            Kind::Enum { size: size @ (1 | 2 | 4 | 8), signed, values } => {
                (called("enum"), *size, CKind::Enum { signed: *signed, values: values.clone() }, TypeCost::ONE)
            }
            Kind::Pointer(to) => (self.pointer(*to), 8, CKind::Pointer, TypeCost::ONE),
            Kind::Float(size @ (1 | 2 | 4 | 8 | 16)) => (ty.name.clone(), *size, CKind::Opaque, TypeCost::ONE),
            Kind::Array { of, count } => self.array(*of, *count, depth)?,
            Kind::Struct { size, members } => {
                let (members, cost) = self.members(*size, members, depth)?;
                (called("struct"), *size, CKind::Members(members), cost)
            }
            Kind::Union { size, members } => {
                let (members, cost) = self.members(*size, members, depth)?;
                (called("union"), *size, CKind::Members(members), cost)
            }
            _ => return None,
        };
        let name = if name.is_empty() { own } else { name };
        (!cost.exceeds_limits() && size <= MAX_SIZE).then_some(CType { name, size, kind, cost })
    }

    fn array(&mut self, of: u32, count: u32, depth: u32) -> Option<(String, u32, CKind, TypeCost)> {
        // Skip qualifiers only: a typedef of `char` is a number.
        let mut plain = of;
        for _ in 0..64 {
            match self.btf.get(plain)? {
                ty if ty.name.is_empty() => match ty.kind {
                    Kind::Alias(to) => plain = to,
                    _ => break,
                },
                _ => break,
            }
        }
        let text = self.btf.get(plain).is_some_and(|ty| match ty.kind {
            Kind::Int { size: 1, encoding } => encoding == Encoding::Char || ty.name == "char",
            _ => false,
        });
        let of = self.ty(of, depth + 1)?;
        let size = of.size.checked_mul(count)?;
        // C writes the outermost dimension first.
        let (base, inner) = of
            .name
            .split_once('[')
            .map_or((of.name.as_str(), String::new()), |(base, rest)| (base, format!("[{rest}")));
        let name = format!("{base}[{count}]{inner}");
        // An array of bytes is a single part, but a long one.
        let is_byte = of.size == 1 && matches!(&of.kind, CKind::Int(it) if *it != Encoding::Bool);
        let cost = match is_byte {
            true => TypeCost::ONE.with(u64::from(count).div_ceil(16), TypeCost::ONE, 0),
            false => TypeCost::ONE.with(count.into(), of.cost, INDEX_LENGTH),
        };
        let kind = CKind::Array { of, count, text };
        Some((name, size, kind, cost))
    }

    fn members(
        &mut self,
        size: u32,
        members: &[crate::lang::xdp::object::btf::Member],
        depth: u32,
    ) -> Option<(Vec<CMember>, TypeCost)> {
        let (mut all, mut cost) = (Vec::new(), TypeCost::ONE);
        for member in members {
            let ty = self.ty(member.ty, depth + 1)?;
            let bits = if member.bits > 0 { u64::from(member.bits) } else { 8 * u64::from(ty.size) };
            let end = u64::from(member.bit) + bits;
            let fits = end <= 8 * u64::from(size) && (member.bits > 0 || member.bit % 8 == 0) && member.bits <= 64;
            if !fits {
                return None;
            }
            cost = cost.with(1, ty.cost, member.name.len() as u64 + 1);
            all.push(CMember { name: member.name.clone(), ty, bit: member.bit, bits: member.bits });
        }
        Some((all, cost))
    }

    /// C name of a pointer to this type; abbreviated to `void *` for unusual pointees.
    fn pointer(&self, to: u32) -> String {
        let name = self.btf.resolve(to).map(|ty| (ty.name.as_str(), &ty.kind));
        match name {
            Some((name, Kind::Struct { .. })) if !name.is_empty() => format!("struct {name} *"),
            Some((name, Kind::Int { .. })) if !name.is_empty() => format!("{name} *"),
            _ => "void *".into(),
        }
    }
}
