//! The stack of input files, read as preprocessing tokens.

use std::path::PathBuf;
use std::sync::Arc;

use super::directives::Conditional;
use super::{Abort, MAX_TEXT_BYTES, PpToken, PpTokenKind, Preprocessor};
use crate::files::{FileId, Span};
use crate::lexer::{self, RawToken, RawTokenKind};
use crate::token::Punctuator;
use portcullis_core::diagnostics::Diagnostic;

/// A file being read.
pub(super) struct Input {
    pub file: FileId,
    /// The file's folder, relative to the filter's.
    pub folder: PathBuf,
    pub text: Arc<str>,
    /// Lookahead: the next token.
    pub front: RawToken,
    /// The open conditionals, innermost last.
    pub conditions: Vec<Conditional>,
}

impl Input {
    fn advance(&mut self) -> RawToken {
        let next = lexer::next_token(&self.text, self.front.end, false);
        std::mem::replace(&mut self.front, next)
    }

    pub fn span(&self, raw: RawToken) -> Span {
        Span { file: self.file, start: raw.start as u32, end: raw.end as u32 }
    }
}

impl Preprocessor<'_> {
    /// Pushes a file, to be read from its start. `from` is the place of its `#include`.
    pub(super) fn push_input(&mut self, file: FileId, folder: PathBuf, from: Option<Span>) -> Result<(), Abort> {
        let text = self.files.text(file).clone();
        self.bytes_read += text.len();
        if self.bytes_read > MAX_TEXT_BYTES {
            let error = Diagnostic::new(format!("the filter and its files have more than {MAX_TEXT_BYTES} bytes"));
            let error = error.note("a file counts each time that it is included: add `#pragma once`");
            let error = match from {
                Some(from) => self.files.point_at(error, from, None, "this file exceeds the limit"),
                None => error,
            };
            return self.fatal(error);
        }
        let front = lexer::next_token(&text, 0, true);
        self.inputs.push(Input { file, folder, text, front, conditions: Vec::new() });
        Ok(())
    }

    /// Pops the current file, reports what it leaves open and returns the place of its end.
    pub(super) fn pop_input(&mut self) -> Result<Span, Abort> {
        let Some(input) = self.inputs.pop() else { unreachable!("there is a file as long as there is text") };
        let front = input.front;
        if front.kind == RawTokenKind::UnterminatedComment {
            let opened = RawToken { end: front.start + 2, ..front };
            let error = Diagnostic::new("unterminated comment");
            let error = error.at(self.files.range(input.span(opened)), "starts here");
            self.report(error.note("it needs a `*/`; comments do not nest"))?;
        } else {
            for condition in &input.conditions {
                let error = Diagnostic::new("this conditional has no `#endif`");
                let error = error.at(self.files.range(condition.span), "opened here");
                self.report(error.note("a conditional must end in the file in which it starts"))?;
            }
        }
        let end = input.text.len();
        Ok(input.span(RawToken { start: end, end, ..front }))
    }

    /// The next token of the current file.
    pub(super) fn peek(&self) -> Option<RawToken> {
        self.inputs.last().map(|input| input.front)
    }

    /// Whether the next token ends the file or starts a directive.
    pub(super) fn at_end_or_directive(&self) -> bool {
        self.peek().is_none_or(|raw| matches!(raw.kind, RawTokenKind::End | RawTokenKind::UnterminatedComment))
            || self.at_directive()
    }

    /// Whether a directive starts here.
    pub(super) fn at_directive(&self) -> bool {
        self.peek().is_some_and(|raw| raw.first_on_line && raw.kind == RawTokenKind::Punctuator(Punctuator::Hash))
    }

    /// Whether the line ends before the next token.
    pub(super) fn at_line_end(&self) -> bool {
        self.peek().is_none_or(|raw| {
            raw.first_on_line || matches!(raw.kind, RawTokenKind::End | RawTokenKind::UnterminatedComment)
        })
    }

    /// Consumes the next token without converting it.
    pub(super) fn skip(&mut self) -> Option<RawToken> {
        self.inputs.last_mut().map(Input::advance)
    }

    /// Consumes and converts the next token; there must be one.
    pub(super) fn take(&mut self) -> PpToken {
        let input = self.inputs.last_mut().expect("there is a token in front");
        let raw = input.advance();
        let span = input.span(raw);
        let text = lexer::spelling(&input.text[raw.range()]);
        let kind = match raw.kind {
            RawTokenKind::Punctuator(punctuator) => PpTokenKind::Punctuator(punctuator),
            RawTokenKind::Identifier => PpTokenKind::Identifier(self.names.intern(&text)),
            RawTokenKind::Number => PpTokenKind::Number(self.names.intern(&text)),
            RawTokenKind::Character => PpTokenKind::Character(self.names.intern(&text)),
            RawTokenKind::String => PpTokenKind::String(self.names.intern(&text)),
            RawTokenKind::Stray
            | RawTokenKind::UnterminatedQuote
            | RawTokenKind::UnterminatedComment
            | RawTokenKind::End => PpTokenKind::Other(self.names.intern(&text)),
        };
        PpToken { kind, span, macro_use: 0, leading_space: raw.leading_space, painted: false }
    }

    /// [`take`](Self::take) that also reports an unclosed quote.
    pub(super) fn take_checked(&mut self) -> Result<PpToken, Abort> {
        let open = self.peek().is_some_and(|raw| raw.kind == RawTokenKind::UnterminatedQuote);
        let token = self.take();
        if !open {
            return Ok(token);
        }
        let quote = self.spelled(token).chars().find(|c| matches!(c, '"' | '\'')).unwrap_or('"');
        let error = Diagnostic::new(format!("this {quote} is not closed on its line"));
        self.report_at(error.note("a literal must end on the line on which it starts"), token, "opened here")?;
        // Substitute a valid token so that no further error follows.
        Ok(PpToken { kind: PpTokenKind::String(self.names.intern("\"\"")), ..token })
    }

    /// Consumes the rest of a directive's line.
    pub(super) fn take_line(&mut self) -> Result<Vec<PpToken>, Abort> {
        let mut line = Vec::new();
        while !self.at_line_end() {
            line.push(self.take_checked()?);
        }
        Ok(line)
    }

    /// [`take_line`](Self::take_line) for lines that may contain invalid tokens.
    pub(super) fn take_line_unchecked(&mut self) -> Vec<PpToken> {
        let mut line = Vec::new();
        while !self.at_line_end() {
            line.push(self.take());
        }
        line
    }
}
