//! Text to preprocessing tokens (C11 5.1.1.2 phases 2 and 3, and 6.4): splices and comments go, there
//! are no trigraphs and no digraphs. It reports nothing: what is wrong comes out as a token of its own,
//! since in text that is skipped it is not wrong.

use std::borrow::Cow;
use std::ops::Range;

use super::token::Punctuator;

/// What a preprocessing token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RawKind {
    Identifier,
    /// A preprocessing number (C11 6.4.8): more than the numbers that there are.
    Number,
    /// A character constant, with its prefix.
    Character,
    /// A string literal, with its prefix.
    String,
    Punctuator(Punctuator),
    /// A character that begins no token.
    Stray,
    /// A quote that nothing closes on its line, with the rest of the line.
    OpenQuote,
    /// A comment that nothing closes, with the rest of the file.
    OpenComment,
    End,
}

/// A preprocessing token, as bytes of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Raw {
    pub kind: RawKind,
    pub start: usize,
    pub end: usize,
    /// Whether white space or a comment is in front of it.
    pub space: bool,
    /// Whether it is the first of its line.
    pub first: bool,
}

impl Raw {
    pub fn range(&self) -> Range<usize> {
        self.start..self.end
    }
}

/// The token at or behind `at`; `first` says that a line begins there.
pub(super) fn next(text: &str, at: usize, first: bool) -> Raw {
    let mut cursor = Cursor { text, at };
    let mut raw = Raw { kind: RawKind::End, start: at, end: at, space: false, first };
    loop {
        raw.start = cursor.at;
        match cursor.peek() {
            None => break,
            Some(b'\n') => raw.first = true,
            Some(b' ' | b'\t' | b'\r' | 0x0b | 0x0c) => {}
            Some(b'/') => match cursor.second() {
                Some(b'/') => {
                    while cursor.peek().is_some_and(|byte| byte != b'\n') {
                        cursor.bump();
                    }
                    raw.space = true;
                    continue;
                }
                Some(b'*') => {
                    if !cursor.comment() {
                        raw.kind = RawKind::OpenComment;
                        break;
                    }
                    raw.space = true;
                    continue;
                }
                _ => break,
            },
            _ => break,
        }
        raw.space = true;
        cursor.bump();
    }
    raw.start = if raw.kind == RawKind::OpenComment { raw.start } else { cursor.skip_splices() };
    if raw.kind == RawKind::End {
        raw.kind = cursor.token();
    }
    raw.end = cursor.at;
    raw
}

/// What follows `at` on its line if it is the name of a header: between quotes or angle brackets, in
/// which nothing escapes anything (C11 6.4.7).
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

/// A token's text without the splices in it.
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

struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl Cursor<'_> {
    /// Where the text goes on behind the splices at `at`.
    fn behind_splices(&self, mut at: usize) -> usize {
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
        self.at = self.behind_splices(self.at);
        self.at
    }

    /// The byte in front, behind any splices.
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.behind_splices(self.at)).copied()
    }

    /// The byte behind that.
    fn second(&self) -> Option<u8> {
        let at = self.behind_splices(self.behind_splices(self.at) + 1);
        self.text.as_bytes().get(at).copied()
    }

    fn bump(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at = self.behind_splices(self.at) + 1;
        Some(byte)
    }

    /// Passes the byte in front if it is `wanted`.
    fn take(&mut self, wanted: u8) -> bool {
        let is = self.peek() == Some(wanted);
        if is {
            self.bump();
        }
        is
    }

    /// Passes a comment of which the slash is in front; false if it has no end.
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

    fn token(&mut self) -> RawKind {
        let Some(first) = self.peek() else { return RawKind::End };
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
                    _ => RawKind::Identifier,
                }
            }
            _ => self.punctuator(),
        }
    }

    fn number(&mut self) -> RawKind {
        while let Some(byte) = self.bump() {
            match self.peek() {
                Some(b'+' | b'-') if matches!(byte, b'e' | b'E' | b'p' | b'P') => {}
                Some(next) if is_identifier(next) || next == b'.' => {}
                _ => break,
            }
        }
        RawKind::Number
    }

    fn quoted(&mut self) -> RawKind {
        let quote = self.bump();
        loop {
            match self.peek() {
                None | Some(b'\n') => return RawKind::OpenQuote,
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
        if quote == Some(b'"') { RawKind::String } else { RawKind::Character }
    }

    fn punctuator(&mut self) -> RawKind {
        use Punctuator as P;
        let Some(first) = self.bump() else { return RawKind::End };
        let punctuator = match first {
            b'[' => P::LeftBracket,
            b']' => P::RightBracket,
            b'(' => P::LeftParenthesis,
            b')' => P::RightParenthesis,
            b'{' => P::LeftBrace,
            b'}' => P::RightBrace,
            b'~' => P::Tilde,
            b'?' => P::Question,
            b':' => P::Colon,
            b';' => P::Semicolon,
            b',' => P::Comma,
            b'.' if self.peek() == Some(b'.') && self.second() == Some(b'.') => {
                self.bump();
                self.bump();
                P::Ellipsis
            }
            b'.' => P::Dot,
            b'-' if self.take(b'>') => P::Arrow,
            b'-' if self.take(b'-') => P::Decrement,
            b'-' if self.take(b'=') => P::MinusAssign,
            b'-' => P::Minus,
            b'+' if self.take(b'+') => P::Increment,
            b'+' if self.take(b'=') => P::PlusAssign,
            b'+' => P::Plus,
            b'&' if self.take(b'&') => P::AndAnd,
            b'&' if self.take(b'=') => P::AndAssign,
            b'&' => P::And,
            b'|' if self.take(b'|') => P::OrOr,
            b'|' if self.take(b'=') => P::OrAssign,
            b'|' => P::Or,
            b'*' if self.take(b'=') => P::StarAssign,
            b'*' => P::Star,
            b'/' if self.take(b'=') => P::SlashAssign,
            b'/' => P::Slash,
            b'%' if self.take(b'=') => P::PercentAssign,
            b'%' => P::Percent,
            b'^' if self.take(b'=') => P::CaretAssign,
            b'^' => P::Caret,
            b'!' if self.take(b'=') => P::NotEqual,
            b'!' => P::Not,
            b'=' if self.take(b'=') => P::Equal,
            b'=' => P::Assign,
            b'#' if self.take(b'#') => P::HashHash,
            b'#' => P::Hash,
            b'<' if self.take(b'<') => match self.take(b'=') {
                true => P::ShiftLeftAssign,
                false => P::ShiftLeft,
            },
            b'<' if self.take(b'=') => P::LessEqual,
            b'<' => P::Less,
            b'>' if self.take(b'>') => match self.take(b'=') {
                true => P::ShiftRightAssign,
                false => P::ShiftRight,
            },
            b'>' if self.take(b'=') => P::GreaterEqual,
            b'>' => P::Greater,
            _ => {
                while !self.text.is_char_boundary(self.at) {
                    self.at += 1;
                }
                return RawKind::Stray;
            }
        };
        RawKind::Punctuator(punctuator)
    }
}
