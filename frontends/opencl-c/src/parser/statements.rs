//! Statements (C11 6.8).

use std::collections::HashMap;

use super::{Keyword, Parsed, Parser, Stop, is};
use crate::ast::{Expr, ExprKind, Statement, StatementKind};
use crate::files::Span;
use crate::token::{Name, Token, TokenKind};

#[derive(Clone, Copy, PartialEq, Eq)]
enum StatementAttribute {
    Fallthrough,
    UnrollHint,
}

impl Parser<'_> {
    /// What stands between braces, behind the first; eats the second.
    pub(super) fn block(&mut self) -> Parsed<Vec<Statement>> {
        self.scopes.push(HashMap::new());
        let statements = self.deeper(Self::statements);
        self.scopes.pop();
        statements
    }

    fn statements(&mut self) -> Parsed<Vec<Statement>> {
        let mut statements = Vec::new();
        while !self.eat("}") {
            if self.is_end() {
                return self.expected("`}`");
            }
            let (before, scopes, depth) = (self.at, self.scopes.len(), self.depth);
            match self.statement() {
                Ok(statement) => statements.push(statement),
                Err(Stop) if self.errors.is_full() => return Err(Stop),
                Err(Stop) => {
                    self.scopes.truncate(scopes);
                    self.depth = depth;
                    self.next_statement(before);
                    if self.at == before && !self.is("}") {
                        self.advance();
                    }
                }
            }
        }
        Ok(statements)
    }

    /// Whether a refused word is one that a statement begins with, not a type.
    pub(super) fn is_refused_statement(&self, token: &Token) -> bool {
        let TokenKind::Identifier(name) = token.kind else { return false };
        matches!(self.names.text(name), "goto" | "asm" | "__asm" | "__asm__")
    }

    fn statement(&mut self) -> Parsed<Statement> {
        self.deeper(|this| {
            let start = this.span();
            let kind = this.statement_kind()?;
            Ok(Statement { kind, span: this.since(start) })
        })
    }

    fn boxed(&mut self) -> Parsed<Box<Statement>> {
        self.statement().map(Box::new)
    }

    fn statement_kind(&mut self) -> Parsed<StatementKind> {
        if self.eat("{") {
            return self.block().map(StatementKind::Block);
        }
        if self.eat(";") {
            return Ok(StatementKind::Empty);
        }
        if let Some(attribute) = self.statement_attribute() {
            return self.attributed(attribute);
        }
        if let Some(keyword) = self.keyword() {
            match keyword {
                Keyword::If => {
                    self.advance();
                    let condition = self.in_brackets("if")?;
                    let accept = self.boxed()?;
                    let reject = if self.eat_keyword(Keyword::Else) { Some(self.boxed()?) } else { None };
                    return Ok(StatementKind::If { condition, accept, reject });
                }
                Keyword::While => {
                    self.advance();
                    let condition = self.in_brackets("while")?;
                    return Ok(StatementKind::While { condition, body: self.boxed()? });
                }
                Keyword::Do => {
                    self.advance();
                    let body = self.boxed()?;
                    if !self.eat_keyword(Keyword::While) {
                        return self.expected("`while` behind the body of `do`");
                    }
                    let condition = self.in_brackets("while")?;
                    self.expect(";", "behind `do ... while (...)`")?;
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
                    let value = self.in_brackets("switch")?;
                    return Ok(StatementKind::Switch { value, body: self.boxed()? });
                }
                Keyword::Case => {
                    self.advance();
                    let value = self.conditional()?;
                    if self.is("...") {
                        return self.fail("there are no ranges of cases", "write them out, or use `if`");
                    }
                    self.expect(":", "behind the value of `case`")?;
                    return Ok(StatementKind::Case(value));
                }
                Keyword::Default => {
                    self.advance();
                    self.expect(":", "behind `default`")?;
                    return Ok(StatementKind::Default);
                }
                Keyword::Break => {
                    self.advance();
                    self.expect(";", "behind `break`")?;
                    return Ok(StatementKind::Break);
                }
                Keyword::Continue => {
                    self.advance();
                    self.expect(";", "behind `continue`")?;
                    return Ok(StatementKind::Continue);
                }
                Keyword::Return => {
                    self.advance();
                    let value = if self.is(";") { None } else { Some(self.expression()?) };
                    self.expect(";", "behind `return`")?;
                    return Ok(StatementKind::Return(value));
                }
                Keyword::Else => return self.fail("this `else` has no `if`", ""),
                Keyword::Refused(reason) if self.is_refused_statement(self.token()) => {
                    let message = format!("{} is not for filters", self.found());
                    return self.fail(message, reason);
                }
                _ => {}
            }
        } else if self.identifier().is_some() && is(self.ahead(1), ":") {
            return self.fail("there are no labels", "they are of use to `goto` only, which there is not");
        }
        // Two names in a row are the beginning of a declaration.
        if let (Some(name), None, TokenKind::Identifier(_)) = (self.identifier(), self.keyword(), self.ahead(1).kind)
            && !self.is_type_at(0)
            && (!self.is_type_at(1) || !self.is_declared(name))
        {
            return self.unknown_type(name, "");
        }
        // `size_t(x)` is no declaration, but nothing else either.
        if self.is_type_at(0) {
            return self.declaration().map(StatementKind::Declaration);
        }
        if self.is(")") || self.is("]") {
            let message = format!("this {} closes nothing", self.found());
            return self.fail(message, "");
        }
        let value = self.expression()?;
        if !self.is(";")
            && let Some((name, span)) = first_word(&value)
            && !self.is_declared(name)
            && let Some(note) = self.did_you_mean(name)
        {
            self.errors.add(
                span,
                format!("`{}` is no word that a statement begins with", self.names.text(name)),
                "",
                &note,
            );
            return Err(Stop);
        }
        self.expect(";", "behind the statement")?;
        Ok(StatementKind::Expression(value))
    }

    /// The attribute of a statement that is next, if one is.
    fn statement_attribute(&self) -> Option<StatementAttribute> {
        let TokenKind::Identifier(name) = self.ahead(3).kind else { return None };
        match self.names.text(name).trim_matches('_') {
            _ if !self.is_keyword(Keyword::Attribute) => None,
            "fallthrough" => Some(StatementAttribute::Fallthrough),
            "opencl_unroll_hint" => Some(StatementAttribute::UnrollHint),
            _ => None,
        }
    }

    /// A statement with an attribute, which changes nothing (OpenCL C 2.0, 6.11.5; clang and GCC).
    fn attributed(&mut self, attribute: StatementAttribute) -> Parsed<StatementKind> {
        self.advance();
        self.expect("(", "behind `__attribute__`")?;
        self.expect("(", "behind `__attribute__(`")?;
        self.advance();
        if attribute == StatementAttribute::UnrollHint && self.eat("(") {
            self.conditional()?;
            self.expect(")", "behind the hint")?;
        }
        self.expect(")", "behind the attribute")?;
        self.expect(")", "behind `__attribute__((...)`")?;
        match (attribute, self.keyword()) {
            (StatementAttribute::Fallthrough, _) => {
                self.expect(";", "behind `fallthrough`").map(|()| StatementKind::Empty)
            }
            (_, Some(Keyword::For | Keyword::While | Keyword::Do)) => self.statement_kind(),
            _ => self.expected("a loop behind `opencl_unroll_hint`"),
        }
    }

    fn in_brackets(&mut self, keyword: &str) -> Parsed<Expr> {
        self.expect("(", &format!("behind `{keyword}`"))?;
        let value = self.expression()?;
        self.expect(")", "to close the brackets")?;
        Ok(value)
    }

    fn for_statement(&mut self) -> Parsed<StatementKind> {
        self.expect("(", "behind `for`")?;
        let start = self.span();
        let init = if self.eat(";") {
            None
        } else {
            let kind = if self.is_type_at(0) {
                StatementKind::Declaration(self.declaration()?)
            } else {
                let value = self.expression()?;
                self.expect(";", "behind the first part of `for`")?;
                StatementKind::Expression(value)
            };
            Some(Box::new(Statement { kind, span: self.since(start) }))
        };
        let condition = if self.is(";") { None } else { Some(self.expression()?) };
        self.expect(";", "behind the condition of `for`")?;
        let step = if self.is(")") { None } else { Some(self.expression()?) };
        self.expect(")", "to close the brackets of `for`")?;
        Ok(StatementKind::For { init, condition, step, body: self.boxed()? })
    }
}

/// The name that an expression is, or calls: `retrun` and `whlie (x)`.
fn first_word(value: &Expr) -> Option<(Name, Span)> {
    match &value.kind {
        ExprKind::Name(name) => Some((*name, value.span)),
        ExprKind::Call(function, _) => match function.kind {
            ExprKind::Name(name) => Some((name, function.span)),
            _ => None,
        },
        _ => None,
    }
}
