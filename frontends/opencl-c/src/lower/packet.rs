//! Reads and writes of locations. In the packet, each scalar is an access of its own by the
//! prelude's rules: outside the packet it reads as zero and is not written.

use naga::{Expression, ScalarKind};

use super::functions::{FunctionLowering, LoweredValue};
use super::shapes::Location;
use super::{ErrorReported, Result};
use crate::files::Span;
use crate::types::{Scalar, Type};
use portcullis_core::ir::builder::Value;
use portcullis_core::program::prelude::{ByteOrder, Intrinsic};

/// Maximum number of scalars in a structure copied from or to the packet.
const MAX_COPIED_SCALARS: u32 = 1_024;

impl FunctionLowering<'_, '_> {
    /// Reads a value of type `ty`.
    pub(super) fn read(&mut self, location: &Location, ty: &Type, span: Span) -> Result<LoweredValue> {
        Ok(LoweredValue::Value(match location {
            Location::Pointer(id) => return self.read_pointer(*id, span).map(LoweredValue::Pointer),
            Location::Memory(pointer) => self.builder.load(*pointer),
            Location::Value(value) => *value,
            Location::Packet(at, plus) => {
                self.check_count(ty, span)?;
                self.load(ty, *at, *plus)
            }
            Location::Components(inner, picked, unsigned_bits) => match &**inner {
                // Load only the selected components.
                Location::Packet(at, plus) => {
                    let Some(scalar) = unsigned_bits.element() else { return Err(ErrorReported) };
                    let parts: Vec<Value> = picked
                        .iter()
                        .map(|c| self.load_scalar(scalar, *at, plus.wrapping_add(u32::from(*c) * scalar.size())))
                        .collect();
                    self.compose(ty, parts)
                }
                Location::Memory(pointer) if picked.len() == 1 => {
                    let component = self.builder.access_index(*pointer, u32::from(picked[0]));
                    self.builder.load(component)
                }
                _ => {
                    let LoweredValue::Value(vector) = self.read(inner, unsigned_bits, span)? else {
                        return Err(ErrorReported);
                    };
                    self.builder.swizzle(vector, picked)
                }
            },
            Location::Reinterpreted(inner, has) => {
                let LoweredValue::Value(value) = self.read(inner, &Type::Scalar(*has), span)? else {
                    return Err(ErrorReported);
                };
                match ty.scalar() {
                    Some(wanted) => self.convert(value, *has, wanted, None),
                    None => return Err(ErrorReported),
                }
            }
        }))
    }

    /// Writes a value of type `ty`.
    pub(super) fn write(&mut self, location: &Location, given: &LoweredValue, ty: &Type, span: Span) -> Result<()> {
        let value = match (location, given) {
            (Location::Pointer(id), LoweredValue::Pointer(pointer)) => return self.set_pointer(*id, pointer, span),
            (_, LoweredValue::Value(value)) => *value,
            _ => return Err(ErrorReported),
        };
        match location {
            Location::Memory(pointer) => self.builder.store(*pointer, value),
            Location::Packet(at, plus) => {
                self.check_count(ty, span)?;
                self.store(ty, *at, *plus, value);
            }
            Location::Components(inner, picked, unsigned_bits) => {
                let Some(scalar) = unsigned_bits.element() else { return Err(ErrorReported) };
                for (i, &component) in picked.iter().enumerate() {
                    let part = if picked.len() == 1 { value } else { self.builder.access_index(value, i as u32) };
                    match &**inner {
                        Location::Memory(pointer) => {
                            let target = self.builder.access_index(*pointer, u32::from(component));
                            self.builder.store(target, part);
                        }
                        Location::Packet(at, plus) => {
                            let plus = plus.wrapping_add(u32::from(component) * scalar.size());
                            self.store_scalar(scalar, *at, plus, part);
                        }
                        _ => return Err(ErrorReported),
                    }
                }
            }
            Location::Reinterpreted(inner, has) => {
                let Some(given) = ty.scalar() else { return Err(ErrorReported) };
                let value = self.convert(value, given, *has, None);
                self.write(inner, &LoweredValue::Value(value), &Type::Scalar(*has), span)?;
            }
            Location::Value(_) | Location::Pointer(_) => return Err(ErrorReported),
        }
        Ok(())
    }

    fn check_count(&mut self, ty: &Type, span: Span) -> Result<()> {
        let count = self.lowering.filter.structs.scalars(ty);
        if count > MAX_COPIED_SCALARS {
            let note = format!("at most {MAX_COPIED_SCALARS} at once, since each is a separate access: use a loop");
            return self.lowering.fail(span, format!("{count} values are copied from or to the packet"), &note);
        }
        self.charge(count as usize, span)
    }

    fn compose(&mut self, ty: &Type, parts: Vec<Value>) -> Value {
        if let [one] = parts[..]
            && ty.scalar().is_some()
        {
            return one;
        }
        let ty = self.lowering.ty(ty);
        self.builder.add(Expression::Compose { ty, components: parts })
    }

    /// The direct parts of a composite type, with their byte offsets.
    pub(super) fn parts(&self, ty: &Type) -> Vec<(Type, u32)> {
        let structs = &self.lowering.filter.structs;
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
            Type::Scalar(_) | Type::Void | Type::Pointer(_) | Type::Error => Vec::new(),
        }
    }

    fn load(&mut self, ty: &Type, at: Value, plus: u32) -> Value {
        if let Type::Scalar(scalar) = ty {
            return self.load_scalar(*scalar, at, plus);
        }
        let parts = self.parts(ty);
        let parts = parts.iter().map(|(part, offset)| self.load(part, at, plus.wrapping_add(*offset))).collect();
        self.compose(ty, parts)
    }

    fn store(&mut self, ty: &Type, at: Value, plus: u32, value: Value) {
        if let Type::Scalar(scalar) = ty {
            return self.store_scalar(*scalar, at, plus, value);
        }
        for (i, (part, offset)) in self.parts(ty).iter().enumerate() {
            let value = self.builder.access_index(value, i as u32);
            self.store(part, at, plus.wrapping_add(*offset), value);
        }
    }

    pub(super) fn offset(&mut self, at: Value, plus: u32) -> Value {
        let plus = self.builder.u32(plus);
        self.builder.add_u32(at, plus)
    }

    fn load_scalar(&mut self, scalar: Scalar, at: Value, plus: u32) -> Value {
        let at = self.offset(at, plus);
        if scalar.size() == 8 {
            let value = self.call_by_name("load_le64", true, vec![at]);
            return self.convert(value, Scalar::ULong, scalar, None);
        }
        let value = self.call_intrinsic(Intrinsic::Load { size: scalar.size(), order: ByteOrder::Little }, vec![at]);
        match scalar {
            Scalar::Float => self.builder.cast(value, ScalarKind::Float, None),
            Scalar::Bool => self.convert(value, Scalar::UChar, scalar, None),
            Scalar::UChar | Scalar::UShort => value,
            scalar => self.convert(value, Scalar::UInt, scalar, None),
        }
    }

    fn store_scalar(&mut self, scalar: Scalar, at: Value, plus: u32, value: Value) {
        let at = self.offset(at, plus);
        if scalar.size() == 8 {
            let value = self.convert(value, scalar, Scalar::ULong, None);
            self.call_by_name("store_le64", true, vec![at, value]);
            return;
        }
        let value = match scalar {
            Scalar::Float => self.builder.cast(value, ScalarKind::Uint, None),
            // The store truncates to its size.
            Scalar::Char | Scalar::Short | Scalar::Int | Scalar::Bool => {
                self.builder.cast(value, ScalarKind::Uint, Some(4))
            }
            _ => value,
        };
        self.call_intrinsic(Intrinsic::Store { size: scalar.size(), order: ByteOrder::Little }, vec![at, value]);
    }
}
