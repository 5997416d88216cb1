//! Macro expansion (C11 6.10.3.1 to 6.10.3.4).

use std::rc::Rc;

use super::define::{BuiltinMacro, ReplacementToken, Substitution};
use super::{Abort, MAX_EXPANSION_STEPS, MAX_NESTING, MAX_TOKEN_BYTES, MacroUse, PpToken, PpTokenKind, Preprocessor};
use crate::files::FileId;
use crate::lexer::{self, RawTokenKind};
use crate::token::Punctuator;
use portcullis_core::diagnostics::Diagnostic;
use portcullis_core::diagnostics::elide;

/// Tokens to read before those of the contexts below.
pub(super) struct Context {
    tokens: Vec<PpToken>,
    at: usize,
    owner: ContextKind,
}

/// Source of a context's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContextKind {
    /// The expansion of a macro, which is not expanded again until these are consumed.
    Macro(usize),
    /// An argument or line that is expanded in isolation: contexts below are invisible.
    Isolated,
}

/// The arguments of a macro use.
struct Arguments {
    unexpanded: Vec<Vec<PpToken>>,
    /// Arguments after macro expansion, computed when first needed.
    expanded: Vec<Option<Rc<[PpToken]>>>,
    /// Whether the variable arguments are absent, rather than empty.
    omitted: bool,
}

impl Preprocessor<'_> {
    /// Returns the next token after macro expansion; `None` before a directive and at the end of
    /// the file or of an isolated context.
    pub(super) fn next_expanded(&mut self) -> Result<Option<PpToken>, Abort> {
        loop {
            let Some(token) = self.next()? else { return Ok(None) };
            let PpTokenKind::Identifier(name) = token.kind else { return Ok(Some(token)) };
            if token.painted {
                return Ok(Some(token));
            }
            let Some(number) = self.lookup(name) else { return Ok(Some(token)) };
            if self.macros[number].parameters.is_some() && !self.at_arguments() {
                return Ok(Some(token));
            }
            self.expand(number, token)?;
        }
    }

    /// Returns the next token without expanding it. Paints a macro's name met in the macro's own
    /// expansion; that also covers names that become part of an argument and are expanded later.
    pub(super) fn next(&mut self) -> Result<Option<PpToken>, Abort> {
        self.pop_finished_contexts();
        let mut token = if let Some(context) = self.contexts.last_mut() {
            let Some(&token) = context.tokens.get(context.at) else { return Ok(None) };
            context.at += 1;
            token
        } else if self.at_end_or_directive() {
            return Ok(None);
        } else {
            self.take_checked()?
        };
        if let PpTokenKind::Identifier(name) = token.kind
            && let Some(&number) = self.macros_by_name.get(&name)
        {
            token.painted |= self.macros[number].is_expanding;
        }
        token.leading_space |= std::mem::take(&mut self.pending_space);
        Ok(Some(token))
    }

    /// Pops contexts that are consumed, so that their macros may be expanded again.
    fn pop_finished_contexts(&mut self) {
        while let Some(Context { tokens, at, owner: ContextKind::Macro(number) }) = self.contexts.last()
            && *at == tokens.len()
        {
            self.macros[*number].is_expanding = false;
            self.contexts.pop();
        }
    }

    /// Whether the next token opens a macro's arguments.
    fn at_arguments(&mut self) -> bool {
        self.pop_finished_contexts();
        match self.contexts.last() {
            Some(context) => context.tokens.get(context.at).is_some_and(|t| t.is(Punctuator::LeftParenthesis)),
            None => {
                !self.at_end_or_directive()
                    && self.peek().is_some_and(|raw| raw.kind == RawTokenKind::Punctuator(Punctuator::LeftParenthesis))
            }
        }
    }

    /// Expands `tokens` without looking at what follows them.
    pub(super) fn expand_isolated(&mut self, tokens: Vec<PpToken>) -> Result<Vec<PpToken>, Abort> {
        self.push_isolated(tokens);
        let mut expanded = Vec::new();
        while let Some(token) = self.next_expanded()? {
            expanded.push(token);
        }
        self.pop_isolated();
        Ok(expanded)
    }

    /// Pushes a context that hides everything below.
    pub(super) fn push_isolated(&mut self, tokens: Vec<PpToken>) {
        self.contexts.push(Context { tokens, at: 0, owner: ContextKind::Isolated });
    }

    /// Pops the context of [`push_isolated`](Self::push_isolated) once it is consumed.
    pub(super) fn pop_isolated(&mut self) {
        self.contexts.pop();
        self.pending_space = false;
    }

    /// Replaces a macro's name (`token`) and arguments by the macro's expansion.
    fn expand(&mut self, number: usize, mut token: PpToken) -> Result<(), Abort> {
        if token.macro_use == 0 {
            self.macro_uses.push(MacroUse { name: self.macros[number].name, span: token.span });
            self.files.record_macro_use(token.span, self.macros[number].span);
            token.macro_use = self.macro_uses.len() as u32;
        }
        let tokens = match self.macros[number].builtin {
            Some(builtin) => vec![self.expand_builtin(builtin, token)],
            None => {
                let arguments = match self.macros[number].parameters {
                    None => Arguments { unexpanded: Vec::new(), expanded: Vec::new(), omitted: true },
                    Some(_) => match self.arguments(number, token)? {
                        Some(arguments) => arguments,
                        None => return Ok(()),
                    },
                };
                self.substitute(number, token, arguments)?
            }
        };
        if tokens.is_empty() {
            self.pending_space |= token.leading_space;
            self.count_steps(1, token)?;
        }
        self.macros[number].is_expanding = true;
        self.contexts.push(Context { tokens, at: 0, owner: ContextKind::Macro(number) });
        Ok(())
    }

    /// Counts tokens that a macro produced, and stops at [`MAX_EXPANSION_STEPS`].
    fn count_steps(&mut self, expansion: usize, token: PpToken) -> Result<(), Abort> {
        self.expansion_steps += expansion;
        if self.expansion_steps <= MAX_EXPANSION_STEPS {
            return Ok(());
        }
        let MacroUse { name, span } = self.macro_uses[token.macro_use as usize - 1];
        let name = self.display_name(name);
        let error =
            Diagnostic::new(format!("the macro `{name}` takes more than {MAX_EXPANSION_STEPS} steps to expand"));
        let error = error.at(self.files.range(span), "used here");
        self.fatal(error.note("macros that use one another more than once grow exponentially"))
    }

    /// Parses the arguments of a macro, starting at the parenthesis. Returns `None` after reporting
    /// an error.
    fn arguments(&mut self, number: usize, token: PpToken) -> Result<Option<Arguments>, Abort> {
        let Some(parameters) = &self.macros[number].parameters else { return Ok(None) };
        let (wanted, variadic) = (parameters.names.len(), parameters.variadic);
        let mut unexpanded: Vec<Vec<PpToken>> = vec![Vec::new()];
        let mut depth = 0usize;
        let open = self.next()?;
        loop {
            let Some(mut next) = self.next()? else {
                self.report_unclosed_arguments(number, token, open)?;
                return Ok(None);
            };
            match next.kind {
                PpTokenKind::Punctuator(Punctuator::LeftParenthesis) => depth += 1,
                PpTokenKind::Punctuator(Punctuator::RightParenthesis) if depth == 0 => break,
                PpTokenKind::Punctuator(Punctuator::RightParenthesis) => depth -= 1,
                PpTokenKind::Punctuator(Punctuator::Comma)
                    if depth == 0 && !(variadic && unexpanded.len() == wanted) =>
                {
                    unexpanded.push(Vec::new());
                    continue;
                }
                _ => {}
            }
            if next.macro_use == 0 {
                next.macro_use = token.macro_use;
            }
            unexpanded.last_mut().expect("there is at least one").push(next);
        }
        // Empty parentheses are one empty argument, or no argument.
        if wanted == 0 && unexpanded.len() == 1 && unexpanded[0].is_empty() {
            unexpanded.clear();
        }
        // The comma may be omitted together with the variable arguments, as GCC, Clang and C23
        // allow.
        let omitted = unexpanded.len() < wanted || (wanted == 1 && unexpanded[0].is_empty());
        if variadic && unexpanded.len() + 1 == wanted {
            unexpanded.push(Vec::new());
        }
        if unexpanded.len() == wanted {
            let expanded = vec![None; wanted];
            return Ok(Some(Arguments { unexpanded, expanded, omitted }));
        }
        let name = self.display_name(self.macros[number].name);
        let given = match unexpanded.len() {
            1 => "1 argument is".to_owned(),
            n => format!("{n} arguments are"),
        };
        let least = if variadic { "at least " } else { "" };
        let wanted = if variadic { wanted - 1 } else { wanted };
        let arguments = if wanted == 1 { "argument" } else { "arguments" };
        let error = Diagnostic::new(format!("the macro `{name}` takes {least}{wanted} {arguments}, {given} given"));
        let error = self.files.point_at(error, token.span, self.macro_use_span(token), format!("{given} given"));
        let error = error.at(self.files.range(self.macros[number].span), "defined here");
        self.report(error)?;
        Ok(None)
    }

    fn report_unclosed_arguments(&mut self, number: usize, token: PpToken, open: Option<PpToken>) -> Result<(), Abort> {
        let name = self.display_name(self.macros[number].name);
        let is_isolated = !self.contexts.is_empty();
        if !is_isolated && self.at_directive() {
            let error = Diagnostic::new(format!("directive in the arguments of the macro `{name}`"));
            let span = self.inputs.last().map(|input| input.span(input.front)).unwrap_or(token.span);
            let error = error.at(self.files.range(span), "a directive starts here");
            let error = error.at(self.files.range(token.span), "the macro's arguments follow this");
            return self.report(
                error.note("this is undefined in C (C11 6.10.3p11): repeat the whole macro use in each branch"),
            );
        }
        let error = Diagnostic::new(format!("the arguments of the macro `{name}` are not closed"));
        let note = match is_isolated {
            true => "close them with `)` in the same argument or directive",
            false => "close them with `)` in the same file",
        };
        self.report_at(error.note(note), open.unwrap_or(token), "they start here")
    }

    /// Expands an argument, once.
    fn expand_argument(
        &mut self,
        arguments: &mut Arguments,
        index: usize,
        token: PpToken,
    ) -> Result<Rc<[PpToken]>, Abort> {
        if let Some(expanded) = &arguments.expanded[index] {
            return Ok(expanded.clone());
        }
        if self.argument_nesting == MAX_NESTING {
            let name = elide(self.spelled(token));
            let error =
                Diagnostic::new(format!("`{name}` is used in arguments of macros more than {MAX_NESTING} deep"));
            let error = self.files.point_at(error, token.span, self.macro_use_span(token), "limit exceeded here");
            return self.fatal(error);
        }
        let unexpanded = arguments.unexpanded[index].clone();
        self.count_steps(unexpanded.len(), token)?;
        self.argument_nesting += 1;
        let pending_space = std::mem::take(&mut self.pending_space);
        let expanded: Rc<[PpToken]> = self.expand_isolated(unexpanded)?.into();
        self.pending_space = pending_space;
        self.argument_nesting -= 1;
        arguments.expanded[index] = Some(expanded.clone());
        Ok(expanded)
    }

    /// Substitutes the arguments into a macro's replacement list.
    fn substitute(&mut self, number: usize, token: PpToken, mut arguments: Arguments) -> Result<Vec<PpToken>, Abort> {
        let replacement = self.macros[number].replacement.clone();
        let variadic = self.macros[number].parameters.as_ref().is_some_and(|p| p.variadic);
        let last = arguments.unexpanded.len().wrapping_sub(1);
        let mut expansion = Expansion { tokens: Vec::new(), pending_space: false };
        // Index of the first token of the current `##` chain, whose left operand may be empty.
        let mut chain = 0;
        let mut paste = false;
        for (i, piece) in replacement.iter().enumerate() {
            if !paste {
                chain = expansion.tokens.len();
            }
            let comma = variadic
                && paste
                && !piece.pastes_next
                && piece.substitution == Substitution::Parameter(last)
                && is_lone_comma(&replacement, i - 1);
            match piece.substitution {
                Substitution::Parameter(_) if comma && arguments.omitted => drop(expansion.tokens.pop()),
                Substitution::Parameter(index) if comma => {
                    let argument = &arguments.unexpanded[index];
                    self.count_steps(argument.len(), token)?;
                    expansion.tokens.extend(argument);
                }
                Substitution::Parameter(index) if !paste && !piece.pastes_next => {
                    let argument = self.expand_argument(&mut arguments, index, token)?;
                    self.count_steps(argument.len().max(1), token)?;
                    expansion.extend(&argument, piece.token);
                }
                Substitution::Parameter(index) => {
                    self.append_pasted(&mut expansion, chain, paste, &arguments.unexpanded[index], piece, token)?
                }
                Substitution::Stringify(index) => {
                    let string = self.stringify(&arguments.unexpanded[index], piece.token, token)?;
                    self.append_pasted(&mut expansion, chain, paste, &[string], piece, token)?;
                }
                Substitution::Plain => {
                    let own = PpToken { macro_use: token.macro_use, ..piece.token };
                    self.append_pasted(&mut expansion, chain, paste, &[own], piece, token)?;
                }
            }
            paste = piece.pastes_next;
        }
        let mut tokens = expansion.tokens;
        match tokens.first_mut() {
            Some(first) => first.leading_space = token.leading_space,
            None => self.pending_space |= expansion.pending_space,
        }
        Ok(tokens)
    }

    /// Appends `right`; if `paste`, joins its first token with the last one.
    fn append_pasted(
        &mut self,
        expansion: &mut Expansion,
        chain: usize,
        paste: bool,
        right: &[PpToken],
        piece: &ReplacementToken,
        token: PpToken,
    ) -> Result<(), Abort> {
        // Count first: a short macro may ask for more memory than there is.
        self.count_steps(right.len().max(1), token)?;
        let (Some(&first), true) = (right.first(), paste && expansion.tokens.len() > chain) else {
            // White space around `##` is not white space between tokens.
            expansion.extend(right, PpToken { leading_space: piece.token.leading_space && !paste, ..piece.token });
            return Ok(());
        };
        let Some(left) = expansion.tokens.pop() else { return Ok(()) };
        match self.paste_tokens(left, first, token)? {
            Some(both) => expansion.tokens.push(both),
            None => expansion.tokens.extend([left, first]),
        }
        expansion.tokens.extend(&right[1..]);
        Ok(())
    }

    /// Joins two tokens; reports an error and returns `None` if the result is not a token.
    fn paste_tokens(&mut self, left: PpToken, right: PpToken, token: PpToken) -> Result<Option<PpToken>, Abort> {
        let text = format!("{}{}", self.spelled(left), self.spelled(right));
        self.check_length(&text, token)?;
        let raw = lexer::next_token(&text, 0, false);
        let whole = raw.range() == (0..text.len());
        let kind = match raw.kind {
            RawTokenKind::Punctuator(punctuator) if whole => PpTokenKind::Punctuator(punctuator),
            RawTokenKind::Identifier if whole => PpTokenKind::Identifier(self.names.intern(&text)),
            RawTokenKind::Number if whole => PpTokenKind::Number(self.names.intern(&text)),
            RawTokenKind::Character if whole => PpTokenKind::Character(self.names.intern(&text)),
            RawTokenKind::String if whole => PpTokenKind::String(self.names.intern(&text)),
            _ => {
                let (a, b) = (elide(self.spelled(left)), elide(self.spelled(right)));
                let error = Diagnostic::new(format!("`{a}` ## `{b}` gives `{}`, which is not a token", elide(&text)));
                let at = PpToken { macro_use: token.macro_use, ..left };
                self.report_at(
                    error.note("`##` must form a single token (C11 6.10.3.3)"),
                    at,
                    "joined with the next token",
                )?;
                return Ok(None);
            }
        };
        Ok(Some(PpToken { kind, macro_use: token.macro_use, painted: false, ..left }))
    }

    /// Converts an argument to a string literal (C11 6.10.3.2).
    fn stringify(&mut self, argument: &[PpToken], parameter: PpToken, token: PpToken) -> Result<PpToken, Abort> {
        let mut text = String::from('"');
        for (i, part) in argument.iter().enumerate() {
            if part.leading_space && i > 0 {
                text.push(' ');
            }
            let spelled = self.spelled(*part);
            match part.kind {
                PpTokenKind::String(_) | PpTokenKind::Character(_) => {
                    for c in spelled.chars() {
                        if matches!(c, '"' | '\\') {
                            text.push('\\');
                        }
                        text.push(c);
                    }
                }
                _ => text.push_str(spelled),
            }
            if text.len() > MAX_TOKEN_BYTES {
                break;
            }
        }
        text.push('"');
        self.check_length(&text, token)?;
        let raw = lexer::next_token(&text, 0, false);
        let mut string = PpToken { macro_use: token.macro_use, painted: false, ..parameter };
        if raw.kind != RawTokenKind::String || raw.end != text.len() {
            let error = Diagnostic::new(format!("`#` gives {}, which is not a string", elide(&text)));
            self.report_at(error.note("a trailing backslash escapes the closing quote"), string, "")?;
            text = "\"\"".into();
        }
        string.kind = PpTokenKind::String(self.names.intern(&text));
        Ok(string)
    }

    /// Stops at tokens that `#` or `##` made too long; counts others as steps by their length.
    fn check_length(&mut self, text: &str, token: PpToken) -> Result<(), Abort> {
        if text.len() <= MAX_TOKEN_BYTES {
            return self.count_steps(text.len() / 8, token);
        }
        let MacroUse { name, span } = self.macro_uses[token.macro_use as usize - 1];
        let name = self.display_name(name);
        let error =
            Diagnostic::new(format!("the macro `{name}` produces a token of more than {MAX_TOKEN_BYTES} bytes"));
        self.fatal(error.at(self.files.range(span), "used here"))
    }

    /// The value of `__LINE__` or `__FILE__` at a place.
    fn expand_builtin(&mut self, builtin: BuiltinMacro, token: PpToken) -> PpToken {
        let span = self.macro_uses[token.macro_use as usize - 1].span;
        let kind = match builtin {
            BuiltinMacro::Line => {
                let line = self.line_number(span.file, span.start);
                PpTokenKind::Number(self.names.intern(&line.to_string()))
            }
            BuiltinMacro::File => {
                let name = self.files.name(span.file).replace('\\', "\\\\").replace('"', "\\\"");
                PpTokenKind::String(self.names.intern(&format!("\"{name}\"")))
            }
        };
        PpToken { kind, ..token }
    }

    /// Line number of a place, from 1.
    fn line_number(&mut self, file: FileId, at: u32) -> usize {
        let ends = self.line_ends.entry(file).or_insert_with(|| {
            let text = self.files.text(file).bytes().enumerate();
            text.filter(|&(_, byte)| byte == b'\n').map(|(at, _)| at as u32).collect()
        });
        ends.partition_point(|&end| end < at) + 1
    }
}

/// Whether the token at `i` is a comma that is not the right operand of `##`.
fn is_lone_comma(replacement: &[ReplacementToken], i: usize) -> bool {
    replacement[i].substitution == Substitution::Plain
        && replacement[i].token.is(Punctuator::Comma)
        && !(i > 0 && replacement[i - 1].pastes_next)
}

/// Output buffer of a macro expansion.
struct Expansion {
    tokens: Vec<PpToken>,
    /// Whether white space precedes the next token, left by empty arguments.
    pending_space: bool,
}

impl Expansion {
    /// Appends the tokens that replace `replaced`, whose leading white space they inherit.
    fn extend(&mut self, tokens: &[PpToken], replaced: PpToken) {
        self.pending_space |= replaced.leading_space;
        if let Some((first, rest)) = tokens.split_first() {
            self.tokens.push(PpToken { leading_space: std::mem::take(&mut self.pending_space), ..*first });
            self.tokens.extend(rest);
        }
    }
}
