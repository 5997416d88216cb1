//! Layout of types as flat lists of scalars.

use naga::{ArraySize, Module, TypeInner};

use super::InterpError;
use super::value::Scalar;

/// Number of scalars of each type of a module; `None` for runtime-sized arrays.
#[derive(Debug)]
pub(super) struct Layouts {
    slots: Vec<Option<usize>>,
}

/// The elements of an indexable type.
pub(super) struct Part {
    /// Number of elements; `None` for a runtime-sized array.
    pub(super) count: Option<u64>,
    /// Number of scalars per element.
    pub(super) stride: usize,
}

impl Layouts {
    pub(super) fn new(module: &Module) -> Layouts {
        let mut layouts = Layouts { slots: Vec::with_capacity(module.types.len()) };
        // Types refer to earlier types only, so those are in the table already.
        for (_, ty) in module.types.iter() {
            let slots = layouts.slots_of(&ty.inner);
            layouts.slots.push(slots);
        }
        layouts
    }

    /// Number of scalars of a type; `None` for types that no value has: runtime-sized arrays,
    /// pointers, opaque types, and types too large to count.
    pub(super) fn slots_of(&self, inner: &TypeInner) -> Option<usize> {
        match inner {
            TypeInner::Scalar(_) | TypeInner::Atomic(_) => Some(1),
            TypeInner::Vector { size, .. } => Some(*size as usize),
            TypeInner::Matrix { columns, rows, .. } => Some(*columns as usize * *rows as usize),
            TypeInner::Array { base, size: ArraySize::Constant(count), .. } => {
                self.slots[base.index()]?.checked_mul(count.get() as usize)
            }
            TypeInner::Struct { members, .. } => {
                members.iter().try_fold(0usize, |sum, m| sum.checked_add(self.slots[m.ty.index()]?))
            }
            _ => None,
        }
    }

    /// The elements of a type that can be indexed dynamically.
    pub(super) fn elements(&self, inner: &TypeInner) -> Result<Part, InterpError> {
        Ok(match inner {
            TypeInner::Vector { size, .. } | TypeInner::ValuePointer { size: Some(size), .. } => {
                Part { count: Some(*size as u64), stride: 1 }
            }
            TypeInner::Matrix { columns, rows, .. } => Part { count: Some(*columns as u64), stride: *rows as usize },
            TypeInner::Array { base, size, .. } => Part {
                count: match size {
                    ArraySize::Constant(count) => Some(count.get().into()),
                    ArraySize::Dynamic => None,
                    ArraySize::Pending(_) => {
                        return Err(InterpError::Unsupported("an array whose size is an override".into()));
                    }
                },
                stride: self.slots[base.index()]
                    .ok_or_else(|| InterpError::Unsupported("an array of elements without a size".into()))?,
            },
            other => return Err(InterpError::Unsupported(format!("indexing {other:?}"))),
        })
    }

    /// Index of the first scalar of the part at a constant index.
    pub(super) fn offset(&self, inner: &TypeInner, index: u32) -> Result<usize, InterpError> {
        match inner {
            TypeInner::Struct { members, .. } => members[..index as usize]
                .iter()
                .try_fold(0usize, |sum, m| sum.checked_add(self.slots[m.ty.index()]?))
                .ok_or_else(|| InterpError::Unsupported("a structure without a size".into())),
            other => {
                let part = self.elements(other)?;
                // naga's validator has checked the index.
                Ok(index as usize * part.stride)
            }
        }
    }
}

/// Appends the scalars of a type's zero value to `into`. Uses an explicit stack: types can nest
/// deeper than recursion allows.
pub(super) fn zero(module: &Module, inner: &TypeInner, into: &mut Vec<Scalar>) -> Result<(), InterpError> {
    let mut open = vec![inner];
    while let Some(inner) = open.pop() {
        match inner {
            TypeInner::Scalar(scalar) => into.push(Scalar::zero(*scalar)?),
            TypeInner::Vector { size, scalar } => {
                into.extend(std::iter::repeat_n(Scalar::zero(*scalar)?, *size as usize));
            }
            TypeInner::Matrix { columns, rows, scalar } => {
                into.extend(std::iter::repeat_n(Scalar::zero(*scalar)?, *columns as usize * *rows as usize));
            }
            TypeInner::Array { base, size: ArraySize::Constant(count), .. } => {
                open.extend(std::iter::repeat_n(&module.types[*base].inner, count.get() as usize));
            }
            TypeInner::Struct { members, .. } => {
                open.extend(members.iter().rev().map(|m| &module.types[m.ty].inner));
            }
            other => return Err(InterpError::Unsupported(format!("a variable or zero value of type {other:?}"))),
        }
    }
    Ok(())
}
