//! Semantic analysis: resolves names, computes types, makes conversions explicit (C11 6.3) and
//! evaluates constants. The result is a typed [`tree`](super::tree).
//!
//! - [`types`]: declared types, structures, enumerations;
//! - [`declarations`]: functions, tables, variables; [`initialisers`]: their initialisers;
//! - [`statements`], [`expressions`], [`operators`], [`calls`]: function bodies, outermost first;
//! - [`maps`]: calls of map functions;
//! - [`unsupported_functions`]: built-in functions of OpenCL C that filters lack;
//! - [`constants`]: arithmetic on constants.

mod calls;
mod constants;
mod declarations;
mod expressions;
mod initialisers;
mod maps;
mod operators;
mod statements;
mod types;
mod unsupported_functions;

use std::collections::HashMap;

use super::ast;
use super::errors::Errors;
use super::files::Span;
use super::library;
use super::token::{Name, Names};
use super::tree::{Expr, ExprKind, Filter, Function, FunctionId, Local, LocalId, Table, TableId};
use super::types::{Scalar, Space, Structs, Type};
use portcullis_core::map::Declaration;
use portcullis_core::program::{FILTER_FUNCTION, FLOW_FUNCTION};

/// Checks a translation unit; returns `None` after reporting errors to `errors`.
pub(super) fn check(unit: &ast::Unit, names: &Names, maps: &[Declaration], errors: &mut Errors) -> Option<Filter> {
    let mut checker = Checker {
        names,
        maps,
        errors,
        structs: Structs::default(),
        tables: Vec::new(),
        functions: Vec::new(),
        calls: Vec::new(),
        scopes: vec![Scope::default()],
        current: FunctionContext::default(),
        uses_wide: false,
    };
    for item in &unit.items {
        if checker.errors.is_full() {
            break;
        }
        match item {
            ast::Item::Function(function) => checker.function(function),
            ast::Item::Declaration(declaration) => checker.global_declaration(declaration),
        }
    }
    checker.check_call_graph();
    let filter = checker.filter();
    let flow = checker.flow();
    let Checker { structs, tables, functions, errors, uses_wide, .. } = checker;
    match filter {
        Some(filter) if errors.is_empty() => Some(Filter { structs, tables, functions, filter, flow, uses_wide }),
        _ => None,
    }
}

struct Checker<'a> {
    names: &'a Names,
    /// Maps declared by the filter.
    maps: &'a [Declaration],
    errors: &'a mut Errors,
    structs: Structs,
    tables: Vec<Table>,
    functions: Vec<Function>,
    /// Call graph: caller, callee, place of the call.
    calls: Vec<(FunctionId, FunctionId, Span)>,
    scopes: Vec<Scope>,
    current: FunctionContext,
    /// See [`Filter::uses_wide`].
    uses_wide: bool,
}

/// Names declared in a block. Structures and enumerations have a name space of their own (C11
/// 6.2.3).
#[derive(Default)]
struct Scope {
    symbols: HashMap<Name, (Symbol, Span)>,
    tags: HashMap<Name, Tag>,
}

#[derive(Clone)]
enum Symbol {
    Local(LocalId),
    Table(TableId),
    /// An integer constant, as the bits of its type.
    Integer(u64, Type),
    Float(f32),
    Function(FunctionId),
    Type(Type),
}

#[derive(Clone, Copy)]
enum Tag {
    Struct(super::types::StructId),
    /// The underlying type, `int` or `uint`.
    Enum(Scalar),
}

/// State of the function being checked.
#[derive(Default)]
struct FunctionContext {
    id: Option<FunctionId>,
    locals: Vec<Local>,
    /// For each local, whether it is `const`.
    constant: Vec<bool>,
    /// Number of enclosing loops; `breakable` also counts switches.
    loops: u32,
    breakable: u32,
    /// Whether the current declaration is directly in the braces of a `switch`.
    in_switch: bool,
}

impl Checker<'_> {
    fn name(&self, name: Name) -> String {
        self.names.text(name).to_owned()
    }

    /// Reports an error and returns an expression of type [`Type::Error`].
    fn report_error(&mut self, span: Span, message: impl Into<String>, note: &str) -> Expr {
        self.errors.add(span, message, "", note);
        Expr { kind: ExprKind::Integer(0), ty: Type::Error, span }
    }

    fn find(&self, name: Name) -> Option<&(Symbol, Span)> {
        self.scopes.iter().rev().find_map(|scope| scope.symbols.get(&name))
    }

    fn declare(&mut self, name: Name, span: Span, symbol: Symbol) {
        let scope = self.scopes.last_mut().expect("the file's scope stays");
        if let Some((_, first)) = scope.symbols.get(&name) {
            let first = *first;
            let message = format!("`{}` is declared twice", self.names.text(name));
            self.errors.add_related(span, message, "", "", Some((first, "first declared here")));
            return;
        }
        scope.symbols.insert(name, (symbol, span));
    }

    /// Runs `inside` in a new scope.
    fn scoped<T>(&mut self, inside: impl FnOnce(&mut Self) -> T) -> T {
        self.scopes.push(Scope::default());
        let result = inside(self);
        self.scopes.pop();
        result
    }

    fn filter(&mut self) -> Option<FunctionId> {
        let note = format!("a filter is `uint {FILTER_FUNCTION}(__global uchar *pkt, uint len)`");
        let Some(at) = self.functions.iter().position(|f| f.name == FILTER_FUNCTION) else {
            if self.errors.is_empty() {
                self.errors.add_global(format!("there is no function `{FILTER_FUNCTION}`"), &note);
            }
            return None;
        };
        self.check_packet_function(at, &note)
    }

    /// The function that computes a packet's flow, if there is one.
    fn flow(&mut self) -> Option<FunctionId> {
        let at = self.functions.iter().position(|f| f.name == FLOW_FUNCTION)?;
        self.check_packet_function(
            at,
            &format!("a packet's flow is `uint {FLOW_FUNCTION}(__global uchar *pkt, uint len)`"),
        )
    }

    /// Checks that a function takes a packet and its length and returns `uint`.
    fn check_packet_function(&mut self, at: usize, note: &str) -> Option<FunctionId> {
        let function = &self.functions[at];
        let parameters: Vec<&Type> = function.parameters.iter().map(|p| &function.locals[p.0 as usize].ty).collect();
        let is_packet = |ty: &Type| match ty {
            Type::Pointer(it) => it.to == Type::Scalar(Scalar::UChar) && matches!(it.space, None | Some(Space::Global)),
            _ => false,
        };
        let fits = matches!(parameters.as_slice(), [pkt, len] if is_packet(pkt) && **len == super::types::UINT)
            && function.result == super::types::UINT;
        let (name, span) = (&function.name, function.span);
        if !fits {
            self.errors.add(span, format!("`{name}` has the wrong type"), "", note);
            return None;
        }
        if function.body.is_none() {
            self.errors.add(span, format!("`{name}` is declared but never defined"), "", note);
            return None;
        }
        Some(FunctionId(u32::try_from(at).ok()?))
    }

    /// Reports recursion, and calls of functions without a body.
    fn check_call_graph(&mut self) {
        for (_, callee, span) in &self.calls {
            let function = &self.functions[callee.0 as usize];
            if function.body.is_none() && self.errors.is_empty() {
                let message = format!("`{}` is called but never defined", function.name);
                self.errors.add_related(*span, message, "", "", Some((function.span, "declared here")));
            }
        }
        let mut callees: Vec<Vec<(usize, Span)>> = vec![Vec::new(); self.functions.len()];
        for (caller, callee, span) in &self.calls {
            callees[caller.0 as usize].push((callee.0 as usize, *span));
        }
        // 0: not visited, 1: on the stack, 2: done.
        let mut states = vec![0u8; callees.len()];
        for root in 0..callees.len() {
            let mut stack = if states[root] == 0 { vec![(root, 0)] } else { Vec::new() };
            while let Some((function, next)) = stack.last_mut() {
                states[*function] = 1;
                let Some(&(callee, span)) = callees[*function].get(*next) else {
                    states[*function] = 2;
                    stack.pop();
                    continue;
                };
                *next += 1;
                match states[callee] {
                    0 => stack.push((callee, 0)),
                    1 => {
                        let message = format!("`{}` calls itself", self.functions[callee].name);
                        let note = "recursion is not supported: devices have no stack for it; use a loop, whose iterations the fuel bounds";
                        let around: Vec<&str> = stack
                            .iter()
                            .skip_while(|(f, _)| *f != callee)
                            .map(|(f, _)| self.functions[*f].name.as_str())
                            .collect();
                        let label = if around.len() > 1 {
                            format!("through {}", around[1..].join(", "))
                        } else {
                            String::new()
                        };
                        self.errors.add(span, message, &label, note);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Reports names that a filter cannot use for its own functions and tables; returns whether it
    /// did.
    fn reject_reserved(&mut self, name: Name, span: Span) -> bool {
        let text = self.name(name);
        let message = format!("`{text}` cannot be declared");
        if let Some(place) = self.declaring_map(&text) {
            let note = "the map declares it: rename this or the map";
            self.errors.add_related(span, message, "", note, Some((place, "declared by this map")));
            return true;
        }
        let why = if library::is_prelude(self.maps, &text) {
            "the prelude already declares it"
        } else if calls::is_builtin(&text) {
            "OpenCL C has a built-in function of that name"
        } else if text.starts_with(portcullis_core::program::prelude::RESERVED_PREFIX) {
            "names that start with `pc_` are reserved for the prelude"
        } else {
            return false;
        };
        self.errors.add(span, message, "", why);
        true
    }
}
