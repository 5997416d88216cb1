//! Statements (C11 6.8).

use std::collections::HashMap;

use super::Checker;
use crate::ast::{self, StatementKind as Ast};
use crate::files::Span;
use crate::tree::{Expr, Segment, Statement, StatementKind, Switch};
use crate::types::{Scalar, Type};

impl Checker<'_> {
    pub(super) fn statements(&mut self, list: &[ast::Statement]) -> Vec<Statement> {
        let mut out = Vec::with_capacity(list.len());
        for statement in list {
            if self.errors.is_full() {
                break;
            }
            self.statement(statement, &mut out);
        }
        out
    }

    /// Checks a block in a scope of its own.
    fn block(&mut self, list: &[ast::Statement]) -> Vec<Statement> {
        let in_switch = std::mem::take(&mut self.current.in_switch);
        let statements = self.scoped(|this| this.statements(list));
        self.current.in_switch = in_switch;
        statements
    }

    /// Checks the body of an `if` or loop.
    fn body(&mut self, statement: &ast::Statement) -> Box<Statement> {
        let list = match &statement.kind {
            Ast::Block(list) => self.block(list),
            _ => self.block(std::slice::from_ref(statement)),
        };
        Box::new(Statement { kind: StatementKind::Block(list), span: statement.span })
    }

    fn in_loop<T>(&mut self, inside: impl FnOnce(&mut Self) -> T) -> T {
        self.current.loops += 1;
        self.current.breakable += 1;
        let result = inside(self);
        self.current.loops -= 1;
        self.current.breakable -= 1;
        result
    }

    fn statement(&mut self, statement: &ast::Statement, out: &mut Vec<Statement>) {
        let span = statement.span;
        let kind = match &statement.kind {
            Ast::Empty => return,
            Ast::Declaration(declaration) => return self.local_declaration(declaration, out),
            Ast::Block(list) => StatementKind::Block(self.block(list)),
            Ast::Expression(value) => StatementKind::Expression(self.value_or_void(value)),
            Ast::If { condition, accept, reject } => {
                let condition = self.condition(condition);
                let accept = self.body(accept);
                StatementKind::If(condition, accept, reject.as_ref().map(|reject| self.body(reject)))
            }
            Ast::While { condition, body } => {
                let condition = self.condition(condition);
                StatementKind::Loop(Some(condition), None, self.in_loop(|this| this.body(body)))
            }
            Ast::DoWhile { body, condition } => {
                let body = self.in_loop(|this| this.body(body));
                StatementKind::DoWhile(body, self.condition(condition))
            }
            Ast::For { init, condition, step, body } => {
                let in_switch = std::mem::take(&mut self.current.in_switch);
                let list = self.scoped(|this| {
                    let mut list = Vec::new();
                    if let Some(init) = init {
                        this.statement(init, &mut list);
                    }
                    let condition = condition.as_ref().map(|condition| this.condition(condition));
                    let step = step.as_ref().map(|step| this.value_or_void(step));
                    let body = this.in_loop(|this| this.body(body));
                    list.push(Statement { kind: StatementKind::Loop(condition, step, body), span });
                    list
                });
                self.current.in_switch = in_switch;
                StatementKind::Block(list)
            }
            Ast::Switch { value, body } => match self.switch(value, body) {
                Some(switch) => StatementKind::Switch(switch),
                None => return,
            },
            Ast::Case(_) | Ast::Default => {
                let note = "cases must be directly in the braces of their `switch`, not in nested blocks";
                return self.errors.add(span, "a case that is not directly in a `switch`", "", note);
            }
            Ast::Break if self.current.breakable == 0 => {
                return self.errors.add(span, "`break` outside loops and `switch`", "", "");
            }
            Ast::Continue if self.current.loops == 0 => {
                return self.errors.add(span, "`continue` outside loops", "", "");
            }
            Ast::Break => StatementKind::Break,
            Ast::Continue => StatementKind::Continue,
            Ast::Return(value) => StatementKind::Return(self.return_value(value.as_ref(), span)),
        };
        out.push(Statement { kind, span });
    }

    fn return_value(&mut self, value: Option<&ast::Expr>, span: Span) -> Option<Expr> {
        let (name, result) = match self.current.id {
            Some(id) => {
                let function = &self.functions[id.0 as usize];
                (function.name.clone(), function.result.clone())
            }
            None => (String::new(), Type::Error),
        };
        match (value, result) {
            (None, Type::Void) => None,
            (None, result) => {
                let message = format!("`{name}` must return a `{}`", self.display_type(&result));
                self.errors.add(span, message, "", "");
                None
            }
            (Some(value), Type::Void) => {
                let value = self.value_or_void(value);
                if value.ty != Type::Error {
                    let message = format!("`{name}` returns `void`");
                    self.errors.add(value.span, message, "", "");
                }
                None
            }
            (Some(value), result) => {
                let value = self.value(value);
                Some(self.convert_for_assignment(value, &result, "the returned value"))
            }
        }
    }

    fn switch(&mut self, value: &ast::Expr, body: &ast::Statement) -> Option<Switch> {
        let mut value = self.value(value);
        if !value.ty.is_integer() {
            if value.ty != Type::Error {
                let message = format!("`switch` takes an integer, not `{}`", self.display_type(&value.ty));
                self.errors.add(value.span, message, "", "");
            }
            value = Self::integer(0, Type::Error, value.span);
        }
        let ty = value.ty.scalar().map_or(Scalar::Int, Scalar::promoted);
        if value.ty != Type::Error {
            value = self.convert_to(value, &Type::Scalar(ty));
        }
        let Ast::Block(list) = &body.kind else {
            self.errors.add(body.span, "the body of `switch` must be in braces", "", "");
            return None;
        };
        let outer = std::mem::replace(&mut self.current.in_switch, true);
        self.current.breakable += 1;
        let segments = self.scoped(|this| this.segments(list, ty));
        self.current.breakable -= 1;
        self.current.in_switch = outer;
        (value.ty != Type::Error).then_some(Switch { value, segments })
    }

    fn segments(&mut self, list: &[ast::Statement], ty: Scalar) -> Vec<Segment> {
        let mut segments: Vec<Segment> = Vec::new();
        let mut seen: HashMap<u64, Span> = HashMap::new();
        let mut default: Option<Span> = None;
        for statement in list {
            let is_label = matches!(statement.kind, Ast::Case(_) | Ast::Default);
            if is_label && segments.last().is_none_or(|segment| !segment.body.is_empty()) {
                segments.push(Segment { labels: Vec::new(), default: false, body: Vec::new() });
            }
            match (&statement.kind, segments.last_mut()) {
                (Ast::Case(label), Some(_)) => {
                    let Some(known) = self.integer_constant(label, "the value of a case") else { continue };
                    let bits = ty.wrap(known) as u64;
                    if let Some(first) = seen.insert(bits, label.span) {
                        let message = format!("a second case {known}");
                        self.errors.add_related(label.span, message, "", "", Some((first, "the first")));
                    } else if let Some(segment) = segments.last_mut() {
                        segment.labels.push(bits);
                    }
                }
                (Ast::Default, Some(segment)) => {
                    segment.default = true;
                    if let Some(first) = default.replace(statement.span) {
                        self.errors.add_related(
                            statement.span,
                            "a second `default`",
                            "",
                            "",
                            Some((first, "the first")),
                        );
                    }
                }
                (Ast::Empty, _) => {}
                (_, Some(_)) => {
                    let mut body = Vec::new();
                    self.statement(statement, &mut body);
                    if let Some(segment) = segments.last_mut() {
                        segment.body.append(&mut body);
                    }
                }
                (_, None) => {
                    let note = "it is unreachable";
                    self.errors.add(statement.span, "a statement before the first case", "", note);
                }
            }
        }
        segments
    }
}
