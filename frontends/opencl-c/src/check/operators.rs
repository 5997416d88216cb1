//! Operators: usual arithmetic conversions (C11 6.3.1.8), component-wise operations on vectors
//! (OpenCL C 1.2, 6.2.6, 6.3), and pointer arithmetic (C11 6.5.6).

use super::{Checker, constants};
use crate::ast::{self, BinaryOp, UnaryOp};
use crate::files::Span;
use crate::tree::{Builtin, Expr, ExprKind, Place, PlaceKind};
use crate::types::{BOOL, INT, Scalar, Type, UINT};

impl Checker<'_> {
    pub(super) fn unary(&mut self, op: UnaryOp, operand: &ast::Expr, span: Span) -> Expr {
        if op == UnaryOp::AddressOf {
            return self.address(operand, span);
        }
        let value = self.value(operand);
        let Some(scalar) = value.ty.element() else {
            if value.ty == Type::Error {
                return value;
            }
            if op == UnaryOp::Not && matches!(value.ty, Type::Pointer(_)) {
                return self.convert_to_condition(value);
            }
            let message = format!("cannot apply `{}` to `{}`", symbol(op), self.display_type(&value.ty));
            return self.report_error(span, message, "");
        };
        let is_vector = matches!(value.ty, Type::Vector(..));
        if op == UnaryOp::Not {
            if is_vector {
                let zero = self.zero(&value.ty, span);
                return self.compare(BinaryOp::Equal, value, zero, span);
            }
            let value = self.convert_to(value, &BOOL);
            return self.bool_to_int(not(value, span));
        }
        if op == UnaryOp::BitNot && scalar == Scalar::Float {
            return self.report_error(span, "`~` takes integers", "");
        }
        // Vector components are not promoted.
        let ty = if is_vector { value.ty.clone() } else { Type::Scalar(scalar.promoted()) };
        let value = self.convert_to(value, &ty);
        let known = value.constant();
        let kind = match op {
            UnaryOp::Plus => return Expr { span, ..value },
            UnaryOp::Minus => match (&value.kind, known) {
                (_, Some(known)) => return Self::integer(-known, ty, span),
                (ExprKind::Float(known), _) => ExprKind::Float(-known),
                _ => ExprKind::Negate(value.into()),
            },
            _ => match known {
                Some(known) => return Self::integer(!known, ty, span),
                None => ExprKind::BitNot(value.into()),
            },
        };
        Expr { kind, ty, span }
    }

    fn address(&mut self, operand: &ast::Expr, span: Span) -> Expr {
        let Some(place) = self.address_operand(operand) else { return Expr::error(span) };
        let whole = match &place.kind {
            PlaceKind::Components(..) => {
                let note = "vector components have no address: copy them to a variable";
                return self.report_error(span, "the address of a vector's component", note);
            }
            PlaceKind::Deref(_) => true,
            _ => false,
        };
        self.mark_mutated(&place);
        if matches!(place.ty, Type::Array(..)) {
            let note = "the array's name by itself is a pointer to its first element";
            return self.report_error(span, "there are no pointers to arrays", note);
        }
        if matches!(place.ty, Type::Pointer(_)) {
            let note = "the target of a pointer must be known at compile time: return the pointer instead";
            return self.report_error(span, "there are no pointers to pointers", note);
        }
        let ty = Type::pointer(place.ty.clone(), place.space, place.constant);
        // `&*p` is `p`.
        if whole {
            let PlaceKind::Deref(pointer) = place.kind else { return Expr::error(span) };
            return Expr { span, ..*pointer };
        }
        Expr { kind: ExprKind::Address(place.into()), ty, span }
    }

    fn zero(&mut self, ty: &Type, span: Span) -> Expr {
        let scalar = ty.element().unwrap_or(Scalar::Int);
        let zero = match scalar {
            Scalar::Float => Expr { kind: ExprKind::Float(0.0), ty: Type::Scalar(scalar), span },
            _ => Self::integer(0, Type::Scalar(scalar), span),
        };
        match ty {
            Type::Vector(..) => Expr { kind: ExprKind::Splat(zero.into()), ty: ty.clone(), span },
            _ => zero,
        }
    }

    /// Converts a `bool` to C's 0 or 1.
    fn bool_to_int(&mut self, value: Expr) -> Expr {
        self.convert_to(value, &INT)
    }

    /// Usual arithmetic conversions of two scalars or vectors; reports an error and returns `None`
    /// if there is no common type.
    pub(super) fn common(&mut self, left: Expr, right: Expr, symbol: &str, span: Span) -> Option<(Expr, Expr)> {
        let ty = match (&left.ty, &right.ty) {
            (Type::Error, _) | (_, Type::Error) => return None,
            (Type::Scalar(a), Type::Scalar(b)) => Type::Scalar(a.common(*b)),
            (a @ Type::Vector(..), b @ Type::Vector(..)) if a == b => a.clone(),
            (vector @ Type::Vector(..), Type::Scalar(_)) | (Type::Scalar(_), vector @ Type::Vector(..)) => {
                vector.clone()
            }
            (a, b) => {
                let message =
                    format!("cannot apply `{symbol}` to `{}` and `{}`", self.display_type(a), self.display_type(b));
                let note = match (a, b) {
                    (Type::Vector(..), Type::Vector(..)) => {
                        "both must have the same type: `convert_T` converts vectors"
                    }
                    _ => "",
                };
                self.errors.add(span, message, "", note);
                return None;
            }
        };
        Some((self.broadcast(left, &ty), self.broadcast(right, &ty)))
    }

    /// Converts a value to a type, broadcasting a scalar to all components of a vector.
    fn broadcast(&mut self, value: Expr, ty: &Type) -> Expr {
        match (&value.ty, ty) {
            (Type::Scalar(_), Type::Vector(scalar, _)) => {
                let span = value.span;
                let value = self.convert_to(value, &Type::Scalar(*scalar));
                Expr { kind: ExprKind::Splat(value.into()), ty: ty.clone(), span }
            }
            _ => self.convert_to(value, ty),
        }
    }

    pub(super) fn binary(&mut self, op: BinaryOp, left: Expr, right: Expr, span: Span) -> Expr {
        let pointers = (matches!(left.ty, Type::Pointer(_)), matches!(right.ty, Type::Pointer(_)));
        match (op, pointers) {
            _ if left.ty == Type::Error || right.ty == Type::Error => return Expr::error(span),
            (BinaryOp::Add, (true, false)) => return self.offset(left, right, false, span),
            (BinaryOp::Add, (false, true)) => return self.offset(right, left, false, span),
            (BinaryOp::Subtract, (true, false)) => return self.offset(left, right, true, span),
            (BinaryOp::Subtract, (true, true)) => return self.distance(left, right, span),
            (_, (true, true)) if op.is_comparison() => return self.compare_pointers(op, left, right, span),
            (_, (false, false)) => {}
            _ => {
                let message = format!(
                    "cannot apply `{}` to `{}` and `{}`",
                    op.text(),
                    self.display_type(&left.ty),
                    self.display_type(&right.ty)
                );
                let note =
                    if op.is_comparison() { "there is no null pointer, and a pointer is not a number" } else { "" };
                return self.report_error(span, message, note);
            }
        }
        if op.is_shift() {
            return self.shift(op, left, right, span);
        }
        let integers = matches!(op, BinaryOp::Modulo | BinaryOp::And | BinaryOp::Xor | BinaryOp::Or);
        let Some((left, right)) = self.common(left, right, op.text(), span) else { return Expr::error(span) };
        if integers && left.ty.element() == Some(Scalar::Float) {
            return self.report_error(span, format!("`{}` takes integers", op.text()), "");
        }
        if op.is_comparison() {
            return self.compare(op, left, right, span);
        }
        self.arithmetic(op, left, right, span)
    }

    /// Both operands have the same type.
    fn arithmetic(&mut self, op: BinaryOp, left: Expr, right: Expr, span: Span) -> Expr {
        let ty = left.ty.clone();
        if let (Some(scalar), Some(a), Some(b)) = (ty.scalar(), left.constant(), right.constant()) {
            return Self::integer(constants::binary(op, scalar, a, b), ty, span);
        }
        if let (ExprKind::Float(a), ExprKind::Float(b)) = (&left.kind, &right.kind)
            && let Some(value) = constants::float(op, *a, *b)
        {
            return Expr { kind: ExprKind::Float(value), ty, span };
        }
        Expr { kind: ExprKind::Binary(op, left.into(), right.into()), ty, span }
    }

    /// Both operands have the same type. The result is `int`, or a vector of signed integers of the
    /// same width with -1 for true.
    fn compare(&mut self, op: BinaryOp, left: Expr, right: Expr, span: Span) -> Expr {
        if let (Some(scalar), Some(a), Some(b)) = (left.ty.scalar(), left.constant(), right.constant()) {
            return Self::integer(constants::binary(op, scalar, a, b), INT, span);
        }
        let (ty, is_vector) = match &left.ty {
            Type::Vector(scalar, size) => (Type::Vector(scalar.signed(), *size), true),
            _ => (BOOL, false),
        };
        let compared = Expr { kind: ExprKind::Binary(op, left.into(), right.into()), ty, span };
        if is_vector { compared } else { self.bool_to_int(compared) }
    }

    /// The left operand alone determines the type (C11 6.5.7).
    fn shift(&mut self, op: BinaryOp, left: Expr, right: Expr, span: Span) -> Expr {
        let both = (left.ty.element(), right.ty.element());
        let (Some(scalar), Some(count)) = both else { return self.report_bad_shift(op, &left, &right, span) };
        if !scalar.is_integer() || !count.is_integer() {
            return self.report_error(span, format!("`{}` takes integers", op.text()), "");
        }
        let ty = match (&left.ty, &right.ty) {
            (Type::Scalar(_), Type::Scalar(_)) => Type::Scalar(scalar.promoted()),
            (Type::Vector(_, n), Type::Vector(_, m)) if n != m => {
                return self.report_bad_shift(op, &left, &right, span);
            }
            (Type::Scalar(_), _) => return self.report_bad_shift(op, &left, &right, span),
            (vector, _) => vector.clone(),
        };
        let left = self.convert_to(left, &ty);
        let bits = ty.element().map_or(32, Scalar::bits);
        if let (Some(scalar), Some(a), Some(b)) = (ty.scalar(), left.constant(), right.constant()) {
            return Self::integer(constants::binary(op, scalar, a, b), ty, span);
        }
        // The count modulo the width, as `uint`, for each component.
        let counts = ty.with_element(Scalar::UInt);
        let right = match right.constant() {
            Some(known) => {
                let known = Self::integer(known & i128::from(bits - 1), UINT, right.span);
                self.broadcast(known, &counts)
            }
            None => self.broadcast(right, &counts),
        };
        Expr { kind: ExprKind::Binary(op, left.into(), right.into()), ty, span }
    }

    fn report_bad_shift(&mut self, op: BinaryOp, left: &Expr, right: &Expr, span: Span) -> Expr {
        let message = format!(
            "cannot apply `{}` to `{}` and `{}`",
            op.text(),
            self.display_type(&left.ty),
            self.display_type(&right.ty)
        );
        self.report_error(span, message, "")
    }

    /// Pointer plus, or with `back` minus, a number of elements.
    pub(super) fn offset(&mut self, pointer: Expr, count: Expr, back: bool, span: Span) -> Expr {
        if !count.ty.is_integer() {
            if count.ty == Type::Error {
                return count;
            }
            let message = format!("a pointer moves by an integer, not by `{}`", self.display_type(&count.ty));
            return self.report_error(span, message, "");
        }
        if !self.check_pointee_size(&pointer, span) {
            return Expr::error(span);
        }
        let count = self.convert_to(count, &UINT);
        let count = match (back, count.constant()) {
            (false, _) => count,
            (true, Some(known)) => Self::integer(-known, UINT, count.span),
            (true, None) => {
                let at = count.span;
                Expr { kind: ExprKind::Negate(count.into()), ty: UINT, span: at }
            }
        };
        let ty = pointer.ty.clone();
        Expr { kind: ExprKind::Offset(pointer.into(), count.into()), ty, span }
    }

    fn check_pointee_size(&mut self, pointer: &Expr, span: Span) -> bool {
        let Type::Pointer(it) = &pointer.ty else { return false };
        if self.structs.layout(&it.to).is_none() {
            let message = format!("arithmetic on a `{}`", self.display_type(&pointer.ty));
            self.errors.add(span, message, "", "its target has no size: cast it to another pointer");
            return false;
        }
        true
    }

    fn distance(&mut self, left: Expr, right: Expr, span: Span) -> Expr {
        if !self.check_same_pointee(&left, &right, "-", span) || !self.check_pointee_size(&left, span) {
            return Expr::error(span);
        }
        Expr { kind: ExprKind::Distance(left.into(), right.into()), ty: INT, span }
    }

    fn compare_pointers(&mut self, op: BinaryOp, left: Expr, right: Expr, span: Span) -> Expr {
        if !self.check_same_pointee(&left, &right, op.text(), span) {
            return Expr::error(span);
        }
        let compared = Expr { kind: ExprKind::ComparePointers(op, left.into(), right.into()), ty: BOOL, span };
        self.bool_to_int(compared)
    }

    fn check_same_pointee(&mut self, left: &Expr, right: &Expr, symbol: &str, span: Span) -> bool {
        let (Type::Pointer(a), Type::Pointer(b)) = (&left.ty, &right.ty) else { return false };
        let spaces = a.space.is_none() || b.space.is_none() || a.space == b.space;
        let void = symbol != "-" && (a.to == Type::Void || b.to == Type::Void);
        if spaces && (a.to == b.to || void) {
            return true;
        }
        let message = format!(
            "cannot apply `{symbol}` to `{}` and `{}`",
            self.display_type(&left.ty),
            self.display_type(&right.ty)
        );
        self.errors.add(span, message, "", "cast one to the type of the other");
        false
    }

    pub(super) fn logical(&mut self, and: bool, left: &ast::Expr, right: &ast::Expr, span: Span) -> Expr {
        let (left, right) = (self.value(left), self.value(right));
        if matches!(left.ty, Type::Vector(..)) || matches!(right.ty, Type::Vector(..)) {
            // For vectors both operands are evaluated (6.3.g).
            let symbol = if and { "&&" } else { "||" };
            let Some((left, right)) = self.common(left, right, symbol, span) else { return Expr::error(span) };
            let zero = self.zero(&left.ty, span);
            let left = self.compare(BinaryOp::NotEqual, left, zero, span);
            let zero = self.zero(&right.ty, span);
            let right = self.compare(BinaryOp::NotEqual, right, zero, span);
            return self.arithmetic(if and { BinaryOp::And } else { BinaryOp::Or }, left, right, span);
        }
        let (left, right) = (self.convert_to_condition(left), self.convert_to_condition(right));
        if left.ty == Type::Error || right.ty == Type::Error {
            return Expr::error(span);
        }
        let value = match (left.constant(), and) {
            // The right operand is not evaluated.
            (Some(0), true) | (Some(1), false) => left,
            (Some(_), _) => right,
            (None, true) => Expr { kind: ExprKind::And(left.into(), right.into()), ty: BOOL, span },
            (None, false) => Expr { kind: ExprKind::Or(left.into(), right.into()), ty: BOOL, span },
        };
        self.bool_to_int(value)
    }

    pub(super) fn conditional(
        &mut self,
        condition: &ast::Expr,
        accept: &ast::Expr,
        reject: &ast::Expr,
        span: Span,
    ) -> Expr {
        let condition = self.value(condition);
        let (accept, reject) = (self.value_or_void(accept), self.value_or_void(reject));
        if let Type::Vector(..) = condition.ty {
            // Component by component, by the highest bit; both operands are evaluated (6.3.i).
            let Some((accept, reject)) = self.common(accept, reject, "?:", span) else { return Expr::error(span) };
            let ty = match &condition.ty {
                Type::Vector(_, size) => accept.ty.element().map(|scalar| Type::Vector(scalar, *size)),
                _ => None,
            };
            let Some(ty) = ty else { return Expr::error(span) };
            return self.select(reject, accept, condition, &ty, span);
        }
        let condition = self.convert_to_condition(condition);
        let (accept, reject) = match (&accept.ty, &reject.ty) {
            _ if condition.ty == Type::Error => return Expr::error(span),
            (Type::Error, _) | (_, Type::Error) => return Expr::error(span),
            (a, b) if a == b && a.scalar().is_none() => (accept, reject),
            (Type::Pointer(_), Type::Pointer(_)) => {
                let ty = accept.ty.clone();
                (accept, self.convert_for_assignment(reject, &ty, "the other value"))
            }
            _ => match self.common(accept, reject, "?:", span) {
                Some(both) => both,
                None => return Expr::error(span),
            },
        };
        match condition.constant() {
            Some(0) => return reject,
            Some(_) => return accept,
            None => {}
        }
        let ty = accept.ty.clone();
        Expr { kind: ExprKind::Conditional(condition.into(), accept.into(), reject.into()), ty, span }
    }

    /// Checks `select(a, b, c)`: `c` has as many components, of the same width.
    pub(super) fn select(&mut self, a: Expr, b: Expr, c: Expr, ty: &Type, span: Span) -> Expr {
        let (a, b) = (self.broadcast(a, ty), self.broadcast(b, ty));
        let same = match (&c.ty, ty) {
            (Type::Vector(_, n), Type::Vector(_, m)) => n == m,
            (Type::Scalar(_), Type::Scalar(_)) => true,
            _ => false,
        };
        let width = |ty: &Type| ty.element().map(Scalar::size);
        let integer = c.ty.element().is_some_and(Scalar::is_integer);
        if a.ty == Type::Error || b.ty == Type::Error || c.ty == Type::Error {
            return Expr::error(span);
        }
        if !same || !integer || matches!(ty, Type::Vector(..)) && width(&c.ty) != width(ty) {
            let message =
                format!("cannot select between `{}` by `{}`", self.display_type(ty), self.display_type(&c.ty));
            return self.report_error(
                span,
                message,
                "the condition must have as many components, integers of the same width",
            );
        }
        Expr { kind: ExprKind::Builtin(Builtin::Select, vec![a, b, c]), ty: ty.clone(), span }
    }

    /// Checks an lvalue that is stored to.
    fn target(&mut self, expr: &ast::Expr, symbol: &str) -> Option<Place> {
        let place = self.place(expr, &format!("the left operand of `{symbol}`"))?;
        let twice = match &place.kind {
            PlaceKind::Components(_, picked) => picked.iter().enumerate().any(|(i, c)| picked[..i].contains(c)),
            _ => false,
        };
        if place.constant || twice {
            let note = if twice { "a component occurs twice" } else { "it is `const`" };
            self.errors.add(expr.span, format!("`{symbol}` cannot store here"), "", note);
            return None;
        }
        if let Type::Array(..) = place.ty {
            self.errors.add(
                expr.span,
                "an array cannot be assigned as a whole",
                "",
                "assign its elements, or a structure that contains it",
            );
            return None;
        }
        if place.ty == Type::Void {
            self.errors.add(expr.span, "cannot store through a `void *`", "", "cast it to another pointer");
            return None;
        }
        self.mark_mutated(&place);
        Some(place)
    }

    pub(super) fn assign(&mut self, op: Option<BinaryOp>, target: &ast::Expr, value: &ast::Expr, span: Span) -> Expr {
        let symbol = op.map_or("=".to_owned(), |op| format!("{}=", op.text()));
        let place = self.target(target, &symbol);
        let value = self.value(value);
        let Some(place) = place else { return Expr::error(span) };
        let ty = place.ty.clone();
        let Some(op) = op else {
            let value = self.convert_for_assignment(value, &ty, "the assigned value");
            if value.ty == Type::Error {
                return value;
            }
            return Expr { kind: ExprKind::Assign(place.into(), value.into()), ty, span };
        };
        let old = Expr { kind: ExprKind::Old, ty: ty.clone(), span: target.span };
        let new = self.binary(op, old, value, span);
        self.update(place, new, false, span)
    }

    fn update(&mut self, place: Place, new: Expr, returns_old: bool, span: Span) -> Expr {
        let ty = place.ty.clone();
        let new = self.convert_for_assignment(new, &ty, "the assigned value");
        if new.ty == Type::Error {
            return Expr::error(span);
        }
        Expr { kind: ExprKind::Update { place: place.into(), value: new.into(), returns_old }, ty, span }
    }

    pub(super) fn step(&mut self, up: bool, prefix: bool, operand: &ast::Expr, span: Span) -> Expr {
        let Some(place) = self.target(operand, if up { "++" } else { "--" }) else { return Expr::error(span) };
        let ty = place.ty.clone();
        let old = Expr { kind: ExprKind::Old, ty: ty.clone(), span: operand.span };
        let one = Self::integer(1, INT, span);
        let new = self.binary(if up { BinaryOp::Add } else { BinaryOp::Subtract }, old, one, span);
        self.update(place, new, !prefix, span)
    }
}

/// Negates a `bool`.
fn not(value: Expr, span: Span) -> Expr {
    let kind = match value.kind {
        ExprKind::Integer(bits) => ExprKind::Integer(1 - (bits & 1)),
        ExprKind::Not(inner) => return Expr { span, ..*inner },
        kind => ExprKind::Not(Box::new(Expr { kind, ty: BOOL, span: value.span })),
    };
    Expr { kind, ty: BOOL, span }
}

fn symbol(op: UnaryOp) -> &'static str {
    match op {
        UnaryOp::Plus => "+",
        UnaryOp::Minus => "-",
        UnaryOp::BitNot => "~",
        UnaryOp::Not => "!",
        UnaryOp::Deref => "*",
        UnaryOp::AddressOf => "&",
    }
}
