//! Macro replacement (C11 6.10.3.1 to 6.10.3.4).

use std::rc::Rc;

use super::define::{Piece, Role, Special};
use super::{MAX_NESTING, MAX_SPELLING, MAX_STEPS, Pp, PpKind, Preprocessor, Stop, Use};
use crate::files::FileId;
use crate::lexer::{self, RawKind};
use crate::token::Punctuator;
use portcullis_core::diagnostics::Diagnostic;
use portcullis_core::diagnostics::short;

/// Tokens that are read before those below them.
pub(super) struct Context {
    tokens: Vec<Pp>,
    at: usize,
    owner: Owner,
}

/// Whose tokens they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// A macro's, which is not expanded until they are through.
    Macro(usize),
    /// An argument or a line by itself: what is below cannot be seen from here.
    Apart,
}

/// The arguments of one use of a macro.
struct Arguments {
    written: Vec<Vec<Pp>>,
    /// Macros in them replaced; only where that is wanted.
    expanded: Vec<Option<Rc<[Pp]>>>,
    /// Whether there are no variable arguments, not even an empty one.
    omitted: bool,
}

impl Preprocessor<'_> {
    /// The next token with macros replaced; none before a directive, at the end of a file, and at the
    /// end of what is expanded by itself.
    pub(super) fn next_expanded(&mut self) -> Result<Option<Pp>, Stop> {
        loop {
            let Some(token) = self.next()? else { return Ok(None) };
            let PpKind::Identifier(name) = token.kind else { return Ok(Some(token)) };
            if token.painted {
                return Ok(Some(token));
            }
            let Some(number) = self.lookup(name) else { return Ok(Some(token)) };
            if self.macros[number].parameters.is_some() && !self.opens_arguments() {
                return Ok(Some(token));
            }
            self.expand(number, token)?;
        }
    }

    /// The next token as it is. A macro's name that is met in the macro's own expansion is painted here:
    /// also where it becomes part of an argument, which is expanded when the macro's context is gone.
    pub(super) fn next(&mut self) -> Result<Option<Pp>, Stop> {
        self.leave_contexts();
        let mut token = if let Some(context) = self.contexts.last_mut() {
            let Some(&token) = context.tokens.get(context.at) else { return Ok(None) };
            context.at += 1;
            token
        } else if self.at_stop() {
            return Ok(None);
        } else {
            self.take_checked()?
        };
        if let PpKind::Identifier(name) = token.kind
            && let Some(&number) = self.defined.get(&name)
        {
            token.painted |= self.macros[number].active;
        }
        token.space |= std::mem::take(&mut self.space);
        Ok(Some(token))
    }

    /// Leaves the contexts that are through: their macros may be expanded again.
    fn leave_contexts(&mut self) {
        while let Some(Context { tokens, at, owner: Owner::Macro(number) }) = self.contexts.last()
            && *at == tokens.len()
        {
            self.macros[*number].active = false;
            self.contexts.pop();
        }
    }

    /// Whether the next token is the parenthesis in front of a macro's arguments.
    fn opens_arguments(&mut self) -> bool {
        self.leave_contexts();
        match self.contexts.last() {
            Some(context) => context.tokens.get(context.at).is_some_and(|t| t.is(Punctuator::LeftParenthesis)),
            None => {
                !self.at_stop()
                    && self.front().is_some_and(|raw| raw.kind == RawKind::Punctuator(Punctuator::LeftParenthesis))
            }
        }
    }

    /// Expands `tokens` by themselves: nothing behind them is looked at.
    pub(super) fn expand_apart(&mut self, tokens: Vec<Pp>) -> Result<Vec<Pp>, Stop> {
        self.enter_apart(tokens);
        let mut expanded = Vec::new();
        while let Some(token) = self.next_expanded()? {
            expanded.push(token);
        }
        self.leave_apart();
        Ok(expanded)
    }

    /// Makes `tokens` all that there is to read.
    pub(super) fn enter_apart(&mut self, tokens: Vec<Pp>) {
        self.contexts.push(Context { tokens, at: 0, owner: Owner::Apart });
    }

    /// Ends what [`enter_apart`](Self::enter_apart) began, when all was read.
    pub(super) fn leave_apart(&mut self) {
        self.contexts.pop();
        self.space = false;
    }

    /// Puts what a macro stands for in the place of its name, which `token` is, and of its arguments.
    fn expand(&mut self, number: usize, mut token: Pp) -> Result<(), Stop> {
        if token.used == 0 {
            self.uses.push(Use { name: self.macros[number].name, span: token.span });
            self.files.macro_used(token.span, self.macros[number].place);
            token.used = self.uses.len() as u32;
        }
        let tokens = match self.macros[number].special {
            Some(special) => vec![self.special(special, token)],
            None => {
                let arguments = match self.macros[number].parameters {
                    None => Arguments { written: Vec::new(), expanded: Vec::new(), omitted: true },
                    Some(_) => match self.arguments(number, token)? {
                        Some(arguments) => arguments,
                        None => return Ok(()),
                    },
                };
                self.substitute(number, token, arguments)?
            }
        };
        if tokens.is_empty() {
            self.space |= token.space;
            self.charge(1, token)?;
        }
        self.macros[number].active = true;
        self.contexts.push(Context { tokens, at: 0, owner: Owner::Macro(number) });
        Ok(())
    }

    /// Counts tokens that a macro made.
    fn charge(&mut self, made: usize, token: Pp) -> Result<(), Stop> {
        self.steps += made;
        if self.steps <= MAX_STEPS {
            return Ok(());
        }
        let Use { name, span } = self.uses[token.used as usize - 1];
        let name = self.shown(name);
        let error = Diagnostic::new(format!("the macro `{name}` takes more than {MAX_STEPS} steps to expand"));
        let error = error.at(self.files.range(span), "used here");
        self.fatal(error.note("macros that use one another more than once grow exponentially"))
    }

    /// The arguments of a macro; its parenthesis is the next token. Nothing, and an error, where they
    /// are not as the macro wants them.
    fn arguments(&mut self, number: usize, token: Pp) -> Result<Option<Arguments>, Stop> {
        let Some(parameters) = &self.macros[number].parameters else { return Ok(None) };
        let (wanted, variadic) = (parameters.names.len(), parameters.variadic);
        let mut written: Vec<Vec<Pp>> = vec![Vec::new()];
        let mut depth = 0usize;
        let open = self.next()?;
        loop {
            let Some(mut next) = self.next()? else {
                self.no_end_of_arguments(number, token, open)?;
                return Ok(None);
            };
            match next.kind {
                PpKind::Punctuator(Punctuator::LeftParenthesis) => depth += 1,
                PpKind::Punctuator(Punctuator::RightParenthesis) if depth == 0 => break,
                PpKind::Punctuator(Punctuator::RightParenthesis) => depth -= 1,
                PpKind::Punctuator(Punctuator::Comma) if depth == 0 && !(variadic && written.len() == wanted) => {
                    written.push(Vec::new());
                    continue;
                }
                _ => {}
            }
            if next.used == 0 {
                next.used = token.used;
            }
            written.last_mut().expect("there is at least one").push(next);
        }
        // Nothing between the parentheses is one argument, or none.
        if wanted == 0 && written.len() == 1 && written[0].is_empty() {
            written.clear();
        }
        // The variable arguments may be left out with their comma, as GCC, Clang and C23 have it.
        let omitted = written.len() < wanted || (wanted == 1 && written[0].is_empty());
        if variadic && written.len() + 1 == wanted {
            written.push(Vec::new());
        }
        if written.len() == wanted {
            let expanded = vec![None; wanted];
            return Ok(Some(Arguments { written, expanded, omitted }));
        }
        let name = self.shown(self.macros[number].name);
        let given = match written.len() {
            1 => "1 argument is".to_owned(),
            n => format!("{n} arguments are"),
        };
        let least = if variadic { "at least " } else { "" };
        let wanted = if variadic { wanted - 1 } else { wanted };
        let error = Diagnostic::new(format!("the macro `{name}` takes {least}{wanted}, and {given} given"));
        let error = self.files.point(error, token.span, self.used(token), format!("{given} given"));
        let error = error.at(self.files.range(self.macros[number].place), "defined here");
        self.report(error)?;
        Ok(None)
    }

    fn no_end_of_arguments(&mut self, number: usize, token: Pp, open: Option<Pp>) -> Result<(), Stop> {
        let name = self.shown(self.macros[number].name);
        let apart = !self.contexts.is_empty();
        if !apart && self.at_directive() {
            let error = Diagnostic::new(format!("a directive among the arguments of the macro `{name}`"));
            let place = self.inputs.last().map(|input| input.span(input.front)).unwrap_or(token.span);
            let error = error.at(self.files.range(place), "this begins a directive");
            let error = error.at(self.files.range(token.span), "the macro's arguments follow this");
            return self
                .report(error.note("C leaves it undefined (C11 6.10.3p11): put the whole use into each branch"));
        }
        let error = Diagnostic::new(format!("the arguments of the macro `{name}` have no end"));
        let note = match apart {
            true => "they end with `)`, in the same argument or on the same directive's line as they begin",
            false => "they end with `)`, in the file in which they begin",
        };
        self.wrong(error.note(note), open.unwrap_or(token), "they begin here")
    }

    /// An argument with its macros replaced.
    fn expanded(&mut self, arguments: &mut Arguments, index: usize, token: Pp) -> Result<Rc<[Pp]>, Stop> {
        if let Some(expanded) = &arguments.expanded[index] {
            return Ok(expanded.clone());
        }
        if self.nesting == MAX_NESTING {
            let name = short(self.spelled(token));
            let error =
                Diagnostic::new(format!("`{name}` is used in arguments of macros more than {MAX_NESTING} deep"));
            let error = self.files.point(error, token.span, self.used(token), "this is one too many");
            return self.fatal(error);
        }
        let written = arguments.written[index].clone();
        self.charge(written.len(), token)?;
        self.nesting += 1;
        let space = std::mem::take(&mut self.space);
        let expanded: Rc<[Pp]> = self.expand_apart(written)?.into();
        self.space = space;
        self.nesting -= 1;
        arguments.expanded[index] = Some(expanded.clone());
        Ok(expanded)
    }

    /// A macro's replacement list with the arguments in the place of the parameters.
    fn substitute(&mut self, number: usize, token: Pp, mut arguments: Arguments) -> Result<Vec<Pp>, Stop> {
        let body = self.macros[number].body.clone();
        let variadic = self.macros[number].parameters.as_ref().is_some_and(|p| p.variadic);
        let last = arguments.written.len().wrapping_sub(1);
        let mut made = Made { tokens: Vec::new(), space: false };
        // Where the tokens begin that `##` joins with one another; the left one of them may be none.
        let mut chain = 0;
        let mut paste = false;
        for (i, piece) in body.iter().enumerate() {
            if !paste {
                chain = made.tokens.len();
            }
            let comma =
                variadic && paste && !piece.paste && piece.role == Role::Parameter(last) && is_lone_comma(&body, i - 1);
            match piece.role {
                Role::Parameter(_) if comma && arguments.omitted => drop(made.tokens.pop()),
                Role::Parameter(index) if comma => {
                    let argument = &arguments.written[index];
                    self.charge(argument.len(), token)?;
                    made.tokens.extend(argument);
                }
                Role::Parameter(index) if !paste && !piece.paste => {
                    let argument = self.expanded(&mut arguments, index, token)?;
                    self.charge(argument.len().max(1), token)?;
                    made.extend(&argument, piece.token);
                }
                Role::Parameter(index) => {
                    self.join(&mut made, chain, paste, &arguments.written[index], piece, token)?
                }
                Role::String(index) => {
                    let string = self.stringified(&arguments.written[index], piece.token, token)?;
                    self.join(&mut made, chain, paste, &[string], piece, token)?;
                }
                Role::Plain => {
                    let own = Pp { used: token.used, ..piece.token };
                    self.join(&mut made, chain, paste, &[own], piece, token)?;
                }
            }
            paste = piece.paste;
        }
        let mut tokens = made.tokens;
        match tokens.first_mut() {
            Some(first) => first.space = token.space,
            None => self.space |= made.space,
        }
        Ok(tokens)
    }

    /// Adds `right`, with its first token joined to the last one if `paste`.
    fn join(
        &mut self,
        made: &mut Made,
        chain: usize,
        paste: bool,
        right: &[Pp],
        piece: &Piece,
        token: Pp,
    ) -> Result<(), Stop> {
        // Before they are there: a short macro may ask for more than there is memory.
        self.charge(right.len().max(1), token)?;
        let (Some(&first), true) = (right.first(), paste && made.tokens.len() > chain) else {
            // White space around `##` is none between tokens.
            made.extend(right, Pp { space: piece.token.space && !paste, ..piece.token });
            return Ok(());
        };
        let Some(left) = made.tokens.pop() else { return Ok(()) };
        match self.pasted(left, first, token)? {
            Some(both) => made.tokens.push(both),
            None => made.tokens.extend([left, first]),
        }
        made.tokens.extend(&right[1..]);
        Ok(())
    }

    /// Two tokens as one; nothing, and an error, where they are none.
    fn pasted(&mut self, left: Pp, right: Pp, token: Pp) -> Result<Option<Pp>, Stop> {
        let text = format!("{}{}", self.spelled(left), self.spelled(right));
        self.check_length(&text, token)?;
        let raw = lexer::next(&text, 0, false);
        let whole = raw.range() == (0..text.len());
        let kind = match raw.kind {
            RawKind::Punctuator(punctuator) if whole => PpKind::Punctuator(punctuator),
            RawKind::Identifier if whole => PpKind::Identifier(self.names.intern(&text)),
            RawKind::Number if whole => PpKind::Number(self.names.intern(&text)),
            RawKind::Character if whole => PpKind::Character(self.names.intern(&text)),
            RawKind::String if whole => PpKind::String(self.names.intern(&text)),
            _ => {
                let (a, b) = (short(self.spelled(left)), short(self.spelled(right)));
                let error = Diagnostic::new(format!("`{a}` ## `{b}` makes `{}`, which is no token", short(&text)));
                let at = Pp { used: token.used, ..left };
                self.wrong(error.note("`##` makes one token of two (C11 6.10.3.3)"), at, "joined with what follows")?;
                return Ok(None);
            }
        };
        Ok(Some(Pp { kind, used: token.used, painted: false, ..left }))
    }

    /// An argument as a string literal (C11 6.10.3.2).
    fn stringified(&mut self, argument: &[Pp], place: Pp, token: Pp) -> Result<Pp, Stop> {
        let mut text = String::from('"');
        for (i, part) in argument.iter().enumerate() {
            if part.space && i > 0 {
                text.push(' ');
            }
            let spelled = self.spelled(*part);
            match part.kind {
                PpKind::String(_) | PpKind::Character(_) => {
                    for c in spelled.chars() {
                        if matches!(c, '"' | '\\') {
                            text.push('\\');
                        }
                        text.push(c);
                    }
                }
                _ => text.push_str(spelled),
            }
            if text.len() > MAX_SPELLING {
                break;
            }
        }
        text.push('"');
        self.check_length(&text, token)?;
        let raw = lexer::next(&text, 0, false);
        let mut string = Pp { used: token.used, painted: false, ..place };
        if raw.kind != RawKind::String || raw.end != text.len() {
            let error = Diagnostic::new(format!("`#` makes {}, which is no string", short(&text)));
            self.wrong(error.note("a backslash at the end takes the quote with it"), string, "")?;
            text = "\"\"".into();
        }
        string.kind = PpKind::String(self.names.intern(&text));
        Ok(string)
    }

    /// Refuses tokens that `#` and `##` made too long, and counts them by their length.
    fn check_length(&mut self, text: &str, token: Pp) -> Result<(), Stop> {
        if text.len() <= MAX_SPELLING {
            return self.charge(text.len() / 8, token);
        }
        let Use { name, span } = self.uses[token.used as usize - 1];
        let name = self.shown(name);
        let error = Diagnostic::new(format!("the macro `{name}` makes a token of more than {MAX_SPELLING} bytes"));
        self.fatal(error.at(self.files.range(span), "used here"))
    }

    /// What `__LINE__` and `__FILE__` are at a place.
    fn special(&mut self, special: Special, token: Pp) -> Pp {
        let span = self.uses[token.used as usize - 1].span;
        let kind = match special {
            Special::Line => {
                let line = self.line_number(span.file, span.start);
                PpKind::Number(self.names.intern(&line.to_string()))
            }
            Special::File => {
                let name = self.files.name(span.file).replace('\\', "\\\\").replace('"', "\\\"");
                PpKind::String(self.names.intern(&format!("\"{name}\"")))
            }
        };
        Pp { kind, ..token }
    }

    /// The line, from 1, of a place.
    fn line_number(&mut self, file: FileId, at: u32) -> usize {
        let ends = self.line_ends.entry(file).or_insert_with(|| {
            let text = self.files.text(file).bytes().enumerate();
            text.filter(|&(_, byte)| byte == b'\n').map(|(at, _)| at as u32).collect()
        });
        ends.partition_point(|&end| end < at) + 1
    }
}

/// Whether that piece is a comma which nothing is joined to on its left.
fn is_lone_comma(body: &[Piece], i: usize) -> bool {
    body[i].role == Role::Plain && body[i].token.is(Punctuator::Comma) && !(i > 0 && body[i - 1].paste)
}

/// Tokens of an expansion in the making.
struct Made {
    tokens: Vec<Pp>,
    /// White space in front of the next one, from arguments that were empty.
    space: bool,
}

impl Made {
    /// Adds the tokens that stand for `place`, which says whether there is space in front.
    fn extend(&mut self, tokens: &[Pp], place: Pp) {
        self.space |= place.space;
        if let Some((first, rest)) = tokens.split_first() {
            self.tokens.push(Pp { space: std::mem::take(&mut self.space), ..*first });
            self.tokens.extend(rest);
        }
    }
}
