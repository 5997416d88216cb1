//! Rewrites errors of naga's validator, which mention handles and naga's own types, in terms of the
//! source.

use naga::common::wgsl::TypeContext;
use naga::front::Typifier;
use naga::proc::ResolveContext;
use naga::valid::{CallError, ExpressionError, FunctionError, ValidationError};
use naga::{BinaryOperator, Expression, Function, Handle, Module, Type, TypeInner, UnaryOperator, WithSpan};

use super::{name_range, text_range};
use crate::diagnostics::{Diagnostic, Diagnostics, Source};

/// The diagnostic for a validation error. The innermost cause becomes the message, because it says
/// what is wrong. `module` is the validated module, if it still exists.
pub(in crate::program) fn explain(
    source: &Source,
    module: Option<&Module>,
    error: &WithSpan<ValidationError>,
) -> Diagnostics {
    let mut reasons = Vec::new();
    let mut next: Option<&dyn std::error::Error> = Some(error.as_inner());
    while let Some(reason) = next {
        reasons.push(plain_message(&reason.to_string()));
        next = reason.source();
    }
    reasons.dedup();
    // The error has spans of the culprit and of what contains it; report the shortest.
    let mut places: Vec<_> = error.spans().filter_map(|(span, _)| text_range(source, *span)).collect();
    places.sort_by_key(|text_range| text_range.len());
    let mut at = places.into_iter().next();
    let mut message = reasons.pop().unwrap_or_default();
    if let ValidationError::Function { handle, ref name, source: ref inner } = *error.as_inner() {
        if let Some(better) = module.and_then(|module| in_function(module, handle, inner)) {
            message = better;
            reasons.clear();
        }
        reasons.retain(|reason| !reason.contains("is invalid"));
        reasons.insert(0, format!("in the function `{name}`"));
        if let (Some(module), FunctionError::InvalidReturnType { expression: None, .. }) = (module, inner) {
            at = name_range(source, module.functions.get_span(handle), name);
        }
    }
    let mut diagnostic = Diagnostic::new(message);
    if let Some(at) = at {
        diagnostic = diagnostic.at(at, "");
    }
    let diagnostic = reasons.into_iter().rev().fold(diagnostic, |diagnostic, reason| diagnostic.note(reason));
    Diagnostics::one(source, diagnostic)
}

/// Messages for the most common mistakes.
fn in_function(module: &Module, handle: Handle<Function>, error: &FunctionError) -> Option<String> {
    let function = &module.functions[handle];
    let types = module.to_ctx();
    let name_of = |handle: Handle<Function>| module.functions[handle].name.as_deref().unwrap_or_default();
    let inner = |inner: &TypeInner| {
        let mut text = String::new();
        match *inner {
            TypeInner::Struct { .. } => Some("a structure".to_owned()),
            _ => types.write_type_inner(inner, &mut text).ok().map(|()| format!("`{text}`")),
        }
    };
    Some(match *error {
        FunctionError::InvalidReturnType { expression: None, expected_ty: Some(ty) } => {
            format!("`{}` can end without returning a value of type `{}`", name_of(handle), types.type_to_string(ty))
        }
        FunctionError::InvalidReturnType { expression: Some(value), expected_ty } => {
            let value = type_of(module, function, value)?;
            match expected_ty {
                Some(ty) => format!("the return value is {value}, the declared type is `{}`", types.type_to_string(ty)),
                None => format!("the return value is {value}, but the function declares none"),
            }
        }
        FunctionError::InvalidCall { function: callee, error: CallError::ArgumentCount { required, seen } } => {
            format!("`{}` takes {required} arguments, given are {seen}", name_of(callee))
        }
        FunctionError::InvalidCall {
            function: callee,
            error: CallError::ArgumentType { index, required, seen_expression },
        } => {
            let seen = type_of(module, function, seen_expression)?;
            let required: Handle<Type> = required;
            format!(
                "argument {} of `{}` has type `{}`, but {seen} is passed",
                index + 1,
                name_of(callee),
                types.type_to_string(required)
            )
        }
        FunctionError::Expression {
            source: ExpressionError::InvalidBinaryOperandTypes { op, ref lhs_type, ref rhs_type, .. },
            ..
        } => {
            format!("`{}` does not go between {} and {}", symbol(op), inner(lhs_type)?, inner(rhs_type)?)
        }
        FunctionError::Expression { source: ExpressionError::InvalidUnaryOperandType(op, operand), .. } => {
            let symbol = match op {
                UnaryOperator::Negate => "-",
                UnaryOperator::LogicalNot => "!",
                UnaryOperator::BitwiseNot => "~",
            };
            format!("`{symbol}` does not go before {}", type_of(module, function, operand)?)
        }
        FunctionError::InvalidIfType(value) => {
            format!("the condition of `if` is {}, not `bool`", type_of(module, function, value)?)
        }
        FunctionError::InvalidStoreTypes { pointer, value } => {
            let variable = type_of(module, function, pointer)?;
            format!("{} cannot be stored in a variable of type {variable}", type_of(module, function, value)?)
        }
        _ => return None,
    })
}

/// The type of an expression in WGSL, in backticks; for a pointer, the pointee's type.
fn type_of(module: &Module, function: &Function, expression: Handle<Expression>) -> Option<String> {
    let context = ResolveContext::with_locals(module, &function.local_variables, &function.arguments);
    let mut typifier = Typifier::new();
    typifier.grow(expression, &function.expressions, &context).ok()?;
    let types = module.to_ctx();
    Some(match (&typifier[expression], typifier.get(expression, &module.types)) {
        (_, &TypeInner::Pointer { base, .. }) => format!("`{}`", types.type_to_string(base)),
        (resolution, _) => format!("`{}`", types.type_resolution_to_string(resolution)),
    })
}

fn symbol(operator: BinaryOperator) -> &'static str {
    use BinaryOperator as Bo;
    match operator {
        Bo::Add => "+",
        Bo::Subtract => "-",
        Bo::Multiply => "*",
        Bo::Divide => "/",
        Bo::Modulo => "%",
        Bo::Equal => "==",
        Bo::NotEqual => "!=",
        Bo::Less => "<",
        Bo::LessEqual => "<=",
        Bo::Greater => ">",
        Bo::GreaterEqual => ">=",
        Bo::And => "&",
        Bo::ExclusiveOr => "^",
        Bo::InclusiveOr => "|",
        Bo::LogicalAnd => "&&",
        Bo::LogicalOr => "||",
        Bo::ShiftLeft => "<<",
        Bo::ShiftRight => ">>",
    }
}

/// The message without naga's handles (`[17]`) and with WGSL's names for the scalar types.
pub(crate) fn plain_message(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(open) = rest.find('[') {
        let digits = rest[open + 1..].find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
        let is_handle = digits > 0 && rest[open + 1 + digits..].starts_with(']');
        if is_handle {
            text.push_str(rest[..open].trim_end());
            rest = &rest[open + digits + 2..];
        } else {
            text.push_str(&rest[..=open]);
            rest = &rest[open + 1..];
        }
    }
    text.push_str(rest);
    for (kind, width, name) in [
        ("Uint", 4, "u32"),
        ("Sint", 4, "i32"),
        ("Float", 4, "f32"),
        ("Bool", 1, "bool"),
        ("Uint", 8, "u64"),
        ("Sint", 8, "i64"),
    ] {
        let scalar = format!("Scalar {{ kind: {kind}, width: {width} }}");
        text = text.replace(&format!("Scalar({scalar})"), name).replace(&scalar, name);
    }
    // Our messages begin with a lower-case letter.
    let mut letters = text.chars();
    match (letters.next(), letters.next()) {
        (Some(first), Some(second)) if second.is_lowercase() || second == ' ' => {
            text.replace_range(..first.len_utf8(), &first.to_lowercase().to_string());
            text
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::plain_message;

    #[test]
    fn handles_are_left_out_of_messages() {
        assert_eq!(plain_message("The [12] is a[b] of [3]"), "the is a[b] of");
        assert_eq!(plain_message("RHS [x [1"), "RHS [x [1");
    }
}
