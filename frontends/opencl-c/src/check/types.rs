//! Declared types (C11 6.7.2, 6.7.6; OpenCL C 1.2, 6.5).

use std::rc::Rc;

use super::{Checker, Symbol, Tag};
use crate::ast::{self, Base};
use crate::files::Span;
use crate::tree::{Expr, ExprKind};
use crate::types::{MAX_TYPE_BYTES, Pointer, Scalar, Space, Struct, StructId, Type, UINT};

use portcullis_core::program::MAX_TYPE_DEPTH;

/// Type and qualifiers of a declared entity.
pub(super) struct DeclaredType {
    pub ty: Type,
    /// Address space of the entity itself; that of a pointer's target is in its type.
    pub space: Option<Space>,
    pub constant: bool,
    /// Whether this is an array sized by its initialiser; `ty` is then the element type.
    pub open: bool,
}

/// Maximum number of elements of an array.
const MAX_ELEMENTS: u32 = 1 << 20;

impl Checker<'_> {
    /// The type that the specifiers denote, before `*` and `[]`.
    pub(super) fn base_type(&mut self, specifiers: &ast::Specifiers) -> Type {
        match &specifiers.base {
            Base::Void => Type::Void,
            Base::Scalar(scalar) => Type::Scalar(*scalar),
            Base::Vector(scalar, size) => Type::Vector(*scalar, *size),
            Base::Named(name) => match self.find(*name) {
                Some((Symbol::Type(ty), _)) => ty.clone(),
                _ => Type::Error,
            },
            Base::Struct(it) => self.structure(it, specifiers.span),
            Base::Enum(it) => self.enumeration(it),
        }
    }

    pub(super) fn declared_type(
        &mut self,
        specifiers: &ast::Specifiers,
        pointers: &[ast::Pointer],
        sizes: &[Option<ast::Expr>],
        span: Span,
    ) -> DeclaredType {
        let base = self.base_type(specifiers);
        self.declared_type_from_base(base, specifiers, pointers, sizes, span)
    }

    /// [`declared_type`](Self::declared_type) for a known base type, so that the declarators of one
    /// declaration share it.
    pub(super) fn declared_type_from_base(
        &mut self,
        base: Type,
        specifiers: &ast::Specifiers,
        pointers: &[ast::Pointer],
        sizes: &[Option<ast::Expr>],
        span: Span,
    ) -> DeclaredType {
        let mut ty = base;
        let (mut space, mut constant) = (specifiers.space, specifiers.constant);
        // With `typedef uchar *bytes`, `__global bytes p` qualifies the target of `p`.
        if let (Type::Pointer(it), Some(to)) = (&ty, space) {
            ty = Type::Pointer(Rc::new(Pointer { space: Some(to), ..Pointer::clone(it) }));
            space = None;
        }
        for pointer in pointers {
            if matches!(ty, Type::Pointer(_)) {
                self.errors.add(
                    pointer.span,
                    "there are no pointers to pointers",
                    "",
                    "the target of a pointer must be known at compile time: return an offset, or use an index",
                );
                ty = Type::Error;
            }
            if ty != Type::Error {
                ty = Type::pointer(ty, space, constant);
            }
            (space, constant) = (None, pointer.constant);
        }
        let mut open = false;
        for (i, size) in sizes.iter().enumerate().rev() {
            if matches!(ty, Type::Pointer(_)) {
                self.errors.add(
                    span,
                    "there are no arrays of pointers",
                    "",
                    "the target of a pointer must be known at compile time: use an array of offsets",
                );
                ty = Type::Error;
            }
            if ty == Type::Void {
                self.errors.add(span, "an array of `void`", "", "");
                ty = Type::Error;
            }
            match size {
                None if i == 0 => open = true,
                None => {
                    self.errors.add(span, "only an array's first size may be left out", "", "");
                    ty = Type::Error;
                }
                Some(size) => ty = self.array(ty, size),
            }
        }
        if specifiers.space == Some(Space::Private) && !matches!(ty, Type::Pointer(_)) {
            space = None;
        }
        DeclaredType { ty, space, constant, open }
    }

    fn array(&mut self, of: Type, size: &ast::Expr) -> Type {
        let Some(count) = self.integer_constant(size, "an array's size") else { return Type::Error };
        let count = match u32::try_from(count) {
            Ok(count @ 1..=MAX_ELEMENTS) => count,
            _ => {
                let message = format!("an array of {count} elements");
                let note = format!("an array has 1 to {MAX_ELEMENTS} elements");
                self.errors.add(size.span, message, "", &note);
                return Type::Error;
            }
        };
        self.array_of(of, count, size.span)
    }

    pub(super) fn array_of(&mut self, of: Type, count: u32, span: Span) -> Type {
        if of == Type::Error {
            return of;
        }
        let Some((size, _)) = self.structs.layout(&of) else {
            self.errors.add(span, "an array of a type that is not defined yet", "", "");
            return Type::Error;
        };
        if self.structs.depth(&of) >= MAX_TYPE_DEPTH {
            self.errors.add(span, format!("types nest more than {MAX_TYPE_DEPTH} deep"), "", "");
            return Type::Error;
        }
        if u64::from(size) * u64::from(count) > u64::from(MAX_TYPE_BYTES) {
            self.errors.add(span, format!("an array of more than {MAX_TYPE_BYTES} bytes"), "", "");
            return Type::Error;
        }
        Type::Array(Rc::new(of), count)
    }

    fn structure(&mut self, it: &ast::Struct, span: Span) -> Type {
        let named = it.name.map(|(name, _)| name);
        let here = self.scopes.len() - 1;
        let found = named.and_then(|name| match it.fields {
            // A definition declares in this scope; a reference looks outwards.
            Some(_) => self.scopes[here].tags.get(&name).copied(),
            None => self.scopes.iter().rev().find_map(|scope| scope.tags.get(&name).copied()),
        });
        let id = match found {
            Some(Tag::Struct(id)) => id,
            Some(Tag::Enum(_)) => {
                self.errors.add(span, "this name belongs to an enumeration", "", "");
                return Type::Error;
            }
            None => {
                let id = StructId(self.structs.list.len() as u32);
                self.structs.list.push(Struct::new(named));
                if let Some(name) = named {
                    self.scopes[here].tags.insert(name, Tag::Struct(id));
                }
                id
            }
        };
        let Some(fields) = &it.fields else { return Type::Struct(id) };
        if self.structs.get(id).fields.is_some() {
            self.errors.add(span, "this structure is defined twice", "", "");
            return Type::Struct(id);
        }
        let mut laid_out: Vec<(crate::token::Name, Type)> = Vec::new();
        for declaration in fields {
            let base = self.base_type(&declaration.specifiers);
            for declarator in &declaration.declarators {
                let at = declarator.name_span;
                let sizes = &declarator.sizes;
                let declared = self.declared_type_from_base(
                    base.clone(),
                    &declaration.specifiers,
                    &declarator.pointers,
                    sizes,
                    at,
                );
                let ty = self.field(declared, declarator);
                if laid_out.iter().any(|(name, _)| *name == declarator.name) {
                    let message = format!("a second member `{}`", self.names.text(declarator.name));
                    self.errors.add(at, message, "", "");
                } else if ty != Type::Error {
                    laid_out.push((declarator.name, ty));
                }
            }
        }
        // If all members were invalid, that has been reported.
        if fields.iter().all(|declaration| declaration.declarators.is_empty()) {
            self.errors.add(span, "a structure without members", "", "");
        }
        self.structs.define(id, laid_out, it.packed);
        if self.structs.get(id).size > MAX_TYPE_BYTES {
            self.errors.add(span, format!("a structure of more than {MAX_TYPE_BYTES} bytes"), "", "");
            return Type::Error;
        }
        Type::Struct(id)
    }

    fn field(&mut self, declared: DeclaredType, declarator: &ast::Declarator) -> Type {
        let span = declarator.name_span;
        let mut refuse = |message: &str, note: &str| {
            self.errors.add(span, message, "", note);
            Type::Error
        };
        if declarator.parameters.is_some() {
            return refuse("a function as a member", "");
        }
        if declarator.init.is_some() {
            return refuse("a member cannot have an initialiser", "");
        }
        if declared.open {
            return refuse(
                "an array without a size as a member",
                "access what follows a header through a pointer: `(__global uchar *)(header + 1)`",
            );
        }
        match declared.ty {
            Type::Pointer(_) => {
                refuse("a pointer as a member", "the target of a pointer must be known at compile time: keep an offset")
            }
            Type::Void => refuse("a member of type `void`", ""),
            ref ty if self.structs.depth(ty) >= MAX_TYPE_DEPTH => {
                refuse(&format!("types nest more than {MAX_TYPE_DEPTH} deep"), "")
            }
            Type::Struct(id) if self.structs.get(id).fields.is_none() => {
                refuse("a member of a type that is not defined yet", "")
            }
            ty => ty,
        }
    }

    fn enumeration(&mut self, it: &ast::Enum) -> Type {
        let here = self.scopes.len() - 1;
        let found = it.name.and_then(|(name, _)| match it.values {
            Some(_) => self.scopes[here].tags.get(&name).copied(),
            None => self.scopes.iter().rev().find_map(|scope| scope.tags.get(&name).copied()),
        });
        let span = it.name.map(|(_, span)| span);
        match (found, &it.values, span) {
            (Some(Tag::Struct(_)), _, Some(span)) => {
                self.errors.add(span, "this name belongs to a structure", "", "");
                return Type::Error;
            }
            (Some(Tag::Enum(_)), Some(_), Some(span)) => {
                self.errors.add(span, "this enumeration is defined twice", "", "");
            }
            (Some(Tag::Enum(ty)), None, _) => return Type::Scalar(ty),
            (None, None, Some(span)) => {
                self.errors.add(span, "this enumeration is not defined", "", "");
                return Type::Error;
            }
            _ => {}
        }
        let mut next: i128 = 0;
        let mut all_positive = true;
        for (name, span, value) in it.values.iter().flatten() {
            if let Some(value) = value
                && let Some(value) = self.integer_constant(value, "an enumeration's constant")
            {
                next = value;
            }
            // Values that do not fit `int` become `uint`, as in GCC and Clang.
            let ty = [Scalar::Int, Scalar::UInt].into_iter().find(|ty| ty.wrap(next) == next);
            match ty {
                Some(ty) => self.declare(*name, *span, Symbol::Integer(next as u64, Type::Scalar(ty))),
                None => self.errors.add(*span, "an enumeration's constants have 32 bits", "", ""),
            }
            all_positive &= next >= 0;
            next += 1;
        }
        // The compatible type is implementation-defined (C11 6.7.2.2): like GCC and Clang, use
        // `uint` unless a value is negative.
        let ty = if all_positive { Scalar::UInt } else { Scalar::Int };
        if let Some((name, _)) = it.name {
            self.scopes[here].tags.insert(name, Tag::Enum(ty));
        }
        Type::Scalar(ty)
    }

    /// Evaluates an integer constant expression (C11 6.6).
    pub(super) fn integer_constant(&mut self, expr: &ast::Expr, what: &str) -> Option<i128> {
        let value = self.value(expr);
        if value.ty == Type::Error {
            return None;
        }
        let known = value.constant().filter(|_| value.ty.is_integer());
        if known.is_none() {
            let message = format!("{what} must be an integer constant");
            self.errors.add(expr.span, message, "", "use literals, `enum` constants, `sizeof`, and operators on them");
        }
        known
    }

    /// The type of a cast or of `sizeof`.
    pub(super) fn type_name(&mut self, name: &ast::TypeName) -> Type {
        let declared = self.declared_type(&name.specifiers, &name.pointers, &name.sizes, name.span);
        if declared.open {
            self.errors.add(name.span, "an array without a size", "", "");
            return Type::Error;
        }
        declared.ty
    }

    /// A type's name, for messages.
    pub(super) fn display_type(&self, ty: &Type) -> String {
        match ty {
            Type::Void => "void".into(),
            Type::Scalar(scalar) => scalar.name().into(),
            Type::Vector(scalar, size) => format!("{}{size}", scalar.name()),
            Type::Array(of, count) => format!("{}[{count}]", self.display_type(of)),
            Type::Struct(id) => match self.structs.get(*id).name {
                Some(name) => format!("struct {}", self.names.text(name)),
                None => "an unnamed structure".into(),
            },
            Type::Pointer(it) => {
                let space = match it.space {
                    Some(Space::Global) => "__global ",
                    Some(Space::Constant) => "__constant ",
                    Some(Space::Private) | None => "",
                };
                let constant = if it.constant && it.space != Some(Space::Constant) { "const " } else { "" };
                format!("{space}{constant}{} *", self.display_type(&it.to))
            }
            Type::Error => "an unknown type".into(),
        }
    }

    /// The size of a type in bytes, as the value of `sizeof`.
    pub(super) fn size_of(&mut self, ty: &Type, span: Span) -> Expr {
        match self.structs.layout(ty) {
            Some((size, _)) => Expr { kind: ExprKind::Integer(u64::from(size)), ty: UINT, span },
            None if *ty == Type::Error => Expr { kind: ExprKind::Integer(0), ty: Type::Error, span },
            None => {
                let note = match ty {
                    Type::Pointer(_) => "pointers are not stored in memory here",
                    _ => "",
                };
                let message = format!("`{}` has no size", self.display_type(ty));
                self.report_error(span, message, note)
            }
        }
    }
}
