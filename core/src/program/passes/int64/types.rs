//! Lowering of types: a 64-bit integer becomes a `vec2<u32>`, a vector of n of them an
//! `array<vec2<u32>, n>`, and every type that contains one is rebuilt.
//!
//! Offsets, strides and spans stay as they are: no type needs more size or alignment than before.

use std::num::NonZeroU32;

use naga::{
    ArraySize, Handle, Literal, Module, Scalar, ScalarKind, Span, StructMember, Type, TypeInner, UniqueArena,
    VectorSize,
};

/// A 64-bit integer type, or a vector of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WideType {
    /// Number of components, `None` for a scalar.
    pub(super) size: Option<VectorSize>,
    pub(super) signed: bool,
}

impl WideType {
    /// `inner` as a 64-bit integer type, if it is one.
    pub(super) fn of(inner: &TypeInner) -> Option<WideType> {
        let (size, scalar) = match *inner {
            TypeInner::Scalar(scalar) => (None, scalar),
            TypeInner::Vector { size, scalar } => (Some(size), scalar),
            _ => return None,
        };
        match scalar {
            Scalar::U64 => Some(WideType { size, signed: false }),
            Scalar::I64 => Some(WideType { size, signed: true }),
            _ => None,
        }
    }
}

/// The bits of a 64-bit integer literal.
pub(super) fn wide_literal(literal: Literal) -> Option<u64> {
    match literal {
        Literal::U64(value) => Some(value),
        Literal::I64(value) => Some(value as u64),
        _ => None,
    }
}

/// Whether a conversion with this target kind and width yields a 64-bit integer.
pub(super) fn wide_conversion(kind: ScalarKind, width: Option<u8>) -> bool {
    matches!(kind, ScalarKind::Sint | ScalarKind::Uint) && width == Some(8)
}

/// Types of the new module.
#[derive(Debug, Default)]
pub(super) struct LoweredTypes {
    pub(super) arena: UniqueArena<Type>,
}

impl LoweredTypes {
    fn plain(&mut self, inner: TypeInner) -> Handle<Type> {
        self.arena.insert(Type { name: None, inner }, Span::UNDEFINED)
    }

    /// `vec2<u32>`, the lowered 64-bit integer.
    pub(super) fn pair(&mut self) -> Handle<Type> {
        self.plain(TypeInner::Vector { size: VectorSize::Bi, scalar: Scalar::U32 })
    }

    /// The lowered type of a 64-bit integer or, with a size, of a vector of them.
    pub(super) fn wide(&mut self, size: Option<VectorSize>) -> Handle<Type> {
        let base = self.pair();
        let Some(size) = size else { return base };
        let size = ArraySize::Constant(NonZeroU32::new(size as u32).expect("a vector has components"));
        self.plain(TypeInner::Array { base, size, stride: 8 })
    }

    /// A vector of `scalar`.
    pub(super) fn vector(&mut self, size: VectorSize, scalar: Scalar) -> Handle<Type> {
        self.plain(TypeInner::Vector { size, scalar })
    }

    /// Adds the lowered form of every type of `module`. Returns the new handles, by the index of
    /// the old ones.
    pub(super) fn import_types(&mut self, module: &Module) -> Vec<Handle<Type>> {
        let mut map: Vec<Handle<Type>> = Vec::with_capacity(module.types.len());
        for (old, ty) in module.types.iter() {
            // A type follows those it is made of.
            let at = |old: Handle<Type>| map[old.index()];
            let new = match ty.inner {
                ref inner if WideType::of(inner).is_some() => self.wide(WideType::of(inner).and_then(|wide| wide.size)),
                TypeInner::ValuePointer { size, scalar: Scalar::U64 | Scalar::I64, space } => {
                    let base = self.wide(size);
                    self.plain(TypeInner::Pointer { base, space })
                }
                ref inner => {
                    let inner = match *inner {
                        TypeInner::Pointer { base, space } => TypeInner::Pointer { base: at(base), space },
                        TypeInner::Array { base, size, stride } => TypeInner::Array { base: at(base), size, stride },
                        TypeInner::BindingArray { base, size } => TypeInner::BindingArray { base: at(base), size },
                        TypeInner::Struct { ref members, span } => {
                            let member = |m: &StructMember| StructMember { ty: at(m.ty), ..m.clone() };
                            TypeInner::Struct { members: members.iter().map(member).collect(), span }
                        }
                        ref other => other.clone(),
                    };
                    self.arena.insert(Type { name: ty.name.clone(), inner }, module.types.get_span(old))
                }
            };
            map.push(new);
        }
        map
    }
}
