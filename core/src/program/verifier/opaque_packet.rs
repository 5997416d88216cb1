//! Checks that the packet handle is opaque. The value of `pkt` is the packet's index in its batch,
//! and each device divides batches differently. A filter that could compute with it would behave
//! differently from device to device, so it may only be passed to functions.
//!
//! A parameter is opaque if it is the filter's or `xdp_flow`'s, if its function passes it to the
//! prelude as a packet, if it is passed to an opaque parameter, or if an opaque parameter is passed
//! to it. Any other use of an opaque parameter is rejected, and so is passing anything else as a
//! packet.

use std::collections::{HashMap, HashSet};

use naga::{Expression, Function, Handle, Statement};

use super::statements::visit_statements;
use super::{Errors, VerifierInput, text_range};

/// A parameter: its function and its index.
type Parameter = (Handle<Function>, usize);

pub(super) fn check(input: &VerifierInput, errors: &mut Errors) {
    let opaque = opaque_parameters(input);
    for (handle, function) in input.own_functions() {
        check_uses(input, &opaque, handle, function, errors);
    }
}

fn opaque_parameters(input: &VerifierInput) -> HashSet<Parameter> {
    // A parameter and an argument passed to it are either both opaque or neither.
    let mut passed_to_each_other: HashMap<Parameter, Vec<Parameter>> = HashMap::new();
    let mut worklist: Vec<Parameter> = input.roots().map(|root| (root, 0)).collect();
    for (handle, function) in input.own_functions() {
        calls(function, |callee, arguments| {
            for (index, argument) in arguments.iter().enumerate() {
                let Expression::FunctionArgument(own) = function.expressions[*argument] else { continue };
                let own = (handle, own as usize);
                if !input.prelude.contains(&callee) {
                    passed_to_each_other.entry(own).or_default().push((callee, index));
                    passed_to_each_other.entry((callee, index)).or_default().push(own);
                } else if expects_packet(input, &HashSet::new(), (callee, index)) {
                    worklist.push(own);
                }
            }
        });
    }
    let mut opaque = HashSet::new();
    while let Some(parameter) = worklist.pop() {
        if opaque.insert(parameter) {
            worklist.extend(passed_to_each_other.get(&parameter).into_iter().flatten());
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

/// Whether a parameter expects the packet.
fn expects_packet(input: &VerifierInput, opaque: &HashSet<Parameter>, parameter: Parameter) -> bool {
    match input.intrinsics.get(&parameter.0) {
        Some(intrinsic) => parameter.1 == 0 && intrinsic.takes_packet(),
        None => opaque.contains(&parameter),
    }
}

fn check_uses(
    input: &VerifierInput,
    opaque: &HashSet<Parameter>,
    handle: Handle<Function>,
    function: &Function,
    errors: &mut Errors,
) {
    let is_packet = |expression: Handle<Expression>| match function.expressions[expression] {
        Expression::FunctionArgument(index) => opaque.contains(&(handle, index as usize)),
        _ => false,
    };
    let at = |expression| text_range(input.source, function.expressions.get_span(expression));
    let misused = "the packet may only be passed to functions";
    let opaque_note = "its value is not a property of the packet: pass it to functions of the prelude or to a helper";
    for (user, expression) in function.expressions.iter() {
        let mut found = false;
        for_each_operand(expression, |operand| found |= is_packet(operand));
        if found {
            errors.add(at(user), misused, "used as a number here", opaque_note);
        }
    }
    visit_statements(&function.body, &mut |statement, span| match *statement {
        Statement::Store { value, .. } if is_packet(value) => {
            errors.add(text_range(input.source, span), misused, "stored in a variable here", opaque_note);
        }
        Statement::Return { value: Some(value) } if is_packet(value) => {
            errors.add(text_range(input.source, span), misused, "returned here", opaque_note);
        }
        Statement::Switch { selector, .. } if is_packet(selector) => {
            errors.add(text_range(input.source, span), misused, "examined here", opaque_note);
        }
        Statement::Call { function: callee, ref arguments, .. } => {
            for (index, &argument) in arguments.iter().enumerate() {
                let expected = expects_packet(input, opaque, (callee, index));
                let name = input.module.functions[callee].name.as_deref().unwrap_or_default();
                // The span of a parameter is its declaration, so report the call instead.
                let at_argument = match function.expressions[argument] {
                    Expression::FunctionArgument(_) => text_range(input.source, span),
                    _ => at(argument).or_else(|| text_range(input.source, span)),
                };
                if expected && !is_packet(argument) {
                    let message = format!("argument {} of `{name}` has to be the packet", index + 1);
                    let note = "the packet is the parameter of the filter, passed on unchanged";
                    errors.add(at_argument, message, "this is not the packet", note);
                } else if !expected && is_packet(argument) {
                    errors.add(at_argument, misused, "passed as a number here", opaque_note);
                }
            }
        }
        _ => {}
    });
    for (_, local) in function.local_variables.iter() {
        // In WGSL, an initialiser is constant or becomes a store; this is for modules of other
        // front ends.
        if local.init.is_some_and(is_packet) {
            errors.add(input.name_of(handle), misused, "stored in a variable in here", opaque_note);
        }
    }
}

/// Calls `visit` on the operands of an expression, in order. Expressions that the verifier rejects
/// count as having none.
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
        // The others have no operands, or `statements` rejects them.
        _ => {}
    }
}

/// Whether an expression's value depends on nothing but its operands.
pub(crate) fn is_computed(expression: &Expression) -> bool {
    matches!(
        expression,
        Expression::Access { .. }
            | Expression::AccessIndex { .. }
            | Expression::Splat { .. }
            | Expression::Swizzle { .. }
            | Expression::Compose { .. }
            | Expression::Unary { .. }
            | Expression::Binary { .. }
            | Expression::Select { .. }
            | Expression::Relational { .. }
            | Expression::Math { .. }
            | Expression::As { .. }
    )
}
