//! Evaluation of `#if` and `#elif` conditions (C11 6.10.1): integer constant expressions of 64
//! bits.

use super::literals::{self, LiteralError};
use super::{Abort, MAX_NESTING, PpToken, PpTokenKind, Preprocessor};
use crate::token::{Name, Names, Punctuator, TokenKind};
use portcullis_core::diagnostics::Diagnostic;
use portcullis_core::diagnostics::elide;
use portcullis_core::program::prelude;

/// A value of type `intmax_t`, or `uintmax_t` if `unsigned`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Value {
    pub bits: u64,
    pub unsigned: bool,
}

impl Value {
    fn truth(value: bool) -> Value {
        Value { bits: u64::from(value), unsigned: false }
    }

    fn signed(self) -> i64 {
        self.bits as i64
    }
}

/// An error in a condition, at a token or at the end of the line.
struct EvaluationError {
    error: Diagnostic,
    at: Option<PpToken>,
    label: String,
}

impl Preprocessor<'_> {
    /// Evaluates the rest of the line as a condition; reports an error and returns `None` if it has
    /// no value.
    pub(super) fn condition(&mut self, directive: PpToken) -> Result<Option<bool>, Abort> {
        Ok(self.value(directive)?.map(|value| value.bits != 0))
    }

    /// Evaluates the rest of the line as an expression.
    pub(super) fn value(&mut self, directive: PpToken) -> Result<Option<Value>, Abort> {
        let line = self.take_line()?;
        let before = self.errors.len();
        let end = line.last().copied().unwrap_or(directive);
        self.push_isolated(line);
        let tokens = self.condition_tokens();
        self.pop_isolated();
        let Some(tokens) = tokens? else { return Ok(None) };
        if self.errors.len() > before {
            return Ok(None);
        }
        let mut evaluator = Evaluator { tokens: &tokens, at: 0, names: &self.names, depth: 0 };
        match evaluator.evaluate_all() {
            Ok(value) => Ok(Some(value)),
            Err(failed) => {
                let EvaluationError { error, at, label } = *failed;
                self.report_at(error, at.unwrap_or(end), &label)?;
                Ok(None)
            }
        }
    }

    /// Tokens of the line after macro expansion and evaluation of `defined`.
    fn condition_tokens(&mut self) -> Result<Option<Vec<PpToken>>, Abort> {
        let mut tokens = Vec::new();
        while let Some(token) = self.next_expanded()? {
            match token.kind {
                PpTokenKind::Identifier(name) if self.names.text(name) == "defined" => match self.defined_operand()? {
                    Some(wanted) => {
                        let value = if self.is_defined(wanted) { "1" } else { "0" };
                        tokens.push(PpToken { kind: PpTokenKind::Number(self.names.intern(value)), ..token });
                    }
                    None => {
                        let error = Diagnostic::new("`defined` expects the name of a macro");
                        self.report_at(error.note("write defined(NAME) or defined NAME"), token, "")?;
                        while self.next_expanded()?.is_some() {}
                        return Ok(None);
                    }
                },
                _ => tokens.push(token),
            }
        }
        Ok(Some(tokens))
    }

    /// Parses the operand of `defined`: `NAME` or `(NAME)`.
    fn defined_operand(&mut self) -> Result<Option<Name>, Abort> {
        let identifier = |token: Option<PpToken>| match token?.kind {
            PpTokenKind::Identifier(name) => Some(name),
            _ => None,
        };
        let first = self.next()?;
        if !first.is_some_and(|token| token.is(Punctuator::LeftParenthesis)) {
            return Ok(identifier(first));
        }
        let name = identifier(self.next()?);
        let close = self.next()?;
        Ok(name.filter(|_| close.is_some_and(|token| token.is(Punctuator::RightParenthesis))))
    }
}

struct Evaluator<'a> {
    tokens: &'a [PpToken],
    at: usize,
    names: &'a Names,
    depth: usize,
}

/// A binary operator whose right operand is not parsed yet.
struct PendingOperator {
    token: PpToken,
    operator: Punctuator,
    precedence: u8,
    left: Value,
    /// Whether the value of the enclosing operation is evaluated.
    is_evaluated: bool,
}

type EvalResult = Result<Value, Box<EvaluationError>>;

/// Precedence of a binary operator; `?:` and `,` are not included.
fn precedence_of(punctuator: Punctuator) -> Option<u8> {
    use Punctuator as P;
    Some(match punctuator {
        P::OrOr => 1,
        P::AndAnd => 2,
        P::Or => 3,
        P::Caret => 4,
        P::And => 5,
        P::Equal | P::NotEqual => 6,
        P::Less | P::Greater | P::LessEqual | P::GreaterEqual => 7,
        P::ShiftLeft | P::ShiftRight => 8,
        P::Plus | P::Minus => 9,
        P::Star | P::Slash | P::Percent => 10,
        _ => return None,
    })
}

impl Evaluator<'_> {
    fn evaluate_all(&mut self) -> EvalResult {
        let value = self.conditional(true)?;
        let Some(token) = self.peek() else { return Ok(value) };
        let text = elide(token.text(self.names));
        let error = Diagnostic::new(format!("`{text}` is not allowed in a condition"));
        let error = match token.kind {
            PpTokenKind::Punctuator(Punctuator::Assign) => error.note("to compare, write `==`"),
            PpTokenKind::Punctuator(Punctuator::LeftParenthesis) => {
                error.note("the name before the `(` is not a function-like macro")
            }
            _ => error.note(
                "a condition consists of integers, `defined`, macros, and C's operators except assignment and comma",
            ),
        };
        Err(Box::new(EvaluationError { error, at: Some(token), label: "from here".into() }))
    }

    fn peek(&self) -> Option<PpToken> {
        self.tokens.get(self.at).copied()
    }

    fn take(&mut self, wanted: Punctuator) -> Option<PpToken> {
        let token = self.peek().filter(|token| token.is(wanted))?;
        self.at += 1;
        Some(token)
    }

    fn fail<T>(&self, at: Option<PpToken>, message: impl Into<String>, note: &str) -> Result<T, Box<EvaluationError>> {
        let error = Diagnostic::new(message).note(note);
        Err(Box::new(EvaluationError { error, at, label: String::new() }))
    }

    /// Enters a nesting level; fails at [`MAX_NESTING`], which bounds the stack.
    fn enter_nesting(&mut self, at: PpToken) -> Result<(), Box<EvaluationError>> {
        self.depth += 1;
        if self.depth > MAX_NESTING {
            return self.fail(
                Some(at),
                format!("the condition nests more than {MAX_NESTING} deep"),
                "split it into several macros or conditionals",
            );
        }
        Ok(())
    }

    /// Parses `a ? b : c` and operators that bind tighter. Unevaluated operands are checked for
    /// syntax only, not for errors such as a division by zero.
    fn conditional(&mut self, is_evaluated: bool) -> EvalResult {
        let condition = self.binary(is_evaluated)?;
        let Some(question) = self.take(Punctuator::Question) else { return Ok(condition) };
        self.enter_nesting(question)?;
        let holds = condition.bits != 0;
        let then = self.conditional(is_evaluated && holds)?;
        if self.take(Punctuator::Colon).is_none() {
            return self.fail(Some(question), "this `?` has no `:`", "a conditional expression is `a ? b : c`");
        }
        let otherwise = self.conditional(is_evaluated && !holds)?;
        self.depth -= 1;
        let bits = if holds { then.bits } else { otherwise.bits };
        Ok(Value { bits, unsigned: then.unsigned || otherwise.unsigned })
    }

    /// Operator-precedence parser for binary operators. Iterative: recursion would need a stack
    /// frame for each precedence level.
    fn binary(&mut self, mut is_evaluated: bool) -> EvalResult {
        let mut waiting: Vec<PendingOperator> = Vec::new();
        loop {
            let mut value = self.unary(is_evaluated)?;
            let next = match self.peek() {
                Some(token) => match token.kind {
                    PpTokenKind::Punctuator(operator) => {
                        precedence_of(operator).map(|precedence| (token, operator, precedence))
                    }
                    _ => None,
                },
                None => None,
            };
            let precedence = next.map_or(0, |(_, _, precedence)| precedence);
            while let Some(operation) = waiting.pop_if(|operation| operation.precedence >= precedence) {
                value = self.apply(&operation, value, is_evaluated)?;
                is_evaluated = operation.is_evaluated;
            }
            let Some((token, operator, precedence)) = next else { return Ok(value) };
            self.at += 1;
            waiting.push(PendingOperator { token, operator, precedence, left: value, is_evaluated });
            is_evaluated &= match operator {
                Punctuator::AndAnd => value.bits != 0,
                Punctuator::OrOr => value.bits == 0,
                _ => true,
            };
        }
    }

    fn apply(&self, operation: &PendingOperator, right: Value, is_evaluated: bool) -> EvalResult {
        use Punctuator as P;
        let &PendingOperator { token, operator, left, .. } = operation;
        let unsigned = left.unsigned || right.unsigned;
        let (a, b) = (left.bits, right.bits);
        let by_sign =
            |when_unsigned: bool, when_signed: bool| Value::truth(if unsigned { when_unsigned } else { when_signed });
        let bits = match operator {
            P::OrOr => return Ok(Value::truth(a != 0 || b != 0)),
            P::AndAnd => return Ok(Value::truth(a != 0 && b != 0)),
            P::Equal => return Ok(Value::truth(a == b)),
            P::NotEqual => return Ok(Value::truth(a != b)),
            P::Less => return Ok(by_sign(a < b, left.signed() < right.signed())),
            P::Greater => return Ok(by_sign(a > b, left.signed() > right.signed())),
            P::LessEqual => return Ok(by_sign(a <= b, left.signed() <= right.signed())),
            P::GreaterEqual => return Ok(by_sign(a >= b, left.signed() >= right.signed())),
            P::ShiftLeft | P::ShiftRight => {
                // As unsigned numbers, negative counts are large.
                if b >= 64 && is_evaluated {
                    let count = if right.unsigned { b.to_string() } else { right.signed().to_string() };
                    return self.fail(
                        Some(token),
                        format!("shift by {count}"),
                        "a shift by less than 0 or more than 63 is undefined in C",
                    );
                }
                let bits = match operator {
                    P::ShiftLeft => a << (b & 63),
                    _ if left.unsigned => a >> (b & 63),
                    _ => (left.signed() >> (b & 63)) as u64,
                };
                return Ok(Value { bits, unsigned: left.unsigned });
            }
            P::Or => a | b,
            P::Caret => a ^ b,
            P::And => a & b,
            P::Plus => a.wrapping_add(b),
            P::Minus => a.wrapping_sub(b),
            P::Star => a.wrapping_mul(b),
            _ if b == 0 => {
                if is_evaluated {
                    return self.fail(
                        Some(token),
                        "division by zero in a condition",
                        "test the divisor first: `B != 0 && A / B > 1`",
                    );
                }
                0
            }
            P::Slash if unsigned => a / b,
            P::Slash => left.signed().wrapping_div(right.signed()) as u64,
            _ if unsigned => a % b,
            _ => left.signed().wrapping_rem(right.signed()) as u64,
        };
        Ok(Value { bits, unsigned })
    }

    fn unary(&mut self, is_evaluated: bool) -> EvalResult {
        use Punctuator as P;
        let Some(token) = self.peek() else {
            return self.fail(
                None,
                "the condition ends where an operand is expected",
                "an operand is an integer, `defined(NAME)`, or a name",
            );
        };
        self.at += 1;
        match token.kind {
            PpTokenKind::Punctuator(operator @ (P::Plus | P::Minus | P::Tilde | P::Not)) => {
                self.enter_nesting(token)?;
                let Value { bits, unsigned } = self.unary(is_evaluated)?;
                self.depth -= 1;
                Ok(match operator {
                    P::Plus => Value { bits, unsigned },
                    P::Minus => Value { bits: bits.wrapping_neg(), unsigned },
                    P::Tilde => Value { bits: !bits, unsigned },
                    _ => Value::truth(bits == 0),
                })
            }
            PpTokenKind::Punctuator(P::LeftParenthesis) => {
                self.enter_nesting(token)?;
                let value = self.conditional(is_evaluated)?;
                self.depth -= 1;
                match self.take(P::RightParenthesis) {
                    Some(_) => Ok(value),
                    None => self.fail(
                        Some(token),
                        "this `(` is not closed",
                        "a `)` is missing, or what follows is not allowed in a condition",
                    ),
                }
            }
            PpTokenKind::Identifier(name) => self.identifier(token, self.names.text(name)),
            PpTokenKind::Number(name) => self.number(token, self.names.text(name)),
            PpTokenKind::Character(name) => match literals::character(self.names.text(name)) {
                Ok(value) => Ok(Value { bits: value as i32 as i64 as u64, unsigned: false }),
                Err(error) => self.fail_literal(token, &error),
            },
            PpTokenKind::String(_) => {
                self.fail(Some(token), "string in a condition", "conditions are integers; strings cannot be compared")
            }
            PpTokenKind::Other(name) => Err(Box::new(EvaluationError {
                error: super::stray(self.names.text(name)),
                at: Some(token),
                label: String::new(),
            })),
            PpTokenKind::Punctuator(_) => {
                let text = token.text(self.names);
                self.fail(
                    Some(token),
                    format!("expected an operand, found `{text}`"),
                    "an operand is an integer, `defined(NAME)`, or a name",
                )
            }
        }
    }

    /// An identifier that is not a macro is 0, keywords included (C11 6.10.1p4); `true` is 1
    /// (OpenCL C 1.2, 6.1.1).
    fn identifier(&self, token: PpToken, text: &str) -> EvalResult {
        if is_prelude_constant(text) {
            let message = format!("`{text}` is a constant of the prelude, which conditions cannot use");
            return self.fail(
                Some(token),
                message,
                "conditions can only use macros: test it with `if`, or write the number",
            );
        }
        Ok(Value::truth(text == "true"))
    }

    fn number(&self, token: PpToken, text: &str) -> EvalResult {
        if literals::is_float(text) && literals::number(text).is_ok_and(|kind| matches!(kind, TokenKind::Float { .. }))
        {
            return self.fail(
                Some(token),
                format!("`{}` in a condition", elide(text)),
                "conditions can only use integers",
            );
        }
        match literals::integer(text) {
            Ok(literals::Integer { value, decimal, unsigned, .. }) => {
                if decimal && !unsigned && value > i64::MAX as u64 {
                    let error = LiteralError {
                        reason: "it does not fit a signed 64-bit integer".into(),
                        note: "add the suffix `u`",
                    };
                    return self.fail_literal(token, &error);
                }
                Ok(Value { bits: value, unsigned: unsigned || value > i64::MAX as u64 })
            }
            Err(error) => self.fail_literal(token, &error),
        }
    }

    fn fail_literal(&self, token: PpToken, literal: &LiteralError) -> EvalResult {
        let error = super::literal_error(token.text(self.names), literal);
        Err(Box::new(EvaluationError { error, at: Some(token), label: literal.reason.clone() }))
    }
}

/// Whether the prelude has a constant of this name; evaluating it as 0, like any other identifier,
/// would be surprising.
fn is_prelude_constant(text: &str) -> bool {
    prelude::TEXT.lines().filter_map(|line| line.strip_prefix("const ")?.split(':').next()).any(|name| name == text)
}
