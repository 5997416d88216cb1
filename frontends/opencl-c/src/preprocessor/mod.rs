//! The preprocessor: text to tokens for the parser (C11 6.10 and 5.1.1.2 phases 1 to 5, without the
//! joining of strings).
//!
//! One pass. Text comes from a stack of inputs, one for each file that is being included; macros
//! stand on a stack of contexts, from which tokens are read before those of the text. A
//! macro is not expanded while its own context is on the stack, and a name that was met there stays as
//! it is for good (6.10.3.4).
//!
//! What C leaves open, or to the implementation:
//! - a directive among the arguments of a macro is an error, and a list of arguments ends in its file;
//! - the name of a macro with parameters that stands before a directive or the end of a file is no use;
//! - `, ## __VA_ARGS__` drops the comma where there are no variable arguments, as GCC has it;
//! - in `#if`, arithmetic wraps in 64 bits; a shift by 64 or more, or by less than 0, is an error;
//! - `#include "x"` looks beside the including file and nowhere else.

mod condition;
mod define;
mod directives;
mod expand;
mod include;
mod input;
mod literals;
mod parameters;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use super::files::{FileId, Files, Includes, Span};
use super::library;
use super::token::{Name, Names, Punctuator, Token, TokenKind};
use portcullis_core::diagnostics::short;
use portcullis_core::diagnostics::{Diagnostic, Diagnostics, Source};
use portcullis_core::map::Declaration;
use portcullis_core::map::declaration::{CommentSyntax, declarations};
use portcullis_core::program::Parameter;

use define::Macro;
use expand::Context;
use input::Input;

/// The most tokens after expansion.
pub const MAX_TOKENS: usize = 1 << 20;

/// How many files deep `#include` may go, the filter's own not counted.
pub const MAX_INCLUDES: usize = 16;

/// How deep conditionals may nest in one another, parentheses in a condition, and a macro's use in the
/// arguments of another's.
pub const MAX_NESTING: usize = 256;

/// The most bytes of text, a file counted each time that it is included.
pub const MAX_READ: usize = 1 << 24;

/// The most steps that macros may take: tokens put in the place of others, those counted that are
/// replaced again. Macros that grow exponentially into nothing stop here.
pub const MAX_STEPS: usize = 1 << 22;

/// The longest token that `#` or `##` may make, in bytes.
pub const MAX_SPELLING: usize = 1 << 16;

/// Errors after which the rest is not looked for.
pub const MAX_ERRORS: usize = 20;

/// A filter's text as tokens.
#[derive(Debug, Clone)]
pub struct Tokens {
    /// The tokens; the last one is [`TokenKind::End`].
    pub tokens: Vec<Token>,
    /// The spellings of identifiers and strings.
    pub names: Names,
    /// The files that the tokens' places are in.
    pub files: Files,
    /// What the host can set, in the order of the text.
    pub parameters: Vec<Parameter>,
    /// The maps that the filter's file declares.
    pub maps: Vec<Declaration>,
}

/// Turns a filter's text into tokens. `defines` are macros that the host sets, by name, with the text
/// that they stand for; an IPv4 address (`10.0.0.1`) as that text means its number, highest byte first.
///
/// # Errors
/// What is wrong with the text, several things at once where one does not follow from the other. A
/// macro that was set and has no default in the text is an error too.
pub fn preprocess(
    source: &Source,
    defines: &[(String, String)],
    includes: &mut dyn Includes,
) -> Result<Tokens, Diagnostics> {
    let mut preprocessor = Preprocessor::new(source, includes);
    let stopped = preprocessor.run(source, defines).is_err();
    debug_assert!(!stopped || !preprocessor.errors.is_empty(), "it stops at errors only");
    let Preprocessor { tokens, names, files, errors, parameters, maps, .. } = preprocessor;
    match errors.is_empty() {
        true => Ok(Tokens { tokens, names, files, parameters, maps }),
        false => Err(files.diagnostics(errors)),
    }
}

/// An error after which nothing more is to be found.
struct Stop;

/// What a preprocessing token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PpKind {
    Identifier(Name),
    Number(Name),
    Character(Name),
    String(Name),
    Punctuator(Punctuator),
    /// A character, or a quote with the rest of its line, that is no token.
    Other(Name),
}

/// A preprocessing token.
#[derive(Debug, Clone, Copy)]
struct Pp {
    kind: PpKind,
    span: Span,
    /// One more than the number of its outermost use of a macro; 0 without.
    used: u32,
    /// Whether white space is in front.
    space: bool,
    /// A macro's name that was met in the macro's own expansion: it is one no longer.
    painted: bool,
}

impl Pp {
    fn is(&self, punctuator: Punctuator) -> bool {
        self.kind == PpKind::Punctuator(punctuator)
    }

    /// How it is written.
    fn text(self, names: &Names) -> &str {
        match self.kind {
            PpKind::Punctuator(punctuator) => punctuator.text(),
            PpKind::Identifier(name)
            | PpKind::Number(name)
            | PpKind::Character(name)
            | PpKind::String(name)
            | PpKind::Other(name) => names.text(name),
        }
    }
}

/// An outermost use of a macro.
#[derive(Debug, Clone, Copy)]
struct Use {
    name: Name,
    span: Span,
}

struct Preprocessor<'a> {
    includes: &'a mut dyn Includes,
    files: Files,
    names: Names,
    /// Files by their path below the filter's folder.
    known: HashMap<PathBuf, FileId>,
    /// Those with `#pragma once`.
    once: HashSet<FileId>,
    inputs: Vec<Input>,
    /// Bytes of all inputs so far.
    read: usize,
    macros: Vec<Macro>,
    defined: HashMap<Name, usize>,
    /// Macros that the host has set.
    given: HashMap<Name, usize>,
    parameters: Vec<Parameter>,
    maps: Vec<Declaration>,
    contexts: Vec<Context>,
    uses: Vec<Use>,
    /// Tokens that macros made so far.
    steps: usize,
    /// Arguments within arguments.
    nesting: usize,
    /// White space in front of what expanded to nothing.
    space: bool,
    /// Where lines end, of the files that had to know.
    line_ends: HashMap<FileId, Vec<u32>>,
    tokens: Vec<Token>,
    errors: Vec<Diagnostic>,
}

impl<'a> Preprocessor<'a> {
    fn new(source: &Source, includes: &'a mut dyn Includes) -> Preprocessor<'a> {
        let mut files = Files::default();
        files.add(&*source.name, source.text.clone(), None);
        Preprocessor {
            includes,
            files,
            names: Names::default(),
            known: HashMap::new(),
            once: HashSet::new(),
            inputs: Vec::new(),
            read: 0,
            macros: Vec::new(),
            defined: HashMap::new(),
            given: HashMap::new(),
            parameters: Vec::new(),
            maps: Vec::new(),
            contexts: Vec::new(),
            uses: Vec::new(),
            steps: 0,
            nesting: 0,
            space: false,
            line_ends: HashMap::new(),
            tokens: Vec::new(),
            errors: Vec::new(),
        }
    }

    fn run(&mut self, source: &Source, defines: &[(String, String)]) -> Result<(), Stop> {
        if source.text.len() > portcullis_core::diagnostics::MAX_SOURCE {
            return self.fatal(portcullis_core::diagnostics::too_long());
        }
        self.declare_maps()?;
        self.predefine()?;
        let given = self.set(defines)?;
        self.enter(FileId::FILTER, PathBuf::new(), None)?;
        let end = self.text()?;
        self.tokens.push(Token { kind: TokenKind::End, span: end, expanded: None });
        self.check_set(&given)
    }

    /// Reads the comments that declare maps. They are about the text as it is written, whatever conditionals say.
    fn declare_maps(&mut self) -> Result<(), Stop> {
        match declarations(self.files.text(FileId::FILTER), CommentSyntax::C) {
            Ok(maps) => self.maps = maps,
            Err(errors) => errors.into_iter().try_for_each(|error| self.report(error))?,
        }
        Ok(())
    }

    /// Whether a name is the prelude's, or one that the filter's maps bring.
    fn is_prelude(&self, name: &str) -> bool {
        library::is_prelude(&self.maps, name)
    }

    /// The text of all inputs, to the end of the last, which is given back.
    fn text(&mut self) -> Result<Span, Stop> {
        loop {
            while let Some(token) = self.next_expanded()? {
                self.finish(token)?;
            }
            if self.at_directive() {
                self.directive()?;
                continue;
            }
            let end = self.leave()?;
            if self.inputs.is_empty() {
                return Ok(end);
            }
        }
    }

    /// Gives a token to the parser.
    fn finish(&mut self, token: Pp) -> Result<(), Stop> {
        if self.tokens.len() == MAX_TOKENS {
            return self.too_many_tokens(token);
        }
        let expanded = self.used(token);
        let kind = match token.kind {
            PpKind::Punctuator(punctuator) => TokenKind::Punctuator(punctuator),
            PpKind::Identifier(name) => TokenKind::Identifier(name),
            PpKind::String(name) => TokenKind::String(name),
            PpKind::Number(name) | PpKind::Character(name) => {
                let text = self.names.text(name);
                let value = match token.kind {
                    PpKind::Number(_) => literals::number(text),
                    _ => literals::character(text).map(TokenKind::Character),
                };
                match value {
                    Ok(kind) => kind,
                    Err(wrong) => {
                        let error = literal_error(text, &wrong);
                        return self.wrong(error, token, &wrong.reason);
                    }
                }
            }
            PpKind::Other(name) => {
                let error = stray(self.names.text(name));
                return self.wrong(error, token, "");
            }
        };
        self.tokens.push(Token { kind, span: token.span, expanded });
        Ok(())
    }

    /// Where the macro is used that a token came from.
    fn used(&self, token: Pp) -> Option<Span> {
        Some(self.uses[token.used.checked_sub(1)? as usize].span)
    }

    fn too_many_tokens(&mut self, token: Pp) -> Result<(), Stop> {
        let error = Diagnostic::new(format!("the text has more than {MAX_TOKENS} tokens after expansion"));
        // The macro that made the most of them is the one to look at.
        let mut made: HashMap<&str, (usize, Span)> = HashMap::new();
        for token in &self.tokens {
            if let Some(used) = token.expanded {
                made.entry(self.files.spelling(used)).or_insert((0, used)).0 += 1;
            }
        }
        let most = made.into_iter().max_by_key(|&(_, (count, span))| (count, std::cmp::Reverse(span)));
        let error = match most {
            None => self.files.point(error, token.span, None, "here"),
            Some((name, (count, used))) => {
                let name = short(name);
                let error = Diagnostic::new(format!("{}: the macro `{name}` makes {count} of them", error.message));
                error
                    .at(self.files.range(used), format!("`{name}` is used here"))
                    .note("macros that use one another more than once grow exponentially")
            }
        };
        self.fatal(error)
    }

    /// Reports an error at a token.
    fn wrong(&mut self, error: Diagnostic, at: Pp, label: &str) -> Result<(), Stop> {
        let error = self.files.point(error, at.span, self.used(at), label);
        self.report(error)
    }

    /// Reports an error after which one can go on.
    fn report(&mut self, error: Diagnostic) -> Result<(), Stop> {
        self.errors.push(error);
        if self.errors.len() < MAX_ERRORS { Ok(()) } else { Err(Stop) }
    }

    /// Reports an error after which nothing is left to be done.
    fn fatal<T>(&mut self, error: Diagnostic) -> Result<T, Stop> {
        self.errors.push(error);
        Err(Stop)
    }

    /// A name for a message.
    fn shown(&self, name: Name) -> Cow<'_, str> {
        short(self.names.text(name))
    }

    /// How a token is written.
    fn spelled(&self, token: Pp) -> &str {
        token.text(&self.names)
    }
}

fn literal_error(text: &str, wrong: &literals::Wrong) -> Diagnostic {
    Diagnostic::new(format!("`{}` is no constant: {}", short(text), wrong.reason)).note(wrong.note)
}

/// A character that begins no token.
fn stray(text: &str) -> Diagnostic {
    let first = text.chars().next().unwrap_or_default();
    let error = match first {
        ' '..='~' => Diagnostic::new(format!("`{first}` has no meaning here")),
        _ => Diagnostic::new(format!("the character U+{:04X} has no meaning here", first as u32)),
    };
    match first {
        '\\' => {
            error.note("a backslash joins two lines only as the last character of its line: no space may follow it")
        }
        '\u{feff}' => error.note("the text is UTF-8 without a byte order mark: save the file so"),
        '\0'..='\x7f' => error,
        _ => error.note("outside of comments and strings, C is written in ASCII"),
    }
}

#[cfg(test)]
mod against_cpp;
#[cfg(test)]
mod tests;
