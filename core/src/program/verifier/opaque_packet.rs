//! That the packet is opaque. The value of `pkt` says where a packet lies in its batch, and a batch
//! is cut differently on every device: a filter that could look at it could see that. So the value
//! may only be handed on, to the prelude's functions and to helpers.
//!
//! A parameter is *opaque* when it is the filter's or `xdp_flow`'s, when its function gives it to the prelude as a
//! packet, when it is handed to an opaque parameter, or an opaque parameter to it. Every other use of
//! an opaque parameter is refused, and so is every value that is handed on as a packet and is none.

use std::collections::{HashMap, HashSet};

use naga::{Expression, Function, Handle, Statement};

use super::statements::visit_statements;
use super::{Errors, VerifierInput, text_range};

/// A parameter: the function, and the parameter's index.
type Parameter = (Handle<Function>, usize);

pub(super) fn check(parts: &VerifierInput, errors: &mut Errors) {
    let opaque = opaque_parameters(parts);
    for (handle, function) in parts.own_functions() {
        uses(parts, &opaque, handle, function, errors);
    }
}

fn opaque_parameters(parts: &VerifierInput) -> HashSet<Parameter> {
    // Parameters that are handed to one another are opaque together.
    let mut together: HashMap<Parameter, Vec<Parameter>> = HashMap::new();
    let mut found: Vec<Parameter> = parts.roots().map(|root| (root, 0)).collect();
    for (handle, function) in parts.own_functions() {
        calls(function, |callee, arguments| {
            for (index, argument) in arguments.iter().enumerate() {
                let Expression::FunctionArgument(own) = function.expressions[*argument] else { continue };
                let own = (handle, own as usize);
                if !parts.prelude.contains(&callee) {
                    together.entry(own).or_default().push((callee, index));
                    together.entry((callee, index)).or_default().push(own);
                } else if wants_packet(parts, &HashSet::new(), (callee, index)) {
                    found.push(own);
                }
            }
        });
    }
    let mut opaque = HashSet::new();
    while let Some(parameter) = found.pop() {
        if opaque.insert(parameter) {
            found.extend(together.get(&parameter).into_iter().flatten());
        }
    }
    opaque
}

fn calls(function: &Function, mut visit: impl FnMut(Handle<Function>, &[Handle<Expression>])) {
    visit_statements(&function.body, &mut |statement, _| {
        if let Statement::Call { function, arguments, .. } = statement {
            visit(*function, arguments);
        }
    });
}

/// Whether a parameter takes the packet.
fn wants_packet(parts: &VerifierInput, opaque: &HashSet<Parameter>, parameter: Parameter) -> bool {
    match parts.intrinsics.get(&parameter.0) {
        Some(intrinsic) => parameter.1 == 0 && intrinsic.takes_packet(),
        None => opaque.contains(&parameter),
    }
}

fn uses(
    parts: &VerifierInput,
    opaque: &HashSet<Parameter>,
    handle: Handle<Function>,
    function: &Function,
    errors: &mut Errors,
) {
    let is_packet = |expression: Handle<Expression>| match function.expressions[expression] {
        Expression::FunctionArgument(index) => opaque.contains(&(handle, index as usize)),
        _ => false,
    };
    let at = |expression| text_range(parts.source, function.expressions.get_span(expression));
    let misused = "the packet may only be handed on";
    let opaque_note = "its value is no property of the packet: give it to the prelude's functions or to a helper";
    for (user, expression) in function.expressions.iter() {
        let mut found = false;
        for_each_operand(expression, |operand| found |= is_packet(operand));
        if found {
            errors.add(at(user), misused, "used as a number here", opaque_note);
        }
    }
    visit_statements(&function.body, &mut |statement, span| match *statement {
        Statement::Store { value, .. } if is_packet(value) => {
            errors.add(text_range(parts.source, span), misused, "stored in a variable here", opaque_note);
        }
        Statement::Return { value: Some(value) } if is_packet(value) => {
            errors.add(text_range(parts.source, span), misused, "returned here", opaque_note);
        }
        Statement::Switch { selector, .. } if is_packet(selector) => {
            errors.add(text_range(parts.source, span), misused, "looked at here", opaque_note);
        }
        Statement::Call { function: callee, ref arguments, .. } => {
            for (index, &argument) in arguments.iter().enumerate() {
                let wanted = wants_packet(parts, opaque, (callee, index));
                let name = parts.module.functions[callee].name.as_deref().unwrap_or_default();
                // An argument's own place says `pkt`; a parameter's is where it is declared.
                let at_argument = match function.expressions[argument] {
                    Expression::FunctionArgument(_) => text_range(parts.source, span),
                    _ => at(argument).or_else(|| text_range(parts.source, span)),
                };
                if wanted && !is_packet(argument) {
                    let message = format!("argument {} of `{name}` has to be the packet", index + 1);
                    let note = "the packet is the filter's parameter, as it is or handed through helpers";
                    errors.add(at_argument, message, "this is no packet", note);
                } else if !wanted && is_packet(argument) {
                    errors.add(at_argument, misused, "given as a number here", opaque_note);
                }
            }
        }
        _ => {}
    });
    for (_, local) in function.local_variables.iter() {
        // An initialiser is constant or becomes a store; so this is for modules of other front ends.
        if local.init.is_some_and(is_packet) {
            errors.add(parts.name_of(handle), misused, "stored in a variable in here", opaque_note);
        }
    }
}

/// Visits the operands of an expression that a filter may have, in order. Of one that the verifier
/// refuses it visits none.
pub fn for_each_operand(expression: &Expression, mut visit: impl FnMut(Handle<Expression>)) {
    match *expression {
        Expression::Compose { ref components, .. } => components.iter().copied().for_each(visit),
        Expression::Access { base, index } => {
            visit(base);
            visit(index);
        }
        Expression::AccessIndex { base: operand, .. }
        | Expression::Splat { value: operand, .. }
        | Expression::Swizzle { vector: operand, .. }
        | Expression::Load { pointer: operand }
        | Expression::Unary { expr: operand, .. }
        | Expression::Relational { argument: operand, .. }
        | Expression::As { expr: operand, .. } => visit(operand),
        Expression::Binary { left, right, .. } => {
            visit(left);
            visit(right);
        }
        Expression::Select { condition, accept, reject } => {
            visit(condition);
            visit(accept);
            visit(reject);
        }
        Expression::Math { arg, arg1, arg2, arg3, .. } => {
            visit(arg);
            [arg1, arg2, arg3].into_iter().flatten().for_each(visit);
        }
        // The others have no operands, or `statements` refuses them.
        _ => {}
    }
}
