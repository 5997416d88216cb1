//! Keys of maps: packs the words that a pointer points to into the value that map functions take.
//!
//! A key is in a variable or table of any type of the right size, as C's `(const uint *)&key`
//! allows. Its words are assembled from the scalars there, in little-endian memory order.

use naga::{BinaryOperator, Expression, ScalarKind};

use super::functions::{FunctionLowering, LoweredValue};
use super::shapes::{Base, Location, PathStep, Pointer};
use super::{ErrorReported, Result};
use crate::files::Span;
use crate::tree::{Expr, ExprKind};
use crate::types::{Scalar, Type, UINT};
use portcullis_core::ir::builder::Value;
use portcullis_core::map::{Declaration, MapFunction};

/// A scalar of a key, and its byte offset in the key.
struct KeyPart {
    value: Value,
    scalar: Scalar,
    offset: u32,
}

impl FunctionLowering<'_, '_> {
    /// Calls a map function.
    pub(super) fn map_call(&mut self, map: u32, call: MapFunction, arguments: &[Expr], span: Span) -> Result<Value> {
        let maps = self.lowering.maps;
        let map = &maps[map as usize];
        let mut values = Vec::with_capacity(arguments.len());
        for argument in arguments {
            values.push(match argument.ty {
                Type::Pointer(_) => self.key(map, argument)?,
                _ => self.value(argument)?,
            });
        }
        self.builder.span = self.lowering.span(span);
        Ok(self.call_by_name(&format!("{}_{}", map.name, call.name()), false, values))
    }

    /// Reads the key that a pointer points to.
    fn key(&mut self, map: &Declaration, expr: &Expr) -> Result<Value> {
        let pointer = self.strip_casts(expr)?;
        self.charge(map.key as usize, expr.span)?;
        let words = match self.key_parts(map, &pointer, expr.span)? {
            Some(parts) => self.pack_words(map.key, &parts),
            None => vec![self.builder.u32(0); map.key as usize],
        };
        let ty = match map.key {
            words @ 2..=4 => Type::Vector(Scalar::UInt, words as u8),
            words => Type::Array(UINT.into(), words),
        };
        let ty = self.lowering.ty(&ty);
        Ok(self.builder.add(Expression::Compose { ty, components: words }))
    }

    /// Lowers a pointer without its casts, so that it has the type of its target.
    fn strip_casts(&mut self, expr: &Expr) -> Result<Pointer> {
        let ExprKind::PointerCast(inner) = &expr.kind else { return self.pointer(expr) };
        let pointer = self.strip_casts(inner)?;
        self.check_space(&pointer, &expr.ty, expr.span)?;
        Ok(pointer)
    }

    /// Reads the scalars of a key; `None` if the target is a guess because the function is never
    /// called.
    fn key_parts(&mut self, map: &Declaration, pointer: &Pointer, span: Span) -> Result<Option<Vec<KeyPart>>> {
        let (name, words) = (&map.name, map.key);
        let element = pointer.shape.element.clone();
        if self.lowering.is_uncalled && matches!(pointer.shape.base, Base::Packet | Base::Argument(..)) {
            return Ok(None);
        }
        if pointer.shape.base == Base::Packet {
            let note = format!("load its words: `uint key[{words}] = {{load_le32(pkt, 26), ...}};`");
            return self.lowering.fail(span, format!("a key of `{name}` cannot lie in the packet"), &note);
        }
        let bytes = words * 4;
        let size = self.lowering.filter.structs.size(&element);
        let mut parts = Vec::new();
        let Type::Scalar(scalar) = element else {
            if size != bytes {
                let message = format!("a key of `{name}` has {words} words ({bytes} bytes), but this has {size} bytes");
                let note = format!("use a structure of that size, or an array: `uint key[{words}]`");
                return self.lowering.fail(span, message, &note);
            }
            let location = self.pointee(pointer, &element, span)?;
            self.read_parts(&location, &element, (0, span), &mut parts)?;
            let filled: u32 = parts.iter().map(|part| part.scalar.size()).sum();
            if filled != size {
                let message =
                    format!("a key of `{name}` cannot contain padding, but this has {} bytes of it", size - filled);
                let note = "padding has no defined value: fill it with members, which start at zero";
                return self.lowering.fail(span, message, note);
            }
            return Ok(Some(parts));
        };
        let there = self.elements_from(pointer);
        if bytes % size != 0 || u64::from(there) * u64::from(size) < u64::from(bytes) {
            let many = if there == 1 { "" } else { "s" };
            let message =
                format!("a key of `{name}` has {words} words, but this has {there} `{}`{many}", scalar.name());
            return self.lowering.fail(span, message, &format!("use an array: `uint key[{words}]`"));
        }
        self.charge((bytes / size) as usize, span)?;
        for i in 0..bytes / size {
            let mut pointer = pointer.clone();
            let by = self.builder.u32(i);
            if let Some(last) = pointer.indices.last_mut() {
                *last = self.builder.add_u32(*last, by);
            }
            let location = self.pointee(&pointer, &element, span)?;
            self.read_parts(&location, &element, (i * size, span), &mut parts)?;
        }
        Ok(Some(parts))
    }

    /// Number of elements from a pointer's target to the array's end; with a variable index, all
    /// elements of the array.
    fn elements_from(&self, pointer: &Pointer) -> u32 {
        let mut now = match &pointer.shape.base {
            Base::Packet => return 0,
            Base::Table(id) => &self.lowering.filter.tables[id.0 as usize].ty,
            Base::Local(_, ty) | Base::Argument(_, ty) => ty,
        };
        let mut count = 1;
        for step in &pointer.shape.steps {
            match (step, now) {
                (PathStep::Member(index), Type::Struct(id)) => {
                    let fields = self.lowering.filter.structs.get(*id).fields.as_deref().unwrap_or_default();
                    let Some(field) = fields.get(*index as usize) else { return 0 };
                    now = &field.ty;
                }
                (PathStep::Index, Type::Array(of, of_them)) => (now, count) = (of, *of_them),
                _ => return 1,
            }
        }
        let first = pointer.indices.last().and_then(|&number| self.builder.constant_u32(number));
        count.saturating_sub(first.unwrap_or(0))
    }

    /// Reads the scalars of a value one by one.
    fn read_parts(
        &mut self,
        location: &Location,
        ty: &Type,
        (offset, span): (u32, Span),
        out: &mut Vec<KeyPart>,
    ) -> Result<()> {
        if let Type::Scalar(scalar) = ty {
            let LoweredValue::Value(value) = self.read(location, ty, span)? else { return Err(ErrorReported) };
            out.push(KeyPart { value, scalar: *scalar, offset });
            return Ok(());
        }
        for (i, (part, at)) in self.parts(ty).iter().enumerate() {
            let inner = match location {
                Location::Memory(pointer) => Location::Memory(self.builder.access_index(*pointer, i as u32)),
                Location::Value(value) => Location::Value(self.builder.access_index(*value, i as u32)),
                _ => return Err(ErrorReported),
            };
            self.read_parts(&inner, part, (offset + at, span), out)?;
        }
        Ok(())
    }

    /// Packs scalars into words.
    fn pack_words(&mut self, count: u32, parts: &[KeyPart]) -> Vec<Value> {
        let mut words = vec![None; count as usize];
        for part in parts {
            if part.scalar.size() == 8 {
                let unsigned_bits = self.convert(part.value, part.scalar, Scalar::ULong, None);
                let low = self.convert(unsigned_bits, Scalar::ULong, Scalar::UInt, None);
                let by = self.builder.u32(32);
                let high = self.builder.binary(BinaryOperator::ShiftRight, unsigned_bits, by);
                let high = self.convert(high, Scalar::ULong, Scalar::UInt, None);
                self.insert_bytes(&mut words, low, 4, part.offset);
                self.insert_bytes(&mut words, high, 4, part.offset + 4);
                continue;
            }
            let bits = match part.scalar {
                Scalar::Float => self.builder.cast(part.value, ScalarKind::Uint, None),
                scalar => self.convert(part.value, scalar, Scalar::UInt, None),
            };
            let mask = match part.scalar {
                Scalar::Char => 0xff,
                Scalar::Short => 0xffff,
                _ => u32::MAX,
            };
            let bits = if mask == u32::MAX {
                bits
            } else {
                let mask = self.builder.u32(mask);
                self.builder.binary(BinaryOperator::And, bits, mask)
            };
            self.insert_bytes(&mut words, bits, part.scalar.size(), part.offset);
        }
        let zero = self.builder.u32(0);
        words.into_iter().map(|word| word.unwrap_or(zero)).collect()
    }

    /// Inserts the low `size` bytes of a value, whose other bytes are zero, into words at `offset`.
    fn insert_bytes(&mut self, words: &mut [Option<Value>], value: Value, size: u32, offset: u32) {
        let (word, byte) = ((offset / 4) as usize, offset % 4);
        let mut put = |at: usize, op: BinaryOperator, by: u32| {
            let by_value = self.builder.u32(by);
            let moved = if by == 0 { value } else { self.builder.binary(op, value, by_value) };
            words[at] = Some(match words[at] {
                None => moved,
                Some(before) => self.builder.binary(BinaryOperator::InclusiveOr, before, moved),
            });
        };
        put(word, BinaryOperator::ShiftLeft, byte * 8);
        if byte + size > 4 {
            put(word + 1, BinaryOperator::ShiftRight, 32 - byte * 8);
        }
    }
}
