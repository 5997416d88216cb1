//! Initialisers of variables and tables (C11 6.7.9).

use super::Checker;
use crate::ast::{self, Designator, Entry, ExprKind as AstKind};
use crate::files::Span;
use crate::tree::{Expr, Init};
use crate::types::{Scalar, Type};

type Parts = Vec<(Vec<u32>, Expr)>;

impl Checker<'_> {
    /// Checks an initialiser for type `ty`, or, if `open`, for an array of `ty` sized by the
    /// initialiser. Returns the complete type and the initialiser.
    pub(super) fn check_initialiser(
        &mut self,
        ty: Type,
        open: bool,
        init: &ast::Init,
        span: Span,
    ) -> Option<(Type, Init)> {
        if ty == Type::Error {
            return None;
        }
        let element = if open { Some(&ty) } else { element_of(&ty) };
        if let (ast::Init::Value(ast::Expr { kind: AstKind::String(bytes), span: at, .. }), Some(of)) = (init, element)
            && matches!(of, Type::Scalar(Scalar::Char | Scalar::UChar))
        {
            let count = match &ty {
                Type::Array(_, count) if !open => *count,
                _ => bytes.len() as u32 + 1,
            };
            let parts = self.string(bytes, of.clone(), count, *at)?;
            let whole = if open { self.array_of(ty, count, span) } else { ty };
            return Some((whole, Init::Parts(parts)));
        }
        match init {
            ast::Init::Value(value) if !open && element_of(&ty).is_none() => {
                let value = self.value(value);
                Some((ty.clone(), Init::Value(self.convert_for_assignment(value, &ty, "the value"))))
            }
            ast::Init::Value(value) => {
                self.value(value);
                self.errors.add(value.span, "an array's initialiser must be in braces", "", "");
                None
            }
            ast::Init::List(entries, at) => {
                let mut parts = Parts::new();
                let of = match open {
                    true => Some((ty.clone(), None)),
                    false => None,
                };
                let count = self.list(&ty, of, entries, *at, &mut Vec::new(), &mut parts)?;
                if !open {
                    return Some((ty, Init::Parts(parts)));
                }
                let whole = self.array_of(ty, count.max(1), *at);
                (whole != Type::Error).then_some((whole, Init::Parts(parts)))
            }
        }
    }

    fn string(&mut self, bytes: &[u8], of: Type, count: u32, span: Span) -> Option<Parts> {
        if bytes.len() as u32 > count {
            self.errors.add(span, format!("a string of {} characters in an array of {count}", bytes.len()), "", "");
            return None;
        }
        let values = bytes.iter().enumerate();
        Some(values.map(|(i, b)| (vec![i as u32], Self::integer(i128::from(*b), of.clone(), span))).collect())
    }

    /// The type of the part of `ty` at `index`; with `open`, `ty` is the element type itself.
    fn part(&self, ty: &Type, open: &Option<(Type, Option<u32>)>, index: u32) -> Option<Type> {
        if let Some((of, _)) = open {
            return Some(of.clone());
        }
        match ty {
            Type::Array(of, count) => (index < *count).then(|| (**of).clone()),
            Type::Struct(id) => self.structs.get(*id).fields.as_ref()?.get(index as usize).map(|f| f.ty.clone()),
            _ => (index == 0).then(|| ty.clone()),
        }
    }

    /// Checks a braced list for a `ty`; returns the number of elements for an open array.
    fn list(
        &mut self,
        ty: &Type,
        open: Option<(Type, Option<u32>)>,
        entries: &[Entry],
        span: Span,
        path: &mut Vec<u32>,
        out: &mut Parts,
    ) -> Option<u32> {
        if open.is_none() && matches!(ty, Type::Scalar(_) | Type::Vector(..) | Type::Pointer(_)) {
            let [Entry { designators, init: ast::Init::Value(value) }] = entries else {
                self.errors.add(span, "expected a single value", "", vector_note(ty));
                return None;
            };
            if !designators.is_empty() {
                self.errors.add(span, "designators need a structure or an array", "", "");
                return None;
            }
            let value = self.value(value);
            out.push((path.clone(), self.convert_for_assignment(value, ty, "the value")));
            return Some(1);
        }
        let (mut index, mut count, mut at) = (0u32, 0u32, 0usize);
        while let Some(entry) = entries.get(at) {
            let mut rest: &[Designator] = &entry.designators;
            if let Some((first, others)) = rest.split_first() {
                index = self.designated_index(ty, open.is_some(), first)?;
                rest = others;
            }
            let Some(part) = self.part(ty, &open, index) else {
                let span = match &entry.init {
                    ast::Init::Value(value) => value.span,
                    ast::Init::List(_, span) => *span,
                };
                self.errors.add(span, format!("too many values for `{}`", self.display_type(ty)), "", "");
                return None;
            };
            path.push(index);
            self.designated_entry(&part, rest, entries, &mut at, path, out)?;
            path.pop();
            index = index.checked_add(1)?;
            count = count.max(index);
        }
        Some(count)
    }

    /// Checks the initialiser of a part of type `ty` that further designators select, as in `.a.b =
    /// x`. Entries after it continue from there.
    fn designated_entry(
        &mut self,
        ty: &Type,
        designators: &[Designator],
        entries: &[Entry],
        at: &mut usize,
        path: &mut Vec<u32>,
        out: &mut Parts,
    ) -> Option<()> {
        let Some((first, rest)) = designators.split_first() else {
            return self.entry(ty, entries, at, path, out);
        };
        let mut index = self.designated_index(ty, false, first)?;
        let mut rest = rest;
        while let Some(part) = self.part(ty, &None, index) {
            path.push(index);
            self.designated_entry(&part, rest, entries, at, path, out)?;
            path.pop();
            (index, rest) = (index + 1, &[]);
            if entries.get(*at).is_none_or(|next| !next.designators.is_empty()) {
                break;
            }
        }
        Some(())
    }

    /// Checks the initialiser of a part of type `ty`, from `entries[*at]` on. An array or structure
    /// without braces of its own takes as many values as it has parts.
    fn entry(
        &mut self,
        ty: &Type,
        entries: &[Entry],
        at: &mut usize,
        path: &mut Vec<u32>,
        out: &mut Parts,
    ) -> Option<()> {
        let value = match &entries[*at].init {
            ast::Init::List(inner, span) => {
                *at += 1;
                return self.list(ty, None, inner, *span, path, out).map(|_| ());
            }
            ast::Init::Value(value) => value,
        };
        if let (AstKind::String(bytes), Type::Array(of, count)) = (&value.kind, ty)
            && matches!(**of, Type::Scalar(Scalar::Char | Scalar::UChar))
        {
            for (inner, value) in self.string(bytes, (**of).clone(), *count, value.span)? {
                out.push((path.iter().copied().chain(inner).collect(), value));
            }
            *at += 1;
            return Some(());
        }
        if !matches!(ty, Type::Array(..) | Type::Struct(_)) || self.has_type(value, ty) {
            let value = self.value(value);
            out.push((path.clone(), self.convert_for_assignment(value, ty, "the value")));
            *at += 1;
            return Some(());
        }
        let mut index = 0;
        while let Some(part) = self.part(ty, &None, index) {
            let Some(next) = entries.get(*at) else { break };
            if index > 0 && !next.designators.is_empty() {
                break;
            }
            path.push(index);
            self.entry(&part, entries, at, path, out)?;
            path.pop();
            index += 1;
        }
        Some(())
    }

    /// Whether an expression is a value of the structure type, not of its first member.
    fn has_type(&mut self, value: &ast::Expr, ty: &Type) -> bool {
        match (&value.kind, ty) {
            // Surely not a structure: avoid checking the expression twice.
            (AstKind::Integer { .. } | AstKind::Float(_) | AstKind::Character(_), _) | (_, Type::Array(..)) => false,
            _ => self.type_without_errors(value) == *ty,
        }
    }

    fn designated_index(&mut self, ty: &Type, open: bool, designator: &Designator) -> Option<u32> {
        match (designator, ty) {
            (Designator::Index(index), ty) if open || matches!(ty, Type::Array(..)) => {
                let value = self.integer_constant(index, "an index")?;
                let count = match ty {
                    Type::Array(_, count) if !open => *count,
                    _ => 1 << 20,
                };
                let found = u32::try_from(value).ok().filter(|index| *index < count);
                if found.is_none() {
                    self.errors.add(index.span, format!("index {value} is out of range"), "", "");
                }
                found
            }
            (Designator::Field(name, span), Type::Struct(id)) if !open => {
                let fields = self.structs.get(*id).fields.as_ref()?;
                let found = fields.iter().position(|field| field.name == *name);
                if found.is_none() {
                    let message = format!("`{}` has no member `{}`", self.display_type(ty), self.names.text(*name));
                    self.errors.add(*span, message, "", "");
                }
                found.map(|at| at as u32)
            }
            (Designator::Index(ast::Expr { span, .. }) | Designator::Field(_, span), _) => {
                self.errors.add(*span, format!("`{}` has no such part", self.display_type(ty)), "", "");
                None
            }
        }
    }

    /// Index of a part's first scalar among a type's scalars.
    pub(super) fn scalar_at(&self, ty: &Type, path: &[u32]) -> u32 {
        let Some((&index, rest)) = path.split_first() else { return 0 };
        match ty {
            Type::Array(of, _) => {
                index.saturating_mul(self.structs.scalars(of)).saturating_add(self.scalar_at(of, rest))
            }
            Type::Struct(id) => {
                let fields = self.structs.get(*id).fields.as_deref().unwrap_or_default();
                let before = fields.iter().take(index as usize).map(|f| self.structs.scalars(&f.ty));
                let inner = fields.get(index as usize).map_or(0, |f| self.scalar_at(&f.ty, rest));
                before.fold(inner, u32::saturating_add)
            }
            _ => index,
        }
    }
}

fn element_of(ty: &Type) -> Option<&Type> {
    match ty {
        Type::Array(of, _) => Some(of),
        _ => None,
    }
}

fn vector_note(ty: &Type) -> &'static str {
    match ty {
        Type::Vector(..) => "a vector is written `(uint4)(1, 2, 3, 4)`",
        _ => "",
    }
}
