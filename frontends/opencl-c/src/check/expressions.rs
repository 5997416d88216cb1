//! Expressions: names, lvalues, members, casts (C11 6.5; OpenCL C 1.2, 6.1.7).

use super::{Checker, Symbol, constants};
use crate::ast::{self, ExprKind as Ast, UnaryOp};
use crate::files::Span;
use crate::library;
use crate::token::Name;
use crate::tree::{Expr, ExprKind, Place, PlaceKind};
use crate::types::{BOOL, INT, Scalar, Space, Type, UINT};
use portcullis_core::spelling::nearest;

/// A checked expression: an lvalue or a value.
pub(super) enum Operand {
    Place(Place),
    Value(Expr),
}

impl Checker<'_> {
    /// Checks an expression and returns its value: an lvalue is read, an array decays to a pointer
    /// (C11 6.3.2.1).
    pub(super) fn value(&mut self, expr: &ast::Expr) -> Expr {
        let value = self.value_or_void(expr);
        if value.ty == Type::Void {
            return self.report_error(expr.span, "this has no value", "");
        }
        value
    }

    /// [`value`](Self::value) that also accepts `void`.
    pub(super) fn value_or_void(&mut self, expr: &ast::Expr) -> Expr {
        match self.operand(expr) {
            Operand::Value(value) => value,
            Operand::Place(place) => self.read(place),
        }
    }

    pub(super) fn read(&mut self, place: Place) -> Expr {
        let span = place.span;
        match &place.ty {
            Type::Array(of, _) => {
                let ty = Type::pointer((**of).clone(), place.space, place.constant);
                self.mark_mutated(&place);
                Expr { kind: ExprKind::Address(place.into()), ty, span }
            }
            Type::Void => self.report_error(span, "cannot read through a `void *`", "cast it to another pointer"),
            Type::Error => Expr { kind: ExprKind::Integer(0), ty: Type::Error, span },
            ty => {
                let ty = ty.clone();
                Expr { kind: ExprKind::Load(place.into()), ty, span }
            }
        }
    }

    /// The type of an expression, without reporting its errors.
    pub(super) fn type_without_errors(&mut self, expr: &ast::Expr) -> Type {
        let errors = std::mem::take(self.errors);
        let ty = self.value_or_void(expr).ty;
        *self.errors = errors;
        ty
    }

    /// Checks a condition and converts it to `bool`.
    pub(super) fn condition(&mut self, expr: &ast::Expr) -> Expr {
        let value = self.value(expr);
        self.convert_to_condition(value)
    }

    pub(super) fn convert_to_condition(&mut self, value: Expr) -> Expr {
        match &value.ty {
            Type::Scalar(_) => self.convert_to(value, &BOOL),
            Type::Error => value,
            Type::Pointer(_) => {
                let note = "there is no null pointer: a pointer always points into its packet, table or variable";
                self.report_error(value.span, "a pointer is not a condition", note)
            }
            ty => {
                let message = format!("a condition is a number, not `{}`", self.display_type(ty));
                let note = if matches!(ty, Type::Vector(..)) { "use `any(v)` or `all(v)`" } else { "" };
                self.report_error(value.span, message, note)
            }
        }
    }

    /// Checks an expression that must be an lvalue; reports an error and returns `None` if it is
    /// not.
    pub(super) fn place(&mut self, expr: &ast::Expr, what: &str) -> Option<Place> {
        let operand = self.operand(expr);
        self.expect_place(operand, expr.span, what)
    }

    /// Checks the operand of `&`. `&a[n]` is `a + n` (C11 6.5.3.2p3), so the element may be one
    /// past the last.
    pub(super) fn address_operand(&mut self, expr: &ast::Expr) -> Option<Place> {
        let operand = match &expr.kind {
            Ast::Index(base, index) => self.index(base, index, true, expr.span),
            _ => self.operand(expr),
        };
        self.expect_place(operand, expr.span, "the operand of `&`")
    }

    fn expect_place(&mut self, operand: Operand, span: Span, what: &str) -> Option<Place> {
        match operand {
            Operand::Place(place) => (place.ty != Type::Error).then_some(place),
            Operand::Value(value) => {
                if value.ty != Type::Error {
                    self.errors.add(span, format!("{what} must be a variable or a place in memory"), "", "");
                }
                None
            }
        }
    }

    /// Marks a local variable as modified after its initialisation, or as having its address taken.
    pub(super) fn mark_mutated(&mut self, place: &Place) {
        let mut place = place;
        loop {
            match &place.kind {
                PlaceKind::Local(id) => {
                    self.current.locals[id.0 as usize].is_mutated = true;
                    return;
                }
                PlaceKind::Member(base, _) | PlaceKind::Index(base, _) | PlaceKind::Components(base, _) => place = base,
                PlaceKind::Table(_) | PlaceKind::Deref(_) => return,
            }
        }
    }

    pub(super) fn operand(&mut self, expr: &ast::Expr) -> Operand {
        let span = expr.span;
        Operand::Value(match &expr.kind {
            Ast::Name(name) => return self.resolve_name(*name, span),
            Ast::Unary(UnaryOp::Deref, pointer) => {
                let pointer = self.value(pointer);
                return match self.deref(pointer, span) {
                    Some(place) => Operand::Place(place),
                    None => Operand::Value(Expr::error(span)),
                };
            }
            Ast::Index(base, index) => return self.index(base, index, false, span),
            Ast::Member { base, name, name_span, arrow } => return self.member(base, *name, *name_span, *arrow, span),
            Ast::Integer { value, unsigned, long } => {
                let scalar = match (unsigned, long) {
                    (false, false) => Scalar::Int,
                    (true, false) => Scalar::UInt,
                    (false, true) => Scalar::Long,
                    (true, true) => Scalar::ULong,
                };
                Self::integer(i128::from(*value), Type::Scalar(scalar), span)
            }
            Ast::Float(value) => {
                let value = *value as f32;
                if !value.is_finite() {
                    return Operand::Value(self.report_error(span, "this number is too large for `float`", ""));
                }
                Expr { kind: ExprKind::Float(value), ty: Type::Scalar(Scalar::Float), span }
            }
            Ast::Character(value) => Self::integer(i128::from(*value), INT, span),
            Ast::String(_) => self.report_error(
                span,
                "a string can only initialise an array",
                "`__constant uchar name[] = \"text\";` makes a table of it",
            ),
            Ast::Unary(op, operand) => self.unary(*op, operand, span),
            Ast::Step { up, prefix, operand } => self.step(*up, *prefix, operand, span),
            Ast::Binary(op, left, right) => {
                let (left, right) = (self.value(left), self.value(right));
                self.binary(*op, left, right, span)
            }
            Ast::And(left, right) => self.logical(true, left, right, span),
            Ast::Or(left, right) => self.logical(false, left, right, span),
            Ast::Conditional(condition, accept, reject) => self.conditional(condition, accept, reject, span),
            Ast::Assign(op, place, value) => self.assign(*op, place, value, span),
            Ast::Comma(left, right) => {
                let (left, right) = (self.value_or_void(left), self.value_or_void(right));
                match (&left.ty, &right.ty) {
                    (Type::Error, _) | (_, Type::Error) => Expr::error(span),
                    (_, ty) => {
                        let ty = ty.clone();
                        Expr { kind: ExprKind::Comma(left.into(), right.into()), ty, span }
                    }
                }
            }
            Ast::Call(callee, arguments) => self.call(callee, arguments, span),
            Ast::Cast(name, operand) => {
                let ty = self.type_name(name);
                self.cast(ty, operand, span)
            }
            Ast::SizeofType(name) => {
                let ty = self.type_name(name);
                self.size_of(&ty, span)
            }
            Ast::SizeofValue(operand) => {
                // The operand is not evaluated (C11 6.5.3.4), and an array does not decay.
                let ty = match self.operand(operand) {
                    Operand::Place(place) => place.ty,
                    Operand::Value(value) => value.ty,
                };
                self.size_of(&ty, span)
            }
        })
    }

    fn resolve_name(&mut self, name: Name, span: Span) -> Operand {
        let found = self.find(name).map(|(symbol, _)| symbol.clone());
        Operand::Value(match found {
            Some(Symbol::Local(id)) => {
                let (ty, constant) = {
                    let at = id.0 as usize;
                    self.current.locals[at].is_used = true;
                    (self.current.locals[at].ty.clone(), self.current.constant[at])
                };
                let kind = PlaceKind::Local(id);
                return Operand::Place(Place { kind, ty, span, constant, space: Some(Space::Private) });
            }
            Some(Symbol::Table(id)) => {
                let ty = self.tables[id.0 as usize].ty.clone();
                let kind = PlaceKind::Table(id);
                return Operand::Place(Place { kind, ty, span, constant: true, space: Some(Space::Constant) });
            }
            Some(Symbol::Integer(bits, ty)) => Expr { kind: ExprKind::Integer(bits), ty, span },
            Some(Symbol::Float(value)) => Expr { kind: ExprKind::Float(value), ty: Type::Scalar(Scalar::Float), span },
            Some(Symbol::Function(_)) => self.report_error(
                span,
                "a function can only be called",
                "there are no function pointers: devices have no indirect calls; use `switch`",
            ),
            Some(Symbol::Type(Type::Error)) => Expr::error(span),
            Some(Symbol::Type(_)) => self.report_error(span, "expected a value, found a type", ""),
            None => {
                let text = self.name(name);
                if let Some(value) = library::constant(self.maps, &text) {
                    return Operand::Value(Expr { kind: ExprKind::Integer(u64::from(value)), ty: UINT, span });
                }
                // OpenCL C 1.2, 6.12.
                if let Some(known) = [("false", 0), ("true", 1)].iter().find(|(name, _)| *name == text) {
                    return Operand::Value(Self::integer(known.1, INT, span));
                }
                let note = if library::function(self.maps, &text).is_some() || super::calls::is_builtin(&text) {
                    "a function can only be called"
                } else if matches!(&*text, "MAP_NONE" | "MAP_FULL") {
                    super::maps::NO_MAPS
                } else if text == "NULL" {
                    "there is no null pointer: a pointer always points into its packet, table or variable"
                } else if let Some(nearest) = self.nearest_value(&text) {
                    &format!("did you mean `{nearest}`?")
                } else {
                    ""
                };
                self.report_error(span, format!("`{text}` is not declared"), note)
            }
        })
    }

    fn nearest_value(&self, name: &str) -> Option<String> {
        let own = self.scopes.iter().flat_map(|scope| &scope.symbols);
        let own = own.filter(|(_, (symbol, _))| !matches!(symbol, Symbol::Function(_) | Symbol::Type(_)));
        let own = own.map(|(&name, _)| self.names.text(name));
        nearest(name, own.chain(library::constants(self.maps))).map(str::to_owned)
    }

    fn deref(&mut self, pointer: Expr, span: Span) -> Option<Place> {
        let Type::Pointer(it) = &pointer.ty else {
            if pointer.ty != Type::Error {
                let message = format!("`*` takes a pointer, not `{}`", self.display_type(&pointer.ty));
                self.errors.add(span, message, "", "");
            }
            return None;
        };
        if let Type::Struct(id) = it.to
            && self.structs.get(id).fields.is_none()
        {
            let message = format!("`{}` is not defined", self.display_type(&it.to));
            self.errors.add(span, message, "", "");
            return None;
        }
        let (ty, space) = (it.to.clone(), it.space);
        if matches!(space, None | Some(Space::Global)) {
            self.uses_wide |= self.structs.is_wide(&ty);
        }
        let constant = it.constant || space == Some(Space::Constant);
        // `*&x` is `x`.
        if let ExprKind::Address(place) = pointer.kind {
            return Some(match place.ty {
                Type::Array(..) => {
                    let zero = Self::integer(0, UINT, span);
                    Place { kind: PlaceKind::Index(place, zero.into()), ty, span, constant, space }
                }
                _ => Place { span, ..*place },
            });
        }
        Some(Place { kind: PlaceKind::Deref(pointer.into()), ty, span, constant, space })
    }

    /// Checks `base[index]`; `past` allows the element one past the last.
    fn index(&mut self, base: &ast::Expr, index: &ast::Expr, past: bool, span: Span) -> Operand {
        let base = self.operand(base);
        let index = self.value(index);
        if index.ty == Type::Error {
            return Operand::Value(Expr::error(span));
        }
        if !index.ty.is_integer() {
            let message = format!("an index is an integer, not `{}`", self.display_type(&index.ty));
            return Operand::Value(self.report_error(index.span, message, ""));
        }
        if let Operand::Place(array) = &base
            && let Type::Array(of, count) = &array.ty
        {
            if let Some(known) = index.constant()
                && !(0..i128::from(*count) + i128::from(past)).contains(&known)
            {
                let message = format!("index {known} is out of range for an array of {count}");
                return Operand::Value(self.report_error(index.span, message, ""));
            }
            let (ty, constant, space) = ((**of).clone(), array.constant, array.space);
            let index = self.convert_to(index, &UINT);
            let Operand::Place(array) = base else { return Operand::Value(Expr::error(span)) };
            let kind = PlaceKind::Index(array.into(), index.into());
            return Operand::Place(Place { kind, ty, span, constant, space });
        }
        let base = match base {
            Operand::Place(place) => self.read(place),
            Operand::Value(value) => value,
        };
        let Type::Pointer(_) = base.ty else {
            if base.ty != Type::Error {
                let message = format!("`[]` takes an array or a pointer, not `{}`", self.display_type(&base.ty));
                let note = match base.ty {
                    Type::Vector(..) => "a vector's components are `.x` or `.s0`; use an array where the index varies",
                    _ => "",
                };
                return Operand::Value(self.report_error(base.span, message, note));
            }
            return Operand::Value(base);
        };
        let pointer = self.offset(base, index, false, span);
        match self.deref(pointer, span) {
            Some(place) => Operand::Place(place),
            None => Operand::Value(Expr::error(span)),
        }
    }

    fn member(&mut self, base: &ast::Expr, name: Name, name_span: Span, arrow: bool, span: Span) -> Operand {
        let base = if arrow {
            let pointer = self.value(base);
            if pointer.ty != Type::Error && !matches!(pointer.ty, Type::Pointer(_)) {
                let message = format!("`->` takes a pointer, not `{}`", self.display_type(&pointer.ty));
                return Operand::Value(self.report_error(span, message, "write `.`"));
            }
            match self.deref(pointer, span) {
                Some(place) => Operand::Place(place),
                None => return Operand::Value(Expr::error(span)),
            }
        } else {
            self.operand(base)
        };
        let ty = match &base {
            Operand::Place(place) => place.ty.clone(),
            Operand::Value(value) => value.ty.clone(),
        };
        match ty {
            Type::Struct(id) => {
                let fields = self.structs.get(id).fields.as_deref().unwrap_or_default();
                let Some(at) = fields.iter().position(|field| field.name == name) else {
                    let message = format!("`{}` has no member `{}`", self.display_type(&ty), self.names.text(name));
                    let all: Vec<_> =
                        fields.iter().take(16).map(|f| format!("`{}`", self.names.text(f.name))).collect();
                    let note = format!("its members are {}", all.join(", "));
                    return Operand::Value(self.report_error(name_span, message, &note));
                };
                let ty = fields[at].ty.clone();
                match base {
                    Operand::Place(place) => {
                        let (constant, space) = (place.constant, place.space);
                        let kind = PlaceKind::Member(place.into(), at as u32);
                        Operand::Place(Place { kind, ty, span, constant, space })
                    }
                    Operand::Value(_) if matches!(ty, Type::Array(..)) => Operand::Value(self.report_error(
                        span,
                        "an array in a value",
                        "assign the structure to a variable first",
                    )),
                    Operand::Value(value) => {
                        Operand::Value(Expr { kind: ExprKind::Member(value.into(), at as u32), ty, span })
                    }
                }
            }
            Type::Vector(scalar, size) => {
                let text = self.name(name);
                let Some(picked) = components(&text, size) else {
                    let message = format!("`{}` has no component `{text}`", self.display_type(&ty));
                    let note =
                        "components are .x .y .z .w, .s0 to .s3, or several: .xy .s10; .lo .hi .even .odd are halves";
                    return Operand::Value(self.report_error(name_span, message, note));
                };
                let ty = match picked.len() {
                    1 => Type::Scalar(scalar),
                    n => Type::Vector(scalar, n as u8),
                };
                match base {
                    Operand::Place(place) => {
                        let (space, constant) = (place.space, place.constant);
                        // Components of components are components of the vector: `v.hi.lo` is
                        // `v.z`.
                        let (vector, picked) = match place.kind {
                            PlaceKind::Components(vector, of) => {
                                (vector, picked.iter().map(|&c| of[usize::from(c)]).collect())
                            }
                            _ => (Box::new(place), picked),
                        };
                        let kind = PlaceKind::Components(vector, picked);
                        Operand::Place(Place { kind, ty, span, constant, space })
                    }
                    Operand::Value(value) => {
                        Operand::Value(Expr { kind: ExprKind::Swizzle(value.into(), picked), ty, span })
                    }
                }
            }
            Type::Error => Operand::Value(Expr::error(span)),
            Type::Pointer(_) => {
                let message = format!("`.` takes a structure or a vector, not `{}`", self.display_type(&ty));
                Operand::Value(self.report_error(span, message, "write `->`"))
            }
            _ => {
                let message = format!("`{}` has no members", self.display_type(&ty));
                Operand::Value(self.report_error(span, message, ""))
            }
        }
    }

    /// Checks `(ty)operand`, vector literals included (OpenCL C 1.2, 6.1.6).
    fn cast(&mut self, ty: Type, operand: &ast::Expr, span: Span) -> Expr {
        if let (Type::Vector(scalar, size), Ast::Comma(..)) = (&ty, &operand.kind) {
            let mut list = Vec::new();
            commas(operand, &mut list);
            return self.vector(*scalar, *size, &list, span);
        }
        let value = self.value_or_void(operand);
        match (&value.ty, &ty) {
            (Type::Error, _) | (_, Type::Error) => Expr::error(span),
            (_, Type::Void) => {
                let zero = Expr { kind: ExprKind::Integer(0), ty: Type::Void, span };
                Expr { kind: ExprKind::Comma(value.into(), zero.into()), ty, span }
            }
            (Type::Scalar(_), Type::Scalar(_)) => Expr { span, ..self.convert_to(value, &ty) },
            (Type::Scalar(_), Type::Vector(scalar, _)) => {
                let value = self.convert_to(value, &Type::Scalar(*scalar));
                Expr { kind: ExprKind::Splat(value.into()), ty, span }
            }
            (from, to) if from == to => value,
            (Type::Pointer(from), Type::Pointer(to)) => {
                if let (Some(a), Some(b)) = (from.space, to.space)
                    && a != b
                {
                    let message =
                        format!("a cast of `{}` to `{}`", self.display_type(&value.ty), self.display_type(&ty));
                    return self.report_error(span, message, "pointers cannot change their address space");
                }
                // The pointee's address space stays.
                let target = Type::pointer(to.to.clone(), to.space.or(from.space), to.constant);
                Expr { kind: ExprKind::PointerCast(value.into()), ty: target, span }
            }
            (Type::Pointer(_), Type::Scalar(_)) | (Type::Scalar(_), Type::Pointer(_)) => self.report_error(
                span,
                "a cast between a pointer and a number",
                "a pointer has no numeric address; `p - q` is a distance, `p + n` moves a pointer",
            ),
            (Type::Vector(..), Type::Vector(..)) => {
                let message = format!("a cast of `{}` to `{}`", self.display_type(&value.ty), self.display_type(&ty));
                let note = format!("use `convert_{0}` for the values, `as_{0}` for the bits", self.display_type(&ty));
                self.report_error(span, message, &note)
            }
            (from, to) => {
                let message = format!("a cast of `{}` to `{}`", self.display_type(from), self.display_type(to));
                self.report_error(span, message, "")
            }
        }
    }

    fn vector(&mut self, scalar: Scalar, size: u8, list: &[&ast::Expr], span: Span) -> Expr {
        let mut parts = Vec::new();
        let mut count = 0usize;
        for part in list {
            let value = self.value(part);
            match value.ty {
                Type::Scalar(_) => {
                    count += 1;
                    parts.push(self.convert_to(value, &Type::Scalar(scalar)));
                }
                Type::Vector(of, n) if of == scalar => {
                    count += usize::from(n);
                    parts.push(value);
                }
                Type::Error => return value,
                ref ty => {
                    let message =
                        format!("`{}` cannot be part of a vector of `{}`", self.display_type(ty), scalar.name());
                    return self.report_error(
                        value.span,
                        message,
                        "parts must be numbers, or vectors with the same component type",
                    );
                }
            }
        }
        let ty = Type::Vector(scalar, size);
        if count != usize::from(size) {
            let message = format!("`{}` of {count} components", self.display_type(&ty));
            return self.report_error(span, message, "give one value for all components, or one for each");
        }
        Expr { kind: ExprKind::Compose(parts), ty, span }
    }

    /// Converts to another scalar type, or to a vector type with as many components; folds
    /// constants.
    pub(super) fn convert_to(&mut self, value: Expr, to: &Type) -> Expr {
        if value.ty == *to || value.ty == Type::Error {
            return value;
        }
        let span = value.span;
        if let (Type::Scalar(from), Type::Scalar(to_scalar)) = (&value.ty, to) {
            if let Some(kind) = constants::convert(&value.kind, *from, *to_scalar) {
                return Expr { kind, ty: to.clone(), span };
            }
            // A comparison is `int` in C and `bool` on devices: avoid converting back and forth.
            if let ExprKind::Convert(inner) = &value.kind
                && inner.ty == BOOL
                && from.is_integer()
            {
                let ExprKind::Convert(inner) = value.kind else { return Expr::error(span) };
                return self.convert_to(*inner, to);
            }
        }
        Expr { kind: ExprKind::Convert(value.into()), ty: to.clone(), span }
    }

    /// Conversion as by assignment to type `ty` (C11 6.5.16.1), or an error.
    pub(super) fn convert_for_assignment(&mut self, value: Expr, ty: &Type, what: &str) -> Expr {
        let span = value.span;
        match (&value.ty, ty) {
            (Type::Error, _) | (_, Type::Error) => Expr::error(span),
            (Type::Scalar(_), Type::Scalar(_)) => self.convert_to(value, ty),
            (Type::Scalar(_), Type::Vector(scalar, _)) => {
                let value = self.convert_to(value, &Type::Scalar(*scalar));
                Expr { kind: ExprKind::Splat(value.into()), ty: ty.clone(), span }
            }
            (from, to) if from == to => value,
            (Type::Pointer(from), Type::Pointer(to)) => {
                let (shown_from, shown_to) = (self.display_type(&value.ty), self.display_type(ty));
                let same = from.to == to.to || from.to == Type::Void || to.to == Type::Void;
                let spaces = from.space.is_none() || to.space.is_none() || from.space == to.space;
                if !spaces {
                    let message = format!("{what} is a `{shown_from}`, expected a `{shown_to}`");
                    return self.report_error(span, message, "pointers cannot change their address space");
                }
                if !same {
                    let message = format!("{what} is a `{shown_from}`, expected a `{shown_to}`");
                    return self.report_error(span, message, &format!("cast it: `({shown_to})`"));
                }
                if from.constant && !to.constant && from.space != Some(Space::Constant) {
                    let message = format!("{what} is a `{shown_from}`, expected a `{shown_to}`");
                    return self.report_error(
                        span,
                        message,
                        "that would discard `const`: declare the target `const` as well",
                    );
                }
                let target = Type::pointer(to.to.clone(), to.space, to.constant);
                Expr { kind: ExprKind::PointerCast(value.into()), ty: target, span }
            }
            (from, to) => {
                let message =
                    format!("{what} is a `{}`, expected a `{}`", self.display_type(from), self.display_type(to));
                let note = match (from, to) {
                    (Type::Scalar(_), Type::Pointer(_)) => {
                        "there is no null pointer, and a pointer is not a number: `p + n` moves a pointer"
                    }
                    (Type::Pointer(_), Type::Scalar(_)) => {
                        "a pointer is not a number; `p - q` is the distance of two pointers"
                    }
                    (Type::Vector(..), Type::Vector(..)) => "`convert_T` converts vectors",
                    _ => "",
                };
                self.report_error(span, message, note)
            }
        }
    }
}

fn commas<'a>(expr: &'a ast::Expr, out: &mut Vec<&'a ast::Expr>) {
    match &expr.kind {
        Ast::Comma(left, right) => {
            commas(left, out);
            out.push(right);
        }
        _ => out.push(expr),
    }
}

/// The components that a swizzle of a vector of `size` components names (OpenCL C 1.2, 6.1.7).
fn components(text: &str, size: u8) -> Option<Vec<u8>> {
    let picked: Vec<u8> = match (text, size) {
        ("lo", 2) | ("even", 2) => vec![0],
        ("hi", 2) | ("odd", 2) => vec![1],
        ("lo", 4) => vec![0, 1],
        ("hi", 4) => vec![2, 3],
        ("even", 4) => vec![0, 2],
        ("odd", 4) => vec![1, 3],
        ("lo", 3) => vec![0, 1],
        ("even", 3) => vec![0, 2],
        _ => {
            let digits = text.strip_prefix(['s', 'S']).filter(|digits| !digits.is_empty());
            let letters = digits.unwrap_or(text).chars();
            let index = |c: char| match digits {
                Some(_) => c.to_digit(16).map(|d| d as u8),
                None => "xyzw".find(c).map(|at| at as u8),
            };
            letters.map(index).collect::<Option<_>>()?
        }
    };
    ((1..=4).contains(&picked.len()) && picked.iter().all(|c| *c < size)).then_some(picked)
}
