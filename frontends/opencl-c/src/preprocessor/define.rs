//! Macro definitions (C11 6.10.3 and 6.10.8).

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::rc::Rc;

use super::{Abort, PpToken, PpTokenKind, Preprocessor};
use crate::files::{FileId, Span};
use crate::lexer::{self, RawTokenKind};
use crate::token::{Name, Punctuator};
use portcullis_core::diagnostics::Diagnostic;
use portcullis_core::diagnostics::elide;
use portcullis_core::spelling::nearest;

/// Predefined macros: OpenCL C 1.2, 6.10 (for a little-endian device), and the types' limits of
/// 6.12.2.1 and 6.12.3.
const PREDEFINED: &str = "\
#define PORTCULLIS 1
#define CL_VERSION_1_0 100
#define CL_VERSION_1_1 110
#define CL_VERSION_1_2 120
#define __OPENCL_VERSION__ 120
#define __OPENCL_C_VERSION__ 120
#define __ENDIAN_LITTLE__ 1
#define CHAR_BIT 8
#define SCHAR_MAX 127
#define SCHAR_MIN (-127 - 1)
#define CHAR_MAX SCHAR_MAX
#define CHAR_MIN SCHAR_MIN
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define SHRT_MIN (-32767 - 1)
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 0xffffffff
#define LONG_MAX 0x7fffffffffffffffL
#define LONG_MIN (-0x7fffffffffffffffL - 1)
#define ULONG_MAX 0xffffffffffffffffUL
#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define FLT_MAX_10_EXP +38
#define FLT_MAX_EXP +128
#define FLT_MIN_10_EXP -37
#define FLT_MIN_EXP -125
#define FLT_RADIX 2
#define FLT_MAX 0x1.fffffep127f
#define FLT_MIN 0x1.0p-126f
#define FLT_EPSILON 0x1.0p-23f
";

/// Names that `#define` and `#undef` must not use (C11 6.10.8p2 and 6.10.3p5).
const RESERVED: &[&str] = &["defined", "__VA_ARGS__", "__LINE__", "__FILE__"];

/// Substitution for a token of a replacement list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Substitution {
    /// The token itself.
    Plain,
    /// The argument with this index.
    Parameter(usize),
    /// The argument with this index as a string literal (`#`).
    Stringify(usize),
}

/// A token of a macro's replacement list.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplacementToken {
    pub token: PpToken,
    pub substitution: Substitution,
    /// Whether `##` follows.
    pub pastes_next: bool,
}

/// The parameters of a function-like macro.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parameters {
    /// The last name of a variadic macro is `__VA_ARGS__`.
    pub names: Vec<Name>,
    pub variadic: bool,
}

/// A macro whose expansion depends on its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BuiltinMacro {
    Line,
    File,
}

/// A macro definition.
#[derive(Debug)]
pub(super) struct Macro {
    pub name: Name,
    /// The name in the definition.
    pub span: Span,
    pub parameters: Option<Parameters>,
    pub replacement: Rc<[ReplacementToken]>,
    pub builtin: Option<BuiltinMacro>,
    /// The replacement list as written.
    pub source_tokens: Vec<PpToken>,
    /// Whether the macro's context is on the stack.
    pub is_expanding: bool,
}

impl Macro {
    /// Whether two definitions are equivalent (C11 6.10.3p1): equal tokens, and white space in the
    /// same places.
    fn is_same_definition(&self, other: &Macro) -> bool {
        let alike =
            |i: usize, (a, b): (&PpToken, &PpToken)| a.kind == b.kind && (i == 0 || a.leading_space == b.leading_space);
        self.parameters == other.parameters
            && self.builtin == other.builtin
            && self.source_tokens.len() == other.source_tokens.len()
            && self.source_tokens.iter().zip(&other.source_tokens).enumerate().all(|(i, pair)| alike(i, pair))
    }
}

impl Preprocessor<'_> {
    /// Defines the predefined macros.
    pub(super) fn define_builtins(&mut self) -> Result<(), Abort> {
        let file = self.files.add("<predefined>", PREDEFINED, None);
        self.push_input(file, PathBuf::new(), None)?;
        self.preprocess_inputs()?;
        let span = Span { file, start: 0, end: 0 };
        for (text, builtin) in [("__LINE__", BuiltinMacro::Line), ("__FILE__", BuiltinMacro::File)] {
            let name = self.names.intern(text);
            self.insert_macro(Macro {
                name,
                span,
                parameters: None,
                replacement: Rc::default(),
                builtin: Some(builtin),
                source_tokens: Vec::new(),
                is_expanding: false,
            });
        }
        Ok(())
    }

    fn insert_macro(&mut self, new: Macro) {
        self.macros_by_name.insert(new.name, self.macros.len());
        self.macros.push(new);
    }

    /// Defines the macros that the host sets and returns their indices.
    pub(super) fn define_host_macros(&mut self, defines: &[(String, String)]) -> Result<Vec<usize>, Abort> {
        let mut numbers: Vec<usize> = Vec::new();
        for (text, value) in defines {
            let parameter_error = |message: String| Diagnostic::new(message).with_parameter(text);
            let raw = lexer::next_token(text, 0, true);
            if raw.kind != RawTokenKind::Identifier
                || raw.range() != (0..text.len())
                || RESERVED.contains(&text.as_str())
            {
                let error = parameter_error(format!("`{text}` cannot be set"));
                self.report(error.note("only macros without parameters can be set"))?;
                continue;
            }
            if self.is_prelude(text) {
                let error = parameter_error(format!("`{text}` belongs to the prelude and cannot be set"));
                self.report(error.note("only the filter's own parameters can be set"))?;
                continue;
            }
            let name = self.names.intern(text);
            if let Some(&known) = self.macros_by_name.get(&name) {
                let how =
                    if numbers.contains(&known) { "is given twice" } else { "is already defined and cannot be set" };
                self.report(parameter_error(format!("`{text}` {how}")))?;
                continue;
            }
            let value = match value.parse::<Ipv4Addr>() {
                Ok(address) => format!("{:#010x}u", address.to_bits()),
                Err(_) => value.clone(),
            };
            let before = self.errors.len();
            let file = self.files.add(format!("<value of {text}>"), value, None);
            let replacement = self.tokenize_file(file)?;
            for error in &mut self.errors[before..] {
                error.parameter = Some(text.clone());
            }
            let span = Span { file, start: 0, end: 0 };
            numbers.push(self.macros.len());
            self.host_macros.insert(name, self.macros.len());
            self.define_object_like(name, span, replacement)?;
        }
        Ok(numbers)
    }

    /// Tokens of a file that is not part of the filter, such as the value of a parameter.
    pub(super) fn tokenize_file(&mut self, file: FileId) -> Result<Vec<PpToken>, Abort> {
        self.push_input(file, PathBuf::new(), None)?;
        let mut tokens = Vec::new();
        while self.peek().is_some_and(|raw| !matches!(raw.kind, RawTokenKind::End | RawTokenKind::UnterminatedComment))
        {
            tokens.push(self.take_checked()?);
        }
        self.pop_input()?;
        Ok(tokens)
    }

    /// Reports host macros that are no parameters of the filter.
    pub(super) fn check_host_macros(&mut self, numbers: &[usize]) -> Result<(), Abort> {
        for &number in numbers {
            let name = self.macros[number].name;
            if !self.is_parameter(name) {
                let text = self.names.text(name);
                let error = Diagnostic::new(format!("the filter has no parameter `{text}`")).with_parameter(text);
                let nearest = nearest(text, self.parameters.iter().map(|known| known.name.as_str()));
                let error = match nearest {
                    Some(nearest) => error.note(format!("did you mean `{nearest}`?")),
                    None => error,
                };
                let note = "a parameter is a macro with a default between `#ifndef NAME` and `#endif`";
                self.report(error.note(self.known_parameters()).note(note))?;
            }
        }
        Ok(())
    }

    /// Index of the macro with this name.
    pub(super) fn lookup(&self, name: Name) -> Option<usize> {
        self.macros_by_name.get(&name).copied()
    }

    /// The macro name that a directive's line starts with; reports an error if there is none.
    pub(super) fn macro_name(&mut self, directive: PpToken, line: &[PpToken]) -> Result<Option<Name>, Abort> {
        let Some(&first) = line.first() else {
            let error = Diagnostic::new(format!("`#{}` expects the name of a macro", self.spelled(directive)));
            self.report_at(error, directive, "the name is missing")?;
            return Ok(None);
        };
        match first.kind {
            PpTokenKind::Identifier(name) => Ok(Some(name)),
            _ => {
                let text = short_of(self, first);
                let error = Diagnostic::new(format!("`{text}` is not a macro name"));
                self.report_at(error.note("a name consists of letters, digits and `_`"), first, "")?;
                Ok(None)
            }
        }
    }

    /// [`macro_name`](Self::macro_name) for `#define` and `#undef`: rejects reserved names.
    fn definable_name(&mut self, directive: PpToken, line: &[PpToken]) -> Result<Option<Name>, Abort> {
        let Some(name) = self.macro_name(directive, line)? else { return Ok(None) };
        let text = self.names.text(name);
        if RESERVED.contains(&text) {
            let error = Diagnostic::new(format!("`{text}` cannot be defined or undefined"));
            self.report_at(error.note("its meaning is fixed (C11 6.10.8)"), line[0], "")?;
            return Ok(None);
        }
        Ok(Some(name))
    }

    /// `#undef`
    pub(super) fn undefine(&mut self, directive: PpToken, line: &[PpToken]) -> Result<(), Abort> {
        if let Some(name) = self.definable_name(directive, line)? {
            self.macros_by_name.remove(&name);
            self.expect_line_end(directive, &line[1..])?;
        }
        Ok(())
    }

    /// `#define`
    pub(super) fn define(&mut self, directive: PpToken, line: &[PpToken]) -> Result<(), Abort> {
        let Some(name) = self.definable_name(directive, line)? else { return Ok(()) };
        let (span, rest) = (line[0].span, &line[1..]);
        match rest.first() {
            Some(open) if open.is(Punctuator::LeftParenthesis) && !open.leading_space => {
                self.define_function_like(name, span, rest)
            }
            Some(&next) if !next.leading_space => {
                let error =
                    Diagnostic::new(format!("missing space after the macro name `{}`", self.display_name(name)));
                let error = error.note("a space must separate the name from the replacement (C11 6.10.3p3)");
                self.report_at(error, next, "a space is missing here")
            }
            _ => {
                self.define_object_like(name, span, rest.to_vec())?;
                if self.guarded_macro() == Some(name) {
                    self.declare_parameter(name, rest)?;
                }
                Ok(())
            }
        }
    }

    /// Defines an object-like macro.
    fn define_object_like(&mut self, name: Name, span: Span, source_tokens: Vec<PpToken>) -> Result<(), Abort> {
        let Some(replacement) = self.parse_replacement(&source_tokens, None)? else { return Ok(()) };
        self.add_definition(name, span, None, replacement, source_tokens)
    }

    /// Defines a function-like macro; `rest` starts with the parenthesis.
    fn define_function_like(&mut self, name: Name, span: Span, rest: &[PpToken]) -> Result<(), Abort> {
        let Some((parameters, end)) = self.parameters(rest)? else { return Ok(()) };
        let source_tokens = rest[end..].to_vec();
        let Some(replacement) = self.parse_replacement(&source_tokens, Some(&parameters))? else { return Ok(()) };
        self.add_definition(name, span, Some(parameters), replacement, source_tokens)
    }

    /// Parses a parameter list; also returns its length in tokens, parentheses included.
    fn parameters(&mut self, list: &[PpToken]) -> Result<Option<(Parameters, usize)>, Abort> {
        let mut parameters = Parameters { names: Vec::new(), variadic: false };
        let mut places: HashMap<Name, Span> = HashMap::new();
        let mut at = 1;
        if list.get(at).is_some_and(|token| token.is(Punctuator::RightParenthesis)) {
            return Ok(Some((parameters, 2)));
        }
        loop {
            let Some(&token) = list.get(at) else { return self.report_unclosed_parameters(list[0]) };
            match token.kind {
                PpTokenKind::Identifier(name) if self.names.text(name) != "__VA_ARGS__" => {
                    if let Some(first) = places.insert(name, token.span) {
                        let error =
                            Diagnostic::new(format!("two parameters have the name `{}`", self.display_name(name)));
                        let error = error.at(self.files.range(token.span), "the second");
                        self.report(error.at(self.files.range(first), "the first"))?;
                        return Ok(None);
                    }
                    parameters.names.push(name);
                }
                PpTokenKind::Punctuator(Punctuator::Ellipsis) => {
                    parameters.variadic = true;
                    parameters.names.push(self.names.intern("__VA_ARGS__"));
                }
                _ => {
                    let error = Diagnostic::new(format!("`{}` is not a parameter name", short_of(self, token)));
                    self.report_at(
                        error.note("a macro's parameters are names separated by commas; the last may be `...`"),
                        token,
                        "",
                    )?;
                    return Ok(None);
                }
            }
            let Some(&token) = list.get(at + 1) else { return self.report_unclosed_parameters(list[0]) };
            match token.kind {
                PpTokenKind::Punctuator(Punctuator::RightParenthesis) => return Ok(Some((parameters, at + 2))),
                PpTokenKind::Punctuator(Punctuator::Comma) if !parameters.variadic => at += 2,
                _ => {
                    let wanted = if parameters.variadic { "`)`" } else { "`,` or `)`" };
                    let text = short_of(self, token);
                    let error = Diagnostic::new(format!("unexpected `{text}` in a parameter list, expected {wanted}"));
                    let named = token.is(Punctuator::Ellipsis);
                    let note = if named {
                        "variable arguments cannot be named: use `__VA_ARGS__`"
                    } else {
                        "a macro's parameters are names separated by commas"
                    };
                    self.report_at(error.note(note), token, "")?;
                    return Ok(None);
                }
            }
        }
    }

    fn report_unclosed_parameters<T>(&mut self, open: PpToken) -> Result<Option<T>, Abort> {
        let error = Diagnostic::new("this parameter list is not closed");
        self.report_at(error.note("close it with `)` on the line of the `#define`"), open, "starts here")?;
        Ok(None)
    }

    /// Parses a replacement list.
    pub(super) fn parse_replacement(
        &mut self,
        source_tokens: &[PpToken],
        parameters: Option<&Parameters>,
    ) -> Result<Option<Vec<ReplacementToken>>, Abort> {
        let numbers: HashMap<Name, usize> =
            parameters.iter().flat_map(|p| p.names.iter().enumerate().map(|(i, &name)| (name, i))).collect();
        let parameter = |token: Option<&PpToken>| match token?.kind {
            PpTokenKind::Identifier(name) => numbers.get(&name).copied(),
            _ => None,
        };
        let mut replacement: Vec<ReplacementToken> = Vec::new();
        let mut tokens = source_tokens.iter();
        while let Some(&token) = tokens.next() {
            let substitution = match token.kind {
                PpTokenKind::Punctuator(Punctuator::HashHash) => {
                    match replacement.last_mut() {
                        Some(last) if tokens.len() > 0 => last.pastes_next = true,
                        _ => {
                            let error = Diagnostic::new("`##` must be between two tokens");
                            self.report_at(error.note("C11 6.10.3.3"), token, "one of them is missing")?;
                            return Ok(None);
                        }
                    }
                    continue;
                }
                PpTokenKind::Punctuator(Punctuator::Hash) if parameters.is_some() => match parameter(tokens.next()) {
                    Some(number) => Substitution::Stringify(number),
                    None => {
                        let error = Diagnostic::new("`#` must be followed by a parameter");
                        self.report_at(error.note("C11 6.10.3.2"), token, "no parameter follows")?;
                        return Ok(None);
                    }
                },
                PpTokenKind::Identifier(name) => match numbers.get(&name) {
                    Some(&number) => Substitution::Parameter(number),
                    None if self.names.text(name) == "__VA_ARGS__" => {
                        let error = Diagnostic::new("`__VA_ARGS__` in a macro without variable arguments");
                        self.report_at(error.note("end the parameter list with `...`"), token, "")?;
                        return Ok(None);
                    }
                    None => Substitution::Plain,
                },
                _ => Substitution::Plain,
            };
            replacement.push(ReplacementToken { token, substitution, pastes_next: false });
        }
        Ok(Some(replacement))
    }

    /// Adds a definition, or reports that it conflicts with an existing one.
    fn add_definition(
        &mut self,
        name: Name,
        span: Span,
        parameters: Option<Parameters>,
        replacement: Vec<ReplacementToken>,
        source_tokens: Vec<PpToken>,
    ) -> Result<(), Abort> {
        let replacement = replacement.into();
        let new = Macro { name, span, parameters, replacement, builtin: None, source_tokens, is_expanding: false };
        if let Some(&number) = self.macros_by_name.get(&name) {
            let old = &self.macros[number];
            if old.is_same_definition(&new) {
                return Ok(());
            }
            let error =
                Diagnostic::new(format!("the macro `{}` is already defined differently", self.display_name(name)));
            let error = error.at(self.files.range(span), "redefined here");
            let error = error.at(self.files.range(old.span), "the first definition");
            self.report(error.note("`#undef` it first, or guard the definition with `#ifndef`"))?;
        }
        self.insert_macro(new);
        Ok(())
    }
}

/// A token's spelling for a message, shortened if necessary.
fn short_of(preprocessor: &Preprocessor<'_>, token: PpToken) -> String {
    elide(preprocessor.spelled(token)).into_owned()
}
