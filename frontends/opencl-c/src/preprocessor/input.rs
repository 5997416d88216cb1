//! Files as preprocessing tokens, one file on top of the other.

use std::path::PathBuf;
use std::sync::Arc;

use super::directives::Condition;
use super::{MAX_READ, Pp, PpKind, Preprocessor, Stop};
use crate::files::{FileId, Span};
use crate::lexer::{self, Raw, RawKind};
use crate::token::Punctuator;
use portcullis_core::diagnostics::Diagnostic;

/// A file that is being read.
pub(super) struct Input {
    pub file: FileId,
    /// The file's folder, below the filter's.
    pub folder: PathBuf,
    pub text: Arc<str>,
    /// The token in front, which is not taken yet.
    pub front: Raw,
    /// The conditionals that are open.
    pub conditions: Vec<Condition>,
}

impl Input {
    fn advance(&mut self) -> Raw {
        let next = lexer::next(&self.text, self.front.end, false);
        std::mem::replace(&mut self.front, next)
    }

    pub fn span(&self, raw: Raw) -> Span {
        Span { file: self.file, start: raw.start as u32, end: raw.end as u32 }
    }
}

impl Preprocessor<'_> {
    /// Goes on with a file, from its beginning. `from` is where it is included.
    pub(super) fn enter(&mut self, file: FileId, folder: PathBuf, from: Option<Span>) -> Result<(), Stop> {
        let text = self.files.text(file).clone();
        self.read += text.len();
        if self.read > MAX_READ {
            let error = Diagnostic::new(format!("more than {MAX_READ} bytes of text in all"));
            let error = error.note("a file counts as often as it is included: `#pragma once` makes that once");
            let error = match from {
                Some(from) => self.files.point(error, from, None, "this file is too much"),
                None => error,
            };
            return self.fatal(error);
        }
        let front = lexer::next(&text, 0, true);
        self.inputs.push(Input { file, folder, text, front, conditions: Vec::new() });
        Ok(())
    }

    /// Goes back to the file that included this one, and gives the place where this one ended.
    pub(super) fn leave(&mut self) -> Result<Span, Stop> {
        let Some(input) = self.inputs.pop() else { unreachable!("there is a file as long as there is text") };
        let front = input.front;
        if front.kind == RawKind::OpenComment {
            let opened = Raw { end: front.start + 2, ..front };
            let error = Diagnostic::new("this comment has no end");
            let error = error.at(self.files.range(input.span(opened)), "begins here");
            self.report(error.note("it ends at the first `*/`; comments do not nest"))?;
        } else {
            for condition in &input.conditions {
                let error = Diagnostic::new("this conditional has no `#endif`");
                let error = error.at(self.files.range(condition.place), "opened here");
                self.report(error.note("a conditional ends in the file in which it begins"))?;
            }
        }
        let end = input.text.len();
        Ok(input.span(Raw { start: end, end, ..front }))
    }

    /// The token of the text in front.
    pub(super) fn front(&self) -> Option<Raw> {
        self.inputs.last().map(|input| input.front)
    }

    /// Whether nothing of the text is left but a directive or the end of the file.
    pub(super) fn at_stop(&self) -> bool {
        self.front().is_none_or(|raw| matches!(raw.kind, RawKind::End | RawKind::OpenComment)) || self.at_directive()
    }

    /// Whether a directive begins.
    pub(super) fn at_directive(&self) -> bool {
        self.front().is_some_and(|raw| raw.first && raw.kind == RawKind::Punctuator(Punctuator::Hash))
    }

    /// Whether the line ends before the token in front.
    pub(super) fn at_line_end(&self) -> bool {
        self.front().is_none_or(|raw| raw.first || matches!(raw.kind, RawKind::End | RawKind::OpenComment))
    }

    /// Takes the token in front without looking at it.
    pub(super) fn skip(&mut self) -> Option<Raw> {
        self.inputs.last_mut().map(Input::advance)
    }

    /// Takes the token in front, which is there.
    pub(super) fn take(&mut self) -> Pp {
        let input = self.inputs.last_mut().expect("there is a token in front");
        let raw = input.advance();
        let span = input.span(raw);
        let text = lexer::spelling(&input.text[raw.range()]);
        let kind = match raw.kind {
            RawKind::Punctuator(punctuator) => PpKind::Punctuator(punctuator),
            RawKind::Identifier => PpKind::Identifier(self.names.intern(&text)),
            RawKind::Number => PpKind::Number(self.names.intern(&text)),
            RawKind::Character => PpKind::Character(self.names.intern(&text)),
            RawKind::String => PpKind::String(self.names.intern(&text)),
            RawKind::Stray | RawKind::OpenQuote | RawKind::OpenComment | RawKind::End => {
                PpKind::Other(self.names.intern(&text))
            }
        };
        Pp { kind, span, used: 0, space: raw.space, painted: false }
    }

    /// [`take`](Self::take), where a quote has to have its end.
    pub(super) fn take_checked(&mut self) -> Result<Pp, Stop> {
        let open = self.front().is_some_and(|raw| raw.kind == RawKind::OpenQuote);
        let token = self.take();
        if !open {
            return Ok(token);
        }
        let quote = self.spelled(token).chars().find(|c| matches!(c, '"' | '\'')).unwrap_or('"');
        let error = Diagnostic::new(format!("this {quote} has no partner on its line"));
        self.wrong(error.note("what it opens ends on the same line"), token, "opened here")?;
        // Something that is right, so that no more is said of it.
        Ok(Pp { kind: PpKind::String(self.names.intern("\"\"")), ..token })
    }

    /// What is left of a directive's line.
    pub(super) fn line(&mut self) -> Result<Vec<Pp>, Stop> {
        let mut line = Vec::new();
        while !self.at_line_end() {
            line.push(self.take_checked()?);
        }
        Ok(line)
    }

    /// The same, where the tokens need not be any.
    pub(super) fn line_unchecked(&mut self) -> Vec<Pp> {
        let mut line = Vec::new();
        while !self.at_line_end() {
            line.push(self.take());
        }
        line
    }
}
