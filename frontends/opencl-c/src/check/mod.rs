//! What a text means: names are looked up, types worked out, conversions written out (C11 6.3),
//! constants evaluated. Out comes a [`tree`](super::tree), or everything that is wrong.
//!
//! - [`types`]: declared types, structures, enumerations;
//! - [`declarations`]: functions, tables, variables; [`initialisers`]: what they begin with;
//! - [`statements`], [`expressions`], [`operators`], [`calls`]: bodies, from the outside in;
//! - [`maps`]: calls of the filter's maps;
//! - [`absent`]: what OpenCL C has besides;
//! - [`constants`]: arithmetic on what is known.

mod absent;
mod calls;
mod constants;
mod declarations;
mod expressions;
mod initialisers;
mod maps;
mod operators;
mod statements;
mod types;

use std::collections::HashMap;

use super::ast;
use super::errors::Errors;
use super::files::Span;
use super::library;
use super::token::{Name, Names};
use super::tree::{Expr, ExprKind, Filter, Function, FunctionId, Local, LocalId, Table, TableId};
use super::types::{Scalar, Structs, Type};
use portcullis_core::map::Declaration;
use portcullis_core::program::{FILTER_FUNCTION, FLOW_FUNCTION};

/// Checks a text. `None` where something is wrong; what, is in `errors`.
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
        current: Current::default(),
        wide: false,
    };
    for item in &unit.items {
        if checker.errors.is_full() {
            break;
        }
        match item {
            ast::Item::Function(function) => checker.function(function),
            ast::Item::Declaration(declaration) => checker.outer_declaration(declaration),
        }
    }
    checker.no_recursion();
    let filter = checker.filter();
    let flow = checker.flow();
    let Checker { structs, tables, functions, errors, wide, .. } = checker;
    match filter {
        Some(filter) if errors.is_empty() => Some(Filter { structs, tables, functions, filter, flow, wide }),
        _ => None,
    }
}

struct Checker<'a> {
    names: &'a Names,
    /// The maps that the filter declares.
    maps: &'a [Declaration],
    errors: &'a mut Errors,
    structs: Structs,
    tables: Vec<Table>,
    functions: Vec<Function>,
    /// Who calls whom, and where.
    calls: Vec<(FunctionId, FunctionId, Span)>,
    scopes: Vec<Scope>,
    current: Current,
    /// See [`Filter::wide`].
    wide: bool,
}

/// Names declared in a block. Structures and enumerations have names of their own (C11 6.2.3).
#[derive(Default)]
struct Scope {
    symbols: HashMap<Name, (Symbol, Span)>,
    tags: HashMap<Name, Tag>,
}

#[derive(Clone)]
enum Symbol {
    Local(LocalId),
    Table(TableId),
    /// An integer that is known, as the bits of its type.
    Integer(u64, Type),
    Float(f32),
    Function(FunctionId),
    Type(Type),
}

#[derive(Clone, Copy)]
enum Tag {
    Struct(super::types::StructId),
    /// `int` or `uint`.
    Enum(Scalar),
}

/// The function under way.
#[derive(Default)]
struct Current {
    id: Option<FunctionId>,
    locals: Vec<Local>,
    /// Which of them are `const`.
    constant: Vec<bool>,
    /// How many loops, and loops and switches, there are around.
    loops: u32,
    breakable: u32,
    /// Whether what is declared now stands directly in the braces of a `switch`.
    in_switch: bool,
}

impl Checker<'_> {
    fn name(&self, name: Name) -> String {
        self.names.text(name).to_owned()
    }

    /// Says what is wrong, and gives what goes with everything.
    fn wrong(&mut self, span: Span, message: impl Into<String>, note: &str) -> Expr {
        self.errors.add(span, message, "", note);
        Expr { kind: ExprKind::Integer(0), ty: Type::Wrong, span }
    }

    fn find(&self, name: Name) -> Option<&(Symbol, Span)> {
        self.scopes.iter().rev().find_map(|scope| scope.symbols.get(&name))
    }

    fn declare(&mut self, name: Name, span: Span, symbol: Symbol) {
        let scope = self.scopes.last_mut().expect("the file's scope stays");
        if let Some((_, first)) = scope.symbols.get(&name) {
            let first = *first;
            let message = format!("`{}` is declared twice", self.names.text(name));
            self.errors.with(span, message, "", "", Some((first, "declared here before")));
            return;
        }
        scope.symbols.insert(name, (symbol, span));
    }

    /// Runs `inside` in a scope of its own.
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
                self.errors.whole(format!("there is no function `{FILTER_FUNCTION}`"), &note);
            }
            return None;
        };
        self.of_packets(at, &note)
    }

    /// The function that says which flow a packet belongs to, where there is one.
    fn flow(&mut self) -> Option<FunctionId> {
        let at = self.functions.iter().position(|f| f.name == FLOW_FUNCTION)?;
        self.of_packets(at, &format!("a packet's flow is `uint {FLOW_FUNCTION}(__global uchar *pkt, uint len)`"))
    }

    /// A function that is called with a packet and its length, and is refused otherwise.
    fn of_packets(&mut self, at: usize, note: &str) -> Option<FunctionId> {
        let function = &self.functions[at];
        let parameters: Vec<&Type> = function.parameters.iter().map(|p| &function.locals[p.0 as usize].ty).collect();
        let is_packet = |ty: &Type| match ty {
            Type::Pointer(it) => {
                it.to == Type::Scalar(Scalar::UChar) && matches!(it.space, None | Some(ast::Space::Global))
            }
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
            self.errors.add(span, format!("`{name}` is declared and never defined"), "", note);
            return None;
        }
        Some(FunctionId(u32::try_from(at).ok()?))
    }

    /// Refuses functions that call themselves, and calls of functions without a body.
    fn no_recursion(&mut self) {
        for (_, callee, span) in &self.calls {
            let function = &self.functions[callee.0 as usize];
            if function.body.is_none() && self.errors.is_empty() {
                let message = format!("`{}` is called and never defined", function.name);
                self.errors.with(*span, message, "", "", Some((function.span, "declared here")));
            }
        }
        let mut callees: Vec<Vec<(usize, Span)>> = vec![Vec::new(); self.functions.len()];
        for (caller, callee, span) in &self.calls {
            callees[caller.0 as usize].push((callee.0 as usize, *span));
        }
        // 0: not seen, 1: under way, 2: done.
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
                        let note = "there is no recursion: devices have no stack for it; use a loop, whose rounds the fuel bounds";
                        let around: Vec<&str> = stack
                            .iter()
                            .skip_while(|(f, _)| *f != callee)
                            .map(|(f, _)| self.functions[*f].name.as_str())
                            .collect();
                        let label = if around.len() > 1 {
                            format!("by way of {}", around[1..].join(", "))
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

    /// Refuses names that a filter cannot give its own functions and tables; says whether it did.
    fn refuse_reserved(&mut self, name: Name, span: Span) -> bool {
        let text = self.name(name);
        let message = format!("`{text}` cannot be declared");
        if let Some(place) = self.declaration_that_brings(&text) {
            let note = "it is there without being declared: give this another name, or the map";
            self.errors.with(span, message, "", note, Some((place, "it comes with this map")));
            return true;
        }
        let why = if library::is_prelude(self.maps, &text) {
            "the prelude has it already: its names are there without being declared"
        } else if calls::is_builtin(&text) {
            "OpenCL C has a built-in function of that name"
        } else if text.starts_with(portcullis_core::program::prelude::RESERVED_PREFIX) {
            "names that begin with `pc_` are the machinery's own"
        } else {
            return false;
        };
        self.errors.add(span, message, "", why);
        true
    }
}
