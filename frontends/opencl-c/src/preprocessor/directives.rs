//! Preprocessing directives (C11 6.10) and conditional inclusion.

use super::{Abort, MAX_NESTING, PpToken, PpTokenKind, Preprocessor};
use crate::files::Span;
use crate::token::Name;
use portcullis_core::diagnostics::Diagnostic;
use portcullis_core::diagnostics::elide;

/// An open `#if`, `#ifdef` or `#ifndef`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Conditional {
    /// Place of the directive's name.
    pub span: Span,
    /// Whether the whole conditional is in skipped text.
    in_skipped_text: bool,
    /// Whether a group has been taken; later groups are skipped.
    group_taken: bool,
    /// Whether the current group is taken.
    is_active: bool,
    /// Place of the `#else`.
    else_span: Option<Span>,
    /// The macro that an `#ifndef` tests, during its first group.
    guarded: Option<Name>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Directive {
    If,
    Ifdef,
    Ifndef,
    Elif,
    Else,
    Endif,
    Include,
    Define,
    Undef,
    Error,
    Pragma,
    Line,
    Unknown,
}

impl Directive {
    fn from_name(name: &str) -> Directive {
        match name {
            "if" => Directive::If,
            "ifdef" => Directive::Ifdef,
            "ifndef" => Directive::Ifndef,
            "elif" => Directive::Elif,
            "else" => Directive::Else,
            "endif" => Directive::Endif,
            "include" => Directive::Include,
            "define" => Directive::Define,
            "undef" => Directive::Undef,
            "error" => Directive::Error,
            "pragma" => Directive::Pragma,
            "line" => Directive::Line,
            _ => Directive::Unknown,
        }
    }
}

impl Preprocessor<'_> {
    fn conditions(&mut self) -> &mut Vec<Conditional> {
        &mut self.inputs.last_mut().expect("a directive is in a file").conditions
    }

    /// Whether text is currently processed rather than skipped.
    fn is_active(&self) -> bool {
        self.inputs.last().and_then(|input| input.conditions.last()).is_none_or(|condition| condition.is_active)
    }

    /// The macro whose `#ifndef` group directly contains the current text.
    pub(super) fn guarded_macro(&self) -> Option<Name> {
        self.inputs.last()?.conditions.last()?.guarded
    }

    /// Declares, in skipped text, the parameter whose default is skipped because the host has set
    /// it.
    fn note_skipped_default(&mut self) -> Result<(), Abort> {
        let line = self.take_line_unchecked();
        if let (Some(guarded), Some(first)) = (self.guarded_macro(), line.first())
            && first.kind == PpTokenKind::Identifier(guarded)
            && self.host_macros.contains_key(&guarded)
        {
            self.declare_parameter(guarded, &line[1..])?;
        }
        Ok(())
    }

    /// Executes the next directive, and skips the text after it if its group is not taken.
    pub(super) fn directive(&mut self) -> Result<(), Abort> {
        self.skip();
        if !self.at_line_end() {
            let name = self.take();
            self.named_directive(name)?;
        }
        if !self.is_active() {
            while !self.at_end_or_directive() {
                self.skip();
            }
        }
        Ok(())
    }

    fn named_directive(&mut self, name: PpToken) -> Result<(), Abort> {
        let directive = match name.kind {
            PpTokenKind::Identifier(name) => Directive::from_name(self.names.text(name)),
            _ => Directive::Unknown,
        };
        let active = self.is_active();
        match directive {
            Directive::If | Directive::Ifdef | Directive::Ifndef => {
                return self.open_conditional(name, directive, active);
            }
            Directive::Elif | Directive::Else | Directive::Endif => return self.next_group(name, directive),
            Directive::Define if !active => return self.note_skipped_default(),
            _ if !active => {
                while !self.at_line_end() {
                    self.skip();
                }
                return Ok(());
            }
            Directive::Include => return self.include(name),
            // Their text need not consist of valid tokens.
            Directive::Error => return self.error_directive(name),
            Directive::Pragma => return self.pragma(name),
            _ => {}
        }
        let line = self.take_line()?;
        match directive {
            Directive::Define => self.define(name, &line),
            Directive::Undef => self.undefine(name, &line),
            Directive::Line => {
                let error = Diagnostic::new("`#line` is not supported");
                self.report_at(error.note("errors always refer to the text itself: remove the directive"), name, "")
            }
            _ => {
                let text = elide(self.spelled(name));
                let error = Diagnostic::new(format!("unknown directive `#{text}`"));
                let known = "known directives are #if, #ifdef, #ifndef, #elif, #else, #endif, #define, #undef, #include, #pragma and #error";
                self.report_at(error.note(known), name, "")
            }
        }
    }

    /// Opens a conditional: `#if`, `#ifdef` or `#ifndef`.
    fn open_conditional(&mut self, name: PpToken, directive: Directive, in_active_group: bool) -> Result<(), Abort> {
        let depth: usize = self.inputs.iter().map(|input| input.conditions.len()).sum();
        if depth == MAX_NESTING {
            let error = Diagnostic::new(format!("conditionals nest more than {MAX_NESTING} deep"));
            let error = error.at(self.files.range(name.span), "limit exceeded here");
            return self.fatal(error);
        }
        let mut guarded = None;
        let value = match in_active_group {
            // Conditions in skipped text need not be valid.
            false => {
                while !self.at_line_end() {
                    self.skip();
                }
                Some(false)
            }
            true if directive == Directive::If => self.condition(name)?,
            true => {
                let line = self.take_line()?;
                match self.macro_name(name, &line)? {
                    Some(wanted) => {
                        self.expect_line_end(name, &line[1..])?;
                        guarded = (directive == Directive::Ifndef).then_some(wanted);
                        Some(self.is_defined(wanted) == (directive == Directive::Ifdef))
                    }
                    None => None,
                }
            }
        };
        // After an error, take no group: any could be wrong.
        let group_taken = value.unwrap_or(true);
        let is_active = value.unwrap_or(false);
        let in_skipped_text = !self.is_active();
        self.conditions().push(Conditional {
            span: name.span,
            in_skipped_text,
            group_taken,
            is_active,
            else_span: None,
            guarded,
        });
        Ok(())
    }

    /// Handles `#elif`, `#else` and `#endif`.
    fn next_group(&mut self, name: PpToken, directive: Directive) -> Result<(), Abort> {
        let Some(&condition) = self.conditions().last() else {
            let _ = self.take_line_unchecked();
            let error = Diagnostic::new(format!("`#{}` without an `#if`", self.spelled(name)));
            return self.report_at(error.note("a conditional must start in the file in which it ends"), name, "");
        };
        if let (Some(else_span), true) = (condition.else_span, directive != Directive::Endif) {
            let error = Diagnostic::new(format!("`#{}` after `#else`", self.spelled(name)));
            let error = error.at(self.files.range(name.span), "");
            self.report(error.at(self.files.range(else_span), "the `#else`"))?;
        }
        let decides = directive == Directive::Elif && !condition.in_skipped_text && !condition.group_taken;
        let value = match decides {
            true => self.condition(name)?.map_or((true, false), |value| (value, value)),
            false => {
                let line = self.take_line_unchecked();
                if directive != Directive::Elif && !condition.in_skipped_text {
                    self.expect_line_end(name, &line)?;
                }
                let active = directive == Directive::Else && !condition.in_skipped_text && !condition.group_taken;
                (condition.group_taken || active, active)
            }
        };
        match (directive, self.conditions().last_mut()) {
            (Directive::Endif, _) | (_, None) => drop(self.conditions().pop()),
            (_, Some(condition)) => {
                (condition.group_taken, condition.is_active) = value;
                condition.guarded = None;
                if directive == Directive::Else {
                    condition.else_span = Some(name.span);
                }
            }
        }
        Ok(())
    }

    /// Whether a macro of this name is defined.
    pub(super) fn is_defined(&self, name: Name) -> bool {
        self.lookup(name).is_some()
    }

    /// Reports tokens at the end of a directive's line.
    pub(super) fn expect_line_end(&mut self, directive: PpToken, rest: &[PpToken]) -> Result<(), Abort> {
        let Some(&first) = rest.first() else { return Ok(()) };
        let error = Diagnostic::new(format!("unexpected tokens after `#{}`", self.spelled(directive)));
        self.report_at(error.note("write remarks as comments: `// ...`"), first, "from here")
    }

    fn error_directive(&mut self, name: PpToken) -> Result<(), Abort> {
        let line = self.take_line_unchecked();
        let mut text = String::new();
        for token in &line {
            if token.leading_space && !text.is_empty() {
                text.push(' ');
            }
            text.push_str(self.spelled(*token));
        }
        let message = if text.is_empty() { "`#error`".to_owned() } else { format!("`#error`: {text}") };
        self.report_at(Diagnostic::new(message), name, "raised by this directive")
    }

    /// Handles `#pragma once`, and rejects `#pragma pack`, which would change types. Other pragmas,
    /// such as `OPENCL EXTENSION` and `unroll`, are ignored (C11 6.10.6).
    fn pragma(&mut self, directive: PpToken) -> Result<(), Abort> {
        let line = self.take_line_unchecked();
        match line.first().map(|first| self.spelled(*first)) {
            Some("pack") => {
                let error = Diagnostic::new("`#pragma pack` is not supported");
                let note = "mark each structure instead: `struct name { ... } __attribute__((packed));`";
                return self.report_at(error.note(note), directive, "");
            }
            Some("once") if line.len() == 1 => self.pragma_once.extend(self.inputs.last().map(|input| input.file)),
            _ => {}
        }
        Ok(())
    }
}
