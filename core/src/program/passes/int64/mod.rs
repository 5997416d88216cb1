//! 64-bit integers as pairs of `u32`, for devices that have none.
//!
//! The pass rebuilds the whole module. A `u64` or `i64` becomes a `vec2<u32>` with the low word
//! first, a vector of n of them an `array<vec2<u32>, n>` (see [`types`]); what holds them is rebuilt
//! around that with the same layout. Bitwise operations and equality are operations on vectors of
//! words; the rest are calls of the functions in `library.wgsl`, of which the module gets those that
//! are called. A module without 64-bit integers is left alone.
//!
//! It runs behind the passes that may add 64-bit operations. The library has no loops, so it costs no
//! fuel. Global variables keep their handles.
//! Functions move, because the library stands before its callers.

mod constants;
mod expressions;
mod function;
mod library;
mod statements;
#[cfg(test)]
mod tests;
mod types;

use std::collections::HashMap;

use naga::{Arena, Constant, EntryPoint, Expression, Function, GlobalVariable, Handle, Module, Span, SpecialTypes};

use super::FunctionMap;
use super::rewrite::remap_calls;
use function::FunctionLowering;
use types::{LoweredTypes, WideType, wide_conversion, wide_literal};

/// Why a module was left as it was: it holds what the verifier refuses, or what does not validate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("its 64-bit integers cannot be rewritten: {0}")]
pub(super) struct Int64Error(String);

/// Rewrites every 64-bit integer of the module. Gives the functions' new handles, or nothing where
/// there was nothing to do. Expects a module that validates, its `override`s resolved.
pub(super) fn run(module: &mut Module) -> Result<Option<FunctionMap>, Int64Error> {
    if !uses_int64(module) {
        return Ok(None);
    }
    let (lowered, moved) = lower(module)?;
    *module = lowered;
    Ok(Some(moved))
}

/// Whether a 64-bit integer occurs anywhere.
fn uses_int64(module: &Module) -> bool {
    let wide = |arena: &Arena<Expression>| {
        arena.iter().any(|(_, expression)| match *expression {
            Expression::Literal(literal) => wide_literal(literal).is_some(),
            Expression::As { kind, convert, .. } => wide_conversion(kind, convert),
            _ => false,
        })
    };
    module.types.iter().any(|(_, ty)| WideType::of(&ty.inner).is_some())
        || wide(&module.global_expressions)
        || module.functions.iter().any(|(_, f)| wide(&f.expressions))
        || module.entry_points.iter().any(|e| wide(&e.function.expressions))
}

/// A module that is read, and where its parts have gone. Constants are filled in as they are made.
struct SourceModule<'a> {
    module: &'a Module,
    types: Vec<Handle<naga::Type>>,
    constants: Vec<Handle<Constant>>,
    functions: Vec<Handle<Function>>,
}

/// The module that is made, but for its functions.
#[derive(Default)]
struct TargetModule {
    types: LoweredTypes,
    constants: Arena<Constant>,
    global_expressions: Arena<Expression>,
    /// A nameless constant for each 64-bit literal of a function.
    literals: HashMap<u64, Handle<Constant>>,
    /// The library's functions, by their index there.
    library: Vec<Handle<Function>>,
    /// Those that are called.
    used: Vec<bool>,
}

/// Builds the module anew. Functions get provisional handles, as if all of the library stood in
/// front, until it is known which of it is called.
fn lower(old: &Module) -> Result<(Module, FunctionMap), Int64Error> {
    let library = library::module();
    let mut provisional = Arena::new();
    let mut handles = |count: usize| -> Vec<_> {
        (0..count).map(|_| provisional.append(Function::default(), Span::UNDEFINED)).collect()
    };
    let mut target = TargetModule {
        library: handles(library.functions.len()),
        used: vec![false; library.functions.len()],
        ..TargetModule::default()
    };
    let types = target.types.import(old);
    let mut source =
        SourceModule { module: old, types, constants: Vec::new(), functions: handles(old.functions.len()) };

    let globals = target.lower_globals(&mut source)?;
    let mut module = Module {
        global_variables: lower_variables(&source, &globals),
        special_types: special_types(&source),
        overrides: old.overrides.clone(),
        diagnostic_filters: old.diagnostic_filters.clone(),
        diagnostic_filter_leaf: old.diagnostic_filter_leaf,
        ..Module::default()
    };
    let mut functions = Vec::new();
    for (handle, function) in old.functions.iter() {
        let lowered = FunctionLowering::new(&source, &mut target, function)?.run()?;
        functions.push((source.functions[handle.index()], lowered, old.functions.get_span(handle)));
    }
    for entry in &old.entry_points {
        let function = FunctionLowering::new(&source, &mut target, &entry.function)?.run()?;
        module.entry_points.push(EntryPoint { function, ..entry.clone() });
    }

    let library_source = SourceModule {
        types: target.types.import(library),
        module: library,
        constants: Vec::new(),
        functions: target.library.clone(),
    };
    let mut kept = Vec::new();
    // From the end, because a function calls only those before it.
    for (handle, function) in library.functions.iter().rev() {
        if target.used[handle.index()] {
            let lowered = FunctionLowering::new(&library_source, &mut target, function)?.run()?;
            target.called_by(&lowered);
            // The library's places mean nothing in the filter's text.
            kept.push((library_source.functions[handle.index()], lowered, Span::UNDEFINED));
        }
    }

    let mut settled = HashMap::new();
    for (provisional, function, span) in kept.into_iter().rev().chain(functions) {
        settled.insert(provisional, module.functions.append(function, span));
    }
    for (_, function) in module.functions.iter_mut() {
        remap_calls(function, &settled);
    }
    for entry in &mut module.entry_points {
        remap_calls(&mut entry.function, &settled);
    }
    module.types = target.types.arena;
    module.constants = target.constants;
    module.global_expressions = target.global_expressions;
    let moved = old.functions.iter().map(|(handle, _)| (handle, settled[&source.functions[handle.index()]])).collect();
    Ok((module, moved))
}

fn lower_variables(source: &SourceModule, globals: &[Handle<Expression>]) -> Arena<GlobalVariable> {
    let old = &source.module.global_variables;
    let mut variables = Arena::new();
    for (handle, variable) in old.iter() {
        let lowered = GlobalVariable {
            ty: source.types[variable.ty.index()],
            init: variable.init.map(|init| globals[init.index()]),
            ..variable.clone()
        };
        variables.append(lowered, old.get_span(handle));
    }
    variables
}

/// The types that naga keeps apart. Those of ray queries do not get past the verifier.
fn special_types(source: &SourceModule) -> SpecialTypes {
    let old = &source.module.special_types.predeclared_types;
    let predeclared_types = old.iter().map(|(kind, ty)| (kind.clone(), source.types[ty.index()])).collect();
    SpecialTypes { predeclared_types, ..SpecialTypes::default() }
}

impl TargetModule {
    /// Notes which of the library a function of the library calls.
    fn called_by(&mut self, function: &Function) {
        for (_, expression) in function.expressions.iter() {
            // Every function of the library gives a value.
            if let Expression::CallResult(callee) = expression {
                self.used[callee.index()] = true;
            }
        }
    }
}
