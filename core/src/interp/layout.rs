//! How many scalars a type has, and where its parts are among them.

use naga::{ArraySize, Module, TypeInner};

use super::InterpError;
use super::value::Scalar;

/// The scalars of every type of a module. An array of runtime size has none.
#[derive(Debug)]
pub(super) struct Layouts {
    slots: Vec<Option<usize>>,
}

/// The part of a composite that an index names.
pub(super) struct Part {
    /// Elements that there are; `None` for an array of runtime size.
    pub(super) count: Option<u64>,
    /// Scalars of each.
    pub(super) stride: usize,
}

impl Layouts {
    pub(super) fn new(module: &Module) -> Layouts {
        let mut layouts = Layouts { slots: Vec::with_capacity(module.types.len()) };
        // A type refers to types before it only, so each is found in the table already.
        for (_, ty) in module.types.iter() {
            let slots = layouts.slots_of(&ty.inner);
            layouts.slots.push(slots);
        }
        layouts
    }

    /// Scalars of a type; `None` for what cannot be a value: arrays of runtime size, pointers,
    /// opaque types, and what is too large to count.
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

    /// What elements a type has that can be indexed by a number known at run time only.
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

    /// The first scalar of the part that a constant index names.
    pub(super) fn offset(&self, inner: &TypeInner, index: u32) -> Result<usize, InterpError> {
        match inner {
            TypeInner::Struct { members, .. } => members[..index as usize]
                .iter()
                .try_fold(0usize, |sum, m| sum.checked_add(self.slots[m.ty.index()]?))
                .ok_or_else(|| InterpError::Unsupported("a structure without a size".into())),
            other => {
                let part = self.elements(other)?;
                // naga's validator has compared the index with the count.
                Ok(index as usize * part.stride)
            }
        }
    }
}

/// The scalars of a type's zero value, appended to `into`. Goes through nested types with a list of
/// its own: they can be nested deeper than our stack is long.
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
