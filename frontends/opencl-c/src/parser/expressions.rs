//! Expressions, from the comma operator down (C11 6.5).

use super::{Keyword, ParseResult, Parser, is};
use crate::ast::{BinaryOp, Expr, ExprKind, MAX_DEPTH, UnaryOp};
use crate::files::Span;
use crate::token::{Token, TokenKind};

/// Binary operators by precedence level, loosest first.
const PRECEDENCE_LEVELS: [&[(&str, Op)]; 10] = [
    &[("||", Op::Or)],
    &[("&&", Op::And)],
    &[("|", Op::Binary(BinaryOp::Or))],
    &[("^", Op::Binary(BinaryOp::Xor))],
    &[("&", Op::Binary(BinaryOp::And))],
    &[("==", Op::Binary(BinaryOp::Equal)), ("!=", Op::Binary(BinaryOp::NotEqual))],
    &[
        ("<", Op::Binary(BinaryOp::Less)),
        (">", Op::Binary(BinaryOp::Greater)),
        ("<=", Op::Binary(BinaryOp::LessEqual)),
        (">=", Op::Binary(BinaryOp::GreaterEqual)),
    ],
    &[("<<", Op::Binary(BinaryOp::ShiftLeft)), (">>", Op::Binary(BinaryOp::ShiftRight))],
    &[("+", Op::Binary(BinaryOp::Add)), ("-", Op::Binary(BinaryOp::Subtract))],
    &[("*", Op::Binary(BinaryOp::Multiply)), ("/", Op::Binary(BinaryOp::Divide)), ("%", Op::Binary(BinaryOp::Modulo))],
];

const ASSIGNMENTS: [(&str, Option<BinaryOp>); 11] = [
    ("=", None),
    ("+=", Some(BinaryOp::Add)),
    ("-=", Some(BinaryOp::Subtract)),
    ("*=", Some(BinaryOp::Multiply)),
    ("/=", Some(BinaryOp::Divide)),
    ("%=", Some(BinaryOp::Modulo)),
    ("<<=", Some(BinaryOp::ShiftLeft)),
    (">>=", Some(BinaryOp::ShiftRight)),
    ("&=", Some(BinaryOp::And)),
    ("^=", Some(BinaryOp::Xor)),
    ("|=", Some(BinaryOp::Or)),
];

#[derive(Clone, Copy)]
enum Op {
    And,
    Or,
    Binary(BinaryOp),
}

impl Parser<'_> {
    /// Parses an expression, comma operators included.
    pub(super) fn expression(&mut self) -> ParseResult<Expr> {
        let mut left = self.assignment()?;
        while self.consume(",") {
            let right = self.assignment()?;
            let (depth, span) = (left.depth.max(right.depth), left.span.to(right.span));
            left = self.node(ExprKind::Comma(left.into(), right.into()), span, depth)?;
        }
        Ok(left)
    }

    /// Parses an expression without commas outside brackets.
    pub(super) fn assignment(&mut self) -> ParseResult<Expr> {
        self.deeper(|this| {
            let left = this.conditional()?;
            let TokenKind::Punctuator(punctuator) = this.token().kind else { return Ok(left) };
            let Some(&(_, op)) = ASSIGNMENTS.iter().find(|(text, _)| *text == punctuator.text()) else {
                return Ok(left);
            };
            this.advance();
            let right = this.assignment()?;
            let (depth, span) = (left.depth.max(right.depth), left.span.to(right.span));
            this.node(ExprKind::Assign(op, left.into(), right.into()), span, depth)
        })
    }

    /// Parses an expression without assignment and comma, as constant expressions require.
    pub(super) fn conditional(&mut self) -> ParseResult<Expr> {
        let condition = self.binary(0)?;
        if !self.consume("?") {
            return Ok(condition);
        }
        self.deeper(|this| {
            let accept = this.expression()?;
            this.expect(":", "between the two values of `?`")?;
            let reject = this.conditional()?;
            let depth = condition.depth.max(accept.depth).max(reject.depth);
            let span = condition.span.to(reject.span);
            this.node(ExprKind::Conditional(condition.into(), accept.into(), reject.into()), span, depth)
        })
    }

    fn binary(&mut self, level: usize) -> ParseResult<Expr> {
        let Some(operators) = PRECEDENCE_LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        loop {
            let TokenKind::Punctuator(punctuator) = self.token().kind else { return Ok(left) };
            let Some(&(_, op)) = operators.iter().find(|(text, _)| *text == punctuator.text()) else {
                return Ok(left);
            };
            self.advance();
            let right = self.binary(level + 1)?;
            let (depth, span) = (left.depth.max(right.depth), left.span.to(right.span));
            let (left_box, right) = (Box::new(left), Box::new(right));
            let kind = match op {
                Op::And => ExprKind::And(left_box, right),
                Op::Or => ExprKind::Or(left_box, right),
                Op::Binary(op) => ExprKind::Binary(op, left_box, right),
            };
            left = self.node(kind, span, depth)?;
        }
    }

    fn unary(&mut self) -> ParseResult<Expr> {
        let start = self.span();
        let op = match self.token().kind {
            TokenKind::Punctuator(punctuator) => match punctuator.text() {
                "+" => UnaryOp::Plus,
                "-" => UnaryOp::Minus,
                "~" => UnaryOp::BitNot,
                "!" => UnaryOp::Not,
                "*" => UnaryOp::Deref,
                "&" => UnaryOp::AddressOf,
                text @ ("++" | "--") => {
                    self.advance();
                    let operand = self.deeper(Self::unary)?;
                    let (depth, span) = (operand.depth, self.span_since(start));
                    let kind = ExprKind::Step { up: text == "++", prefix: true, operand: operand.into() };
                    return self.node(kind, span, depth);
                }
                "(" if self.is_type_at(1) => return self.cast(),
                _ => return self.postfix(),
            },
            _ if self.is_keyword(Keyword::Sizeof) => return self.sizeof(),
            _ => return self.postfix(),
        };
        self.advance();
        let operand = self.deeper(Self::unary)?;
        let (depth, span) = (operand.depth, self.span_since(start));
        self.node(ExprKind::Unary(op, operand.into()), span, depth)
    }

    fn cast(&mut self) -> ParseResult<Expr> {
        let start = self.span();
        self.advance();
        let ty = self.type_name()?;
        self.expect(")", "after the type of a cast")?;
        if self.is("{") {
            return self.fail("there are no compound literals", "declare a variable with these values, and use that");
        }
        let operand = self.deeper(Self::unary)?;
        let (depth, span) = (operand.depth, self.span_since(start));
        self.node(ExprKind::Cast(ty.into(), operand.into()), span, depth)
    }

    fn sizeof(&mut self) -> ParseResult<Expr> {
        let start = self.span();
        self.advance();
        if self.is("(") && self.is_type_at(1) {
            self.advance();
            let ty = self.type_name()?;
            self.expect(")", "after the type")?;
            let span = self.span_since(start);
            return self.node(ExprKind::SizeofType(ty.into()), span, 0);
        }
        let operand = self.deeper(Self::unary)?;
        let (depth, span) = (operand.depth, self.span_since(start));
        self.node(ExprKind::SizeofValue(operand.into()), span, depth)
    }

    fn postfix(&mut self) -> ParseResult<Expr> {
        let mut left = self.primary()?;
        loop {
            let depth = left.depth;
            let start = left.span;
            if self.consume("[") {
                let index = self.expression()?;
                self.expect("]", "after the index")?;
                let (depth, span) = (depth.max(index.depth), self.span_since(start));
                left = self.node(ExprKind::Index(left.into(), index.into()), span, depth)?;
            } else if self.consume("(") {
                let arguments = self.list(")")?;
                let depth = arguments.iter().map(|a| a.depth).fold(depth, u16::max);
                let span = self.span_since(start);
                left = self.node(ExprKind::Call(left.into(), arguments), span, depth)?;
            } else if self.is(".") || self.is("->") {
                let arrow = self.is("->");
                self.advance();
                let (Some(name), name_span) = (self.identifier(), self.span()) else {
                    return self.expected("the name of a member");
                };
                self.advance();
                let span = self.span_since(start);
                left = self.node(ExprKind::Member { base: left.into(), name, name_span, arrow }, span, depth)?;
            } else if self.is("++") || self.is("--") {
                let up = self.is("++");
                self.advance();
                let span = self.span_since(start);
                left = self.node(ExprKind::Step { up, prefix: false, operand: left.into() }, span, depth)?;
            } else {
                return Ok(left);
            }
        }
    }

    /// Parses comma-separated arguments, up to the closing bracket.
    fn list(&mut self, close: &str) -> ParseResult<Vec<Expr>> {
        let mut list = Vec::new();
        if self.consume(close) {
            return Ok(list);
        }
        loop {
            list.push(self.assignment()?);
            if !self.consume(",") {
                self.expect_after_list(close, "after the arguments")?;
                return Ok(list);
            }
        }
    }

    fn primary(&mut self) -> ParseResult<Expr> {
        let span = self.span();
        let token = self.token();
        let kind = match &token.kind {
            TokenKind::Integer { value, unsigned, long } => {
                ExprKind::Integer { value: *value, unsigned: *unsigned, long: *long }
            }
            TokenKind::Float { value, .. } => ExprKind::Float(*value),
            TokenKind::Character(value) => ExprKind::Character(*value),
            TokenKind::String(_) => {
                let bytes = self.string()?;
                let span = self.span_since(span);
                return self.node(ExprKind::String(bytes), span, 0);
            }
            TokenKind::Identifier(name) => match self.keyword() {
                None => ExprKind::Name(*name),
                Some(Keyword::Unsupported(reason)) => {
                    let message = format!("{} is not supported in filters", self.describe_token());
                    return self.fail(message, reason);
                }
                Some(_) => return self.expected("a value"),
            },
            TokenKind::Punctuator(punctuator) if punctuator.text() == "(" => {
                self.advance();
                if self.is("{") {
                    return self
                        .fail("there are no statement expressions", "put the statements into a helper function");
                }
                // `(name) other` and `(name *)` can only be casts.
                let named = |token: &Token| matches!(token.kind, TokenKind::Identifier(_));
                if let (Some(name), None) = (self.identifier(), self.keyword())
                    && (is(self.lookahead(1), ")") && named(self.lookahead(2))
                        || is(self.lookahead(1), "*") && is(self.lookahead(2), ")"))
                {
                    return self.unknown_type(name, "");
                }
                let mut inner = self.deeper(Self::expression)?;
                self.expect(")", "to close the parenthesis")?;
                // For a macro's argument, report the place of the argument, not of the macro's
                // parentheses.
                if token.expanded.is_none() {
                    inner.span = self.span_since(span);
                }
                return Ok(inner);
            }
            _ => return self.expected("a value"),
        };
        self.advance();
        self.node(kind, span, 0)
    }

    /// Whether a type starts `by` tokens ahead.
    pub(super) fn is_type_at(&self, by: usize) -> bool {
        let token = self.lookahead(by);
        match (&token.kind, self.keyword_of(token)) {
            (_, Some(keyword)) => {
                matches!(
                    keyword,
                    Keyword::Void
                        | Keyword::Scalar(_)
                        | Keyword::Vector(..)
                        | Keyword::Signed
                        | Keyword::Unsigned
                        | Keyword::Struct
                        | Keyword::Union
                        | Keyword::Enum
                        | Keyword::Typedef
                        | Keyword::Const
                        | Keyword::Space(_)
                        | Keyword::Ignored
                        | Keyword::Storage(_)
                        | Keyword::Attribute
                ) || matches!(keyword, Keyword::Unsupported(_)) && !self.is_statement_keyword(token)
            }
            (TokenKind::Identifier(name), None) => self.is_type_name(*name),
            _ => false,
        }
    }

    fn node(&mut self, kind: ExprKind, span: Span, below: u16) -> ParseResult<Expr> {
        if below >= MAX_DEPTH {
            return self.report_too_deep();
        }
        Ok(Expr { kind, span, depth: below + 1 })
    }
}
