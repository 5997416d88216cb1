//! Limits on what would exhaust a compiler or a device: memory, statements, nesting.
//!
//! Everything is counted with all helpers inlined, because that is what devices do. A function
//! follows those it calls, so one pass over the module suffices.

use std::collections::HashSet;

use naga::proc::{Layouter, TypeResolution};
use naga::valid::ModuleInfo;
use naga::{AddressSpace, Block, Expression, Function, Handle, Module, Statement, Type, TypeInner};

use super::statements::child_blocks;
use super::{Errors, VerifierInput, name_range, text_range};

/// Maximum number of bytes of private memory for a packet: `var<private>` variables, and the local
/// variables along the deepest chain of calls.
pub const MAX_PRIVATE_BYTES: u64 = 16 << 10;

/// Maximum number of statements of naga's IR with helpers inlined; a call of a prelude function
/// counts as one, and so does a `case`.
pub const MAX_STATEMENTS: u64 = 65_536;

/// Maximum number of expressions of naga's IR with helpers inlined.
pub const MAX_EXPRESSIONS: u64 = 4 * MAX_STATEMENTS;

/// Maximum nesting of statements with helpers inlined, a call counting as one level. A `for` or
/// `while` is three levels in naga's IR.
pub const MAX_NESTING: usize = 1_024;

/// Maximum nesting of structures and arrays (WGSL, section 2.4).
pub const MAX_TYPE_DEPTH: usize = 15;

/// Maximum number of parameters of a function (WGSL, section 2.4).
pub const MAX_FUNCTION_PARAMETERS: usize = 255;

/// Cost of a function with its helpers inlined.
#[derive(Clone, Copy, Default)]
struct Cost {
    statements: u64,
    expressions: u64,
    nesting: usize,
    /// Bytes of local variables along the deepest chain of calls.
    bytes: u64,
    /// The next function on that chain.
    next: Option<Handle<Function>>,
}

pub(super) fn check(input: &VerifierInput, info: &ModuleInfo, errors: &mut Errors) {
    let module = input.module;
    let mut layouter = Layouter::default();
    if let Err(error) = layouter.update(module.to_ctx()) {
        errors.add(None, error.to_string(), "", "");
        return;
    }
    check_types(input, &layouter, errors);
    let mut costs = vec![Cost::default(); module.functions.len()];
    for (handle, function) in module.functions.iter() {
        let mut cost = Cost { statements: 0, expressions: function.expressions.len() as u64, ..Cost::default() };
        if input.prelude.contains(&handle) {
            // Calls of the prelude count as one statement, at the call.
            costs[handle.index()] = Cost { expressions: 1, nesting: 1, ..Cost::default() };
            continue;
        }
        check_values(input, info, &layouter, handle, function, errors);
        if function.arguments.len() > MAX_FUNCTION_PARAMETERS {
            let message = format!("a function has at most {MAX_FUNCTION_PARAMETERS} parameters");
            errors.add(input.name_of(handle), message, "", "");
        }
        cost.nesting = count_block(&function.body, &costs, &mut cost);
        let own = function.local_variables.iter().map(|(_, local)| u64::from(layouter[local.ty].size));
        let own = own.fold(0, u64::saturating_add);
        cost.bytes =
            cost.bytes.saturating_add(own).saturating_add(spilled_bytes(module, info, &layouter, handle, function));
        costs[handle.index()] = cost;
    }
    let globals = module.global_variables.iter().filter(|(handle, variable)| {
        variable.space == AddressSpace::Private
            && text_range(input.source, module.global_variables.get_span(*handle)).is_some()
    });
    let globals = globals.map(|(_, variable)| u64::from(layouter[variable.ty].size)).fold(0, u64::saturating_add);
    for root in input.roots() {
        check_total(input, root, globals, &costs, errors);
    }
}

/// Checks the total cost of a function that the device calls.
fn check_total(input: &VerifierInput, root: Handle<Function>, globals: u64, costs: &[Cost], errors: &mut Errors) {
    let total = costs[root.index()];
    let at = || input.name_of(root);
    let name = input.module.functions[root].name.as_deref().unwrap_or_default();
    let module = input.module;
    let bytes = globals.saturating_add(total.bytes);
    if bytes > MAX_PRIVATE_BYTES {
        let mut chain = format!("`{name}`");
        let mut next = total.next;
        while let Some(function) = next {
            chain.push_str(&format!(", `{}`", module.functions[function].name.as_deref().unwrap_or_default()));
            next = costs[function.index()].next;
        }
        let message = format!("the filter needs {bytes} bytes of private memory a packet");
        let note = format!(
            "at most {MAX_PRIVATE_BYTES}: here {globals} in `var<private>`, {} in the local variables and dynamically \
             indexed constants of {chain}",
            total.bytes
        );
        errors.add(at(), message, "", &note);
    }
    let inlined = "counted with every helper inlined where it is called; a loop needs no more statements than its body";
    if total.statements > MAX_STATEMENTS {
        let message = format!("the filter has {} statements, at most {MAX_STATEMENTS} are allowed", total.statements);
        errors.add(at(), message, "", inlined);
    } else if total.expressions > MAX_EXPRESSIONS {
        let message =
            format!("the filter has {} expressions, at most {MAX_EXPRESSIONS} are allowed", total.expressions);
        errors.add(at(), message, "", inlined);
    } else if total.nesting > MAX_NESTING {
        let message = format!("the filter's statements nest {} deep, at most {MAX_NESTING} are allowed", total.nesting);
        errors.add(at(), message, "", inlined);
    }
}

/// Adds the statements of a block and of the functions it calls to `cost`. Returns the nesting.
fn count_block(block: &Block, costs: &[Cost], cost: &mut Cost) -> usize {
    let mut deepest = 0;
    for statement in block.iter() {
        cost.statements = cost.statements.saturating_add(1);
        if let Statement::Call { function, .. } = *statement {
            let callee = costs[function.index()];
            cost.statements = cost.statements.saturating_add(callee.statements);
            cost.expressions = cost.expressions.saturating_add(callee.expressions);
            if callee.bytes > cost.bytes {
                (cost.bytes, cost.next) = (callee.bytes, Some(function));
            }
            deepest = deepest.max(callee.nesting);
        }
        if let Statement::Switch { ref cases, .. } = *statement {
            cost.statements = cost.statements.saturating_add(cases.len() as u64);
        }
        for inner in child_blocks(statement) {
            deepest = deepest.max(count_block(inner, costs, cost));
        }
    }
    deepest + 1
}

/// Bytes of values with a dynamic index: devices copy them to private memory first.
fn spilled_bytes(
    module: &Module,
    info: &ModuleInfo,
    layouter: &Layouter,
    handle: Handle<Function>,
    function: &Function,
) -> u64 {
    let mut seen = HashSet::new();
    let mut bytes = 0u64;
    for (_, expression) in function.expressions.iter() {
        let Expression::Access { base, .. } = *expression else { continue };
        let TypeResolution::Handle(ty) = info[handle][base].ty else { continue };
        if !matches!(module.types[ty].inner, TypeInner::Array { .. }) {
            continue;
        }
        // Each use of a constant is an expression of its own, so count constants once.
        let key = match function.expressions[base] {
            Expression::Constant(constant) => (true, constant.index()),
            _ => (false, base.index()),
        };
        if seen.insert(key) {
            bytes = bytes.saturating_add(u64::from(layouter[ty].size));
        }
    }
    bytes
}

/// Rejects values larger than private memory, which no device could hold.
fn check_values(
    input: &VerifierInput,
    info: &ModuleInfo,
    layouter: &Layouter,
    handle: Handle<Function>,
    function: &Function,
    errors: &mut Errors,
) {
    for (expression, _) in function.expressions.iter() {
        let TypeResolution::Handle(ty) = info[handle][expression].ty else { continue };
        if let Some(message) = value_too_large(input.module, layouter, ty) {
            let at = text_range(input.source, function.expressions.get_span(expression));
            errors.add(at.or_else(|| input.name_of(handle)), message, "", "");
        }
    }
}

fn check_types(input: &VerifierInput, layouter: &Layouter, errors: &mut Errors) {
    let module = input.module;
    let mut depths = vec![0usize; module.types.len()];
    for (handle, ty) in module.types.iter() {
        let below = match ty.inner {
            TypeInner::Array { base, .. } | TypeInner::Pointer { base, .. } => depths[base.index()],
            TypeInner::Struct { ref members, .. } => {
                members.iter().map(|m| depths[m.ty.index()]).max().unwrap_or_default()
            }
            _ => 0,
        };
        depths[handle.index()] = below + 1;
        // Report the first type that is too deep; types built from it are deeper because of it.
        if below == MAX_TYPE_DEPTH {
            let name = ty.name.as_deref().unwrap_or_default();
            let at = name_range(input.source, module.types.get_span(handle), name);
            errors.add(at, format!("types nest more than {MAX_TYPE_DEPTH} deep"), "", "");
        }
    }
    for (handle, constant) in module.constants.iter() {
        if let Some(message) = value_too_large(module, layouter, constant.ty) {
            let name = constant.name.as_deref().unwrap_or_default();
            errors.add(name_range(input.source, module.constants.get_span(handle), name), message, "", "");
        }
    }
}

fn value_too_large(module: &Module, layouter: &Layouter, ty: Handle<Type>) -> Option<String> {
    if module.types[ty].inner.pointer_space().is_some() {
        return None;
    }
    let size = u64::from(layouter[ty].size);
    (size > MAX_PRIVATE_BYTES)
        .then(|| format!("a value of {size} bytes is too large: private memory is {MAX_PRIVATE_BYTES} bytes a packet"))
}
