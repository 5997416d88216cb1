//! C types of map keys, values and global variables, read from an object's BTF.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};

use portcullis_core::map::typed::{CKind, CMember, CType, Encoding, MAX_DEPTH};

use super::btf::{Btf, Kind, Member};

impl Btf {
    /// The C type with a BTF id; `None` if no value can have that type.
    pub fn c_type(&self, ty: u32) -> Option<Arc<CType>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        TypeBuilder { btf: self, known: &mut known, open: HashSet::new() }.ty(ty, 0)
    }
}

/// State of building a C type from BTF.
struct TypeBuilder<'a> {
    btf: &'a Btf,
    /// Cache of built types.
    known: &'a mut HashMap<u32, Option<Arc<CType>>>,
    /// Types that are being built, to detect recursion.
    open: HashSet<u32>,
}

impl TypeBuilder<'_> {
    fn ty(&mut self, number: u32, depth: u32) -> Option<Arc<CType>> {
        if let Some(known) = self.known.get(&number) {
            return known.clone();
        }
        // A type that contains itself has no size.
        if depth > MAX_DEPTH || !self.open.insert(number) {
            return None;
        }
        let found = self.build(number, depth).map(Arc::new);
        self.open.remove(&number);
        // A failure may be due to the depth here, so only cache it at the top.
        if found.is_some() || depth == 0 {
            self.known.insert(number, found.clone());
        }
        found
    }

    fn build(&mut self, number: u32, depth: u32) -> Option<CType> {
        let (mut name, mut number) = (String::new(), number);
        // Bounded, since malformed types may form a cycle.
        for _ in 0..64 {
            let ty = self.btf.get(number)?;
            let (Kind::Alias(to) | Kind::Variable(to)) = ty.kind else { break };
            // The outermost typedef names the type; qualifiers have no name.
            if name.is_empty() && matches!(ty.kind, Kind::Alias(_)) {
                name = ty.name.clone();
            }
            number = to;
        }
        let btf = self.btf;
        let ty = btf.get(number)?;
        let called = |kind: &str| if ty.name.is_empty() { kind.to_owned() } else { format!("{kind} {}", ty.name) };
        let (own, size, kind) = match &ty.kind {
            Kind::Int { size, encoding } => {
                let network = matches!((name.as_str(), size), ("__be16", 2) | ("__be32", 4) | ("__be64", 8));
                let kind = match size {
                    _ if network => CKind::Network,
                    1 | 2 | 4 | 8 => CKind::Int(*encoding),
                    0 => return None,
                    _ => CKind::Opaque,
                };
                (ty.name.clone(), *size, kind)
            }
            Kind::Enum { size: size @ (1 | 2 | 4 | 8), signed, values } => {
                (called("enum"), *size, CKind::Enum { signed: *signed, values: values.clone() })
            }
            Kind::Pointer(to) => (self.pointer(*to), 8, CKind::Pointer),
            Kind::Float(size @ (1 | 2 | 4 | 8 | 16)) => (ty.name.clone(), *size, CKind::Opaque),
            Kind::Array { of, count } => self.array(*of, *count, depth)?,
            Kind::Struct { size, members } => {
                (called("struct"), *size, CKind::Members(self.members(*size, members, depth)?))
            }
            Kind::Union { size, members } => {
                (called("union"), *size, CKind::Members(self.members(*size, members, depth)?))
            }
            _ => return None,
        };
        let name = if name.is_empty() { own } else { name };
        CType::new(name, size, kind)
    }

    fn array(&mut self, of: u32, count: u32, depth: u32) -> Option<(String, u32, CKind)> {
        // Only a qualified `char` is a character: a typedef of it is a number.
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
        Some((name, size, CKind::Array { of, count, text }))
    }

    fn members(&mut self, size: u32, members: &[Member], depth: u32) -> Option<Vec<CMember>> {
        let mut all = Vec::new();
        for member in members {
            let ty = self.ty(member.ty, depth + 1)?;
            let bits = if member.bits > 0 { u64::from(member.bits) } else { 8 * u64::from(ty.size) };
            let end = u64::from(member.bit) + bits;
            let fits = end <= 8 * u64::from(size) && (member.bits > 0 || member.bit % 8 == 0) && member.bits <= 64;
            if !fits {
                return None;
            }
            all.push(CMember { name: member.name.clone(), ty, bit: member.bit, bits: member.bits });
        }
        Some(all)
    }

    /// Name of a pointer type, `void *` unless that of the target is short.
    fn pointer(&self, to: u32) -> String {
        let name = self.btf.resolve(to).map(|ty| (ty.name.as_str(), &ty.kind));
        match name {
            Some((name, Kind::Struct { .. })) if !name.is_empty() => format!("struct {name} *"),
            Some((name, Kind::Int { .. })) if !name.is_empty() => format!("{name} *"),
            _ => "void *".into(),
        }
    }
}

#[cfg(test)]
mod tests;
