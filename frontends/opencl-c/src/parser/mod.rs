//! From tokens to a syntax tree: recursive descent, one function a production of C's grammar (C11
//! annex A.2), with OpenCL C's qualifiers and vector literals.
//!
//! Whether `(name)` is a cast depends on what the name means there, so the parser knows which names
//! are types. It goes on behind a mistake: in a block at the next `;` or `}`, outside at the next
//! declaration. Nesting is counted ([`MAX_DEPTH`]).

mod declarations;
mod expressions;
mod keywords;
mod statements;
mod strings;

use std::collections::HashMap;

use super::ast::{MAX_DEPTH, Unit};
use super::errors::Errors;
use super::files::Span;
use super::token::{Name, Names, Token, TokenKind};
use portcullis_core::spelling::nearest;

pub(super) use keywords::{Keyword, find as keyword};

/// What was wrong has been said; whoever can go on behind it does.
pub(super) struct Stop;

type Parsed<T> = Result<T, Stop>;

/// Parses a text. What is wrong is in `errors`, and what could be read in the tree.
pub(super) fn parse(tokens: &[Token], names: &Names, errors: &mut Errors) -> Unit {
    let scopes = vec![HashMap::new()];
    let mut keywords = HashMap::new();
    for token in tokens {
        if let TokenKind::Identifier(name) = token.kind {
            keywords.entry(name).or_insert_with(|| keywords::find(names.text(name)));
        }
    }
    let mut parser = Parser { tokens, names, keywords, at: 0, depth: 0, scopes, errors };
    let mut items = Vec::new();
    while !parser.is_end() && !parser.errors.is_full() {
        let before = parser.at;
        match parser.item(&mut items) {
            Ok(()) => {}
            Err(Stop) => parser.next_item(before),
        }
    }
    Unit { items }
}

/// Where to point for a token. What stands in a macro's arguments is where it stands; for the rest of
/// what a macro stands for it is the macro's use.
fn place(token: &Token) -> Span {
    match token.expanded {
        Some(used) if used.file != token.span.file || token.span.start < used.start => used,
        _ => token.span,
    }
}

fn is(token: &Token, text: &str) -> bool {
    matches!(token.kind, TokenKind::Punctuator(punctuator) if punctuator.text() == text)
}

struct Parser<'a> {
    tokens: &'a [Token],
    names: &'a Names,
    /// What each name is of the language.
    keywords: HashMap<Name, Option<Keyword>>,
    at: usize,
    depth: u16,
    /// Which names mean types, innermost scope last.
    scopes: Vec<HashMap<Name, bool>>,
    errors: &'a mut Errors,
}

impl<'a> Parser<'a> {
    fn token(&self) -> &'a Token {
        &self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn ahead(&self, by: usize) -> &'a Token {
        &self.tokens[(self.at + by).min(self.tokens.len() - 1)]
    }

    fn is_end(&self) -> bool {
        matches!(self.token().kind, TokenKind::End)
    }

    /// Where to point for the next token: at the use of a macro, not into it.
    fn span(&self) -> Span {
        place(self.token())
    }

    fn last_span(&self) -> Span {
        place(&self.tokens[self.at.saturating_sub(1).min(self.tokens.len() - 1)])
    }

    /// From `start` to the token read last.
    fn since(&self, start: Span) -> Span {
        start.to(self.last_span())
    }

    fn advance(&mut self) {
        self.at = (self.at + 1).min(self.tokens.len() - 1);
    }

    fn is(&self, punctuator: &str) -> bool {
        is(self.token(), punctuator)
    }

    fn eat(&mut self, punctuator: &str) -> bool {
        let found = self.is(punctuator);
        if found {
            self.advance();
        }
        found
    }

    /// What is next, for a message.
    fn found(&self) -> String {
        match self.token().kind {
            TokenKind::End => "the end of the text".into(),
            TokenKind::Identifier(name) => format!("`{}`", self.names.text(name)),
            TokenKind::Punctuator(punctuator) => format!("`{}`", punctuator.text()),
            TokenKind::Integer { .. } | TokenKind::Float { .. } => "a number".into(),
            TokenKind::Character(_) => "a character".into(),
            TokenKind::String(_) => "a string".into(),
        }
    }

    fn fail<T>(&mut self, message: impl Into<String>, note: &str) -> Parsed<T> {
        let span = self.span();
        // A text that ends too early forgot a brace, wherever it is missed.
        let open = if self.is_end() { self.unclosed("}") } else { None };
        self.errors.with(span, message, "", note, open.map(|brace| (brace, "this brace has no partner")));
        Err(Stop)
    }

    fn expected<T>(&mut self, what: &str) -> Parsed<T> {
        let message = format!("expected {what}, found {}", self.found());
        self.fail(message, "")
    }

    /// The same where `what` may also be the `}` of what is being read.
    fn expected_in_braces<T>(&mut self, what: &str) -> Parsed<T> {
        if self.is_end() {
            return self.expected(&format!("{what} or `}}`"));
        }
        let (span, open) = (self.span(), self.unclosed("}"));
        let message = format!("expected {what} or `}}`, found {}", self.found());
        self.errors.with(span, message, "", "", open.map(|brace| (brace, "opened here")));
        Err(Stop)
    }

    /// The `,` behind one of several between braces.
    fn expect_comma(&mut self, why: &str) -> Parsed<()> {
        if self.eat(",") { Ok(()) } else { self.expected_in_braces(&format!("`,` {why}")) }
    }

    fn expect(&mut self, punctuator: &str, why: &str) -> Parsed<()> {
        if self.eat(punctuator) {
            return Ok(());
        }
        self.missing(punctuator, &format!("`{punctuator}` {why}"))
    }

    /// The same behind one of several, where a comma would go on.
    fn expect_behind_list(&mut self, close: &str, why: &str) -> Parsed<()> {
        if self.eat(close) {
            return Ok(());
        }
        self.missing(close, &format!("`,` or `{close}` {why}"))
    }

    fn missing<T>(&mut self, punctuator: &str, what: &str) -> Parsed<T> {
        // A forgotten `;` is told where it belongs, at the end of the line before.
        let span = if punctuator == ";" && self.at > 0 { self.last_span() } else { self.span() };
        let message = format!("expected {what}, found {}", self.found());
        let open = self.unclosed(punctuator).filter(|bracket| *bracket != span);
        self.errors.with(span, message, "", "", open.map(|bracket| (bracket, "opened here")));
        Err(Stop)
    }

    /// The bracket that `close` would close here, if that is one.
    fn unclosed(&self, close: &str) -> Option<Span> {
        let open = match close {
            ")" => "(",
            "]" => "[",
            "}" => "{",
            _ => return None,
        };
        let mut closed = 0usize;
        for token in self.tokens[..self.at].iter().rev() {
            if is(token, close) {
                closed += 1;
            } else if is(token, open) {
                if closed == 0 {
                    return Some(place(token));
                }
                closed -= 1;
            }
        }
        None
    }

    fn identifier(&self) -> Option<Name> {
        match self.token().kind {
            TokenKind::Identifier(name) => Some(name),
            _ => None,
        }
    }

    /// What the next token is of the language.
    fn keyword(&self) -> Option<Keyword> {
        self.keyword_of(self.token())
    }

    fn keyword_of(&self, token: &Token) -> Option<Keyword> {
        match token.kind {
            TokenKind::Identifier(name) => self.keywords.get(&name).copied().flatten(),
            _ => None,
        }
    }

    fn is_keyword(&self, keyword: Keyword) -> bool {
        self.keyword() == Some(keyword)
    }

    fn eat_keyword(&mut self, keyword: Keyword) -> bool {
        let found = self.is_keyword(keyword);
        if found {
            self.advance();
        }
        found
    }

    /// A name that is free for declarations.
    fn new_name(&mut self, what: &str) -> Parsed<(Name, Span)> {
        match (self.identifier(), self.keyword()) {
            (Some(name), None) => {
                let span = self.span();
                self.advance();
                Ok((name, span))
            }
            (Some(name), Some(_)) => {
                let message =
                    format!("expected {what}, found `{}`, which is a word of the language", self.names.text(name));
                self.fail(message, "")
            }
            _ => self.expected(what),
        }
    }

    /// Runs `parse` one level deeper.
    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= MAX_DEPTH {
            return self.too_deep();
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    fn too_deep<T>(&mut self) -> Parsed<T> {
        self.errors.stop();
        self.fail(format!("the text nests more than {MAX_DEPTH} deep here"), "operators count: a + b + c is three deep")
    }

    fn declare(&mut self, name: Name, is_type: bool) {
        self.scopes.last_mut().expect("the file's scope stays").insert(name, is_type);
    }

    /// What to say of a word that may have been meant to be one of the language's, or a type's name.
    fn did_you_mean(&self, name: Name) -> Option<String> {
        let types =
            self.scopes.iter().flatten().filter(|(_, is_type)| **is_type).map(|(name, _)| self.names.text(*name));
        let nearest = nearest(self.names.text(name), keywords::FIRST_WORDS.into_iter().chain(types))?;
        Some(format!("did you mean `{nearest}`?"))
    }

    /// Whether something has been declared by this name.
    fn is_declared(&self, name: Name) -> bool {
        self.scopes.iter().any(|scope| scope.contains_key(&name))
    }

    /// Whether a name means a type here.
    fn is_type_name(&self, name: Name) -> bool {
        self.scopes.iter().rev().find_map(|scope| scope.get(&name).copied()).unwrap_or(false)
    }

    /// Goes on behind a mistake in the statement begun at `from`: behind its `;` or its block, or before
    /// the `}` that closes the block around it.
    fn next_statement(&mut self, from: usize) {
        // Braces of a structure or an initialiser: behind them there is more of the statement.
        let mut inner = 0usize;
        for token in &self.tokens[from..self.at] {
            if is(token, "{") {
                inner += 1;
            } else if is(token, "}") {
                inner = inner.saturating_sub(1);
            }
        }
        let mut open = inner;
        while !self.is_end() {
            let (closes, ends) = (self.is("}"), self.is(";"));
            if closes && open == 0 {
                return;
            }
            open = if closes { open - 1 } else { open + usize::from(self.is("{")) };
            self.advance();
            if open == 0 && (ends || closes && inner == 0) {
                return;
            }
            if open == 0 {
                inner = 0;
            }
        }
    }

    /// The same outside functions: behind the `;` or the `}` that ends the declaration begun at
    /// `from`, braces counted from there.
    fn next_item(&mut self, from: usize) {
        let stopped = self.at;
        self.at = from;
        self.scopes.truncate(1);
        self.depth = 0;
        let mut open = 0usize;
        while !self.is_end() {
            let (opens, closes, ends) = (self.is("{"), self.is("}"), self.is(";"));
            self.advance();
            if opens {
                open += 1;
            } else if closes {
                open = open.saturating_sub(1);
                // A function ends here; a structure at its `;`.
                if open == 0 && self.at > stopped && !self.is(";") {
                    return;
                }
            }
            if ends && open == 0 && self.at > stopped {
                return;
            }
        }
    }
}
