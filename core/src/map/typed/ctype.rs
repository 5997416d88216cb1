//! Types of C as an object's BTF has them, in a form that is easy to walk: qualifiers and other names are resolved, and whatever
//! the BTF says, a type is finite, its members lie in it, and writing a value of it down takes bounded work.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};

use crate::lang::xdp::object::btf::{Btf, Encoding, Kind};

/// Parts of a type at most, elements of arrays counted one by one (those of bytes by sixteen).
const MAX_PARTS: u64 = 1 << 18;

/// Letters of the names of all parts of a type at most, from the outermost member on.
const MAX_LETTERS: u64 = 1 << 22;

/// Letters of an element's number.
const INDEX: u64 = 8;

/// Bytes of a type at most, so that its bits can be numbered.
const MAX_SIZE: u32 = 1 << 26;

/// Types in types, at most.
const MAX_DEPTH: u32 = 32;

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
    /// A type by its number; `None` where the BTF says nothing that a value could be of.
    pub fn of(btf: &Btf, ty: u32) -> Option<Arc<CType>> {
        let mut known = btf.known.lock().unwrap_or_else(PoisonError::into_inner);
        Types { btf, known: &mut known, open: HashSet::new() }.ty(ty, 0)
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
            CKind::Array { of, .. } => of.size == 1 && matches!(&of.kind, CKind::Int(it) if *it != Encoding::Bool),
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

struct Types<'a> {
    btf: &'a Btf,
    /// Types that are known.
    known: &'a mut HashMap<u32, Option<Arc<CType>>>,
    /// Those that are being found out.
    open: HashSet<u32>,
}

impl Types<'_> {
    fn ty(&mut self, number: u32, depth: u32) -> Option<Arc<CType>> {
        if let Some(known) = self.known.get(&number) {
            return known.clone();
        }
        // What is in itself is nothing.
        if depth > MAX_DEPTH || !self.open.insert(number) {
            return None;
        }
        let found = self.found(number, depth).map(Arc::new);
        self.open.remove(&number);
        // What is nothing here may be something where there is less around it.
        if found.is_some() || depth == 0 {
            self.known.insert(number, found.clone());
        }
        found
    }

    fn found(&mut self, number: u32, depth: u32) -> Option<CType> {
        let (mut name, mut number) = (String::new(), number);
        // Each step leads to another type, unless they lie.
        for _ in 0..64 {
            let ty = self.btf.get(number)?;
            let (Kind::Alias(to) | Kind::Variable(to)) = ty.kind else { break };
            // The first other name counts; qualifiers have none.
            if name.is_empty() && matches!(ty.kind, Kind::Alias(_)) {
                name = ty.name.clone();
            }
            number = to;
        }
        let btf = self.btf;
        let ty = btf.get(number)?;
        let called = |kind: &str| if ty.name.is_empty() { kind.to_owned() } else { format!("{kind} {}", ty.name) };
        let (own, size, kind, weight) = match &ty.kind {
            Kind::Int { size, encoding } => {
                let network = matches!((name.as_str(), size), ("__be16", 2) | ("__be32", 4) | ("__be64", 8));
                let kind = match size {
                    _ if network => CKind::Network,
                    1 | 2 | 4 | 8 => CKind::Int(*encoding),
                    0 => return None,
                    _ => CKind::Opaque,
                };
                (ty.name.clone(), *size, kind, Weight::ONE)
            }
            Kind::Enum { size: size @ (1 | 2 | 4 | 8), signed, values } => {
                (called("enum"), *size, CKind::Enum { signed: *signed, values: values.clone() }, Weight::ONE)
            }
            Kind::Pointer(to) => (self.pointer(*to), 8, CKind::Pointer, Weight::ONE),
            Kind::Float(size @ (1 | 2 | 4 | 8 | 16)) => (ty.name.clone(), *size, CKind::Opaque, Weight::ONE),
            Kind::Array { of, count } => self.array(*of, *count, depth)?,
            Kind::Struct { size, members } => {
                let (members, weight) = self.members(*size, members, depth)?;
                (called("struct"), *size, CKind::Members(members), weight)
            }
            Kind::Union { size, members } => {
                let (members, weight) = self.members(*size, members, depth)?;
                (called("union"), *size, CKind::Members(members), weight)
            }
            _ => return None,
        };
        let name = if name.is_empty() { own } else { name };
        (!weight.is_too_much() && size <= MAX_SIZE).then_some(CType { name, size, kind, weight })
    }

    fn array(&mut self, of: u32, count: u32, depth: u32) -> Option<(String, u32, CKind, Weight)> {
        // Only qualifiers may stand before `char`: by another name it is a number.
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
        // Dimensions are written from the outermost on.
        let (base, inner) = of
            .name
            .split_once('[')
            .map_or((of.name.as_str(), String::new()), |(base, rest)| (base, format!("[{rest}")));
        let name = format!("{base}[{count}]{inner}");
        // Bytes are one part, and many of them.
        let is_byte = of.size == 1 && matches!(&of.kind, CKind::Int(it) if *it != Encoding::Bool);
        let weight = match is_byte {
            true => Weight::ONE.with(u64::from(count).div_ceil(16), Weight::ONE, 0),
            false => Weight::ONE.with(count.into(), of.weight, INDEX),
        };
        let kind = CKind::Array { of, count, text };
        Some((name, size, kind, weight))
    }

    fn members(
        &mut self,
        size: u32,
        members: &[crate::lang::xdp::object::btf::Member],
        depth: u32,
    ) -> Option<(Vec<CMember>, Weight)> {
        let (mut all, mut weight) = (Vec::new(), Weight::ONE);
        for member in members {
            let ty = self.ty(member.ty, depth + 1)?;
            let bits = if member.bits > 0 { u64::from(member.bits) } else { 8 * u64::from(ty.size) };
            let end = u64::from(member.bit) + bits;
            let fits = end <= 8 * u64::from(size) && (member.bits > 0 || member.bit % 8 == 0) && member.bits <= 64;
            if !fits {
                return None;
            }
            weight = weight.with(1, ty.weight, member.name.len() as u64 + 1);
            all.push(CMember { name: member.name.clone(), ty, bit: member.bit, bits: member.bits });
        }
        Some((all, weight))
    }

    /// The name of what is pointed to, as far as it is short.
    fn pointer(&self, to: u32) -> String {
        let name = self.btf.resolve(to).map(|ty| (ty.name.as_str(), &ty.kind));
        match name {
            Some((name, Kind::Struct { .. })) if !name.is_empty() => format!("struct {name} *"),
            Some((name, Kind::Int { .. })) if !name.is_empty() => format!("{name} *"),
            _ => "void *".into(),
        }
    }
}
