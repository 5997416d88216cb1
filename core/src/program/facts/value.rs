//! Abstract values: what an expression or a variable may hold.

use std::rc::Rc;

use naga::{ArraySize, Handle, Literal, Module, Scalar, ScalarKind, Type, TypeInner};

use super::VerdictSet;
use super::interval::{IntKind, Interval};

/// Vectors and structs of more parts than this are not told apart.
const MAX_PARTS: usize = 64;

/// Values that nest deeper than this are not told apart.
const MAX_DEPTH: usize = 8;

/// Conditions remembered with a bool.
const MAX_CONDITIONS: usize = 16;

/// Everything that a value may be. `Any` is always right, for every type.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    /// Anything of its type.
    Any,
    /// A `u32` or an `i32`.
    Int(Int),
    /// A bool.
    Bool(Bool),
    /// The parts of a vector or a struct.
    Parts(Rc<Vec<Value>>),
    /// An array, any of its elements.
    Each(Rc<Value>),
    /// A pointer to a variable or a part of one.
    Pointer(Pointer),
}

/// A number, and which verdicts it can be. The set is the interval's own, but for `redirect`'s
/// results and for choices between constants: there it knows more than the interval.
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

/// What follows for another expression: its value is in the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Condition {
    /// The expression, see `State`.
    pub(super) expression: u32,
    pub(super) range: Interval,
}

/// A bool: which of its values are possible, and what follows from each.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Bool {
    pub(super) can_be_true: bool,
    pub(super) can_be_false: bool,
    pub(super) when_true: Conditions,
    pub(super) when_false: Conditions,
}

/// All of them hold.
pub(super) type Conditions = Option<Rc<Vec<Condition>>>;

/// A place in a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pointer {
    /// The variable, see `State`.
    pub(super) slot: u32,
    /// From the whole variable inwards; `None` is an index that is not constant.
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
            when_true: all(&self.when_true, &b.when_true),
            when_false: None,
        }
    }

    fn join(&self, b: &Bool) -> Bool {
        let either = |possible: [bool; 2], conditions: [&Conditions; 2]| match possible {
            [true, false] => conditions[0].clone(),
            [false, true] => conditions[1].clone(),
            _ => any(conditions[0], conditions[1]),
        };
        Bool {
            can_be_true: self.can_be_true || b.can_be_true,
            can_be_false: self.can_be_false || b.can_be_false,
            when_true: either([self.can_be_true, b.can_be_true], [&self.when_true, &b.when_true]),
            when_false: either([self.can_be_false, b.can_be_false], [&self.when_false, &b.when_false]),
        }
    }
}

/// What holds where both lists do.
pub(super) fn all(a: &Conditions, b: &Conditions) -> Conditions {
    match (a, b) {
        (None, other) | (other, None) => other.clone(),
        (Some(a), Some(b)) => {
            let mut both = a.to_vec();
            both.extend(b.iter().copied().take(MAX_CONDITIONS.saturating_sub(both.len())));
            Some(Rc::new(both))
        }
    }
}

/// What holds where one of the lists does.
fn any(a: &Conditions, b: &Conditions) -> Conditions {
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

    /// The number's range, where it is one, given the kind it has.
    pub(super) fn int(&self, kind: IntKind) -> Int {
        match self {
            // Widening does not know the kind.
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

    /// Everything that either may be.
    pub(super) fn join(&self, other: &Value) -> Value {
        match (self, other) {
            (Value::Int(a), Value::Int(b)) => {
                Value::Int(Int { range: a.range.hull(b.range), verdicts: a.verdicts.union(b.verdicts) })
            }
            (Value::Bool(a), Value::Bool(b)) => Value::Bool(a.join(b)),
            (Value::Parts(a), Value::Parts(b)) if Rc::ptr_eq(a, b) => self.clone(),
            (Value::Parts(a), Value::Parts(b)) if a.len() == b.len() => {
                Value::Parts(Rc::new(a.iter().zip(b.iter()).map(|(a, b)| a.join(b)).collect()))
            }
            (Value::Each(a), Value::Each(b)) => Value::Each(Rc::new(a.join(b))),
            (Value::Pointer(a), Value::Pointer(b)) if a == b => self.clone(),
            _ => Value::Any,
        }
    }

    /// A value for `self` that has grown by `new`, where it may go on growing: bounds that moved go
    /// as far as they may ever.
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
            (Value::Parts(a), Value::Parts(b)) if a.len() == b.len() => {
                Value::Parts(Rc::new(a.iter().zip(b.iter()).map(|(a, b)| a.widen(b)).collect()))
            }
            (Value::Each(a), Value::Each(b)) => Value::Each(Rc::new(a.widen(b))),
            _ => self.join(new),
        }
    }

    /// Whether `other` is everything that this may be, and perhaps more.
    pub(super) fn is_within(&self, other: &Value) -> bool {
        other.join(self) == *other
    }

    /// The same without what follows for other expressions: for values that outlive them.
    pub(super) fn without_conditions(&self) -> Value {
        match self {
            Value::Bool(b) if b.when_true.is_some() || b.when_false.is_some() => {
                Value::Bool(Bool { when_true: None, when_false: None, ..*b })
            }
            Value::Parts(parts) => Value::Parts(Rc::new(parts.iter().map(Value::without_conditions).collect())),
            Value::Each(each) => Value::Each(Rc::new(each.without_conditions())),
            other => other.clone(),
        }
    }

    /// The part that `index` leads to, or any part where it is not constant.
    pub(super) fn part(&self, index: Option<u32>) -> Value {
        match (self, index) {
            (Value::Each(each), _) => (**each).clone(),
            (Value::Parts(parts), Some(index)) => parts.get(index as usize).cloned().unwrap_or(Value::Any),
            (Value::Parts(parts), None) => {
                parts.iter().skip(1).fold(parts.first().cloned().unwrap_or(Value::Any), |all, part| all.join(part))
            }
            _ => Value::Any,
        }
    }

    /// The value after a store of `new` to the place that `path` leads to.
    pub(super) fn with(&self, path: &[Option<u32>], new: &Value) -> Value {
        let [first, rest @ ..] = path else { return new.clone() };
        match self {
            // Of an array any element may be the one.
            Value::Each(each) => Value::Each(Rc::new(each.join(&each.with(rest, new)))),
            Value::Parts(parts) => {
                let mut parts = parts.to_vec();
                for (i, part) in parts.iter_mut().enumerate() {
                    match first {
                        Some(index) if *index as usize != i => {}
                        Some(_) => *part = part.with(rest, new),
                        None => *part = part.join(&part.with(rest, new)),
                    }
                }
                Value::Parts(Rc::new(parts))
            }
            _ => Value::Any,
        }
    }

    pub(super) fn literal(literal: Literal) -> Value {
        match literal {
            Literal::U32(x) => Value::range(Interval::one(x.into())),
            Literal::I32(x) => Value::range(Interval::one(x.into())),
            Literal::Bool(x) => Value::Bool(Bool::exact(x)),
            _ => Value::Any,
        }
    }
}

/// The module's types, and which of them values are told apart by parts for: small and shallow
/// ones, so that no value is large and no walk over one deep.
pub(super) struct Shapes<'a> {
    module: &'a Module,
    tracked: Vec<bool>,
}

impl<'a> Shapes<'a> {
    pub(super) fn new(module: &'a Module) -> Shapes<'a> {
        // Leaves and depth; a type stands behind those it is made of.
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

    /// What a variable without an initial value holds.
    pub(super) fn zero(&self, ty: Handle<Type>) -> Value {
        let scalar = |scalar: Scalar| match scalar {
            Scalar { kind: ScalarKind::Bool, .. } => Value::Bool(Bool::exact(false)),
            _ if int_kind(scalar).is_some() => Value::range(Interval::one(0)),
            _ => Value::Any,
        };
        match self.module.types[ty].inner {
            TypeInner::Scalar(s) => scalar(s),
            TypeInner::Vector { size, scalar: s } => Value::Parts(Rc::new(vec![scalar(s); size as usize])),
            TypeInner::Struct { ref members, .. } if self.tracked[ty.index()] => {
                Value::Parts(Rc::new(members.iter().map(|member| self.zero(member.ty)).collect()))
            }
            TypeInner::Array { base, size: ArraySize::Constant(_), .. } if self.tracked[ty.index()] => {
                Value::Each(Rc::new(self.zero(base)))
            }
            _ => Value::Any,
        }
    }

    /// A value of type `ty` made of `parts`.
    pub(super) fn compose(&self, ty: Handle<Type>, parts: Vec<Value>) -> Value {
        match self.module.types[ty].inner {
            TypeInner::Vector { size, .. } => {
                // Vectors may be made of shorter ones.
                let mut flat = Vec::with_capacity(size as usize);
                for part in parts {
                    match part {
                        Value::Parts(inner) => flat.extend(inner.iter().cloned()),
                        scalar => flat.push(scalar),
                    }
                }
                // A shorter vector of which nothing is known counts as one part: too few.
                if flat.len() == size as usize { Value::Parts(Rc::new(flat)) } else { Value::Any }
            }
            TypeInner::Struct { .. } if self.tracked[ty.index()] => Value::Parts(Rc::new(parts)),
            TypeInner::Array { .. } if self.tracked[ty.index()] => {
                let each =
                    parts.iter().skip(1).fold(parts.first().cloned().unwrap_or(Value::Any), |all, p| all.join(p));
                Value::Each(Rc::new(each))
            }
            _ => Value::Any,
        }
    }
}

/// The kind of a 32-bit integer scalar.
pub(super) fn int_kind(scalar: Scalar) -> Option<IntKind> {
    match scalar {
        Scalar { kind: ScalarKind::Uint, width: 4 } => Some(IntKind::Unsigned),
        Scalar { kind: ScalarKind::Sint, width: 4 } => Some(IntKind::Signed),
        _ => None,
    }
}
