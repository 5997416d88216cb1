//! The conditions of `#if` and `#elif` (C11 6.10.1): integer constant expressions in 64 bits.

use super::literals::{self, Wrong};
use super::{MAX_NESTING, Pp, PpKind, Preprocessor, Stop};
use crate::token::{Name, Names, Punctuator, TokenKind};
use portcullis_core::diagnostics::Diagnostic;
use portcullis_core::diagnostics::short;
use portcullis_core::program::prelude;

/// A value of `intmax_t`, or of `uintmax_t` if `unsigned`.
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

/// Why an expression has no value: an error at a token, or at the end of the line.
struct Failed {
    error: Diagnostic,
    at: Option<Pp>,
    label: String,
}

impl Preprocessor<'_> {
    /// Whether the condition holds that the rest of the line is; nothing, and an error, where it has no
    /// value.
    pub(super) fn condition(&mut self, directive: Pp) -> Result<Option<bool>, Stop> {
        Ok(self.value(directive)?.map(|value| value.bits != 0))
    }

    /// The value of the expression that the rest of the line is.
    pub(super) fn value(&mut self, directive: Pp) -> Result<Option<Value>, Stop> {
        let line = self.line()?;
        let before = self.errors.len();
        let end = line.last().copied().unwrap_or(directive);
        self.enter_apart(line);
        let tokens = self.condition_tokens();
        self.leave_apart();
        let Some(tokens) = tokens? else { return Ok(None) };
        if self.errors.len() > before {
            return Ok(None);
        }
        let mut evaluator = Evaluator { tokens: &tokens, at: 0, names: &self.names, depth: 0 };
        match evaluator.whole() {
            Ok(value) => Ok(Some(value)),
            Err(failed) => {
                let Failed { error, at, label } = *failed;
                self.wrong(error, at.unwrap_or(end), &label)?;
                Ok(None)
            }
        }
    }

    /// The line's tokens, with macros replaced and `defined` answered.
    fn condition_tokens(&mut self) -> Result<Option<Vec<Pp>>, Stop> {
        let mut tokens = Vec::new();
        while let Some(token) = self.next_expanded()? {
            match token.kind {
                PpKind::Identifier(name) if self.names.text(name) == "defined" => match self.defined_operand()? {
                    Some(wanted) => {
                        let value = if self.is_defined(wanted) { "1" } else { "0" };
                        tokens.push(Pp { kind: PpKind::Number(self.names.intern(value)), ..token });
                    }
                    None => {
                        let error = Diagnostic::new("`defined` wants the name of a macro");
                        self.wrong(error.note("write defined(NAME) or defined NAME"), token, "")?;
                        while self.next_expanded()?.is_some() {}
                        return Ok(None);
                    }
                },
                _ => tokens.push(token),
            }
        }
        Ok(Some(tokens))
    }

    /// `NAME` or `(NAME)`.
    fn defined_operand(&mut self) -> Result<Option<Name>, Stop> {
        let identifier = |token: Option<Pp>| match token?.kind {
            PpKind::Identifier(name) => Some(name),
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
    tokens: &'a [Pp],
    at: usize,
    names: &'a Names,
    depth: usize,
}

/// An operator whose right operand is still to come.
struct Waiting {
    token: Pp,
    operator: Punctuator,
    bound: u8,
    left: Value,
    /// Whether the value that the operator is part of counts.
    counts: bool,
}

type Evaluated = Result<Value, Box<Failed>>;

/// The binary operators, each with how tightly it binds; `?:` and `,` not among them.
fn binds(punctuator: Punctuator) -> Option<u8> {
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
    fn whole(&mut self) -> Evaluated {
        let value = self.conditional(true)?;
        let Some(token) = self.front() else { return Ok(value) };
        let text = short(token.text(self.names));
        let error = Diagnostic::new(format!("`{text}` has no place in a condition"));
        let error = match token.kind {
            PpKind::Punctuator(Punctuator::Assign) => error.note("to compare, write `==`"),
            PpKind::Punctuator(Punctuator::LeftParenthesis) => {
                error.note("what stands before the `(` is no macro with parameters")
            }
            _ => error.note(
                "a condition is made of integers, `defined`, macros, and C's operators without assignment and comma",
            ),
        };
        Err(Box::new(Failed { error, at: Some(token), label: "from here".into() }))
    }

    fn front(&self) -> Option<Pp> {
        self.tokens.get(self.at).copied()
    }

    fn take(&mut self, wanted: Punctuator) -> Option<Pp> {
        let token = self.front().filter(|token| token.is(wanted))?;
        self.at += 1;
        Some(token)
    }

    fn fail<T>(&self, at: Option<Pp>, message: impl Into<String>, note: &str) -> Result<T, Box<Failed>> {
        let error = Diagnostic::new(message).note(note);
        Err(Box::new(Failed { error, at, label: String::new() }))
    }

    /// Goes one level down; what is nested deeper than there is stack for is refused.
    fn down(&mut self, at: Pp) -> Result<(), Box<Failed>> {
        self.depth += 1;
        if self.depth > MAX_NESTING {
            return self.fail(
                Some(at),
                format!("the condition nests more than {MAX_NESTING} deep"),
                "write it in several macros or conditionals",
            );
        }
        Ok(())
    }

    /// `a ? b : c` and what binds tighter. Where it does not count, nothing in it is an error that
    /// only its value would be.
    fn conditional(&mut self, counts: bool) -> Evaluated {
        let condition = self.binary(counts)?;
        let Some(question) = self.take(Punctuator::Question) else { return Ok(condition) };
        self.down(question)?;
        let holds = condition.bits != 0;
        let then = self.conditional(counts && holds)?;
        if self.take(Punctuator::Colon).is_none() {
            return self.fail(Some(question), "this `?` has no `:`", "a conditional expression is `a ? b : c`");
        }
        let otherwise = self.conditional(counts && !holds)?;
        self.depth -= 1;
        let bits = if holds { then.bits } else { otherwise.bits };
        Ok(Value { bits, unsigned: then.unsigned || otherwise.unsigned })
    }

    /// Binary operators and their operands, by precedence; without recursion, which would need a frame
    /// of the stack for each level of precedence.
    fn binary(&mut self, mut counts: bool) -> Evaluated {
        let mut waiting: Vec<Waiting> = Vec::new();
        loop {
            let mut value = self.unary(counts)?;
            let next = match self.front() {
                Some(token) => match token.kind {
                    PpKind::Punctuator(operator) => binds(operator).map(|bound| (token, operator, bound)),
                    _ => None,
                },
                None => None,
            };
            let bound = next.map_or(0, |(_, _, bound)| bound);
            while let Some(operation) = waiting.pop_if(|operation| operation.bound >= bound) {
                value = self.apply(&operation, value, counts)?;
                counts = operation.counts;
            }
            let Some((token, operator, bound)) = next else { return Ok(value) };
            self.at += 1;
            waiting.push(Waiting { token, operator, bound, left: value, counts });
            counts &= match operator {
                Punctuator::AndAnd => value.bits != 0,
                Punctuator::OrOr => value.bits == 0,
                _ => true,
            };
        }
    }

    fn apply(&self, operation: &Waiting, right: Value, counts: bool) -> Evaluated {
        use Punctuator as P;
        let &Waiting { token, operator, left, .. } = operation;
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
                // A negative count is a large one.
                if b >= 64 && counts {
                    let count = if right.unsigned { b.to_string() } else { right.signed().to_string() };
                    return self.fail(
                        Some(token),
                        format!("a shift by {count}"),
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
                if counts {
                    return self.fail(
                        Some(token),
                        "a division by zero in a condition",
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

    fn unary(&mut self, counts: bool) -> Evaluated {
        use Punctuator as P;
        let Some(token) = self.front() else {
            return self.fail(
                None,
                "the condition ends where an operand is wanted",
                "an operand is an integer, `defined(NAME)`, or a name",
            );
        };
        self.at += 1;
        match token.kind {
            PpKind::Punctuator(operator @ (P::Plus | P::Minus | P::Tilde | P::Not)) => {
                self.down(token)?;
                let Value { bits, unsigned } = self.unary(counts)?;
                self.depth -= 1;
                Ok(match operator {
                    P::Plus => Value { bits, unsigned },
                    P::Minus => Value { bits: bits.wrapping_neg(), unsigned },
                    P::Tilde => Value { bits: !bits, unsigned },
                    _ => Value::truth(bits == 0),
                })
            }
            PpKind::Punctuator(P::LeftParenthesis) => {
                self.down(token)?;
                let value = self.conditional(counts)?;
                self.depth -= 1;
                match self.take(P::RightParenthesis) {
                    Some(_) => Ok(value),
                    None => self.fail(
                        Some(token),
                        "this `(` is not closed where its expression ends",
                        "a `)` is missing, or what follows has no place in a condition",
                    ),
                }
            }
            PpKind::Identifier(name) => self.identifier(token, self.names.text(name)),
            PpKind::Number(name) => self.number(token, self.names.text(name)),
            PpKind::Character(name) => match literals::character(self.names.text(name)) {
                Ok(value) => Ok(Value { bits: value as i32 as i64 as u64, unsigned: false }),
                Err(wrong) => self.wrong(token, &wrong),
            },
            PpKind::String(_) => self.fail(
                Some(token),
                "a string in a condition",
                "a condition is an integer; strings cannot be compared",
            ),
            PpKind::Other(name) => Err(Box::new(Failed {
                error: super::stray(self.names.text(name)),
                at: Some(token),
                label: String::new(),
            })),
            PpKind::Punctuator(_) => {
                let text = token.text(self.names);
                self.fail(
                    Some(token),
                    format!("`{text}` where an operand is wanted"),
                    "an operand is an integer, `defined(NAME)`, or a name",
                )
            }
        }
    }

    /// A name that is no macro is 0, a keyword as well (C11 6.10.1p4); `true` expands to 1 (OpenCL C
    /// 1.2, 6.1.1).
    fn identifier(&self, token: Pp, text: &str) -> Evaluated {
        if is_prelude_constant(text) {
            let message = format!("`{text}` is a constant of the prelude, which conditions know nothing of");
            return self.fail(
                Some(token),
                message,
                "conditions know macros only: test it with `if`, or write the number",
            );
        }
        Ok(Value::truth(text == "true"))
    }

    fn number(&self, token: Pp, text: &str) -> Evaluated {
        if literals::is_float(text) && literals::number(text).is_ok_and(|kind| matches!(kind, TokenKind::Float { .. }))
        {
            return self.fail(
                Some(token),
                format!("`{}` in a condition", short(text)),
                "conditions are made of integers only",
            );
        }
        match literals::integer(text) {
            Ok(literals::Integer { value, decimal, unsigned, .. }) => {
                if decimal && !unsigned && value > i64::MAX as u64 {
                    let wrong =
                        Wrong { reason: "it has more than 64 bits with its sign".into(), note: "write the suffix `u`" };
                    return self.wrong(token, &wrong);
                }
                Ok(Value { bits: value, unsigned: unsigned || value > i64::MAX as u64 })
            }
            Err(wrong) => self.wrong(token, &wrong),
        }
    }

    fn wrong(&self, token: Pp, wrong: &Wrong) -> Evaluated {
        let error = super::literal_error(token.text(self.names), wrong);
        Err(Box::new(Failed { error, at: Some(token), label: wrong.reason.clone() }))
    }
}

/// Whether the prelude has a constant of that name: 0, which it would be as any other name, is not what
/// is meant.
fn is_prelude_constant(text: &str) -> bool {
    prelude::TEXT.lines().filter_map(|line| line.strip_prefix("const ")?.split(':').next()).any(|name| name == text)
}
