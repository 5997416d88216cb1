//! Declarations of functions, tables and variables.

use super::types::DeclaredType;
use super::{Checker, FunctionContext, Symbol};
use crate::ast::{self, Init as AstInit};
use crate::files::Span;
use crate::tree::{
    Expr, ExprKind, Function, FunctionId, Init, Local, LocalId, Statement, StatementKind, Table, TableId,
};
use crate::types::Space;
use crate::types::Type;

/// Maximum number of values in a `__constant` table, and in all tables together.
const MAX_TABLE_VALUES: usize = 16_384;
const MAX_TOTAL_TABLE_VALUES: usize = 65_536;

impl Checker<'_> {
    /// Checks a declaration outside functions.
    pub(super) fn global_declaration(&mut self, declaration: &ast::Declaration) {
        let base = self.base_type(&declaration.specifiers);
        for declarator in &declaration.declarators {
            let specifiers = &declaration.specifiers;
            if specifiers.typedef {
                self.typedef(base.clone(), specifiers, declarator);
            } else if declarator.parameters.is_some() {
                self.signature(base.clone(), specifiers, declarator);
            } else {
                let span = declarator.name_span;
                let (pointers, sizes) = (&declarator.pointers, &declarator.sizes);
                let declared = self.declared_type_from_base(base.clone(), specifiers, pointers, sizes, span);
                let is_constant =
                    declared.space == Some(Space::Constant) || declared.space.is_none() && declared.constant;
                if self.reject_reserved(declarator.name, span) {
                    continue;
                }
                if is_constant && !matches!(declared.ty, Type::Pointer(_)) {
                    self.table(declared, declarator);
                } else {
                    let note = "packets share no state: declare variables in functions, and tables `__constant`";
                    self.errors.add(span, "a variable outside functions", "", note);
                }
            }
        }
    }

    fn typedef(&mut self, base: Type, specifiers: &ast::Specifiers, declarator: &ast::Declarator) {
        let span = declarator.name_span;
        if declarator.parameters.is_some() || declarator.init.is_some() {
            self.errors.add(span, "a `typedef` cannot have parameters or a value", "", "");
            return;
        }
        let declared = self.declared_type_from_base(base, specifiers, &declarator.pointers, &declarator.sizes, span);
        if declared.open {
            self.errors.add(span, "an array without a size", "", "");
            return;
        }
        // A repeated identical `typedef` is allowed (C11 6.7).
        let same = matches!(
            self.scopes.last().and_then(|s| s.symbols.get(&declarator.name)),
            Some((Symbol::Type(before), _)) if *before == declared.ty
        );
        if !same {
            self.declare(declarator.name, span, Symbol::Type(declared.ty));
        }
    }

    /// Declares a constant or a table.
    fn table(&mut self, declared: DeclaredType, declarator: &ast::Declarator) {
        let (name, span) = (declarator.name, declarator.name_span);
        let Some(init) = &declarator.init else {
            let message = format!("`{}` has no value", self.names.text(name));
            self.errors.add(span, message, "", "a `__constant` must be initialised");
            return;
        };
        let Some((ty, init)) = self.check_initialiser(declared.ty, declared.open, init, span) else { return };
        let ty = &ty;
        let count = self.structs.scalars(ty) as usize;
        let total = self.tables.iter().map(|table| table.values.len()).sum::<usize>() + count;
        if count > MAX_TABLE_VALUES || total > MAX_TOTAL_TABLE_VALUES {
            let note =
                format!("a table has at most {MAX_TABLE_VALUES} values, all tables together {MAX_TOTAL_TABLE_VALUES}");
            self.errors.add(span, format!("a table of {count} values"), "", &note);
            return;
        }
        let mut values = vec![0u64; count];
        let parts = match init {
            Init::Value(value) => vec![(Vec::new(), value)],
            Init::Parts(parts) => parts,
        };
        for (path, value) in &parts {
            let at = self.scalar_at(ty, path) as usize;
            let mut scalars = Vec::new();
            if !super::constants::scalars(value, &mut scalars) {
                if value.ty != Type::Error {
                    self.errors.add(value.span, "this is not a constant", "", "a `__constant` needs constant values");
                }
                return;
            }
            for (to, from) in values.iter_mut().skip(at).zip(scalars) {
                *to = from;
            }
        }
        let symbol = match (ty, values.as_slice()) {
            (Type::Scalar(scalar), [bits]) if scalar.is_integer() => Symbol::Integer(*bits, ty.clone()),
            (Type::Scalar(_), [bits]) => Symbol::Float(f32::from_bits(*bits as u32)),
            _ => {
                let id = TableId(self.tables.len() as u32);
                self.tables.push(Table { name: self.name(name), ty: ty.clone(), span, values });
                Symbol::Table(id)
            }
        };
        self.declare(name, span, symbol);
    }

    /// Declares a function, or finds its previous declaration. Its parameters are the first locals.
    fn signature(
        &mut self,
        base: Type,
        specifiers: &ast::Specifiers,
        declarator: &ast::Declarator,
    ) -> Option<FunctionId> {
        let span = declarator.name_span;
        let name = self.name(declarator.name);
        if self.reject_reserved(declarator.name, span) {
            return None;
        }
        let result = self.declared_type_from_base(base, specifiers, &declarator.pointers, &[], span);
        let mut locals = Vec::new();
        let mut wrong = result.ty == Type::Error;
        for parameter in declarator.parameters.iter().flatten() {
            let (name, at) = match parameter.name {
                Some((name, at)) => (self.name(name), at),
                None => (String::new(), parameter.span),
            };
            let declared = self.declared_type(&parameter.specifiers, &parameter.pointers, &parameter.sizes, at);
            let ty = match declared.ty {
                // An array parameter is adjusted to a pointer (C11 6.7.6.3).
                of if declared.open => Type::pointer(of, declared.space, declared.constant),
                Type::Array(of, _) => Type::pointer((*of).clone(), declared.space, declared.constant),
                Type::Void => {
                    self.errors.add(at, "a parameter of type `void`", "", "");
                    Type::Error
                }
                Type::Struct(id) if self.structs.get(id).fields.is_none() => {
                    self.errors.add(at, "a parameter of a type that is not defined yet", "", "");
                    Type::Error
                }
                ty => ty,
            };
            wrong |= ty == Type::Error;
            locals.push(Local { name, span: at, ty, is_used: false, is_mutated: false, may_be_skipped: false });
        }
        if wrong {
            // Declare the name so that calls report no further error.
            self.scopes[0].symbols.entry(declarator.name).or_insert((Symbol::Type(Type::Error), span));
            return None;
        }
        let parameters = (0..locals.len() as u32).map(LocalId).collect();
        if let Some((symbol, first)) = self.scopes[0].symbols.get(&declarator.name).cloned() {
            let Symbol::Function(id) = symbol else {
                self.declare(declarator.name, span, Symbol::Type(Type::Error));
                return None;
            };
            let before = &self.functions[id.0 as usize];
            let types =
                |locals: &[Local], count: usize| locals[..count].iter().map(|l| l.ty.clone()).collect::<Vec<_>>();
            let same = before.result == result.ty
                && before.parameters.len() == locals.len()
                && types(&before.locals, locals.len()) == types(&locals, locals.len());
            if !same {
                let message = format!("`{name}` is declared with another type");
                self.errors.add_related(span, message, "", "", Some((first, "first declared here")));
                return None;
            }
            return Some(id);
        }
        let id = FunctionId(self.functions.len() as u32);
        self.functions.push(Function { name, span, result: result.ty, parameters, locals, body: None });
        self.declare(declarator.name, span, Symbol::Function(id));
        Some(id)
    }

    pub(super) fn function(&mut self, function: &ast::Function) {
        let declarator = &function.declarator;
        let base = self.base_type(&function.specifiers);
        let Some(id) = self.signature(base, &function.specifiers, declarator) else {
            return;
        };
        let known = &mut self.functions[id.0 as usize];
        if known.body.is_some() {
            let (message, first) = (format!("`{}` is defined twice", known.name), known.span);
            self.errors.add_related(declarator.name_span, message, "", "", Some((first, "first defined here")));
            return;
        }
        known.span = declarator.name_span;
        let mut locals = std::mem::take(&mut known.locals);
        let constant = locals.iter().map(|_| false).collect();
        for (local, parameter) in locals.iter_mut().zip(declarator.parameters.iter().flatten()) {
            // A prototype's parameter names have no meaning.
            if let Some((name, span)) = parameter.name {
                (local.name, local.span) = (self.names.text(name).to_owned(), span);
            }
        }
        self.current = FunctionContext { id: Some(id), locals, constant, ..FunctionContext::default() };
        let body = self.scoped(|this| {
            for (i, parameter) in declarator.parameters.iter().flatten().enumerate() {
                match parameter.name {
                    Some((name, span)) => this.declare(name, span, Symbol::Local(LocalId(i as u32))),
                    None => this.errors.add(parameter.span, "a parameter without a name", "", ""),
                }
            }
            this.statements(&function.body)
        });
        let locals = std::mem::take(&mut self.current).locals;
        let known = &mut self.functions[id.0 as usize];
        (known.locals, known.body) = (locals, Some(body));
    }

    /// Checks a declaration in a function.
    pub(super) fn local_declaration(&mut self, declaration: &ast::Declaration, out: &mut Vec<Statement>) {
        let base = self.base_type(&declaration.specifiers);
        for declarator in &declaration.declarators {
            let specifiers = &declaration.specifiers;
            let span = declarator.name_span;
            if specifiers.typedef {
                self.typedef(base.clone(), specifiers, declarator);
                continue;
            }
            if declarator.parameters.is_some() {
                self.errors.add(span, "a function declared in a function", "", "declare it outside");
                continue;
            }
            let (pointers, sizes) = (&declarator.pointers, &declarator.sizes);
            let declared = self.declared_type_from_base(base.clone(), specifiers, pointers, sizes, span);
            match declared.space {
                Some(Space::Constant) if !matches!(declared.ty, Type::Pointer(_)) => {
                    self.table(declared, declarator);
                    continue;
                }
                Some(Space::Global) => {
                    let note = "`__global` is the packet: a variable can point into it but not be in it";
                    self.errors.add(span, "a `__global` variable", "", note);
                    continue;
                }
                _ => {}
            }
            // A constant is the same in each call, so `static` makes no difference.
            if let Some((word, at)) = specifiers.storage
                && !(declared.constant && declarator.init.is_some())
            {
                let note = format!(
                    "packets share no state, and a variable starts anew with each call: leave out `{word}`; declare tables `__constant`"
                );
                self.errors.add(at, format!("a variable declared `{word}`"), "", &note);
            }
            if let Some(statement) = self.variable(declared, declarator) {
                out.push(statement);
            }
        }
    }

    fn variable(&mut self, declared: DeclaredType, declarator: &ast::Declarator) -> Option<Statement> {
        let (name, span) = (declarator.name, declarator.name_span);
        let constant = declared.constant;
        // A name is visible in its own initialiser, except for an array sized by it.
        let (mut ty, open) = (declared.ty, declared.open);
        match &ty {
            Type::Void => {
                self.errors.add(span, "a variable of type `void`", "", "");
                ty = Type::Error;
            }
            Type::Struct(id) if self.structs.get(*id).fields.is_none() => {
                self.errors.add(span, "a variable of a type that is not defined", "", "");
                ty = Type::Error;
            }
            _ => {}
        }
        let mut init = None;
        if open {
            let Some(given) = &declarator.init else {
                self.errors.add(span, "an array without a size", "", "give it one, or values");
                return None;
            };
            let (found, value) = self.check_initialiser(ty, true, given, span)?;
            (ty, init) = (found, Some(value));
        }
        let id = LocalId(self.current.locals.len() as u32);
        let may_be_skipped = self.current.in_switch;
        let text = self.name(name);
        self.current.locals.push(Local {
            name: text,
            span,
            ty: ty.clone(),
            is_used: false,
            is_mutated: false,
            may_be_skipped,
        });
        self.current.constant.push(constant);
        self.declare(name, span, Symbol::Local(id));
        if ty == Type::Error {
            if let Some(AstInit::Value(value)) = &declarator.init {
                self.value(value);
            }
            return None;
        }
        if !open && let Some(given) = &declarator.init {
            init = self.check_initialiser(ty, false, given, span).map(|(_, init)| init);
        }
        Some(Statement { kind: StatementKind::Declare(id, init), span: declarator_span(span, declarator) })
    }

    /// An integer constant of a type; wraps.
    pub(super) fn integer(value: i128, ty: Type, span: Span) -> Expr {
        let wrapped = ty.scalar().map_or(value, |scalar| scalar.wrap(value));
        Expr { kind: ExprKind::Integer(wrapped as u64), ty, span }
    }
}

fn declarator_span(name: Span, declarator: &ast::Declarator) -> Span {
    match &declarator.init {
        Some(AstInit::Value(value)) => name.to(value.span),
        Some(AstInit::List(_, span)) => name.to(*span),
        None => name,
    }
}
