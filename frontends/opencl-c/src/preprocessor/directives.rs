//! Directives (C11 6.10), and which text they leave out.

use super::{MAX_NESTING, Pp, PpKind, Preprocessor, Stop};
use crate::files::Span;
use crate::token::Name;
use portcullis_core::diagnostics::Diagnostic;
use portcullis_core::diagnostics::short;

/// An `#if`, `#ifdef` or `#ifndef` that is open.
#[derive(Debug, Clone, Copy)]
pub(super) struct Condition {
    /// Its name.
    pub place: Span,
    /// Whether the whole of it is in text that is left out.
    dead: bool,
    /// Whether one of its groups was taken: the rest is not.
    taken: bool,
    /// Whether the present group is.
    active: bool,
    /// The `#else`.
    other: Option<Span>,
    /// The macro that an `#ifndef` asks for, as long as its first group lasts.
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
    fn named(name: &str) -> Directive {
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
    fn conditions(&mut self) -> &mut Vec<Condition> {
        &mut self.inputs.last_mut().expect("a directive is in a file").conditions
    }

    /// Whether the present group of each conditional is taken.
    fn is_active(&self) -> bool {
        self.inputs.last().and_then(|input| input.conditions.last()).is_none_or(|condition| condition.active)
    }

    /// The macro in whose `#ifndef` the text is now, if nothing further in is asked.
    pub(super) fn guarded(&self) -> Option<Name> {
        self.inputs.last()?.conditions.last()?.guarded
    }

    /// In text that is left out because the host has set a macro: the default that it would have had.
    fn default_left_out(&mut self) -> Result<(), Stop> {
        let line = self.line_unchecked();
        if let (Some(guarded), Some(first)) = (self.guarded(), line.first())
            && first.kind == PpKind::Identifier(guarded)
            && self.given.contains_key(&guarded)
        {
            self.parameter(guarded, &line[1..])?;
        }
        Ok(())
    }

    /// Does what the directive in front says, and passes the text that is left out behind it.
    pub(super) fn directive(&mut self) -> Result<(), Stop> {
        self.skip();
        if !self.at_line_end() {
            let name = self.take();
            self.named_directive(name)?;
        }
        if !self.is_active() {
            while !self.at_stop() {
                self.skip();
            }
        }
        Ok(())
    }

    fn named_directive(&mut self, name: Pp) -> Result<(), Stop> {
        let directive = match name.kind {
            PpKind::Identifier(name) => Directive::named(self.names.text(name)),
            _ => Directive::Unknown,
        };
        let active = self.is_active();
        match directive {
            Directive::If | Directive::Ifdef | Directive::Ifndef => return self.open(name, directive, active),
            Directive::Elif | Directive::Else | Directive::Endif => return self.turn(name, directive),
            Directive::Define if !active => return self.default_left_out(),
            _ if !active => {
                while !self.at_line_end() {
                    self.skip();
                }
                return Ok(());
            }
            Directive::Include => return self.include(name),
            // Their texts need not be made of tokens.
            Directive::Error => return self.error_directive(name),
            Directive::Pragma => return self.pragma(name),
            _ => {}
        }
        let line = self.line()?;
        match directive {
            Directive::Define => self.define(name, &line),
            Directive::Undef => self.undefine(name, &line),
            Directive::Line => {
                let error = Diagnostic::new("`#line` is not taken");
                self.wrong(error.note("places are those of the text that is here: leave the directive out"), name, "")
            }
            _ => {
                let text = short(self.spelled(name));
                let error = Diagnostic::new(format!("there is no directive `#{text}`"));
                let known = "those are #if, #ifdef, #ifndef, #elif, #else, #endif, #define, #undef, #include, #pragma and #error";
                self.wrong(error.note(known), name, "")
            }
        }
    }

    /// `#if` and its like.
    fn open(&mut self, name: Pp, directive: Directive, active: bool) -> Result<(), Stop> {
        let depth: usize = self.inputs.iter().map(|input| input.conditions.len()).sum();
        if depth == MAX_NESTING {
            let error = Diagnostic::new(format!("conditionals nest more than {MAX_NESTING} deep"));
            let error = error.at(self.files.range(name.span), "this is one too many");
            return self.fatal(error);
        }
        let mut guarded = None;
        let value = match active {
            // What does not decide need not be right.
            false => {
                while !self.at_line_end() {
                    self.skip();
                }
                Some(false)
            }
            true if directive == Directive::If => self.condition(name)?,
            true => {
                let line = self.line()?;
                match self.macro_name(name, &line)? {
                    Some(wanted) => {
                        self.no_more(name, &line[1..])?;
                        guarded = (directive == Directive::Ifndef).then_some(wanted);
                        Some(self.is_defined(wanted) == (directive == Directive::Ifdef))
                    }
                    None => None,
                }
            }
        };
        // After an error no group is taken: what is in them may be as wrong.
        let taken = value.unwrap_or(true);
        let active = value.unwrap_or(false);
        let dead = !self.is_active();
        self.conditions().push(Condition { place: name.span, dead, taken, active, other: None, guarded });
        Ok(())
    }

    /// `#elif`, `#else` and `#endif`.
    fn turn(&mut self, name: Pp, directive: Directive) -> Result<(), Stop> {
        let Some(&condition) = self.conditions().last() else {
            let _ = self.line_unchecked();
            let error = Diagnostic::new(format!("`#{}` without an `#if`", self.spelled(name)));
            return self.wrong(error.note("a conditional begins in the file in which it ends"), name, "");
        };
        if let (Some(other), true) = (condition.other, directive != Directive::Endif) {
            let error = Diagnostic::new(format!("`#{}` behind the `#else`", self.spelled(name)));
            let error = error.at(self.files.range(name.span), "");
            self.report(error.at(self.files.range(other), "the `#else`"))?;
        }
        let decides = directive == Directive::Elif && !condition.dead && !condition.taken;
        let value = match decides {
            true => self.condition(name)?.map_or((true, false), |value| (value, value)),
            false => {
                let line = self.line_unchecked();
                if directive != Directive::Elif && !condition.dead {
                    self.no_more(name, &line)?;
                }
                let active = directive == Directive::Else && !condition.dead && !condition.taken;
                (condition.taken || active, active)
            }
        };
        match (directive, self.conditions().last_mut()) {
            (Directive::Endif, _) | (_, None) => drop(self.conditions().pop()),
            (_, Some(condition)) => {
                (condition.taken, condition.active) = value;
                condition.guarded = None;
                if directive == Directive::Else {
                    condition.other = Some(name.span);
                }
            }
        }
        Ok(())
    }

    /// Whether a macro of that name is defined.
    pub(super) fn is_defined(&self, name: Name) -> bool {
        self.lookup(name).is_some()
    }

    /// Refuses what is left of a directive's line.
    pub(super) fn no_more(&mut self, directive: Pp, rest: &[Pp]) -> Result<(), Stop> {
        let Some(&first) = rest.first() else { return Ok(()) };
        let error = Diagnostic::new(format!("there is more on the line than `#{}` takes", self.spelled(directive)));
        self.wrong(error.note("what is meant for people goes into a comment: `// ...`"), first, "from here")
    }

    fn error_directive(&mut self, name: Pp) -> Result<(), Stop> {
        let line = self.line_unchecked();
        let mut text = String::new();
        for token in &line {
            if token.space && !text.is_empty() {
                text.push(' ');
            }
            text.push_str(self.spelled(*token));
        }
        let message = if text.is_empty() { "`#error`".to_owned() } else { format!("`#error`: {text}") };
        self.wrong(Diagnostic::new(message), name, "the text itself says so")
    }

    /// `#pragma once`, and `#pragma pack`, which would change what types mean; all others, `OPENCL EXTENSION`
    /// and `unroll` among them, change nothing here (C11 6.10.6).
    fn pragma(&mut self, directive: Pp) -> Result<(), Stop> {
        let line = self.line_unchecked();
        match line.first().map(|first| self.spelled(*first)) {
            Some("pack") => {
                let error = Diagnostic::new("`#pragma pack` is not taken");
                let note = "say it of each structure: `struct name { ... } __attribute__((packed));`";
                return self.wrong(error.note(note), directive, "");
            }
            Some("once") if line.len() == 1 => self.once.extend(self.inputs.last().map(|input| input.file)),
            _ => {}
        }
        Ok(())
    }
}
