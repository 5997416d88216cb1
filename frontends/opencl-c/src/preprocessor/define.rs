//! Macros and their definitions (C11 6.10.3 and 6.10.8).

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::rc::Rc;

use super::{Pp, PpKind, Preprocessor, Stop};
use crate::files::{FileId, Span};
use crate::lexer::{self, RawKind};
use crate::token::{Name, Punctuator};
use portcullis_core::diagnostics::Diagnostic;
use portcullis_core::diagnostics::short;
use portcullis_core::spelling::nearest;

/// The macros that are there from the beginning: OpenCL C 1.2, 6.10 (of a device that is little-endian)
/// and 6.12.2.1 and 6.12.3 (limits of types).
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

/// Names that no `#define` and no `#undef` may have (C11 6.10.8p2 and 6.10.3p5).
const RESERVED: &[&str] = &["defined", "__VA_ARGS__", "__LINE__", "__FILE__"];

/// What a token of a macro's replacement list is replaced by in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Itself.
    Plain,
    /// An argument.
    Parameter(usize),
    /// An argument as a string literal.
    String(usize),
}

/// A token of a macro's replacement list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub token: Pp,
    pub role: Role,
    /// Whether `##` follows.
    pub paste: bool,
}

/// The parameters of a macro that has a list of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parameters {
    /// `__VA_ARGS__` is the last one of a variadic macro.
    pub names: Vec<Name>,
    pub variadic: bool,
}

/// What an object-like macro stands for if not for a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Special {
    Line,
    File,
}

/// A macro.
#[derive(Debug)]
pub(super) struct Macro {
    pub name: Name,
    /// The name in the definition.
    pub place: Span,
    pub parameters: Option<Parameters>,
    pub body: Rc<[Piece]>,
    pub special: Option<Special>,
    /// The replacement list as it is written.
    pub written: Vec<Pp>,
    /// Whether its context is on the stack.
    pub active: bool,
}

impl Macro {
    /// Whether another definition says the same (C11 6.10.3p1): the same tokens with white space at
    /// the same places.
    fn same(&self, other: &Macro) -> bool {
        let alike = |i: usize, (a, b): (&Pp, &Pp)| a.kind == b.kind && (i == 0 || a.space == b.space);
        self.parameters == other.parameters
            && self.special == other.special
            && self.written.len() == other.written.len()
            && self.written.iter().zip(&other.written).enumerate().all(|(i, pair)| alike(i, pair))
    }
}

impl Preprocessor<'_> {
    /// Defines what every text finds defined.
    pub(super) fn predefine(&mut self) -> Result<(), Stop> {
        let file = self.files.add("<predefined>", PREDEFINED, None);
        self.enter(file, PathBuf::new(), None)?;
        self.text()?;
        let place = Span { file, start: 0, end: 0 };
        for (text, special) in [("__LINE__", Special::Line), ("__FILE__", Special::File)] {
            let name = self.names.intern(text);
            self.add(Macro {
                name,
                place,
                parameters: None,
                body: Rc::default(),
                special: Some(special),
                written: Vec::new(),
                active: false,
            });
        }
        Ok(())
    }

    fn add(&mut self, new: Macro) {
        self.defined.insert(new.name, self.macros.len());
        self.macros.push(new);
    }

    /// Defines the macros that the host sets, and gives their numbers.
    pub(super) fn set(&mut self, defines: &[(String, String)]) -> Result<Vec<usize>, Stop> {
        let mut numbers: Vec<usize> = Vec::new();
        for (text, value) in defines {
            let wrong = |message: String| Diagnostic::new(message).of_parameter(text);
            let raw = lexer::next(text, 0, true);
            if raw.kind != RawKind::Identifier || raw.range() != (0..text.len()) || RESERVED.contains(&text.as_str()) {
                let error = wrong(format!("`{text}` cannot be set"));
                self.report(error.note("what can be set is the name of a macro without parameters"))?;
                continue;
            }
            if self.is_prelude(text) {
                let error = wrong(format!("`{text}` is the prelude's, and not to be set"));
                self.report(error.note("what can be set is a parameter of the filter's own"))?;
                continue;
            }
            let name = self.names.intern(text);
            if let Some(&known) = self.defined.get(&name) {
                let how =
                    if numbers.contains(&known) { "is given twice" } else { "is defined already, and not to be set" };
                self.report(wrong(format!("`{text}` {how}")))?;
                continue;
            }
            let value = match value.parse::<Ipv4Addr>() {
                Ok(address) => format!("{:#010x}u", address.to_bits()),
                Err(_) => value.clone(),
            };
            let before = self.errors.len();
            let file = self.files.add(format!("<value of {text}>"), value, None);
            let body = self.tokens_of(file)?;
            for error in &mut self.errors[before..] {
                error.parameter = Some(text.clone());
            }
            let place = Span { file, start: 0, end: 0 };
            numbers.push(self.macros.len());
            self.given.insert(name, self.macros.len());
            self.object(name, place, body)?;
        }
        Ok(numbers)
    }

    /// The tokens of a file that is no text of the filter's.
    pub(super) fn tokens_of(&mut self, file: FileId) -> Result<Vec<Pp>, Stop> {
        self.enter(file, PathBuf::new(), None)?;
        let mut tokens = Vec::new();
        while self.front().is_some_and(|raw| !matches!(raw.kind, RawKind::End | RawKind::OpenComment)) {
            tokens.push(self.take_checked()?);
        }
        self.leave()?;
        Ok(tokens)
    }

    /// Refuses what was set for nothing.
    pub(super) fn check_set(&mut self, numbers: &[usize]) -> Result<(), Stop> {
        for &number in numbers {
            let name = self.macros[number].name;
            if !self.is_parameter(name) {
                let text = self.names.text(name);
                let error = Diagnostic::new(format!("the filter has no parameter `{text}`")).of_parameter(text);
                let nearest = nearest(text, self.parameters.iter().map(|known| known.name.as_str()));
                let error = match nearest {
                    Some(nearest) => error.note(format!("did you mean `{nearest}`?")),
                    None => error,
                };
                let note = "a parameter is a macro whose default stands between `#ifndef NAME` and `#endif`";
                self.report(error.note(self.known_parameters()).note(note))?;
            }
        }
        Ok(())
    }

    /// The macro of that name.
    pub(super) fn lookup(&self, name: Name) -> Option<usize> {
        self.defined.get(&name).copied()
    }

    /// The name that a directive is about.
    pub(super) fn macro_name(&mut self, directive: Pp, line: &[Pp]) -> Result<Option<Name>, Stop> {
        let Some(&first) = line.first() else {
            let error = Diagnostic::new(format!("`#{}` wants the name of a macro", self.spelled(directive)));
            self.wrong(error, directive, "there is none")?;
            return Ok(None);
        };
        match first.kind {
            PpKind::Identifier(name) => Ok(Some(name)),
            _ => {
                let text = short_of(self, first);
                let error = Diagnostic::new(format!("`{text}` is no name for a macro"));
                self.wrong(error.note("a name is made of letters, digits and `_`"), first, "")?;
                Ok(None)
            }
        }
    }

    /// A name that may be defined and undefined.
    fn free_name(&mut self, directive: Pp, line: &[Pp]) -> Result<Option<Name>, Stop> {
        let Some(name) = self.macro_name(directive, line)? else { return Ok(None) };
        let text = self.names.text(name);
        if RESERVED.contains(&text) {
            let error = Diagnostic::new(format!("`{text}` can be neither defined nor undefined"));
            self.wrong(error.note("its meaning is fixed (C11 6.10.8)"), line[0], "")?;
            return Ok(None);
        }
        Ok(Some(name))
    }

    /// `#undef`
    pub(super) fn undefine(&mut self, directive: Pp, line: &[Pp]) -> Result<(), Stop> {
        if let Some(name) = self.free_name(directive, line)? {
            self.defined.remove(&name);
            self.no_more(directive, &line[1..])?;
        }
        Ok(())
    }

    /// `#define`
    pub(super) fn define(&mut self, directive: Pp, line: &[Pp]) -> Result<(), Stop> {
        let Some(name) = self.free_name(directive, line)? else { return Ok(()) };
        let (place, rest) = (line[0].span, &line[1..]);
        match rest.first() {
            Some(open) if open.is(Punctuator::LeftParenthesis) && !open.space => self.function(name, place, rest),
            Some(&next) if !next.space => {
                let error = Diagnostic::new(format!("no space behind the macro's name `{}`", self.shown(name)));
                let error = error.note("what the macro stands for begins behind a space (C11 6.10.3p3)");
                self.wrong(error, next, "a space is missing here")
            }
            _ => {
                self.object(name, place, rest.to_vec())?;
                if self.guarded() == Some(name) {
                    self.parameter(name, rest)?;
                }
                Ok(())
            }
        }
    }

    /// An object-like macro.
    fn object(&mut self, name: Name, place: Span, written: Vec<Pp>) -> Result<(), Stop> {
        let Some(body) = self.body(&written, None)? else { return Ok(()) };
        self.definition(name, place, None, body, written)
    }

    /// A function-like macro; `rest` begins with the parenthesis.
    fn function(&mut self, name: Name, place: Span, rest: &[Pp]) -> Result<(), Stop> {
        let Some((parameters, end)) = self.parameters(rest)? else { return Ok(()) };
        let written = rest[end..].to_vec();
        let Some(body) = self.body(&written, Some(&parameters))? else { return Ok(()) };
        self.definition(name, place, Some(parameters), body, written)
    }

    /// A list of parameters, and how many tokens it has with its parentheses.
    fn parameters(&mut self, list: &[Pp]) -> Result<Option<(Parameters, usize)>, Stop> {
        let mut parameters = Parameters { names: Vec::new(), variadic: false };
        let mut places: HashMap<Name, Span> = HashMap::new();
        let mut at = 1;
        if list.get(at).is_some_and(|token| token.is(Punctuator::RightParenthesis)) {
            return Ok(Some((parameters, 2)));
        }
        loop {
            let Some(&token) = list.get(at) else { return self.open_parameters(list[0]) };
            match token.kind {
                PpKind::Identifier(name) if self.names.text(name) != "__VA_ARGS__" => {
                    if let Some(first) = places.insert(name, token.span) {
                        let error = Diagnostic::new(format!("two parameters are called `{}`", self.shown(name)));
                        let error = error.at(self.files.range(token.span), "the second");
                        self.report(error.at(self.files.range(first), "the first"))?;
                        return Ok(None);
                    }
                    parameters.names.push(name);
                }
                PpKind::Punctuator(Punctuator::Ellipsis) => {
                    parameters.variadic = true;
                    parameters.names.push(self.names.intern("__VA_ARGS__"));
                }
                _ => {
                    let error = Diagnostic::new(format!("`{}` is no parameter's name", short_of(self, token)));
                    self.wrong(
                        error.note("a macro's parameters are names, with commas in between; the last may be `...`"),
                        token,
                        "",
                    )?;
                    return Ok(None);
                }
            }
            let Some(&token) = list.get(at + 1) else { return self.open_parameters(list[0]) };
            match token.kind {
                PpKind::Punctuator(Punctuator::RightParenthesis) => return Ok(Some((parameters, at + 2))),
                PpKind::Punctuator(Punctuator::Comma) if !parameters.variadic => at += 2,
                _ => {
                    let wanted = if parameters.variadic { "`)`" } else { "`,` or `)`" };
                    let text = short_of(self, token);
                    let error = Diagnostic::new(format!("`{text}` in a list of parameters where {wanted} is wanted"));
                    let named = token.is(Punctuator::Ellipsis);
                    let note = if named {
                        "variable arguments have no name of their own: they are `__VA_ARGS__`"
                    } else {
                        "a macro's parameters are names, with commas in between"
                    };
                    self.wrong(error.note(note), token, "")?;
                    return Ok(None);
                }
            }
        }
    }

    fn open_parameters<T>(&mut self, open: Pp) -> Result<Option<T>, Stop> {
        let error = Diagnostic::new("this list of parameters has no end");
        self.wrong(error.note("it ends with `)` on the line of the `#define`"), open, "begins here")?;
        Ok(None)
    }

    /// The replacement list that is written so.
    pub(super) fn body(&mut self, written: &[Pp], parameters: Option<&Parameters>) -> Result<Option<Vec<Piece>>, Stop> {
        let numbers: HashMap<Name, usize> =
            parameters.iter().flat_map(|p| p.names.iter().enumerate().map(|(i, &name)| (name, i))).collect();
        let parameter = |token: Option<&Pp>| match token?.kind {
            PpKind::Identifier(name) => numbers.get(&name).copied(),
            _ => None,
        };
        let mut body: Vec<Piece> = Vec::new();
        let mut tokens = written.iter();
        while let Some(&token) = tokens.next() {
            let role = match token.kind {
                PpKind::Punctuator(Punctuator::HashHash) => {
                    match body.last_mut() {
                        Some(last) if tokens.len() > 0 => last.paste = true,
                        _ => {
                            let error = Diagnostic::new("`##` joins two tokens: it stands between them");
                            self.wrong(error.note("C11 6.10.3.3"), token, "there is only one here")?;
                            return Ok(None);
                        }
                    }
                    continue;
                }
                PpKind::Punctuator(Punctuator::Hash) if parameters.is_some() => match parameter(tokens.next()) {
                    Some(number) => Role::String(number),
                    None => {
                        let error = Diagnostic::new("`#` makes a string of a parameter: the name of one follows it");
                        self.wrong(error.note("C11 6.10.3.2"), token, "no parameter follows")?;
                        return Ok(None);
                    }
                },
                PpKind::Identifier(name) => match numbers.get(&name) {
                    Some(&number) => Role::Parameter(number),
                    None if self.names.text(name) == "__VA_ARGS__" => {
                        let error = Diagnostic::new("`__VA_ARGS__` where there are no variable arguments");
                        self.wrong(error.note("the list of parameters has to end with `...`"), token, "")?;
                        return Ok(None);
                    }
                    None => Role::Plain,
                },
                _ => Role::Plain,
            };
            body.push(Piece { token, role, paste: false });
        }
        Ok(Some(body))
    }

    /// Adds a macro, or refuses it where there is another of that name.
    fn definition(
        &mut self,
        name: Name,
        place: Span,
        parameters: Option<Parameters>,
        body: Vec<Piece>,
        written: Vec<Pp>,
    ) -> Result<(), Stop> {
        let body = body.into();
        let new = Macro { name, place, parameters, body, special: None, written, active: false };
        if let Some(&number) = self.defined.get(&name) {
            let old = &self.macros[number];
            if old.same(&new) {
                return Ok(());
            }
            let error = Diagnostic::new(format!("the macro `{}` is defined otherwise already", self.shown(name)));
            let error = error.at(self.files.range(place), "defined again here");
            let error = error.at(self.files.range(old.place), "the first definition");
            self.report(error.note("`#undef` it first, or define it only `#ifndef`"))?;
        }
        self.add(new);
        Ok(())
    }
}

/// A token for a message.
fn short_of(preprocessor: &Preprocessor<'_>, token: Pp) -> String {
    short(preprocessor.spelled(token)).into_owned()
}
