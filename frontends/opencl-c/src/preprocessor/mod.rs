//! C preprocessor: turns text into tokens for the parser (C11 6.10, and 5.1.1.2 phases 1 to 5
//! without the joining of strings).
//!
//! The preprocessor works in one pass. Text comes from a stack of inputs, one for each file being
//! included; expansions of macros are on a stack of contexts, which is read before the text. A
//! macro is not expanded while its own context is on the stack, and its name met there is painted:
//! it is never expanded again (6.10.3.4).
//!
//! Where C leaves the behaviour undefined or implementation-defined:
//! - a directive among a macro's arguments is an error, and the arguments end in the file they
//!   start in;
//! - the name of a function-like macro is not a use if a directive or the end of the file follows;
//! - `, ## __VA_ARGS__` drops the comma if there are no variable arguments, like GCC;
//! - in `#if`, arithmetic wraps at 64 bits; a shift by less than 0 or more than 63 is an error;
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
use portcullis_core::diagnostics::elide;
use portcullis_core::diagnostics::{Diagnostic, Diagnostics, Source};
use portcullis_core::map::Declaration;
use portcullis_core::program::Parameter;
use portcullis_core::program::map_declarations::{CommentSyntax, declarations};

use define::Macro;
use expand::Context;
use input::Input;

/// Maximum number of tokens after expansion.
pub const MAX_TOKENS: usize = 1 << 20;

/// Maximum depth of `#include`, not counting the filter's own file.
pub const MAX_INCLUDE_DEPTH: usize = 16;

/// Maximum nesting of conditionals, of parentheses in a condition, and of macro uses in arguments
/// of other macros.
pub const MAX_NESTING: usize = 256;

/// Maximum amount of text in bytes; a file counts each time that it is included.
pub const MAX_TEXT_BYTES: usize = 1 << 24;

/// Maximum number of expansion steps: tokens that expansions produce, including those that are
/// replaced again. Bounds macros that grow exponentially but expand to nothing.
pub const MAX_EXPANSION_STEPS: usize = 1 << 22;

/// Maximum length of a token that `#` or `##` produces, in bytes.
pub const MAX_TOKEN_BYTES: usize = 1 << 16;

/// Number of errors after which preprocessing stops.
pub const MAX_ERRORS: usize = 20;

/// A preprocessed filter.
#[derive(Debug, Clone)]
pub struct TranslationUnit {
    /// The tokens; the last one is [`TokenKind::End`].
    pub tokens: Vec<Token>,
    /// Spellings of identifiers and strings.
    pub names: Names,
    /// Files that the tokens' places refer to.
    pub files: Files,
    /// Parameters that the host can set, in the order of the text.
    pub parameters: Vec<Parameter>,
    /// Maps declared in the filter's own file.
    pub maps: Vec<Declaration>,
}

/// Preprocesses a filter. `defines` are macros that the host sets: names, and the text that they
/// expand to. An IPv4 address (`10.0.0.1`) as that text stands for its number in network byte
/// order.
///
/// # Errors
/// All independent errors of the text, up to [`MAX_ERRORS`]. It is an error, too, if the host sets
/// a macro that has no default in the text.
pub fn preprocess(
    source: &Source,
    defines: &[(String, String)],
    includes: &mut dyn Includes,
) -> Result<TranslationUnit, Diagnostics> {
    let mut preprocessor = Preprocessor::new(source, includes);
    let stopped = preprocessor.run(source, defines).is_err();
    debug_assert!(!stopped || !preprocessor.errors.is_empty(), "it stops at errors only");
    let Preprocessor { tokens, names, files, errors, parameters, maps, .. } = preprocessor;
    match errors.is_empty() {
        true => Ok(TranslationUnit { tokens, names, files, parameters, maps }),
        false => Err(files.diagnostics(errors)),
    }
}

/// An error after which preprocessing cannot continue; it has been reported.
struct Abort;

/// Kind of a preprocessing token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PpTokenKind {
    Identifier(Name),
    Number(Name),
    Character(Name),
    String(Name),
    Punctuator(Punctuator),
    /// A character that is not part of any token, or an unclosed quote with the rest of its line.
    Other(Name),
}

/// A preprocessing token.
#[derive(Debug, Clone, Copy)]
struct PpToken {
    kind: PpTokenKind,
    span: Span,
    /// 1 + index of the outermost macro use that the token comes from in `macro_uses`; 0 for none.
    macro_use: u32,
    /// Whether white space precedes the token.
    leading_space: bool,
    /// Whether this is a macro's name met during the macro's own expansion, which is never
    /// expanded.
    painted: bool,
}

impl PpToken {
    fn is(&self, punctuator: Punctuator) -> bool {
        self.kind == PpTokenKind::Punctuator(punctuator)
    }

    /// The token's spelling.
    fn text(self, names: &Names) -> &str {
        match self.kind {
            PpTokenKind::Punctuator(punctuator) => punctuator.text(),
            PpTokenKind::Identifier(name)
            | PpTokenKind::Number(name)
            | PpTokenKind::Character(name)
            | PpTokenKind::String(name)
            | PpTokenKind::Other(name) => names.text(name),
        }
    }
}

/// An outermost macro use.
#[derive(Debug, Clone, Copy)]
struct MacroUse {
    name: Name,
    span: Span,
}

struct Preprocessor<'a> {
    includes: &'a mut dyn Includes,
    files: Files,
    names: Names,
    /// Files by their path relative to the filter's folder.
    files_by_path: HashMap<PathBuf, FileId>,
    /// Files that contain `#pragma once`.
    pragma_once: HashSet<FileId>,
    inputs: Vec<Input>,
    /// Bytes of all inputs so far.
    bytes_read: usize,
    macros: Vec<Macro>,
    macros_by_name: HashMap<Name, usize>,
    /// Macros set by the host: indices in `macros` by name.
    host_macros: HashMap<Name, usize>,
    parameters: Vec<Parameter>,
    maps: Vec<Declaration>,
    contexts: Vec<Context>,
    macro_uses: Vec<MacroUse>,
    /// Tokens produced by expansions so far.
    expansion_steps: usize,
    /// Nesting depth of argument expansion.
    argument_nesting: usize,
    /// Whether white space precedes the next token, left by an empty expansion.
    pending_space: bool,
    /// Offsets of line feeds, for files whose line numbers were needed.
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
            files_by_path: HashMap::new(),
            pragma_once: HashSet::new(),
            inputs: Vec::new(),
            bytes_read: 0,
            macros: Vec::new(),
            macros_by_name: HashMap::new(),
            host_macros: HashMap::new(),
            parameters: Vec::new(),
            maps: Vec::new(),
            contexts: Vec::new(),
            macro_uses: Vec::new(),
            expansion_steps: 0,
            argument_nesting: 0,
            pending_space: false,
            line_ends: HashMap::new(),
            tokens: Vec::new(),
            errors: Vec::new(),
        }
    }

    fn run(&mut self, source: &Source, defines: &[(String, String)]) -> Result<(), Abort> {
        if source.text.len() > portcullis_core::diagnostics::MAX_SOURCE_BYTES {
            return self.fatal(portcullis_core::diagnostics::too_long());
        }
        self.declare_maps()?;
        self.define_builtins()?;
        let given = self.define_host_macros(defines)?;
        self.push_input(FileId::FILTER, PathBuf::new(), None)?;
        let end = self.preprocess_inputs()?;
        self.tokens.push(Token { kind: TokenKind::End, span: end, expanded: None });
        self.check_host_macros(&given)
    }

    /// Parses the comments that declare maps. Conditionals do not affect them.
    fn declare_maps(&mut self) -> Result<(), Abort> {
        match declarations(self.files.text(FileId::FILTER), CommentSyntax::C) {
            Ok(maps) => self.maps = maps,
            Err(errors) => errors.into_iter().try_for_each(|error| self.report(error))?,
        }
        Ok(())
    }

    /// Whether a name belongs to the prelude or to the functions of the filter's maps.
    fn is_prelude(&self, name: &str) -> bool {
        library::is_prelude(&self.maps, name)
    }

    /// Preprocesses all inputs and returns the place where the last one ends.
    fn preprocess_inputs(&mut self) -> Result<Span, Abort> {
        loop {
            while let Some(token) = self.next_expanded()? {
                self.emit(token)?;
            }
            if self.at_directive() {
                self.directive()?;
                continue;
            }
            let end = self.pop_input()?;
            if self.inputs.is_empty() {
                return Ok(end);
            }
        }
    }

    /// Converts a token and appends it to the output.
    fn emit(&mut self, token: PpToken) -> Result<(), Abort> {
        if self.tokens.len() == MAX_TOKENS {
            return self.too_many_tokens(token);
        }
        let expanded = self.macro_use_span(token);
        let kind = match token.kind {
            PpTokenKind::Punctuator(punctuator) => TokenKind::Punctuator(punctuator),
            PpTokenKind::Identifier(name) => TokenKind::Identifier(name),
            PpTokenKind::String(name) => TokenKind::String(name),
            PpTokenKind::Number(name) | PpTokenKind::Character(name) => {
                let text = self.names.text(name);
                let value = match token.kind {
                    PpTokenKind::Number(_) => literals::number(text),
                    _ => literals::character(text).map(TokenKind::Character),
                };
                match value {
                    Ok(kind) => kind,
                    Err(literal) => {
                        let error = literal_error(text, &literal);
                        return self.report_at(error, token, &literal.reason);
                    }
                }
            }
            PpTokenKind::Other(name) => {
                let error = stray(self.names.text(name));
                return self.report_at(error, token, "");
            }
        };
        self.tokens.push(Token { kind, span: token.span, expanded });
        Ok(())
    }

    /// Place of the outermost macro use that a token comes from.
    fn macro_use_span(&self, token: PpToken) -> Option<Span> {
        Some(self.macro_uses[token.macro_use.checked_sub(1)? as usize].span)
    }

    fn too_many_tokens(&mut self, token: PpToken) -> Result<(), Abort> {
        let error = Diagnostic::new(format!("the text has more than {MAX_TOKENS} tokens after expansion"));
        // Name the macro that produced most of the tokens.
        let mut made: HashMap<&str, (usize, Span)> = HashMap::new();
        for token in &self.tokens {
            if let Some(macro_use) = token.expanded {
                made.entry(self.files.spelling(macro_use)).or_insert((0, macro_use)).0 += 1;
            }
        }
        let most = made.into_iter().max_by_key(|&(_, (count, span))| (count, std::cmp::Reverse(span)));
        let error = match most {
            None => self.files.point_at(error, token.span, None, "here"),
            Some((name, (count, macro_use))) => {
                let name = elide(name);
                let error =
                    Diagnostic::new(format!("{}: the macro `{name}` expands to {count} of them", error.message));
                error
                    .at(self.files.range(macro_use), format!("`{name}` is used here"))
                    .note("macros that use one another more than once grow exponentially")
            }
        };
        self.fatal(error)
    }

    /// Reports an error at a token.
    fn report_at(&mut self, error: Diagnostic, at: PpToken, label: &str) -> Result<(), Abort> {
        let error = self.files.point_at(error, at.span, self.macro_use_span(at), label);
        self.report(error)
    }

    /// Reports an error and continues, unless the limit of errors is reached.
    fn report(&mut self, error: Diagnostic) -> Result<(), Abort> {
        self.errors.push(error);
        if self.errors.len() < MAX_ERRORS { Ok(()) } else { Err(Abort) }
    }

    /// Reports an error and stops.
    fn fatal<T>(&mut self, error: Diagnostic) -> Result<T, Abort> {
        self.errors.push(error);
        Err(Abort)
    }

    /// A name for a message, shortened if necessary.
    fn display_name(&self, name: Name) -> Cow<'_, str> {
        elide(self.names.text(name))
    }

    /// A token's spelling.
    fn spelled(&self, token: PpToken) -> &str {
        token.text(&self.names)
    }
}

fn literal_error(text: &str, error: &literals::LiteralError) -> Diagnostic {
    Diagnostic::new(format!("`{}` is not a valid constant: {}", elide(text), error.reason)).note(error.note)
}

/// The error for a character that starts no token.
fn stray(text: &str) -> Diagnostic {
    let first = text.chars().next().unwrap_or_default();
    let error = match first {
        ' '..='~' => Diagnostic::new(format!("unexpected character `{first}`")),
        _ => Diagnostic::new(format!("unexpected character U+{:04X}", first as u32)),
    };
    match first {
        '\\' => {
            error.note("a backslash joins two lines only as the last character of its line: no space may follow it")
        }
        '\u{feff}' => error.note("save the file as UTF-8 without a byte order mark"),
        '\0'..='\x7f' => error,
        _ => error.note("outside comments and strings, C is written in ASCII"),
    }
}

#[cfg(test)]
mod cpp_comparison;
#[cfg(test)]
mod tests;
