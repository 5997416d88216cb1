//! Parameters: macros that the host may set, as a compiler's `-D` does. One has its default between `#ifndef NAME`
//! and `#endif`, and takes values that the default's type has.

use super::{Pp, PpKind, Preprocessor, Stop, literals};
use crate::token::{Name, Punctuator, TokenKind};
use portcullis_core::diagnostics::Diagnostic;
use portcullis_core::program::{Parameter, ParameterValue};

/// What a macro stands for, where that is a value.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Value {
    Bool(bool),
    Integer { value: i128, unsigned: bool, long: bool },
    Float(f64),
}

impl Preprocessor<'_> {
    /// Takes note of a parameter: the text has just given the macro its default, or would have if the host had not
    /// set it.
    pub(super) fn parameter(&mut self, name: Name, default: &[Pp]) -> Result<(), Stop> {
        // A macro that stands for nothing guards a file against being included twice.
        let text = self.names.text(name);
        if default.is_empty() || self.is_prelude(text) || self.parameters.iter().any(|known| known.name == text) {
            return Ok(());
        }
        let (default_value, default_text) = (self.constant(default), self.written(default));
        let given = self.given.get(&name).copied();
        let value = match given {
            None => shown(default_value, default_text),
            Some(number) => {
                let written = self.macros[number].written.clone();
                let (value, text) = (self.constant(&written), self.written(&written));
                match fitting(default_value, value) {
                    Ok(fitting) => {
                        if let Some(value) = fitting {
                            self.set_to(number, value)?;
                        }
                        shown(fitting, text)
                    }
                    Err(reason) => {
                        let name = self.shown(name).into_owned();
                        let message = format!("`{text}` is no value for the parameter `{name}`: {reason}");
                        let error = Diagnostic::new(message).of_parameter(name);
                        if !self.errors.iter().any(|known| known.parameter == error.parameter) {
                            self.report(error.note(format!("its default is `{default_text}`")))?;
                        }
                        // So that no more is said of it.
                        if let Some(body) = self.body(default, None)? {
                            self.macros[number].body = body.into();
                        }
                        shown(value, text)
                    }
                }
            }
        };
        let name = self.names.text(name).to_owned();
        self.parameters.push(Parameter { name, value, is_default: given.is_none() });
        Ok(())
    }

    /// Whether the text has this as a parameter.
    pub(super) fn is_parameter(&self, name: Name) -> bool {
        let text = self.names.text(name);
        self.parameters.iter().any(|known| known.name == text)
    }

    /// What can be set, for a message.
    pub(super) fn known_parameters(&self) -> String {
        let names: Vec<String> = self.parameters.iter().map(|parameter| format!("`{}`", parameter.name)).collect();
        match names.as_slice() {
            [] => "this filter has no parameters".into(),
            names => format!("its parameters are {}", names.join(", ")),
        }
    }

    fn written(&self, tokens: &[Pp]) -> String {
        let mut text = String::new();
        for token in tokens {
            if token.space && !text.is_empty() {
                text.push(' ');
            }
            text.push_str(self.spelled(*token));
        }
        text
    }

    /// A number or truth value, with a sign or without, in parentheses or not.
    fn constant(&self, tokens: &[Pp]) -> Option<Value> {
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
                PpKind::Identifier(name) => match self.names.text(name) {
                    "true" => Some(Value::Bool(true)),
                    "false" => Some(Value::Bool(false)),
                    _ => None,
                },
                PpKind::Number(name) => match literals::number(self.names.text(name)).ok()? {
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

    /// Makes a macro stand for a value, written so that it has the type that it is to have.
    fn set_to(&mut self, number: usize, value: Value) -> Result<(), Stop> {
        let text = match value {
            Value::Bool(value) => value.to_string(),
            Value::Float(value) => format!("{value:?}f"),
            Value::Integer { value, unsigned, long } => {
                let suffix = if long { "l" } else { "" };
                // The least number of a type is not a number and a sign: that number would be of another type.
                match value {
                    0.. if unsigned => format!("{value}u{suffix}"),
                    0.. => format!("{value}{suffix}"),
                    _ => format!("(-{}{suffix} - 1)", -(value + 1)),
                }
            }
        };
        let name = self.macros[number].name;
        let file = self.files.add(format!("<value of {}>", self.names.text(name)), text, None);
        let written = self.tokens_of(file)?;
        let Some(body) = self.body(&written, None)? else { return Ok(()) };
        self.macros[number].body = body.into();
        Ok(())
    }
}

/// The value as one of the default's type; nothing where the default is no value, and anything goes.
fn fitting(default: Option<Value>, given: Option<Value>) -> Result<Option<Value>, String> {
    match (default, given) {
        (None, _) => Ok(None),
        (Some(Value::Bool(_)), Some(Value::Bool(_))) => Ok(given),
        (Some(Value::Bool(_)), Some(Value::Integer { value: value @ 0..=1, .. })) => Ok(Some(Value::Bool(value == 1))),
        (Some(Value::Bool(_)), _) => Err("expected `true` or `false`".into()),
        (Some(Value::Float(_)), Some(Value::Integer { value, .. })) => Ok(Some(Value::Float(value as f64))),
        (Some(Value::Float(_)), Some(Value::Float(value))) if (value as f32).is_finite() => Ok(given),
        (Some(Value::Float(_)), _) => Err("expected a finite number (`1.5f`, `-1e3f`)".into()),
        (Some(Value::Integer { unsigned, long, .. }), Some(Value::Integer { value, unsigned: as_given, .. })) => {
            // What an `int` has no room for is a `uint`, as of a hexadecimal number or an address.
            let bits = if long { 64 } else { 32 };
            let (low, high) = (if unsigned { 0 } else { -(1i128 << (bits - 1)) }, (1i128 << bits) - 1);
            if !(low..=high).contains(&value) {
                return Err(format!("it takes {low} to {high}"));
            }
            let unsigned = unsigned || (value >= 0 && as_given) || value >> (bits - 1) > 0;
            Ok(Some(Value::Integer { value, unsigned, long }))
        }
        (Some(Value::Integer { .. }), _) => {
            Err("expected a number (`80`, `0x50`) or an IPv4 address (`10.0.0.1`)".into())
        }
    }
}

/// A value as it is told to the host.
fn shown(value: Option<Value>, text: String) -> ParameterValue {
    match value {
        Some(Value::Bool(value)) => ParameterValue::Bool(value),
        Some(Value::Float(value)) => ParameterValue::F32(value as f32),
        Some(Value::Integer { value, unsigned, long: false }) if unsigned => ParameterValue::U32(value as u32),
        Some(Value::Integer { value, long: false, .. }) => ParameterValue::I32(value as i32),
        _ => ParameterValue::Text(text),
    }
}
