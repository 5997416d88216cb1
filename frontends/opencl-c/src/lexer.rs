//! Lexer for preprocessing tokens (C11 5.1.1.2 phases 2 and 3, and 6.4). Splices and comments are
//! removed; trigraphs and digraphs are not supported. Errors become tokens of their own instead of
//! diagnostics, because they are no errors in skipped text.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::ops::Range;
use std::sync::LazyLock;

use super::token::Punctuator;

/// Kind of a preprocessing token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RawTokenKind {
    Identifier,
    /// A preprocessing number (C11 6.4.8), a superset of the valid constants.
    Number,
    /// A character constant with its prefix.
    Character,
    /// A string literal with its prefix.
    String,
    Punctuator(Punctuator),
    /// A character that starts no token.
    Stray,
    /// A quote that is not closed on its line, with the rest of the line.
    UnterminatedQuote,
    /// A comment that is not closed, with the rest of the file.
    UnterminatedComment,
    End,
}

/// A preprocessing token: its kind and byte range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RawToken {
    pub kind: RawTokenKind,
    pub start: usize,
    pub end: usize,
    /// Whether white space or a comment precedes it.
    pub leading_space: bool,
    /// Whether this is the first token of its line.
    pub first_on_line: bool,
}

impl RawToken {
    pub fn range(&self) -> Range<usize> {
        self.start..self.end
    }
}

/// Returns the first token at or after `at`; `first_on_line` says whether a line starts there.
pub(super) fn next_token(text: &str, at: usize, first_on_line: bool) -> RawToken {
    let mut cursor = Cursor { text, at };
    let mut raw = RawToken { kind: RawTokenKind::End, start: at, end: at, leading_space: false, first_on_line };
    loop {
        raw.start = cursor.at;
        match cursor.peek() {
            None => break,
            Some(b'\n') => raw.first_on_line = true,
            Some(b' ' | b'\t' | b'\r' | 0x0b | 0x0c) => {}
            Some(b'/') => match cursor.second() {
                Some(b'/') => {
                    while cursor.peek().is_some_and(|byte| byte != b'\n') {
                        cursor.bump();
                    }
                    raw.leading_space = true;
                    continue;
                }
                Some(b'*') => {
                    if !cursor.comment() {
                        raw.kind = RawTokenKind::UnterminatedComment;
                        break;
                    }
                    raw.leading_space = true;
                    continue;
                }
                _ => break,
            },
            _ => break,
        }
        raw.leading_space = true;
        cursor.bump();
    }
    raw.start = if raw.kind == RawTokenKind::UnterminatedComment { raw.start } else { cursor.skip_splices() };
    if raw.kind == RawTokenKind::End {
        raw.kind = cursor.token();
    }
    raw.end = cursor.at;
    raw
}

/// Range of the header name at `at`, in quotes or angle brackets, without escapes (C11 6.4.7);
/// `None` if what follows on the line is not a header name.
pub(super) fn header_name(text: &str, at: usize) -> Option<Range<usize>> {
    let line = text[at..].split('\n').next().unwrap_or_default();
    let name = line.trim_start_matches([' ', '\t', '\r', '\x0b', '\x0c']);
    let close = match name.bytes().next()? {
        b'"' => '"',
        b'<' => '>',
        _ => return None,
    };
    let start = at + line.len() - name.len();
    Some(start..start + 1 + name[1..].find(close)? + 1)
}

/// A token's text without line splices.
pub(super) fn spelling(text: &str) -> Cow<'_, str> {
    if text.contains("\\\n") || text.contains("\\\r\n") {
        Cow::Owned(text.replace("\\\r\n", "").replace("\\\n", ""))
    } else {
        Cow::Borrowed(text)
    }
}

fn is_identifier(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Punctuators by their first byte, the longest first.
static PUNCTUATORS: LazyLock<[Vec<Punctuator>; 128]> = LazyLock::new(|| {
    let mut by_first = [const { Vec::new() }; 128];
    for &punctuator in Punctuator::ALL {
        by_first[usize::from(punctuator.text().as_bytes()[0])].push(punctuator);
    }
    by_first.iter_mut().for_each(|all| all.sort_by_key(|punctuator| Reverse(punctuator.text().len())));
    by_first
});

struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl Cursor<'_> {
    /// Offset after the splices at `at`.
    fn after_splices(&self, mut at: usize) -> usize {
        let bytes = self.text.as_bytes();
        while bytes.get(at) == Some(&b'\\') {
            match bytes[at + 1..] {
                [b'\n', ..] => at += 2,
                [b'\r', b'\n', ..] => at += 3,
                _ => break,
            }
        }
        at
    }

    fn skip_splices(&mut self) -> usize {
        self.at = self.after_splices(self.at);
        self.at
    }

    /// The next byte, after any splices.
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.after_splices(self.at)).copied()
    }

    /// The byte after the next one.
    fn second(&self) -> Option<u8> {
        let at = self.after_splices(self.after_splices(self.at) + 1);
        self.text.as_bytes().get(at).copied()
    }

    fn bump(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at = self.after_splices(self.at) + 1;
        Some(byte)
    }

    /// Consumes the next byte if it is `expected`.
    fn take(&mut self, expected: u8) -> bool {
        let matches = self.peek() == Some(expected);
        if matches {
            self.bump();
        }
        matches
    }

    /// Consumes the block comment that starts here; returns false if it is unterminated.
    fn comment(&mut self) -> bool {
        self.bump();
        self.bump();
        while let Some(byte) = self.bump() {
            if byte == b'*' && self.take(b'/') {
                return true;
            }
        }
        false
    }

    fn token(&mut self) -> RawTokenKind {
        let Some(first) = self.peek() else { return RawTokenKind::End };
        match first {
            b'0'..=b'9' => self.number(),
            b'.' if self.second().is_some_and(|byte| byte.is_ascii_digit()) => self.number(),
            b'\'' | b'"' => self.quoted(),
            _ if is_identifier(first) => {
                let start = self.at;
                while self.peek().is_some_and(is_identifier) {
                    self.bump();
                }
                let is_prefix = self.at - start <= 16 && {
                    let spelled = spelling(&self.text[start..self.at]);
                    matches!(&*spelled, "L" | "u" | "U" | "u8")
                };
                match self.peek() {
                    Some(b'\'' | b'"') if is_prefix => self.quoted(),
                    _ => RawTokenKind::Identifier,
                }
            }
            _ => self.punctuator(),
        }
    }

    fn number(&mut self) -> RawTokenKind {
        while let Some(byte) = self.bump() {
            match self.peek() {
                Some(b'+' | b'-') if matches!(byte, b'e' | b'E' | b'p' | b'P') => {}
                Some(next) if is_identifier(next) || next == b'.' => {}
                _ => break,
            }
        }
        RawTokenKind::Number
    }

    fn quoted(&mut self) -> RawTokenKind {
        let quote = self.bump();
        loop {
            match self.peek() {
                None | Some(b'\n') => return RawTokenKind::UnterminatedQuote,
                Some(b'\\') => {
                    self.bump();
                    if self.peek().is_some_and(|byte| byte != b'\n') {
                        self.bump();
                    }
                }
                byte => {
                    self.bump();
                    if byte == quote {
                        break;
                    }
                }
            }
        }
        if quote == Some(b'"') { RawTokenKind::String } else { RawTokenKind::Character }
    }

    /// The longest punctuator with which the text continues (C11 6.4p4).
    fn punctuator(&mut self) -> RawTokenKind {
        let candidates = self.peek().and_then(|first| PUNCTUATORS.get(usize::from(first)));
        let found = candidates.into_iter().flatten().find(|punctuator| self.starts_with(punctuator.text()));
        if let Some(punctuator) = found {
            for _ in 0..punctuator.text().len() {
                self.bump();
            }
            return RawTokenKind::Punctuator(*punctuator);
        }
        self.bump();
        while !self.text.is_char_boundary(self.at) {
            self.at += 1;
        }
        RawTokenKind::Stray
    }

    fn starts_with(&self, expected: &str) -> bool {
        let mut ahead = Cursor { ..*self };
        expected.bytes().all(|byte| ahead.take(byte))
    }
}
