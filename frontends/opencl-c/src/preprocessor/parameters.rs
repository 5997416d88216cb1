//! Filter parameters: macros that the host may set, like a compiler's `-D`. A parameter has a
//! default between `#ifndef NAME` and `#endif`, and takes values of the default's type.

use super::{Abort, PpToken, PpTokenKind, Preprocessor, literals};
use crate::token::{Name, Punctuator, TokenKind};
use portcullis_core::diagnostics::Diagnostic;
use portcullis_core::program::{LEADING_ZEROS, Parameter, ParameterValue, has_leading_zeros};

/// The value of a macro that expands to a literal.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Value {
    Bool(bool),
    Integer { value: i128, unsigned: bool, long: bool },
    Float(f64),
}

impl Preprocessor<'_> {
    /// Declares a parameter: the text has just defined the macro's default, or skipped it because
    /// the host has set the macro.
    pub(super) fn declare_parameter(&mut self, name: Name, default: &[PpToken]) -> Result<(), Abort> {
        // An empty macro is an include guard.
        let text = self.names.text(name);
        if default.is_empty() || self.is_prelude(text) || self.parameters.iter().any(|known| known.name == text) {
            return Ok(());
        }
        let (default_value, default_text) = (self.constant(default), self.spell_tokens(default));
        let given = self.host_macros.get(&name).copied();
        let value = match given {
            None => parameter_value(default_value, default_text),
            Some(number) => {
                let source_tokens = self.macros[number].source_tokens.clone();
                let (value, text) = (self.constant(&source_tokens), self.spell_tokens(&source_tokens));
                let is_octal = |token: &PpToken| matches!(token.kind, PpTokenKind::Number(name) if has_leading_zeros(self.names.text(name)));
                let coerced = match source_tokens.iter().any(is_octal) {
                    true => Err(LEADING_ZEROS.into()),
                    false => coerce_to_default(default_value, value),
                };
                match coerced {
                    Ok(coerced) => {
                        if let Some(value) = coerced {
                            self.set_to(number, value)?;
                        }
                        parameter_value(coerced, text)
                    }
                    Err(reason) => {
                        let name = self.display_name(name).into_owned();
                        let message = format!("`{text}` is no value for the parameter `{name}`: {reason}");
                        let error = Diagnostic::new(message).with_parameter(name);
                        if !self.errors.iter().any(|known| known.parameter == error.parameter) {
                            self.report(error.note(format!("the default is `{default_text}`")))?;
                        }
                        // Substitute the default so that no further error follows.
                        if let Some(replacement) = self.parse_replacement(default, None)? {
                            self.macros[number].replacement = replacement.into();
                        }
                        parameter_value(value, text)
                    }
                }
            }
        };
        let name = self.names.text(name).to_owned();
        self.parameters.push(Parameter { name, value, is_default: given.is_none() });
        Ok(())
    }

    /// Whether the filter has a parameter of this name.
    pub(super) fn is_parameter(&self, name: Name) -> bool {
        let text = self.names.text(name);
        self.parameters.iter().any(|known| known.name == text)
    }

    /// Lists the filter's parameters, for a message.
    pub(super) fn known_parameters(&self) -> String {
        let names: Vec<String> = self.parameters.iter().map(|parameter| format!("`{}`", parameter.name)).collect();
        match names.as_slice() {
            [] => "this filter has no parameters".into(),
            names => format!("its parameters are {}", names.join(", ")),
        }
    }

    fn spell_tokens(&self, tokens: &[PpToken]) -> String {
        let mut text = String::new();
        for token in tokens {
            if token.leading_space && !text.is_empty() {
                text.push(' ');
            }
            text.push_str(self.spelled(*token));
        }
        text
    }

    /// Parses a number or truth value, optionally with a sign and parentheses.
    fn constant(&self, tokens: &[PpToken]) -> Option<Value> {
        match tokens {
            [open, inner @ .., close]
                if open.is(Punctuator::LeftParenthesis) && close.is(Punctuator::RightParenthesis) =>
            {
                self.constant(inner)
            }
            [minus, rest @ ..] if minus.is(Punctuator::Minus) => match self.constant(rest)? {
                Value::Integer { value, long, .. } => Some(Value::Integer { value: -value, unsigned: false, long }),
                Value::Float(value) => Some(Value::Float(-value)),
                Value::Bool(_) => None,
            },
            [only] => match only.kind {
                PpTokenKind::Identifier(name) => match self.names.text(name) {
                    "true" => Some(Value::Bool(true)),
                    "false" => Some(Value::Bool(false)),
                    _ => None,
                },
                PpTokenKind::Number(name) => match literals::number(self.names.text(name)).ok()? {
                    TokenKind::Integer { value, unsigned, long } => {
                        Some(Value::Integer { value: value.into(), unsigned, long })
                    }
                    TokenKind::Float { value, .. } => Some(Value::Float(value)),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        }
    }

    /// Makes a macro expand to a value, spelled so that it has the intended type.
    fn set_to(&mut self, number: usize, value: Value) -> Result<(), Abort> {
        let text = match value {
            Value::Bool(value) => value.to_string(),
            Value::Float(value) => format!("{value:?}f"),
            Value::Integer { value, unsigned, long } => {
                let suffix = if long { "l" } else { "" };
                // A type's minimum cannot be spelled as a negated literal, which would have a wider
                // type.
                match value {
                    0.. if unsigned => format!("{value}u{suffix}"),
                    0.. => format!("{value}{suffix}"),
                    _ => format!("(-{}{suffix} - 1)", -(value + 1)),
                }
            }
        };
        let name = self.macros[number].name;
        let file = self.files.add(format!("<value of {}>", self.names.text(name)), text, None);
        let source_tokens = self.tokenize_file(file)?;
        let Some(replacement) = self.parse_replacement(&source_tokens, None)? else { return Ok(()) };
        self.macros[number].replacement = replacement.into();
        Ok(())
    }
}

/// Converts a given value to the default's type. `None` if the default is not a literal; then any
/// value is accepted.
fn coerce_to_default(default: Option<Value>, given: Option<Value>) -> Result<Option<Value>, String> {
    match (default, given) {
        (None, _) => Ok(None),
        (Some(Value::Bool(_)), Some(Value::Bool(_))) => Ok(given),
        (Some(Value::Bool(_)), Some(Value::Integer { value: value @ 0..=1, .. })) => Ok(Some(Value::Bool(value == 1))),
        (Some(Value::Bool(_)), _) => Err("expected `true` or `false`".into()),
        (Some(Value::Float(_)), Some(Value::Integer { value, .. })) => Ok(Some(Value::Float(value as f64))),
        (Some(Value::Float(_)), Some(Value::Float(value))) if (value as f32).is_finite() => Ok(given),
        (Some(Value::Float(_)), _) => Err("expected a finite number (`1.5f`, `-1e3f`)".into()),
        (Some(Value::Integer { unsigned, long, .. }), Some(Value::Integer { value, unsigned: as_given, .. })) => {
            // Values beyond `int` become `uint`, so that hexadecimal numbers and addresses fit.
            let bits = if long { 64 } else { 32 };
            let (low, high) = (if unsigned { 0 } else { -(1i128 << (bits - 1)) }, (1i128 << bits) - 1);
            if !(low..=high).contains(&value) {
                return Err(format!("expected {low} to {high}"));
            }
            let unsigned = unsigned || (value >= 0 && as_given) || value >> (bits - 1) > 0;
            Ok(Some(Value::Integer { value, unsigned, long }))
        }
        (Some(Value::Integer { .. }), _) => {
            Err("expected a number (`80`, `0x50`) or an IPv4 address (`10.0.0.1`)".into())
        }
    }
}

/// Converts a value for the host's list of parameters.
fn parameter_value(value: Option<Value>, text: String) -> ParameterValue {
    match value {
        Some(Value::Bool(value)) => ParameterValue::Bool(value),
        Some(Value::Float(value)) => ParameterValue::F32(value as f32),
        Some(Value::Integer { value, unsigned, long: false }) if unsigned => ParameterValue::U32(value as u32),
        Some(Value::Integer { value, long: false, .. }) => ParameterValue::I32(value as i32),
        _ => ParameterValue::Text(text),
    }
}
