//! Lowering of 64-bit integers to pairs of `u32`, for devices that have none.
//!
//! The pass rebuilds the whole module. A `u64` or `i64` becomes a `vec2<u32>` with the low word
//! first, a vector of n of them an `array<vec2<u32>, n>` (see [`types`]); types that contain them
//! are rebuilt with the same layout. Bitwise operations and equality become operations on vectors
//! of words. All others become calls of functions in `library.wgsl`; only the functions that are
//! called are added to the module. A module without 64-bit integers stays as it is.
//!
//! The pass runs after those that may add 64-bit operations. The library has no loops, so it costs
//! no fuel. Global variables keep their handles; functions get new ones, because the library
//! precedes its callers.

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

/// The module contains something that the verifier rejects or that does not validate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot lower 64-bit integers: {0}")]
pub(super) struct Int64Error(String);

/// Rewrites all 64-bit integers of a valid module whose `override`s are resolved. Returns the
/// functions' new handles, or `None` if there are no 64-bit integers.
pub(super) fn run(module: &mut Module) -> Result<Option<FunctionMap>, Int64Error> {
    if !uses_int64(module) {
        return Ok(None);
    }
    let (lowered, moved) = lower(module)?;
    *module = lowered;
    Ok(Some(moved))
}

/// Whether the module contains a 64-bit integer.
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

/// The original module, with the new handles of its parts. `constants` grows as they are lowered.
struct SourceModule<'a> {
    module: &'a Module,
    types: Vec<Handle<naga::Type>>,
    constants: Vec<Handle<Constant>>,
    functions: Vec<Handle<Function>>,
}

/// The module under construction, except its functions.
#[derive(Default)]
struct TargetModule {
    types: LoweredTypes,
    constants: Arena<Constant>,
    global_expressions: Arena<Expression>,
    /// Anonymous constants for 64-bit literals in functions, by value.
    literals: HashMap<u64, Handle<Constant>>,
    /// Handles of the library's functions, by their index in the library.
    library: Vec<Handle<Function>>,
    /// Whether each library function is called, likewise.
    used: Vec<bool>,
}

/// Builds the new module. Functions have provisional handles, as if the whole library preceded
/// them, until it is known which library functions are called.
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
    let types = target.types.import_types(old);
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
        types: target.types.import_types(library),
        module: library,
        constants: Vec::new(),
        functions: target.library.clone(),
    };
    let mut kept = Vec::new();
    // From the last to the first, because a function calls only those before it.
    for (handle, function) in library.functions.iter().rev() {
        if target.used[handle.index()] {
            let lowered = FunctionLowering::new(&library_source, &mut target, function)?.run()?;
            target.mark_callees(&lowered);
            // Spans of the library would be taken for positions in the filter's text.
            kept.push((library_source.functions[handle.index()], lowered, Span::UNDEFINED));
        }
    }

    let mut new_handles = HashMap::new();
    for (provisional, function, span) in kept.into_iter().rev().chain(functions) {
        new_handles.insert(provisional, module.functions.append(function, span));
    }
    for (_, function) in module.functions.iter_mut() {
        remap_calls(function, &new_handles);
    }
    for entry in &mut module.entry_points {
        remap_calls(&mut entry.function, &new_handles);
    }
    module.types = target.types.arena;
    module.constants = target.constants;
    module.global_expressions = target.global_expressions;
    let moved =
        old.functions.iter().map(|(handle, _)| (handle, new_handles[&source.functions[handle.index()]])).collect();
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

/// Types that naga refers to by name. The verifier rejects those of ray queries.
fn special_types(source: &SourceModule) -> SpecialTypes {
    let old = &source.module.special_types.predeclared_types;
    let predeclared_types = old.iter().map(|(kind, ty)| (kind.clone(), source.types[ty.index()])).collect();
    SpecialTypes { predeclared_types, ..SpecialTypes::default() }
}

impl TargetModule {
    /// Marks the library functions that a library function calls.
    fn mark_callees(&mut self, function: &Function) {
        for (_, expression) in function.expressions.iter() {
            // Every library function returns a value, so each call has a result expression.
            if let Expression::CallResult(callee) = expression {
                self.used[callee.index()] = true;
            }
        }
    }
}
