//! Declared types (C11 6.7.2, 6.7.6; OpenCL C 1.2, 6.5).

use std::rc::Rc;

use super::{Checker, Symbol, Tag};
use crate::ast::{self, Base, Space};
use crate::files::Span;
use crate::tree::{Expr, ExprKind};
use crate::types::{MAX_SIZE, Pointer, Scalar, Struct, StructId, Type, UINT};

use portcullis_core::program::MAX_TYPE_DEPTH;

/// What a declaration says of what it declares.
pub(super) struct Declared {
    pub ty: Type,
    /// Of the thing itself: a pointer's is what it points to, and is in its type.
    pub space: Option<Space>,
    pub constant: bool,
    /// An array whose size is that of its initialiser; `ty` is then an element's.
    pub open: bool,
}

/// The most that an array may have.
const MAX_ELEMENTS: u32 = 1 << 20;

impl Checker<'_> {
    /// The type before `*` and `[]`.
    pub(super) fn base(&mut self, specifiers: &ast::Specifiers) -> Type {
        match &specifiers.base {
            Base::Void => Type::Void,
            Base::Scalar(scalar) => Type::Scalar(*scalar),
            Base::Vector(scalar, size) => Type::Vector(*scalar, *size),
            Base::Named(name) => match self.find(*name) {
                Some((Symbol::Type(ty), _)) => ty.clone(),
                _ => Type::Wrong,
            },
            Base::Struct(it) => self.structure(it, specifiers.span),
            Base::Enum(it) => self.enumeration(it),
        }
    }

    pub(super) fn declared(
        &mut self,
        specifiers: &ast::Specifiers,
        pointers: &[ast::Pointer],
        sizes: &[Option<ast::Expr>],
        span: Span,
    ) -> Declared {
        let base = self.base(specifiers);
        self.declared_of(base, specifiers, pointers, sizes, span)
    }

    /// The same where the type before `*` is known: what one declaration says of its second name.
    pub(super) fn declared_of(
        &mut self,
        base: Type,
        specifiers: &ast::Specifiers,
        pointers: &[ast::Pointer],
        sizes: &[Option<ast::Expr>],
        span: Span,
    ) -> Declared {
        let mut ty = base;
        let (mut space, mut constant) = (specifiers.space, specifiers.constant);
        // `typedef uchar *bytes; __global bytes p` says where p points to.
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
                    "where a pointer points to is known when the filter is compiled: return an offset, or use an index",
                );
                ty = Type::Wrong;
            }
            if ty != Type::Wrong {
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
                    "where a pointer points to is known when the filter is compiled: use an array of offsets",
                );
                ty = Type::Wrong;
            }
            if ty == Type::Void {
                self.errors.add(span, "an array of `void`", "", "");
                ty = Type::Wrong;
            }
            match size {
                None if i == 0 => open = true,
                None => {
                    self.errors.add(span, "only an array's first size may be left out", "", "");
                    ty = Type::Wrong;
                }
                Some(size) => ty = self.array(ty, size),
            }
        }
        if specifiers.space == Some(Space::Private) && !matches!(ty, Type::Pointer(_)) {
            space = None;
        }
        Declared { ty, space, constant, open }
    }

    fn array(&mut self, of: Type, size: &ast::Expr) -> Type {
        let Some(count) = self.integer_constant(size, "an array's size") else { return Type::Wrong };
        let count = match u32::try_from(count) {
            Ok(count @ 1..=MAX_ELEMENTS) => count,
            _ => {
                let message = format!("an array of {count} elements");
                let note = format!("an array has 1 to {MAX_ELEMENTS} elements");
                self.errors.add(size.span, message, "", &note);
                return Type::Wrong;
            }
        };
        self.array_of(of, count, size.span)
    }

    pub(super) fn array_of(&mut self, of: Type, count: u32, span: Span) -> Type {
        if of == Type::Wrong {
            return of;
        }
        let Some((size, _)) = self.structs.layout(&of) else {
            self.errors.add(span, "an array of a type that is not defined yet", "", "");
            return Type::Wrong;
        };
        if self.structs.depth(&of) >= MAX_TYPE_DEPTH {
            self.errors.add(span, format!("types nest more than {MAX_TYPE_DEPTH} deep"), "", "");
            return Type::Wrong;
        }
        if u64::from(size) * u64::from(count) > u64::from(MAX_SIZE) {
            self.errors.add(span, format!("an array of more than {MAX_SIZE} bytes"), "", "");
            return Type::Wrong;
        }
        Type::Array(Rc::new(of), count)
    }

    fn structure(&mut self, it: &ast::Struct, span: Span) -> Type {
        let named = it.name.map(|(name, _)| name);
        let here = self.scopes.len() - 1;
        let found = named.and_then(|name| match it.fields {
            // Braces declare in this scope; a mention looks outwards.
            Some(_) => self.scopes[here].tags.get(&name).copied(),
            None => self.scopes.iter().rev().find_map(|scope| scope.tags.get(&name).copied()),
        });
        let id = match found {
            Some(Tag::Struct(id)) => id,
            Some(Tag::Enum(_)) => {
                self.errors.add(span, "this is an enumeration's name", "", "");
                return Type::Wrong;
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
            let base = self.base(&declaration.specifiers);
            for declarator in &declaration.declarators {
                let at = declarator.name_span;
                let sizes = &declarator.sizes;
                let declared = self.declared_of(base.clone(), &declaration.specifiers, &declarator.pointers, sizes, at);
                let ty = self.field(declared, declarator);
                if laid_out.iter().any(|(name, _)| *name == declarator.name) {
                    let message = format!("a second member `{}`", self.names.text(declarator.name));
                    self.errors.add(at, message, "", "");
                } else if ty != Type::Wrong {
                    laid_out.push((declarator.name, ty));
                }
            }
        }
        // Where there are some and each was refused, that has been said.
        if fields.iter().all(|declaration| declaration.declarators.is_empty()) {
            self.errors.add(span, "a structure without members", "", "");
        }
        self.structs.define(id, laid_out, it.packed);
        if self.structs.get(id).size > MAX_SIZE {
            self.errors.add(span, format!("a structure of more than {MAX_SIZE} bytes"), "", "");
            return Type::Wrong;
        }
        Type::Struct(id)
    }

    fn field(&mut self, declared: Declared, declarator: &ast::Declarator) -> Type {
        let span = declarator.name_span;
        let mut refuse = |message: &str, note: &str| {
            self.errors.add(span, message, "", note);
            Type::Wrong
        };
        if declarator.parameters.is_some() {
            return refuse("a function as a member", "");
        }
        if declarator.init.is_some() {
            return refuse("a member has no value of its own", "");
        }
        if declared.open {
            return refuse(
                "an array without a size as a member",
                "what lies behind a header is reached by a pointer: `(__global uchar *)(header + 1)`",
            );
        }
        match declared.ty {
            Type::Pointer(_) => refuse(
                "a pointer as a member",
                "where a pointer points to is known when the filter is compiled: keep an offset",
            ),
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
                self.errors.add(span, "this is a structure's name", "", "");
                return Type::Wrong;
            }
            (Some(Tag::Enum(_)), Some(_), Some(span)) => {
                self.errors.add(span, "this enumeration is defined twice", "", "");
            }
            (Some(Tag::Enum(ty)), None, _) => return Type::Scalar(ty),
            (None, None, Some(span)) => {
                self.errors.add(span, "this enumeration is not defined", "", "");
                return Type::Wrong;
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
            // What does not fit an int is a uint, as compilers have it.
            let ty = [Scalar::Int, Scalar::UInt].into_iter().find(|ty| ty.wrap(next) == next);
            match ty {
                Some(ty) => self.declare(*name, *span, Symbol::Integer(next as u64, Type::Scalar(ty))),
                None => self.errors.add(*span, "an enumeration's constants have 32 bits", "", ""),
            }
            all_positive &= next >= 0;
            next += 1;
        }
        // Which type goes with it is the implementation's (C11 6.7.2.2): gcc and clang take uint where
        // nothing is negative.
        let ty = if all_positive { Scalar::UInt } else { Scalar::Int };
        if let Some((name, _)) = it.name {
            self.scopes[here].tags.insert(name, Tag::Enum(ty));
        }
        Type::Scalar(ty)
    }

    /// The value of an integer constant expression (C11 6.6).
    pub(super) fn integer_constant(&mut self, expr: &ast::Expr, what: &str) -> Option<i128> {
        let value = self.value(expr);
        if value.ty == Type::Wrong {
            return None;
        }
        let known = value.constant().filter(|_| value.ty.is_integer());
        if known.is_none() {
            let message = format!("{what} has to be an integer that is known when the filter is compiled");
            self.errors.add(expr.span, message, "", "constants, `enum`, `sizeof` and operators between them are known");
        }
        known
    }

    /// The type of a cast or of `sizeof`.
    pub(super) fn type_name(&mut self, name: &ast::TypeName) -> Type {
        let declared = self.declared(&name.specifiers, &name.pointers, &name.sizes, name.span);
        if declared.open {
            self.errors.add(name.span, "an array without a size", "", "");
            return Type::Wrong;
        }
        declared.ty
    }

    /// A type's name, for messages.
    pub(super) fn shown(&self, ty: &Type) -> String {
        match ty {
            Type::Void => "void".into(),
            Type::Scalar(scalar) => scalar.name().into(),
            Type::Vector(scalar, size) => format!("{}{size}", scalar.name()),
            Type::Array(of, count) => format!("{}[{count}]", self.shown(of)),
            Type::Struct(id) => match self.structs.get(*id).name {
                Some(name) => format!("struct {}", self.names.text(name)),
                None => "a nameless structure".into(),
            },
            Type::Pointer(it) => {
                let space = match it.space {
                    Some(Space::Global) => "__global ",
                    Some(Space::Constant) => "__constant ",
                    Some(Space::Private) | None => "",
                };
                let constant = if it.constant && it.space != Some(Space::Constant) { "const " } else { "" };
                format!("{space}{constant}{} *", self.shown(&it.to))
            }
            Type::Wrong => "an unknown type".into(),
        }
    }

    /// The size of a type or value in bytes, as `sizeof` gives it.
    pub(super) fn size_of(&mut self, ty: &Type, span: Span) -> Expr {
        match self.structs.layout(ty) {
            Some((size, _)) => Expr { kind: ExprKind::Integer(u64::from(size)), ty: UINT, span },
            None if *ty == Type::Wrong => Expr { kind: ExprKind::Integer(0), ty: Type::Wrong, span },
            None => {
                let note = match ty {
                    Type::Pointer(_) => "a pointer is no value in memory here",
                    _ => "",
                };
                let message = format!("`{}` has no size", self.shown(ty));
                self.wrong(span, message, note)
            }
        }
    }
}
