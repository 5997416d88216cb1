//! C types of map keys, values and global variables, read from an object's BTF.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};

use portcullis_core::map::typed::{CKind, CMember, CType, Encoding, MAX_DEPTH};

use super::btf::{Btf, Kind, Member};

impl Btf {
    /// Returns a type by its BTF id; `None` if the BTF describes nothing that a value could have.
    pub fn c_type(&self, ty: u32) -> Option<Arc<CType>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        Types { btf: self, known: &mut known, open: HashSet::new() }.ty(ty, 0)
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

#[cfg(test)]
mod tests;
