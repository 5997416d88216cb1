//! Evaluates constant integer expressions on tokens, without types, as far as that is unambiguous.

use super::lexer::{Token, TokenKind};
use portcullis_core::diagnostics::Diagnostic;

/// A value in the common range of `i32`, `u32` and abstract integers, 0 to `i32::MAX`. An
/// expression with any intermediate result outside of it has no value, because the types differ
/// there.
pub(super) type Integer = u32;

const MAX_VALUE: Integer = i32::MAX as Integer;

/// Returns the value of a name.
type Lookup<'l, 'a> = &'l mut dyn FnMut(&'a str) -> Result<Option<Integer>, Diagnostic>;

/// Returns the value of `tokens`, or `None` if it cannot be determined: other types, functions, or
/// overflow.
///
/// # Errors
/// Errors of `lookup`.
pub(super) fn evaluate<'a>(
    source: &'a str,
    tokens: &[Token],
    lookup: Lookup<'_, 'a>,
) -> Result<Option<Integer>, Diagnostic> {
    let mut parser = Parser { source, tokens, at: 0, lookup };
    let value = parser.binary(0)?;
    Ok(value.filter(|_| parser.at == tokens.len()))
}

struct Parser<'t, 'l, 'a> {
    source: &'a str,
    tokens: &'t [Token],
    at: usize,
    lookup: Lookup<'l, 'a>,
}

impl<'a> Parser<'_, '_, 'a> {
    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).map_or("", |token| token.text(self.source))
    }

    fn take(&mut self, text: &str) -> bool {
        let matches = self.peek() == text;
        self.at += usize::from(matches);
        matches
    }

    /// Precedence climbing over operators of at least precedence `min_precedence`. `None` means
    /// that the whole expression has no value; parsing then stops where it is.
    fn binary(&mut self, min_precedence: u8) -> Result<Option<Integer>, Diagnostic> {
        let Some(mut left) = self.primary()? else { return Ok(None) };
        loop {
            let operator = self.peek();
            let precedence = match operator {
                "|" => 1,
                "^" => 2,
                "&" => 3,
                "<<" | ">>" => 4,
                "+" | "-" => 5,
                "*" | "/" | "%" => 6,
                _ => return Ok(Some(left)),
            };
            if precedence < min_precedence {
                return Ok(Some(left));
            }
            self.at += 1;
            let Some(right) = self.binary(precedence + 1)? else { return Ok(None) };
            let value = match operator {
                "|" => Some(left | right),
                "^" => Some(left ^ right),
                "&" => Some(left & right),
                "<<" => 1u32.checked_shl(right).and_then(|factor| left.checked_mul(factor)),
                ">>" => left.checked_shr(right),
                "+" => left.checked_add(right),
                "-" => left.checked_sub(right),
                "*" => left.checked_mul(right),
                "/" => left.checked_div(right),
                _ => left.checked_rem(right),
            };
            match value.filter(|&value| value <= MAX_VALUE) {
                Some(value) => left = value,
                None => return Ok(None),
            }
        }
    }

    fn primary(&mut self) -> Result<Option<Integer>, Diagnostic> {
        let Some(&token) = self.tokens.get(self.at) else { return Ok(None) };
        let text = token.text(self.source);
        self.at += 1;
        match token.kind {
            TokenKind::Number => Ok(number(text)),
            TokenKind::Open if text == "(" => {
                let value = self.binary(0)?;
                Ok(value.filter(|_| self.take(")")))
            }
            // Conversions between integer types keep the value, or naga rejects them.
            TokenKind::Word if matches!(text, "u32" | "i32") && self.peek() == "(" => self.primary(),
            TokenKind::Word => (self.lookup)(text),
            _ => Ok(None),
        }
    }
}

/// Returns the value of an integer literal.
fn number(text: &str) -> Option<Integer> {
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let digits = hexadecimal.unwrap_or(text);
    let digits = digits.strip_suffix(['u', 'i']).unwrap_or(digits);
    let value = Integer::from_str_radix(digits, if hexadecimal.is_some() { 16 } else { 10 }).ok()?;
    (value <= MAX_VALUE).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::super::lexer::tokenize;
    use super::*;

    fn value(text: &str) -> Option<Integer> {
        let tokens = tokenize(text).unwrap();
        evaluate(text, &tokens, &mut |name| Ok((name == "seven").then_some(7))).unwrap()
    }

    #[test]
    fn evaluates_integer_expressions() {
        for (text, expected) in [
            ("12", 12),
            ("0x1Fu", 31),
            ("1 + 2 * 3", 7),
            ("(1 + 2) * 3", 9),
            ("10 - 3 - 2", 5),
            ("1 << 4 | 3", 19),
            ("8i - seven", 1),
            ("100 / seven % 5", 4),
            ("u32(seven) & 6", 6),
            ("256 >> 2 ^ 1", 65),
            ("2147483647", 2_147_483_647),
        ] {
            assert_eq!(value(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn other_expressions_have_no_value() {
        for text in [
            "",
            "eight",
            "1.5",
            "max(1, 2)",
            "1 / 0",
            "1 << 64",
            "1 << 31",
            "2147483648",
            "-1",
            "1 - 2",
            "0x7fffffff + 1",
            "65536 * 65536",
            "(1",
            "1 +",
            "1 2",
            "~1",
            "true",
            "f32(1)",
            "1 = 2",
        ] {
            assert_eq!(value(text), None, "{text}");
        }
    }
}
