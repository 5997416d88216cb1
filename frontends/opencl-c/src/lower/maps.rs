//! Keys of maps: the words that a pointer points to become the value that the map's functions take.
//!
//! A key lies in a variable or table of any type of as many bytes, as C's `(const uint *)&key` has it: its words are
//! put together of the scalars there, each at its place, little-endian as everything in memory is.

use naga::{BinaryOperator, Expression, ScalarKind};

use super::functions::{Given, Scope};
use super::pointers::{Base, Pointer, Spot, Step};
use super::{Result, Stop};
use crate::files::Span;
use crate::tree::{Expr, ExprKind};
use crate::types::{Scalar, Type, UINT};
use portcullis_core::ir::builder::Value;
use portcullis_core::map::{Declaration, MapFunction};

/// A scalar of a key, and the byte of the key that it begins at.
struct Part {
    value: Value,
    scalar: Scalar,
    offset: u32,
}

impl Scope<'_, '_> {
    /// A call of one of a map's functions.
    pub(super) fn map_call(&mut self, map: u32, call: MapFunction, arguments: &[Expr], span: Span) -> Result<Value> {
        let maps = self.l.maps;
        let map = &maps[map as usize];
        let mut values = Vec::with_capacity(arguments.len());
        for argument in arguments {
            values.push(match argument.ty {
                Type::Pointer(_) => self.key(map, argument)?,
                _ => self.value(argument)?,
            });
        }
        self.b.span = self.l.span(span);
        Ok(self.helper(&format!("{}_{}", map.name, call.name()), false, values))
    }

    /// The key that a pointer points to.
    fn key(&mut self, map: &Declaration, expr: &Expr) -> Result<Value> {
        let pointer = self.uncast(expr)?;
        self.spend(map.key as usize, expr.span)?;
        let words = match self.key_parts(map, &pointer, expr.span)? {
            Some(parts) => self.words(map.key, &parts),
            None => vec![self.b.u32(0); map.key as usize],
        };
        let ty = match map.key {
            words @ 2..=4 => Type::Vector(Scalar::UInt, words as u8),
            words => Type::Array(UINT.into(), words),
        };
        let ty = self.l.ty(&ty);
        Ok(self.b.add(Expression::Compose { ty, components: words }))
    }

    /// A pointer with the type of what it points to, whatever it is cast to.
    fn uncast(&mut self, expr: &Expr) -> Result<Pointer> {
        let ExprKind::Repoint(inner) = &expr.kind else { return self.pointer(expr) };
        let pointer = self.uncast(inner)?;
        self.check_space(&pointer, &expr.ty, expr.span)?;
        Ok(pointer)
    }

    /// What a key is made of. `None` where nothing is known of the pointer, since nothing calls the function.
    fn key_parts(&mut self, map: &Declaration, pointer: &Pointer, span: Span) -> Result<Option<Vec<Part>>> {
        let (name, words) = (&map.name, map.key);
        let element = pointer.shape.element.clone();
        if self.l.alone && matches!(pointer.shape.base, Base::Packet | Base::Argument(..)) {
            return Ok(None);
        }
        if pointer.shape.base == Base::Packet {
            let note = format!("load its words: `uint key[{words}] = {{load_le32(pkt, 26), ...}};`");
            return self.l.fail(span, format!("a key of `{name}` cannot lie in the packet"), &note);
        }
        let bytes = words * 4;
        let size = self.l.filter.structs.size(&element);
        let mut parts = Vec::new();
        let Type::Scalar(scalar) = element else {
            if size != bytes {
                let message = format!("a key of `{name}` is {words} words, {bytes} bytes, and this has {size} bytes");
                let note = format!("a structure that is a key has as many, or it is an array: `uint key[{words}]`");
                return self.l.fail(span, message, &note);
            }
            let spot = self.target(pointer, &element, span)?;
            self.parts_at(&spot, &element, (0, span), &mut parts)?;
            let filled: u32 = parts.iter().map(|part| part.scalar.size()).sum();
            if filled != size {
                let message = format!("a key of `{name}` has no padding, and this has {} bytes of it", size - filled);
                let note = "nothing is found by what lies between members: fill it with members, which begin at zero";
                return self.l.fail(span, message, note);
            }
            return Ok(Some(parts));
        };
        let there = self.elements_from(pointer);
        if bytes % size != 0 || u64::from(there) * u64::from(size) < u64::from(bytes) {
            let many = if there == 1 { "" } else { "s" };
            let message = format!("a key of `{name}` is {words} words, and here is {there} `{}`{many}", scalar.name());
            return self.l.fail(span, message, &format!("an array of them is a key: `uint key[{words}]`"));
        }
        self.spend((bytes / size) as usize, span)?;
        for i in 0..bytes / size {
            let mut pointer = pointer.clone();
            let by = self.b.u32(i);
            if let Some(last) = pointer.numbers.last_mut() {
                *last = self.b.sum(*last, by);
            }
            let spot = self.target(&pointer, &element, span)?;
            self.parts_at(&spot, &element, (i * size, span), &mut parts)?;
        }
        Ok(Some(parts))
    }

    /// How many elements there are from where a pointer points to on; all of the array's where that varies.
    fn elements_from(&self, pointer: &Pointer) -> u32 {
        let mut now = match &pointer.shape.base {
            Base::Packet => return 0,
            Base::Table(id) => &self.l.filter.tables[id.0 as usize].ty,
            Base::Local(_, ty) | Base::Argument(_, ty) => ty,
        };
        let mut count = 1;
        for step in &pointer.shape.steps {
            match (step, now) {
                (Step::Member(index), Type::Struct(id)) => {
                    let fields = self.l.filter.structs.get(*id).fields.as_deref().unwrap_or_default();
                    let Some(field) = fields.get(*index as usize) else { return 0 };
                    now = &field.ty;
                }
                (Step::Index, Type::Array(of, of_them)) => (now, count) = (of, *of_them),
                _ => return 1,
            }
        }
        let first = pointer.numbers.last().and_then(|&number| self.b.known_u32(number));
        count.saturating_sub(first.unwrap_or(0))
    }

    /// The scalars of what lies somewhere, each read by itself.
    fn parts_at(&mut self, spot: &Spot, ty: &Type, (offset, span): (u32, Span), out: &mut Vec<Part>) -> Result<()> {
        if let Type::Scalar(scalar) = ty {
            let Given::Value(value) = self.read(spot, ty, span)? else { return Err(Stop) };
            out.push(Part { value, scalar: *scalar, offset });
            return Ok(());
        }
        for (i, (part, at)) in self.parts(ty).iter().enumerate() {
            let inner = match spot {
                Spot::Memory(pointer) => Spot::Memory(self.b.at(*pointer, i as u32)),
                Spot::Value(value) => Spot::Value(self.b.at(*value, i as u32)),
                _ => return Err(Stop),
            };
            self.parts_at(&inner, part, (offset + at, span), out)?;
        }
        Ok(())
    }

    /// Words of what is in them.
    fn words(&mut self, count: u32, parts: &[Part]) -> Vec<Value> {
        let mut words = vec![None; count as usize];
        for part in parts {
            if part.scalar.size() == 8 {
                let whole = self.convert(part.value, part.scalar, Scalar::ULong, None);
                let low = self.convert(whole, Scalar::ULong, Scalar::UInt, None);
                let by = self.b.u32(32);
                let high = self.b.binary(BinaryOperator::ShiftRight, whole, by);
                let high = self.convert(high, Scalar::ULong, Scalar::UInt, None);
                self.put(&mut words, low, 4, part.offset);
                self.put(&mut words, high, 4, part.offset + 4);
                continue;
            }
            let bits = match part.scalar {
                Scalar::Float => self.b.cast(part.value, ScalarKind::Uint, None),
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
                let mask = self.b.u32(mask);
                self.b.binary(BinaryOperator::And, bits, mask)
            };
            self.put(&mut words, bits, part.scalar.size(), part.offset);
        }
        let zero = self.b.u32(0);
        words.into_iter().map(|word| word.unwrap_or(zero)).collect()
    }

    /// Puts the lowest bytes of a number, which has no others, at their place among words.
    fn put(&mut self, words: &mut [Option<Value>], value: Value, size: u32, offset: u32) {
        let (word, byte) = ((offset / 4) as usize, offset % 4);
        let mut put = |at: usize, op: BinaryOperator, by: u32| {
            let by_value = self.b.u32(by);
            let moved = if by == 0 { value } else { self.b.binary(op, value, by_value) };
            words[at] = Some(match words[at] {
                None => moved,
                Some(before) => self.b.binary(BinaryOperator::InclusiveOr, before, moved),
            });
        };
        put(word, BinaryOperator::ShiftLeft, byte * 8);
        if byte + size > 4 {
            put(word + 1, BinaryOperator::ShiftRight, 32 - byte * 8);
        }
    }
}
