//! Values of expressions.

use naga::{Literal, ScalarKind};

use super::InterpError;

/// A number or a bool. It carries its type, so that a type confusion is an error instead of a wrong
/// result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scalar {
    Bool(bool),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
}

impl Scalar {
    pub(super) fn from_literal(literal: Literal) -> Result<Scalar, InterpError> {
        Ok(match literal {
            Literal::Bool(v) => Scalar::Bool(v),
            Literal::U32(v) => Scalar::U32(v),
            Literal::I32(v) => Scalar::I32(v),
            Literal::U64(v) => Scalar::U64(v),
            Literal::I64(v) => Scalar::I64(v),
            Literal::F32(v) => Scalar::F32(v),
            other => return Err(InterpError::Unsupported(format!("the literal {other:?}"))),
        })
    }

    /// The zero of a scalar type.
    pub(super) fn zero(scalar: naga::Scalar) -> Result<Scalar, InterpError> {
        Ok(match (scalar.kind, scalar.width) {
            (ScalarKind::Bool, _) => Scalar::Bool(false),
            (ScalarKind::Uint, 4) => Scalar::U32(0),
            (ScalarKind::Sint, 4) => Scalar::I32(0),
            (ScalarKind::Uint, 8) => Scalar::U64(0),
            (ScalarKind::Sint, 8) => Scalar::I64(0),
            (ScalarKind::Float, 4) => Scalar::F32(0.0),
            (kind, width) => {
                return Err(InterpError::Unsupported(format!("the type {kind:?} of {width} bytes")));
            }
        })
    }

    pub(super) fn as_bool(self) -> Result<bool, InterpError> {
        match self {
            Scalar::Bool(v) => Ok(v),
            other => Err(InterpError::internal(format!("expected a bool, got {other:?}"))),
        }
    }

    pub(super) fn as_u32(self) -> Result<u32, InterpError> {
        match self {
            Scalar::U32(v) => Ok(v),
            other => Err(InterpError::internal(format!("expected a u32, got {other:?}"))),
        }
    }

    pub(super) fn as_f32(self) -> Result<f32, InterpError> {
        match self {
            Scalar::F32(v) => Ok(v),
            other => Err(InterpError::internal(format!("expected an f32, got {other:?}"))),
        }
    }

    /// An index of any integer type as an unsigned number; negative ones become very large.
    pub(super) fn as_index(self) -> Result<u64, InterpError> {
        match self {
            Scalar::U32(v) => Ok(v.into()),
            Scalar::I32(v) => Ok((v as u32).into()),
            Scalar::U64(v) => Ok(v),
            Scalar::I64(v) => Ok(v as u64),
            other => Err(InterpError::internal(format!("expected an index, got {other:?}"))),
        }
    }
}

/// The memory that a pointer points into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Space {
    /// Private globals, and the locals of active calls.
    Memory,
    /// The arena around the packet, in 32-bit words.
    Arena,
    /// The packet's descriptor: offset, length.
    Descriptor,
    /// The packet's metadata.
    Metadata,
    /// The words of a map, by index.
    Map(usize),
}

/// A pointer: the index of the first scalar in its address space. The pointer's type determines the
/// number of scalars.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pointer {
    pub(super) space: Space,
    pub(super) slot: usize,
}

/// The value of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Scalar(Scalar),
    /// A vector, matrix (column by column), array or structure: its scalars in order, across all
    /// nesting. Flat, so that deeply nested types do not cause recursion.
    Composite(Vec<Scalar>),
    Pointer(Pointer),
}

impl Value {
    pub(super) fn scalar(&self) -> Result<Scalar, InterpError> {
        match self {
            Value::Scalar(v) => Ok(*v),
            other => Err(InterpError::internal(format!("expected a scalar, got {other:?}"))),
        }
    }

    pub(super) fn pointer(&self) -> Result<Pointer, InterpError> {
        match self {
            Value::Pointer(v) => Ok(*v),
            other => Err(InterpError::internal(format!("expected a pointer, got {other:?}"))),
        }
    }

    /// The scalars of the value.
    pub(super) fn scalars(&self) -> Result<&[Scalar], InterpError> {
        match self {
            Value::Scalar(v) => Ok(std::slice::from_ref(v)),
            Value::Composite(v) => Ok(v),
            Value::Pointer(_) => Err(InterpError::internal("expected a value, got a pointer")),
        }
    }

    /// The scalars of a value of f32s.
    pub(super) fn floats(&self) -> Result<Vec<f32>, InterpError> {
        self.scalars()?.iter().map(|v| v.as_f32()).collect()
    }

    /// Applies `function` to each component.
    pub(super) fn map(&self, function: impl Fn(Scalar) -> Result<Scalar, InterpError>) -> Result<Value, InterpError> {
        match self {
            Value::Scalar(v) => Ok(Value::Scalar(function(*v)?)),
            other => Ok(Value::Composite(other.scalars()?.iter().map(|&v| function(v)).collect::<Result<_, _>>()?)),
        }
    }
}

/// Applies `function` to the components at each position. A scalar among vectors is used for every
/// position.
pub(super) fn zip<const N: usize>(
    values: [&Value; N],
    function: impl Fn([Scalar; N]) -> Result<Scalar, InterpError>,
) -> Result<Value, InterpError> {
    let mut scalars = [Scalar::Bool(false); N];
    let mut width = None;
    for (scalar, value) in scalars.iter_mut().zip(values) {
        match value {
            Value::Scalar(v) => *scalar = *v,
            other => width = width.max(Some(other.scalars()?.len())),
        }
    }
    let Some(width) = width else {
        return Ok(Value::Scalar(function(scalars)?));
    };
    let component = |index: usize| {
        let mut scalars = [Scalar::Bool(false); N];
        for (scalar, value) in scalars.iter_mut().zip(values) {
            *scalar = match value {
                Value::Scalar(v) => *v,
                other => *other
                    .scalars()?
                    .get(index)
                    .ok_or_else(|| InterpError::internal("vectors of different sizes were combined"))?,
            };
        }
        function(scalars)
    };
    Ok(Value::Composite((0..width).map(component).collect::<Result<_, _>>()?))
}
