//! naga's types as lists of scalars, and their layout in memory.
//!
//! Every value is flattened: a `vec3<u32>` is three scalars, a struct the scalars of its members.
//! In memory scalars follow one another without gaps.

use cranelift_codegen::ir::{Type, types};
use naga::{ArraySize, Handle, Module, Scalar, ScalarKind, TypeInner};

use super::errors::Unsupported;

/// Maximum number of scalars of a value. The verifier bounds the size of variables, this the size
/// of values that are passed around.
const MAX_LEAVES: u64 = 16_384;

/// A scalar type, as a leaf of a flattened type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leaf(pub Scalar);

impl Leaf {
    /// Cranelift's type. Booleans are bytes of 0 or 1.
    pub fn clif(self) -> Type {
        match (self.0.kind, self.0.width) {
            (ScalarKind::Bool, _) => types::I8,
            (ScalarKind::Float, 8) => types::F64,
            (ScalarKind::Float, _) => types::F32,
            (_, 8) => types::I64,
            _ => types::I32,
        }
    }

    /// Size in memory, in bytes.
    pub fn size(self) -> u32 {
        self.clif().bytes()
    }
}

/// Number of scalars of a type.
pub(crate) fn count(module: &Module, inner: &TypeInner) -> Result<u64, Unsupported> {
    Ok(match *inner {
        TypeInner::Scalar(_) | TypeInner::Atomic(_) => 1,
        TypeInner::Vector { size, .. } => size as u64,
        TypeInner::Matrix { columns, rows, .. } => columns as u64 * rows as u64,
        TypeInner::Array { base, size: ArraySize::Constant(n), .. } => {
            count(module, &module.types[base].inner)?.saturating_mul(u64::from(n.get()))
        }
        TypeInner::Struct { ref members, .. } => {
            let mut sum = 0u64;
            for member in members {
                sum = sum.saturating_add(count(module, &module.types[member.ty].inner)?);
            }
            sum
        }
        ref other => return Err(Unsupported(format!("a value of type {other:?}"))),
    })
}

/// The scalars of a type, in order.
pub(crate) fn leaves(module: &Module, inner: &TypeInner) -> Result<Vec<Leaf>, Unsupported> {
    let n = count(module, inner)?;
    if n > MAX_LEAVES {
        return Err(Unsupported(format!("a value of {n} scalars (at most {MAX_LEAVES})")));
    }
    let mut list = Vec::with_capacity(n as usize);
    collect(module, inner, &mut list);
    Ok(list)
}

fn collect(module: &Module, inner: &TypeInner, into: &mut Vec<Leaf>) {
    match *inner {
        TypeInner::Scalar(scalar) | TypeInner::Atomic(scalar) => into.push(Leaf(scalar)),
        TypeInner::Vector { size, scalar } => into.extend(std::iter::repeat_n(Leaf(scalar), size as usize)),
        TypeInner::Matrix { columns, rows, scalar } => {
            into.extend(std::iter::repeat_n(Leaf(scalar), columns as usize * rows as usize));
        }
        TypeInner::Array { base, size: ArraySize::Constant(n), .. } => {
            let start = into.len();
            collect(module, &module.types[base].inner, into);
            let element = into[start..].to_vec();
            for _ in 1..n.get() {
                into.extend_from_slice(&element);
            }
        }
        TypeInner::Struct { ref members, .. } => {
            for member in members {
                collect(module, &module.types[member.ty].inner, into);
            }
        }
        _ => {}
    }
}

/// Size of a type in memory, in bytes.
pub(crate) fn size(module: &Module, inner: &TypeInner) -> Result<u32, Unsupported> {
    Ok(leaves(module, inner)?.iter().map(|l| l.size()).sum())
}

/// A part of a composite type.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    /// Type of the part.
    pub inner: TypeInner,
    /// Number of scalars.
    pub leaves: u32,
    /// Size in memory, in bytes.
    pub size: u32,
}

/// Number of elements reported for an array whose size the module does not say: a map's words.
pub(crate) const UNBOUNDED: u32 = u32::MAX;

/// Returns the element type of a vector, matrix or array, and the number of elements.
pub(crate) fn uniform_part(module: &Module, inner: &TypeInner) -> Result<(Part, u32), Unsupported> {
    let (inner, n) = match *inner {
        TypeInner::Vector { size, scalar } => (TypeInner::Scalar(scalar), size as u32),
        TypeInner::Matrix { columns, rows, scalar } => (TypeInner::Vector { size: rows, scalar }, columns as u32),
        TypeInner::Array { base, size: ArraySize::Constant(n), .. } => (module.types[base].inner.clone(), n.get()),
        TypeInner::Array { base, size: ArraySize::Dynamic, .. } => (module.types[base].inner.clone(), UNBOUNDED),
        ref other => return Err(Unsupported(format!("indexing a value of type {other:?}"))),
    };
    let part = Part { leaves: count(module, &inner)? as u32, size: size(module, &inner)?, inner };
    Ok((part, n))
}

/// Returns part `index` of a composite type, and the number of scalars and bytes before it.
pub(crate) fn part(module: &Module, inner: &TypeInner, index: u32) -> Result<(Part, u32, u32), Unsupported> {
    if let TypeInner::Struct { ref members, .. } = *inner {
        let (mut leaves_before, mut bytes_before) = (0, 0);
        for member in &members[..index as usize] {
            let inner = &module.types[member.ty].inner;
            leaves_before += count(module, inner)? as u32;
            bytes_before += size(module, inner)?;
        }
        let inner = module.types[members[index as usize].ty].inner.clone();
        let part = Part { leaves: count(module, &inner)? as u32, size: size(module, &inner)?, inner };
        return Ok((part, leaves_before, bytes_before));
    }
    let (part, _) = uniform_part(module, inner)?;
    let (leaves, bytes) = (part.leaves * index, part.size * index);
    Ok((part, leaves, bytes))
}

/// Returns the type that a pointer points to, `None` for any other type.
pub(crate) fn pointee(module: &Module, inner: &TypeInner) -> Option<TypeInner> {
    match *inner {
        TypeInner::Pointer { base, .. } => Some(module.types[base].inner.clone()),
        TypeInner::ValuePointer { size: Some(size), scalar, .. } => Some(TypeInner::Vector { size, scalar }),
        TypeInner::ValuePointer { size: None, scalar, .. } => Some(TypeInner::Scalar(scalar)),
        _ => None,
    }
}

/// Returns the type behind a handle.
pub(crate) fn inner(module: &Module, ty: Handle<naga::Type>) -> &TypeInner {
    &module.types[ty].inner
}
