//! Recursive-descent parser: tokens to syntax tree, one function for each production of C's grammar
//! (C11 annex A.2), with OpenCL C's qualifiers and vector literals.
//!
//! Whether `(name)` is a cast depends on what the name denotes there, so the parser tracks which
//! names are types. It recovers from errors: in a block at the next `;` or `}`, outside functions
//! at the next declaration. Nesting is limited to [`MAX_DEPTH`].

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

pub(super) use keywords::{Keyword, keyword_from_name};

/// Marks an error that has been reported; callers may recover after it.
pub(super) struct ErrorReported;

type ParseResult<T> = Result<T, ErrorReported>;

/// Parses a translation unit. Errors go to `errors`; the tree has what could be parsed.
pub(super) fn parse(tokens: &[Token], names: &Names, errors: &mut Errors) -> Unit {
    let scopes = vec![HashMap::new()];
    let mut keywords = HashMap::new();
    for token in tokens {
        if let TokenKind::Identifier(name) = token.kind {
            keywords.entry(name).or_insert_with(|| keywords::keyword_from_name(names.text(name)));
        }
    }
    let mut parser = Parser { tokens, names, keywords, at: 0, depth: 0, scopes, errors };
    let mut items = Vec::new();
    while !parser.is_end() && !parser.errors.is_full() {
        let before = parser.at;
        match parser.item(&mut items) {
            Ok(()) => {}
            Err(ErrorReported) => parser.recover_item(before),
        }
    }
    Unit { items }
}

/// The place to report for a token: where it stands if it is a macro's argument, else the outermost
/// macro use that it comes from.
fn token_span(token: &Token) -> Span {
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
    /// Keyword of each identifier in the text, if it is one.
    keywords: HashMap<Name, Option<Keyword>>,
    at: usize,
    depth: u16,
    /// Whether each declared name is a type; innermost scope last.
    scopes: Vec<HashMap<Name, bool>>,
    errors: &'a mut Errors,
}

impl<'a> Parser<'a> {
    fn token(&self) -> &'a Token {
        &self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn lookahead(&self, by: usize) -> &'a Token {
        &self.tokens[(self.at + by).min(self.tokens.len() - 1)]
    }

    fn is_end(&self) -> bool {
        matches!(self.token().kind, TokenKind::End)
    }

    /// The place to report for the next token.
    fn span(&self) -> Span {
        token_span(self.token())
    }

    fn last_span(&self) -> Span {
        token_span(&self.tokens[self.at.saturating_sub(1).min(self.tokens.len() - 1)])
    }

    /// The range from `start` to the last consumed token.
    fn span_since(&self, start: Span) -> Span {
        start.to(self.last_span())
    }

    fn advance(&mut self) {
        self.at = (self.at + 1).min(self.tokens.len() - 1);
    }

    fn is(&self, punctuator: &str) -> bool {
        is(self.token(), punctuator)
    }

    fn consume(&mut self, punctuator: &str) -> bool {
        let found = self.is(punctuator);
        if found {
            self.advance();
        }
        found
    }

    /// Describes the next token for a message.
    fn describe_token(&self) -> String {
        match self.token().kind {
            TokenKind::End => "the end of the text".into(),
            TokenKind::Identifier(name) => format!("`{}`", self.names.text(name)),
            TokenKind::Punctuator(punctuator) => format!("`{}`", punctuator.text()),
            TokenKind::Integer { .. } | TokenKind::Float { .. } => "a number".into(),
            TokenKind::Character(_) => "a character".into(),
            TokenKind::String(_) => "a string".into(),
        }
    }

    fn fail<T>(&mut self, message: impl Into<String>, note: &str) -> ParseResult<T> {
        let span = self.span();
        // If the text ends too early, point at the brace that is not closed.
        let open = if self.is_end() { self.unclosed_bracket("}") } else { None };
        self.errors.add_related(span, message, "", note, open.map(|brace| (brace, "this brace is never closed")));
        Err(ErrorReported)
    }

    fn expected<T>(&mut self, what: &str) -> ParseResult<T> {
        let message = format!("expected {what}, found {}", self.describe_token());
        self.fail(message, "")
    }

    /// Reports an expected `what`, or the `}` of the construct being parsed.
    fn expected_or_brace<T>(&mut self, what: &str) -> ParseResult<T> {
        if self.is_end() {
            return self.expected(&format!("{what} or `}}`"));
        }
        let (span, open) = (self.span(), self.unclosed_bracket("}"));
        let message = format!("expected {what} or `}}`, found {}", self.describe_token());
        self.errors.add_related(span, message, "", "", open.map(|brace| (brace, "opened here")));
        Err(ErrorReported)
    }

    /// Consumes the `,` between elements in braces.
    fn expect_comma(&mut self, why: &str) -> ParseResult<()> {
        if self.consume(",") { Ok(()) } else { self.expected_or_brace(&format!("`,` {why}")) }
    }

    fn expect(&mut self, punctuator: &str, why: &str) -> ParseResult<()> {
        if self.consume(punctuator) {
            return Ok(());
        }
        self.missing(punctuator, &format!("`{punctuator}` {why}"))
    }

    /// Consumes `close` at the end of a comma-separated list.
    fn expect_after_list(&mut self, close: &str, why: &str) -> ParseResult<()> {
        if self.consume(close) {
            return Ok(());
        }
        self.missing(close, &format!("`,` or `{close}` {why}"))
    }

    fn missing<T>(&mut self, punctuator: &str, what: &str) -> ParseResult<T> {
        // Report a missing `;` where it belongs, at the end of the previous line.
        let span = if punctuator == ";" && self.at > 0 { self.last_span() } else { self.span() };
        let message = format!("expected {what}, found {}", self.describe_token());
        let open = self.unclosed_bracket(punctuator).filter(|bracket| *bracket != span);
        self.errors.add_related(span, message, "", "", open.map(|bracket| (bracket, "opened here")));
        Err(ErrorReported)
    }

    /// The innermost open bracket that `close` would close.
    fn unclosed_bracket(&self, close: &str) -> Option<Span> {
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
                    return Some(token_span(token));
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

    /// Keyword that the next token is, if any.
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

    fn consume_keyword(&mut self, keyword: Keyword) -> bool {
        let found = self.is_keyword(keyword);
        if found {
            self.advance();
        }
        found
    }

    /// Consumes a name for a declaration; keywords are not allowed.
    fn declared_name(&mut self, what: &str) -> ParseResult<(Name, Span)> {
        match (self.identifier(), self.keyword()) {
            (Some(name), None) => {
                let span = self.span();
                self.advance();
                Ok((name, span))
            }
            (Some(name), Some(_)) => {
                let message = format!("expected {what}, found `{}`, which is a keyword", self.names.text(name));
                self.fail(message, "")
            }
            _ => self.expected(what),
        }
    }

    /// Runs `parse` one nesting level deeper.
    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> ParseResult<T>) -> ParseResult<T> {
        if self.depth >= MAX_DEPTH {
            return self.report_too_deep();
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    fn report_too_deep<T>(&mut self) -> ParseResult<T> {
        self.errors.stop();
        self.fail(format!("the text nests more than {MAX_DEPTH} deep here"), "operators count: a + b + c is three deep")
    }

    fn declare(&mut self, name: Name, is_type: bool) {
        self.scopes.last_mut().expect("the file's scope stays").insert(name, is_type);
    }

    /// A note that suggests a similar keyword or type name.
    fn did_you_mean(&self, name: Name) -> Option<String> {
        let types =
            self.scopes.iter().flatten().filter(|(_, is_type)| **is_type).map(|(name, _)| self.names.text(*name));
        let nearest = nearest(self.names.text(name), keywords::STATEMENT_KEYWORDS.split(' ').chain(types))?;
        Some(format!("did you mean `{nearest}`?"))
    }

    /// Whether a declaration of this name is visible.
    fn is_declared(&self, name: Name) -> bool {
        self.scopes.iter().any(|scope| scope.contains_key(&name))
    }

    /// Whether the name denotes a type here.
    fn is_type_name(&self, name: Name) -> bool {
        self.scopes.iter().rev().find_map(|scope| scope.get(&name).copied()).unwrap_or(false)
    }

    /// Error recovery in a block: skips the statement that started at `from`, to after its `;` or
    /// block, or to before the `}` of the enclosing block.
    fn recover_statement(&mut self, from: usize) {
        // Braces of a structure or initialiser: the statement continues after them.
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

    /// Error recovery outside functions: skips to after the `;` or `}` that ends the declaration
    /// that started at `from`, counting braces from there.
    fn recover_item(&mut self, from: usize) {
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
                // A function ends here, a structure at its `;`.
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
