//! Shapes of pointers, and locations of lvalues.
//!
//! A pointer is a *shape*, known at compile time, plus *indices*, known at run time. Into the
//! packet, the only index is the byte offset from the packet's start. Into a table or local
//! variable, the shape names it and the members and array subscripts on the path to the target; the
//! indices are the values of the subscripts. Pointer arithmetic changes the last index.
//!
//! So `*p` accesses a variable directly, which devices keep in registers, and a variable is
//! accessed as the type that it has. The packet is bytes and can be accessed as any type.

use std::rc::Rc;

use crate::tree::{LocalId, TableId};
use crate::types::{Scalar, Type};
use portcullis_core::ir::builder::Value;

/// Object that a pointer points into.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Base {
    Packet,
    Table(TableId),
    /// A local variable of the current function, and its type.
    Local(LocalId, Type),
    /// A variable that the caller passed a pointer to: the parameter's number, and the variable's
    /// type.
    Argument(u32, Type),
}

/// A step on the path from the base to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum PathStep {
    Member(u32),
    /// An array subscript; takes an index.
    Index,
    /// A target that is not an array element counts as the first of one (C11 6.5.6); takes an
    /// index, which is ignored.
    Single,
}

/// Compile-time part of a pointer, see the module's documentation. Into the packet it has no steps,
/// and its target no type.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub base: Base,
    pub steps: Vec<PathStep>,
    /// Type of the target.
    pub element: Type,
}

impl Shape {
    pub fn index_count(&self) -> usize {
        match self.base {
            Base::Packet => 1,
            _ => self.steps.iter().filter(|step| !matches!(step, PathStep::Member(_))).count(),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Pointer {
    pub shape: Rc<Shape>,
    pub indices: Vec<Value>,
    /// Pointer to the naga variable that it points into, if any.
    pub variable: Option<Value>,
}

/// The location of an lvalue, ready to be read or written.
#[derive(Clone)]
pub(super) enum Location {
    /// A variable, by a naga pointer.
    Memory(Value),
    /// A value, which can only be read.
    Value(Value),
    /// Packet bytes at an offset plus a constant.
    Packet(Value, u32),
    /// Components of a vector of this type at another location.
    Components(Box<Location>, Vec<u8>, Type),
    /// A local variable that is a pointer.
    Pointer(LocalId),
    /// A variable of this type, accessed as another type of the same size.
    Reinterpreted(Box<Location>, Scalar),
}
