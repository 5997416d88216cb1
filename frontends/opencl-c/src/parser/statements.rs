//! Statements (C11 6.8).

use std::collections::HashMap;

use super::{ErrorReported, Keyword, ParseResult, Parser, is};
use crate::ast::{Expr, ExprKind, Statement, StatementKind};
use crate::files::Span;
use crate::token::{Name, Token, TokenKind};

#[derive(Clone, Copy, PartialEq, Eq)]
enum StatementAttribute {
    Fallthrough,
    UnrollHint,
}

impl Parser<'_> {
    /// Parses a block after its `{`, and consumes the `}`.
    pub(super) fn block(&mut self) -> ParseResult<Vec<Statement>> {
        self.scopes.push(HashMap::new());
        let statements = self.deeper(Self::statements);
        self.scopes.pop();
        statements
    }

    fn statements(&mut self) -> ParseResult<Vec<Statement>> {
        let mut statements = Vec::new();
        while !self.consume("}") {
            if self.is_end() {
                return self.expected("`}`");
            }
            let (before, scopes, depth) = (self.at, self.scopes.len(), self.depth);
            match self.statement() {
                Ok(statement) => statements.push(statement),
                Err(ErrorReported) if self.errors.is_full() => return Err(ErrorReported),
                Err(ErrorReported) => {
                    self.scopes.truncate(scopes);
                    self.depth = depth;
                    self.recover_statement(before);
                    if self.at == before && !self.is("}") {
                        self.advance();
                    }
                }
            }
        }
        Ok(statements)
    }

    /// Whether an unsupported keyword is one that starts a statement, not a type.
    pub(super) fn is_statement_keyword(&self, token: &Token) -> bool {
        let TokenKind::Identifier(name) = token.kind else { return false };
        matches!(self.names.text(name), "goto" | "asm" | "__asm" | "__asm__")
    }

    fn statement(&mut self) -> ParseResult<Statement> {
        self.deeper(|this| {
            let start = this.span();
            let kind = this.statement_kind()?;
            Ok(Statement { kind, span: this.span_since(start) })
        })
    }

    fn boxed_statement(&mut self) -> ParseResult<Box<Statement>> {
        self.statement().map(Box::new)
    }

    fn statement_kind(&mut self) -> ParseResult<StatementKind> {
        if self.consume("{") {
            return self.block().map(StatementKind::Block);
        }
        if self.consume(";") {
            return Ok(StatementKind::Empty);
        }
        if let Some(attribute) = self.statement_attribute() {
            return self.attributed_statement(attribute);
        }
        if let Some(keyword) = self.keyword() {
            match keyword {
                Keyword::If => {
                    self.advance();
                    let condition = self.parenthesized("if")?;
                    let accept = self.boxed_statement()?;
                    let reject = if self.consume_keyword(Keyword::Else) { Some(self.boxed_statement()?) } else { None };
                    return Ok(StatementKind::If { condition, accept, reject });
                }
                Keyword::While => {
                    self.advance();
                    let condition = self.parenthesized("while")?;
                    return Ok(StatementKind::While { condition, body: self.boxed_statement()? });
                }
                Keyword::Do => {
                    self.advance();
                    let body = self.boxed_statement()?;
                    if !self.consume_keyword(Keyword::While) {
                        return self.expected("`while` after the body of `do`");
                    }
                    let condition = self.parenthesized("while")?;
                    self.expect(";", "after `do ... while (...)`")?;
                    return Ok(StatementKind::DoWhile { body, condition });
                }
                Keyword::For => {
                    self.advance();
                    self.scopes.push(HashMap::new());
                    let parsed = self.for_statement();
                    self.scopes.pop();
                    return parsed;
                }
                Keyword::Switch => {
                    self.advance();
                    let value = self.parenthesized("switch")?;
                    return Ok(StatementKind::Switch { value, body: self.boxed_statement()? });
                }
                Keyword::Case => {
                    self.advance();
                    let value = self.conditional()?;
                    if self.is("...") {
                        return self.fail("there are no ranges of cases", "write them out, or use `if`");
                    }
                    self.expect(":", "after the value of `case`")?;
                    return Ok(StatementKind::Case(value));
                }
                Keyword::Default => {
                    self.advance();
                    self.expect(":", "after `default`")?;
                    return Ok(StatementKind::Default);
                }
                Keyword::Break => {
                    self.advance();
                    self.expect(";", "after `break`")?;
                    return Ok(StatementKind::Break);
                }
                Keyword::Continue => {
                    self.advance();
                    self.expect(";", "after `continue`")?;
                    return Ok(StatementKind::Continue);
                }
                Keyword::Return => {
                    self.advance();
                    let value = if self.is(";") { None } else { Some(self.expression()?) };
                    self.expect(";", "after `return`")?;
                    return Ok(StatementKind::Return(value));
                }
                Keyword::Else => return self.fail("this `else` has no `if`", ""),
                Keyword::Unsupported(reason) if self.is_statement_keyword(self.token()) => {
                    let message = format!("{} is not supported in filters", self.describe_token());
                    return self.fail(message, reason);
                }
                _ => {}
            }
        } else if self.identifier().is_some() && is(self.lookahead(1), ":") {
            return self.fail("there are no labels", "only `goto` needs them, which is not supported");
        }
        // Two consecutive names start a declaration.
        if let (Some(name), None, TokenKind::Identifier(_)) =
            (self.identifier(), self.keyword(), self.lookahead(1).kind)
            && !self.is_type_at(0)
            && (!self.is_type_at(1) || !self.is_declared(name))
        {
            return self.unknown_type(name, "");
        }
        // `size_t(x)` is not a declaration, but nothing else either.
        if self.is_type_at(0) {
            return self.declaration().map(StatementKind::Declaration);
        }
        if self.is(")") || self.is("]") {
            let message = format!("this {} has no opening bracket", self.describe_token());
            return self.fail(message, "");
        }
        let value = self.expression()?;
        if !self.is(";")
            && let Some((name, span)) = leading_name(&value)
            && !self.is_declared(name)
            && let Some(note) = self.did_you_mean(name)
        {
            self.errors.add(span, format!("`{}` does not start a statement", self.names.text(name)), "", &note);
            return Err(ErrorReported);
        }
        self.expect(";", "after the statement")?;
        Ok(StatementKind::Expression(value))
    }

    /// The statement attribute that starts here, if any.
    fn statement_attribute(&self) -> Option<StatementAttribute> {
        let TokenKind::Identifier(name) = self.lookahead(3).kind else { return None };
        match self.names.text(name).trim_matches('_') {
            _ if !self.is_keyword(Keyword::Attribute) => None,
            "fallthrough" => Some(StatementAttribute::Fallthrough),
            "opencl_unroll_hint" => Some(StatementAttribute::UnrollHint),
            _ => None,
        }
    }

    /// Parses a statement with an attribute, which has no effect (OpenCL C 2.0, 6.11.5; Clang and
    /// GCC).
    fn attributed_statement(&mut self, attribute: StatementAttribute) -> ParseResult<StatementKind> {
        self.advance();
        self.expect("(", "after `__attribute__`")?;
        self.expect("(", "after `__attribute__(`")?;
        self.advance();
        if attribute == StatementAttribute::UnrollHint && self.consume("(") {
            self.conditional()?;
            self.expect(")", "after the hint")?;
        }
        self.expect(")", "after the attribute")?;
        self.expect(")", "after `__attribute__((...)`")?;
        match (attribute, self.keyword()) {
            (StatementAttribute::Fallthrough, _) => {
                self.expect(";", "after `fallthrough`").map(|()| StatementKind::Empty)
            }
            (_, Some(Keyword::For | Keyword::While | Keyword::Do)) => self.statement_kind(),
            _ => self.expected("a loop after `opencl_unroll_hint`"),
        }
    }

    fn parenthesized(&mut self, keyword: &str) -> ParseResult<Expr> {
        self.expect("(", &format!("after `{keyword}`"))?;
        let value = self.expression()?;
        self.expect(")", "to close the parenthesis")?;
        Ok(value)
    }

    fn for_statement(&mut self) -> ParseResult<StatementKind> {
        self.expect("(", "after `for`")?;
        let start = self.span();
        let init = if self.consume(";") {
            None
        } else {
            let kind = if self.is_type_at(0) {
                StatementKind::Declaration(self.declaration()?)
            } else {
                let value = self.expression()?;
                self.expect(";", "after the first part of `for`")?;
                StatementKind::Expression(value)
            };
            Some(Box::new(Statement { kind, span: self.span_since(start) }))
        };
        let condition = if self.is(";") { None } else { Some(self.expression()?) };
        self.expect(";", "after the condition of `for`")?;
        let step = if self.is(")") { None } else { Some(self.expression()?) };
        self.expect(")", "to close the head of `for`")?;
        Ok(StatementKind::For { init, condition, step, body: self.boxed_statement()? })
    }
}

/// The name that an expression is or calls, for misspelt keywords like `retrun` and `whlie (x)`.
fn leading_name(value: &Expr) -> Option<(Name, Span)> {
    match &value.kind {
        ExprKind::Name(name) => Some((*name, value.span)),
        ExprKind::Call(function, _) => match function.kind {
            ExprKind::Name(name) => Some((name, function.span)),
            _ => None,
        },
        _ => None,
    }
}
