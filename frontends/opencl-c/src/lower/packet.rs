//! Reading and writing places. In the packet each scalar is an access by itself, with the prelude's
//! rules: outside it reads as zero, and is not written.

use naga::{Expression, ScalarKind};

use super::functions::{Given, Scope};
use super::pointers::Spot;
use super::{Result, Stop};
use crate::files::Span;
use crate::types::{Scalar, Type};
use portcullis_core::ir::builder::Value;
use portcullis_core::program::prelude::{ByteOrder, Intrinsic};

/// Scalars of a structure that goes in or out of the packet at once.
const MAX_SCALARS: u32 = 1_024;

impl Scope<'_, '_> {
    /// The value of a place of type `ty`.
    pub(super) fn read(&mut self, spot: &Spot, ty: &Type, span: Span) -> Result<Given> {
        Ok(Given::Value(match spot {
            Spot::Pointer(id) => return self.read_pointer(*id, span).map(Given::Pointer),
            Spot::Memory(pointer) => self.b.load(*pointer),
            Spot::Value(value) => *value,
            Spot::Packet(at, plus) => {
                self.check_count(ty, span)?;
                self.load(ty, *at, *plus)
            }
            Spot::Components(inner, picked, whole) => match &**inner {
                // Only what is wanted of it.
                Spot::Packet(at, plus) => {
                    let Some(scalar) = whole.element() else { return Err(Stop) };
                    let parts: Vec<Value> = picked
                        .iter()
                        .map(|c| self.load_scalar(scalar, *at, plus.wrapping_add(u32::from(*c) * scalar.size())))
                        .collect();
                    self.composed(ty, parts)
                }
                Spot::Memory(pointer) if picked.len() == 1 => {
                    let component = self.b.at(*pointer, u32::from(picked[0]));
                    self.b.load(component)
                }
                _ => {
                    let Given::Value(vector) = self.read(inner, whole, span)? else { return Err(Stop) };
                    self.b.swizzle(vector, picked)
                }
            },
            Spot::As(inner, has) => {
                let Given::Value(value) = self.read(inner, &Type::Scalar(*has), span)? else { return Err(Stop) };
                match ty.scalar() {
                    Some(wanted) => self.convert(value, *has, wanted, None),
                    None => return Err(Stop),
                }
            }
        }))
    }

    /// Stores a value of type `ty`.
    pub(super) fn write(&mut self, spot: &Spot, given: &Given, ty: &Type, span: Span) -> Result<()> {
        let value = match (spot, given) {
            (Spot::Pointer(id), Given::Pointer(pointer)) => return self.set_pointer(*id, pointer, span),
            (_, Given::Value(value)) => *value,
            _ => return Err(Stop),
        };
        match spot {
            Spot::Memory(pointer) => self.b.store(*pointer, value),
            Spot::Packet(at, plus) => {
                self.check_count(ty, span)?;
                self.store(ty, *at, *plus, value);
            }
            Spot::Components(inner, picked, whole) => {
                let Some(scalar) = whole.element() else { return Err(Stop) };
                for (i, &component) in picked.iter().enumerate() {
                    let part = if picked.len() == 1 { value } else { self.b.at(value, i as u32) };
                    match &**inner {
                        Spot::Memory(pointer) => {
                            let target = self.b.at(*pointer, u32::from(component));
                            self.b.store(target, part);
                        }
                        Spot::Packet(at, plus) => {
                            let plus = plus.wrapping_add(u32::from(component) * scalar.size());
                            self.store_scalar(scalar, *at, plus, part);
                        }
                        _ => return Err(Stop),
                    }
                }
            }
            Spot::As(inner, has) => {
                let Some(given) = ty.scalar() else { return Err(Stop) };
                let value = self.convert(value, given, *has, None);
                self.write(inner, &Given::Value(value), &Type::Scalar(*has), span)?;
            }
            Spot::Value(_) | Spot::Pointer(_) => return Err(Stop),
        }
        Ok(())
    }

    fn check_count(&mut self, ty: &Type, span: Span) -> Result<()> {
        let count = self.l.filter.structs.scalars(ty);
        if count > MAX_SCALARS {
            let note = format!("at most {MAX_SCALARS} at once: each is an access of its own; use a loop");
            return self.l.fail(span, format!("{count} values are copied from or to the packet"), &note);
        }
        self.spend(count as usize, span)
    }

    fn composed(&mut self, ty: &Type, parts: Vec<Value>) -> Value {
        if let [one] = parts[..]
            && ty.scalar().is_some()
        {
            return one;
        }
        let ty = self.l.ty(ty);
        self.b.add(Expression::Compose { ty, components: parts })
    }

    /// What a value is made of, with each part's place in it in bytes.
    pub(super) fn parts(&self, ty: &Type) -> Vec<(Type, u32)> {
        let structs = &self.l.filter.structs;
        match ty {
            Type::Vector(scalar, size) => {
                (0..u32::from(*size)).map(|i| (Type::Scalar(*scalar), i * scalar.size())).collect()
            }
            Type::Array(of, count) => {
                let size = structs.size(of);
                (0..*count).map(|i| ((**of).clone(), i * size)).collect()
            }
            Type::Struct(id) => {
                structs.get(*id).fields.iter().flatten().map(|field| (field.ty.clone(), field.offset)).collect()
            }
            Type::Scalar(_) | Type::Void | Type::Pointer(_) | Type::Wrong => Vec::new(),
        }
    }

    fn load(&mut self, ty: &Type, at: Value, plus: u32) -> Value {
        if let Type::Scalar(scalar) = ty {
            return self.load_scalar(*scalar, at, plus);
        }
        let parts = self.parts(ty);
        let parts = parts.iter().map(|(part, offset)| self.load(part, at, plus.wrapping_add(*offset))).collect();
        self.composed(ty, parts)
    }

    fn store(&mut self, ty: &Type, at: Value, plus: u32, value: Value) {
        if let Type::Scalar(scalar) = ty {
            return self.store_scalar(*scalar, at, plus, value);
        }
        for (i, (part, offset)) in self.parts(ty).iter().enumerate() {
            let value = self.b.at(value, i as u32);
            self.store(part, at, plus.wrapping_add(*offset), value);
        }
    }

    pub(super) fn offset(&mut self, at: Value, plus: u32) -> Value {
        let plus = self.b.u32(plus);
        self.b.sum(at, plus)
    }

    fn load_scalar(&mut self, scalar: Scalar, at: Value, plus: u32) -> Value {
        let at = self.offset(at, plus);
        if scalar.size() == 8 {
            let value = self.helper("load_le64", true, vec![at]);
            return self.convert(value, Scalar::ULong, scalar, None);
        }
        let value = self.prelude(Intrinsic::Load { size: scalar.size(), order: ByteOrder::Little }, vec![at]);
        match scalar {
            Scalar::Float => self.b.cast(value, ScalarKind::Float, None),
            Scalar::Bool => self.convert(value, Scalar::UChar, scalar, None),
            Scalar::UChar | Scalar::UShort => value,
            scalar => self.convert(value, Scalar::UInt, scalar, None),
        }
    }

    fn store_scalar(&mut self, scalar: Scalar, at: Value, plus: u32, value: Value) {
        let at = self.offset(at, plus);
        if scalar.size() == 8 {
            let value = self.convert(value, scalar, Scalar::ULong, None);
            self.helper("store_le64", true, vec![at, value]);
            return;
        }
        let value = match scalar {
            Scalar::Float => self.b.cast(value, ScalarKind::Uint, None),
            // The store takes the lowest bits.
            Scalar::Char | Scalar::Short | Scalar::Int | Scalar::Bool => self.b.cast(value, ScalarKind::Uint, Some(4)),
            _ => value,
        };
        self.prelude(Intrinsic::Store { size: scalar.size(), order: ByteOrder::Little }, vec![at, value]);
    }
}
