//! Loops, written as `while` and `for` if the condition and the update are expressions.

use std::collections::HashSet;

use naga::{Block, Expression, Handle, Statement};
use portcullis_core::program::for_each_operand;

use crate::Result;
use crate::function::FunctionWriter;

impl<'a> FunctionWriter<'_, 'a> {
    pub(crate) fn loop_statement(
        &mut self,
        body: &'a Block,
        continuing: &'a Block,
        break_if: Option<Handle<Expression>>,
    ) -> Result<()> {
        self.flush_pending_reads(&[])?;
        self.conditions.clear();
        // Expressions that the body evaluates and the continuing block uses.
        let mut crossing = HashSet::new();
        if !continuing.is_empty() || break_if.is_some() {
            let mut evaluated = HashSet::new();
            collect_evaluated(body, &mut evaluated);
            let mut used = HashSet::new();
            self.collect_used(continuing, &mut used);
            used.extend(break_if);
            let mut work: Vec<_> = used.into_iter().collect();
            let mut seen = HashSet::new();
            while let Some(handle) = work.pop() {
                if !seen.insert(handle) {
                    continue;
                }
                if evaluated.contains(&handle) && !self.is_pointer(handle) {
                    crossing.insert(handle);
                } else {
                    for_each_operand(&self.function.expressions[handle], |operand| work.push(operand));
                }
            }
        }
        let update = match break_if {
            None if crossing.is_empty() => self.loop_update(continuing)?,
            _ => None,
        };
        let plain = update.is_some() || (continuing.is_empty() && break_if.is_none());
        let jumps = !plain && has_continue(body);
        // Labels have function scope (C99, section 6.2.1), so their numbers are not reused.
        let label = jumps.then(|| self.names.numbered_name("next", &mut self.last_label));
        if jumps {
            // Declared here: the body's block ends before the continuing block.
            let mut crossing: Vec<_> = crossing.into_iter().collect();
            crossing.sort_unstable_by_key(|handle| handle.index());
            for handle in crossing {
                let name = self.new_name(handle);
                let ty = match self.info[handle].ty.handle() {
                    Some(handle) => self.writer.type_name(handle)?,
                    None => self.writer.inner_name(self.inner(handle))?,
                };
                self.line(&format!("{ty} {name};"));
                self.must_name.insert(handle);
                self.hoisted.insert(handle);
                self.baked.insert(handle, name);
            }
        } else {
            self.must_name.extend(crossing);
        }
        let (condition, rest) = match jumps {
            true => (None, &body[..]),
            false => self.loop_condition(body)?,
        };
        match (condition, update) {
            (condition, Some(update)) => {
                self.line(&format!("for (; {}; {update}) {{", condition.unwrap_or_default()));
            }
            (Some(condition), None) if plain => self.line(&format!("while ({condition}) {{")),
            (Some(condition), None) => {
                self.line("for (;;) {");
                self.nested(|body| {
                    body.line(&format!("if (!({condition})) {{"));
                    body.line("    break;");
                    body.line("}");
                    Ok(())
                })?;
            }
            (None, None) => self.line("for (;;) {"),
        }
        self.loops.push(label.clone());
        self.nested(|this| {
            if let Some(label) = &label {
                this.line("{");
                this.inner_block(body)?;
                this.line("}");
                this.line(&format!("{label}:;"));
            } else {
                for statement in rest {
                    this.statement(statement)?;
                }
                this.pending_reads.clear();
                this.conditions.clear();
            }
            if !plain {
                this.block(continuing)?;
                if let Some(condition) = break_if {
                    this.flush_pending_reads(&[condition])?;
                    let condition = this.expression(condition)?;
                    this.line(&format!("if ({}) {{", condition.text));
                    this.line("    break;");
                    this.line("}");
                }
            }
            Ok(())
        })?;
        self.loops.pop();
        self.line("}");
        Ok(())
    }

    /// The continuing block of a loop as an expression, if it is a single store.
    fn loop_update(&mut self, continuing: &'a Block) -> Result<Option<String>> {
        let Some((&Statement::Store { pointer, value }, before)) = continuing.split_last() else { return Ok(None) };
        if before.iter().any(|statement| !matches!(statement, Statement::Emit(_)))
            || self.inline_depth(before, value, 0).is_none()
        {
            return Ok(None);
        }
        for statement in before {
            self.statement(statement)?;
        }
        let text = self.store(pointer, value)?;
        self.pending_reads.clear();
        Ok(Some(text))
    }

    /// The condition at the top of a loop's body, if it can be written as an expression, and the
    /// statements after it.
    fn loop_condition(&mut self, body: &'a Block) -> Result<(Option<String>, &'a [Statement])> {
        let is_break = |block: &Block| matches!(block[..], [Statement::Break]);
        let found = body.iter().enumerate().find_map(|(at, statement)| match *statement {
            Statement::If { condition, ref accept, ref reject } => match (accept.is_empty(), reject.is_empty()) {
                (true, false) if is_break(reject) => Some((at, condition, true)),
                (false, true) if is_break(accept) => Some((at, condition, false)),
                _ => None,
            },
            _ => None,
        });
        let Some((at, condition, stay)) = found else { return Ok((None, &body[..])) };
        if self.inline_depth(&body[..at], condition, 0).is_none() {
            return Ok((None, &body[..]));
        }
        for statement in &body[..at] {
            self.statement(statement)?;
        }
        let stays = if stay { self.expression(condition)? } else { self.negated(condition)? };
        self.pending_reads.clear();
        self.conditions.clear();
        Ok((Some(stays.text), &body[at + 1..]))
    }

    /// Collects the expressions that a block's statements use directly, nested blocks included.
    fn collect_used(&self, block: &Block, used: &mut HashSet<Handle<Expression>>) {
        for statement in block.iter() {
            match *statement {
                Statement::Emit(ref range) => {
                    for handle in range.clone() {
                        for_each_operand(&self.function.expressions[handle], |operand| {
                            used.insert(operand);
                        });
                    }
                }
                Statement::Block(ref block) => self.collect_used(block, used),
                Statement::If { condition, ref accept, ref reject } => {
                    used.insert(condition);
                    self.collect_used(accept, used);
                    self.collect_used(reject, used);
                }
                Statement::Switch { selector, ref cases } => {
                    used.insert(selector);
                    cases.iter().for_each(|case| self.collect_used(&case.body, used));
                }
                Statement::Loop { ref body, ref continuing, break_if } => {
                    self.collect_used(body, used);
                    self.collect_used(continuing, used);
                    used.extend(break_if);
                }
                Statement::Return { value } => used.extend(value),
                Statement::Store { pointer, value } => used.extend([pointer, value]),
                Statement::Call { ref arguments, .. } => used.extend(arguments),
                _ => {}
            }
        }
    }
}

/// Whether a loop's body has a `continue` of this loop.
fn has_continue(block: &Block) -> bool {
    block.iter().any(|statement| match statement {
        Statement::Continue => true,
        Statement::Block(block) => has_continue(block),
        Statement::If { accept, reject, .. } => has_continue(accept) || has_continue(reject),
        Statement::Switch { cases, .. } => cases.iter().any(|case| has_continue(&case.body)),
        _ => false,
    })
}

/// Collects what a block evaluates at its own level, which later statements of a loop may use.
fn collect_evaluated(block: &Block, evaluated: &mut HashSet<Handle<Expression>>) {
    for statement in block.iter() {
        match statement {
            Statement::Emit(range) => evaluated.extend(range.clone()),
            Statement::Call { result, .. } => evaluated.extend(*result),
            Statement::Block(block) => collect_evaluated(block, evaluated),
            _ => {}
        }
    }
}
