//! Abstract values of expressions and variables.

use std::rc::Rc;

use naga::{ArraySize, Handle, Literal, Module, Scalar, ScalarKind, Type, TypeInner};

use super::VerdictSet;
use super::interval::{IntKind, Interval};

/// Maximum number of scalars in a composite that is tracked by component.
const MAX_PARTS: usize = 64;

/// Maximum nesting of a composite that is tracked by component.
const MAX_DEPTH: usize = 8;

/// Maximum number of conditions attached to one outcome of a bool.
const MAX_CONDITIONS: usize = 16;

/// A set of values; `Any` over-approximates every type's.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    /// Any value of the type.
    Any,
    /// A `u32` or `i32`.
    Int(Int),
    /// A bool.
    Bool(Bool),
    /// A vector or struct, by component.
    Composite(Rc<Vec<Value>>),
    /// An array, by the join of its elements.
    Array(Rc<Value>),
    /// A pointer into a variable.
    Pointer(Pointer),
}

/// A number, and the verdicts that it can be. The set is more precise than the interval for results
/// of `redirect` and for choices between constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Int {
    pub(super) range: Interval,
    pub(super) verdicts: VerdictSet,
}

impl Int {
    pub(super) fn new(range: Interval) -> Int {
        Int { range, verdicts: VerdictSet::of_range(range) }
    }
}

/// A constraint: the expression's value is in the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Condition {
    /// Cell of the expression.
    pub(super) expression: u32,
    pub(super) range: Interval,
}

/// A bool: its possible values, and the conditions that each implies.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Bool {
    pub(super) can_be_true: bool,
    pub(super) can_be_false: bool,
    pub(super) when_true: Conditions,
    pub(super) when_false: Conditions,
}

/// A conjunction of conditions; `None` if empty.
pub(super) type Conditions = Option<Rc<Vec<Condition>>>;

/// A component of a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pointer {
    /// Cell of the variable.
    pub(super) slot: u32,
    /// Indices from the whole variable inwards; `None` for one that is not constant.
    pub(super) path: Rc<Vec<Option<u32>>>,
}

impl Bool {
    pub(super) fn unknown() -> Bool {
        Bool { can_be_true: true, can_be_false: true, ..Bool::default() }
    }

    pub(super) fn exact(value: bool) -> Bool {
        Bool { can_be_true: value, can_be_false: !value, ..Bool::default() }
    }

    pub(super) fn not(&self) -> Bool {
        Bool {
            can_be_true: self.can_be_false,
            can_be_false: self.can_be_true,
            when_true: self.when_false.clone(),
            when_false: self.when_true.clone(),
        }
    }

    pub(super) fn and(&self, b: &Bool) -> Bool {
        Bool {
            can_be_true: self.can_be_true && b.can_be_true,
            can_be_false: self.can_be_false || b.can_be_false,
            when_true: conjunction(&self.when_true, &b.when_true),
            when_false: None,
        }
    }

    fn join(&self, b: &Bool) -> Bool {
        let either = |possible: [bool; 2], conditions: [&Conditions; 2]| match possible {
            [true, false] => conditions[0].clone(),
            [false, true] => conditions[1].clone(),
            _ => disjunction(conditions[0], conditions[1]),
        };
        Bool {
            can_be_true: self.can_be_true || b.can_be_true,
            can_be_false: self.can_be_false || b.can_be_false,
            when_true: either([self.can_be_true, b.can_be_true], [&self.when_true, &b.when_true]),
            when_false: either([self.can_be_false, b.can_be_false], [&self.when_false, &b.when_false]),
        }
    }
}

/// Conditions that hold if both lists hold.
pub(super) fn conjunction(a: &Conditions, b: &Conditions) -> Conditions {
    match (a, b) {
        (None, other) | (other, None) => other.clone(),
        (Some(a), Some(b)) => {
            let mut both = a.to_vec();
            both.extend(b.iter().copied().take(MAX_CONDITIONS.saturating_sub(both.len())));
            Some(Rc::new(both))
        }
    }
}

/// Conditions that hold if either list holds.
fn disjunction(a: &Conditions, b: &Conditions) -> Conditions {
    let (Some(a), Some(b)) = (a, b) else { return None };
    let common: Vec<Condition> = a
        .iter()
        .filter_map(|x| {
            let y = b.iter().find(|y| y.expression == x.expression)?;
            Some(Condition { expression: x.expression, range: x.range.hull(y.range) })
        })
        .collect();
    (!common.is_empty()).then(|| Rc::new(common))
}

impl Value {
    pub(super) fn range(range: Interval) -> Value {
        Value::Int(Int::new(range))
    }

    /// The value as an integer of `kind`; any such integer if it is none.
    pub(super) fn int(&self, kind: IntKind) -> Int {
        match self {
            // Widening ignores the kind and may exceed it.
            Value::Int(int) => Int { range: int.range.meet(kind.full()).unwrap_or(kind.full()), ..*int },
            _ => Int { range: kind.full(), verdicts: VerdictSet::ALL },
        }
    }

    pub(super) fn bool(&self) -> Bool {
        match self {
            Value::Bool(bool) => bool.clone(),
            _ => Bool::unknown(),
        }
    }

    /// Least upper bound of two values.
    pub(super) fn join(&self, other: &Value) -> Value {
        match (self, other) {
            (Value::Int(a), Value::Int(b)) => {
                Value::Int(Int { range: a.range.hull(b.range), verdicts: a.verdicts.union(b.verdicts) })
            }
            (Value::Bool(a), Value::Bool(b)) => Value::Bool(a.join(b)),
            (Value::Composite(a), Value::Composite(b)) if Rc::ptr_eq(a, b) => self.clone(),
            (Value::Composite(a), Value::Composite(b)) if a.len() == b.len() => {
                Value::Composite(Rc::new(a.iter().zip(b.iter()).map(|(a, b)| a.join(b)).collect()))
            }
            (Value::Array(a), Value::Array(b)) => Value::Array(Rc::new(a.join(b))),
            (Value::Pointer(a), Value::Pointer(b)) if a == b => self.clone(),
            _ => Value::Any,
        }
    }

    /// Widening: bounds of `self` that `new` exceeds move to the bounds of the signed or unsigned
    /// type.
    pub(super) fn widen(&self, new: &Value) -> Value {
        match (self, new) {
            (Value::Int(a), Value::Int(b)) => {
                let range = a.range.hull(b.range);
                let lo = match range.lo {
                    same if same == a.range.lo => same,
                    0.. => 0,
                    _ => IntKind::Signed.full().lo,
                };
                let hi = match range.hi {
                    same if same == a.range.hi => same,
                    signed if signed <= IntKind::Signed.full().hi => IntKind::Signed.full().hi,
                    _ => IntKind::Unsigned.full().hi,
                };
                Value::Int(Int { range: Interval::new(lo, hi), verdicts: VerdictSet::ALL })
            }
            (Value::Composite(a), Value::Composite(b)) if a.len() == b.len() => {
                Value::Composite(Rc::new(a.iter().zip(b.iter()).map(|(a, b)| a.widen(b)).collect()))
            }
            (Value::Array(a), Value::Array(b)) => Value::Array(Rc::new(a.widen(b))),
            _ => self.join(new),
        }
    }

    /// Whether `other` includes every value of `self`.
    pub(super) fn is_within(&self, other: &Value) -> bool {
        other.join(self) == *other
    }

    /// The value without conditions, which name expressions that it may outlive.
    pub(super) fn without_conditions(&self) -> Value {
        match self {
            Value::Bool(b) if b.when_true.is_some() || b.when_false.is_some() => {
                Value::Bool(Bool { when_true: None, when_false: None, ..*b })
            }
            Value::Composite(components) => {
                Value::Composite(Rc::new(components.iter().map(Value::without_conditions).collect()))
            }
            Value::Array(each) => Value::Array(Rc::new(each.without_conditions())),
            other => other.clone(),
        }
    }

    /// The component at `index`; the join of all components if it is not constant.
    pub(super) fn component(&self, index: Option<u32>) -> Value {
        match (self, index) {
            (Value::Array(each), _) => (**each).clone(),
            (Value::Composite(components), Some(index)) => {
                components.get(index as usize).cloned().unwrap_or(Value::Any)
            }
            (Value::Composite(components), None) => components
                .iter()
                .skip(1)
                .fold(components.first().cloned().unwrap_or(Value::Any), |joined, component| joined.join(component)),
            _ => Value::Any,
        }
    }

    /// The value after a store of `new` to the component at `path`.
    pub(super) fn with(&self, path: &[Option<u32>], new: &Value) -> Value {
        let [first, rest @ ..] = path else { return new.clone() };
        match self {
            // The store may be to any element, so the others keep their value.
            Value::Array(each) => Value::Array(Rc::new(each.join(&each.with(rest, new)))),
            Value::Composite(components) => {
                let mut components = components.to_vec();
                for (i, component) in components.iter_mut().enumerate() {
                    match first {
                        Some(index) if *index as usize != i => {}
                        Some(_) => *component = component.with(rest, new),
                        None => *component = component.join(&component.with(rest, new)),
                    }
                }
                Value::Composite(Rc::new(components))
            }
            _ => Value::Any,
        }
    }

    pub(super) fn literal(literal: Literal) -> Value {
        match literal {
            Literal::U32(x) => Value::range(Interval::point(x.into())),
            Literal::I32(x) => Value::range(Interval::point(x.into())),
            Literal::Bool(x) => Value::Bool(Bool::exact(x)),
            _ => Value::Any,
        }
    }
}

/// Decides which of the module's types are tracked by component: only small and shallow ones, to
/// bound the size of values and the recursion over them.
pub(super) struct Shapes<'a> {
    module: &'a Module,
    tracked: Vec<bool>,
}

impl<'a> Shapes<'a> {
    pub(super) fn new(module: &'a Module) -> Shapes<'a> {
        // Number of scalars and depth of each type; a type follows those it is made of.
        let mut sizes: Vec<(usize, usize)> = Vec::with_capacity(module.types.len());
        for (_, ty) in module.types.iter() {
            sizes.push(match ty.inner {
                TypeInner::Vector { size, .. } => (size as usize, 1),
                TypeInner::Array { base, size: ArraySize::Constant(_), .. } => {
                    let (leaves, depth) = sizes[base.index()];
                    (leaves, depth + 1)
                }
                TypeInner::Struct { ref members, .. } => members.iter().fold((0, 1), |(leaves, depth), member| {
                    let (more, below) = sizes[member.ty.index()];
                    (leaves.saturating_add(more), depth.max(below + 1))
                }),
                _ => (1, 0),
            });
        }
        let tracked = sizes.iter().map(|&(leaves, depth)| leaves <= MAX_PARTS && depth <= MAX_DEPTH).collect();
        Shapes { module, tracked }
    }

    /// Value of a variable without an initialiser.
    pub(super) fn zero(&self, ty: Handle<Type>) -> Value {
        let scalar = |scalar: Scalar| match scalar {
            Scalar { kind: ScalarKind::Bool, .. } => Value::Bool(Bool::exact(false)),
            _ if int_kind(scalar).is_some() => Value::range(Interval::point(0)),
            _ => Value::Any,
        };
        match self.module.types[ty].inner {
            TypeInner::Scalar(s) => scalar(s),
            TypeInner::Vector { size, scalar: s } => Value::Composite(Rc::new(vec![scalar(s); size as usize])),
            TypeInner::Struct { ref members, .. } if self.tracked[ty.index()] => {
                Value::Composite(Rc::new(members.iter().map(|member| self.zero(member.ty)).collect()))
            }
            TypeInner::Array { base, size: ArraySize::Constant(_), .. } if self.tracked[ty.index()] => {
                Value::Array(Rc::new(self.zero(base)))
            }
            _ => Value::Any,
        }
    }

    /// A value of type `ty` made of `components`.
    pub(super) fn compose(&self, ty: Handle<Type>, components: Vec<Value>) -> Value {
        match self.module.types[ty].inner {
            TypeInner::Vector { size, .. } => {
                // Vectors may be composed of shorter vectors.
                let mut flat = Vec::with_capacity(size as usize);
                for component in components {
                    match component {
                        Value::Composite(inner) => flat.extend(inner.iter().cloned()),
                        scalar => flat.push(scalar),
                    }
                }
                // A shorter vector that is `Any` counts as one component, so there may be too few.
                if flat.len() == size as usize { Value::Composite(Rc::new(flat)) } else { Value::Any }
            }
            TypeInner::Struct { .. } if self.tracked[ty.index()] => Value::Composite(Rc::new(components)),
            TypeInner::Array { .. } if self.tracked[ty.index()] => {
                let each = components
                    .iter()
                    .skip(1)
                    .fold(components.first().cloned().unwrap_or(Value::Any), |joined, component| {
                        joined.join(component)
                    });
                Value::Array(Rc::new(each))
            }
            _ => Value::Any,
        }
    }
}

/// The kind of a 32-bit integer scalar; `None` for other scalars.
pub(super) fn int_kind(scalar: Scalar) -> Option<IntKind> {
    match scalar {
        Scalar { kind: ScalarKind::Uint, width: 4 } => Some(IntKind::Unsigned),
        Scalar { kind: ScalarKind::Sint, width: 4 } => Some(IntKind::Signed),
        _ => None,
    }
}
