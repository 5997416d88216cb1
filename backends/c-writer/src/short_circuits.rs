//! `&&` and `||`, for which naga creates a variable and an `if`.

use std::collections::{HashMap, HashSet};

use naga::{Block, Expression, Handle, Literal, LocalVariable, Statement};
use portcullis_core::program::for_each_operand;

use crate::Result;
use crate::c_expr::CExpr;
use crate::function::{Condition, FunctionWriter};
use crate::naming::MAX_DEPTH;

/// A variable that holds `a && b` or `a || b`; see [`FunctionWriter::write_short_circuit`].
pub(crate) struct ShortCircuit<'a> {
    local: Handle<LocalVariable>,
    /// `&&` if set, else `||`.
    and: bool,
    /// Whether the left operand is the negated condition.
    negated: bool,
    /// The block that evaluates the right operand and ends with its store.
    block: &'a Block,
    /// The right operand.
    value: Handle<Expression>,
    depth: u32,
}

impl<'a> FunctionWriter<'_, 'a> {
    /// Finds the variables that naga creates for `&&` and `||`: unnamed, stored to twice, loaded
    /// once.
    pub(crate) fn find_short_circuits(&mut self) {
        let mut uses: HashMap<Handle<LocalVariable>, (usize, usize)> = HashMap::new();
        for (handle, expression) in self.function.expressions.iter() {
            let load = match *expression {
                Expression::LocalVariable(local) => {
                    uses.entry(local).or_default().0 += self.info[handle].ref_count;
                    continue;
                }
                Expression::Load { pointer } => pointer,
                _ => continue,
            };
            if let Expression::LocalVariable(local) = self.function.expressions[load] {
                uses.entry(local).or_default().1 += 1;
            }
        }
        let unnamed = |local: &Handle<LocalVariable>| self.function.local_variables[*local].name.is_none();
        self.short_circuits = uses
            .into_iter()
            .filter(|(local, uses)| *uses == (3, 1) && unnamed(local))
            .map(|(local, _)| local)
            .collect();
    }

    /// Restores `a && b` and `a || b`, for which naga creates a variable and an `if`, if `b` can be
    /// written as an expression; returns whether it could.
    pub(crate) fn write_short_circuit(
        &mut self,
        condition: Handle<Expression>,
        accept: &'a Block,
        reject: &'a Block,
    ) -> Result<bool> {
        let Some(found) = self.find_short_circuit(accept, reject) else { return Ok(false) };
        let depth = self.depth(condition);
        if depth + found.depth > MAX_DEPTH {
            return Ok(false);
        }
        let left = if found.negated { self.negated(condition)? } else { self.expression(condition)? };
        // Nothing here gets a name, so no line is written.
        let waiting = self.pending_reads.len();
        for statement in &found.block[..found.block.len() - 1] {
            self.statement(statement)?;
        }
        let value = self.expression(found.value)?;
        self.pending_reads.truncate(waiting);
        self.mark_written(&[condition]);
        let text = CExpr::binary(self.writer.logical(found.and), left, value);
        self.conditions.insert(found.local, Condition { text, depth: depth + found.depth + 1, loaded: false });
        Ok(true)
    }

    pub(crate) fn find_short_circuit(&self, accept: &'a Block, reject: &'a Block) -> Option<ShortCircuit<'a>> {
        let store = |block: &'a Block| match block.last() {
            Some(&Statement::Store { pointer, value }) => match self.function.expressions[pointer] {
                Expression::LocalVariable(local) => Some((local, value)),
                _ => None,
            },
            _ => None,
        };
        let (local, accepted) = store(accept)?;
        let (other, rejected) = store(reject)?;
        let constant = |block: &Block, value| match self.function.expressions[value] {
            Expression::Literal(Literal::Bool(value)) if block.len() == 1 => Some(value),
            _ => None,
        };
        // `if a { v = b } else { v = false }` is a && b, `if !a { v = b } else { v = true }` is a
        // || b.
        let (and, negated, block, value) = if let Some(otherwise) = constant(reject, rejected) {
            (!otherwise, otherwise, accept, accepted)
        } else {
            let otherwise = constant(accept, accepted)?;
            (!otherwise, !otherwise, reject, rejected)
        };
        let own = self.short_circuits.contains(&local);
        let depth = self.inline_depth(&block[..block.len() - 1], value, 0)?;
        (own && local == other).then_some(ShortCircuit { local, and, negated, block, value, depth })
    }

    /// The depth of the text of `value`, if the statements before it need no line of their own
    /// because all they evaluate becomes part of that text.
    pub(crate) fn inline_depth(
        &self,
        statements: &'a [Statement],
        value: Handle<Expression>,
        nesting: u32,
    ) -> Option<u32> {
        if nesting > MAX_DEPTH {
            return None;
        }
        let mut depths: HashMap<Handle<Expression>, u32> = HashMap::new();
        let mut conditions: HashMap<Handle<LocalVariable>, u32> = HashMap::new();
        // Reads must become part of the text: they cannot stay pending.
        let (mut reads, mut roots) = (Vec::new(), vec![value]);
        for statement in statements {
            match *statement {
                Statement::Emit(ref range) => {
                    for handle in range.clone() {
                        if self.is_pointer(handle) || self.info[handle].ref_count == 0 {
                            continue;
                        }
                        if let Expression::Load { .. } = self.function.expressions[handle] {
                            reads.push(handle);
                        }
                        let mut depth = 0;
                        for_each_operand(&self.function.expressions[handle], |operand| {
                            depth = depth.max(self.depth_with(&depths, operand));
                        });
                        if let Expression::Load { pointer } = self.function.expressions[handle]
                            && let Expression::LocalVariable(local) = self.function.expressions[pointer]
                            && let Some(&of) = conditions.get(&local)
                        {
                            depth = of;
                        }
                        if self.needs_name(handle, depth + 1) {
                            return None;
                        }
                        depths.insert(handle, depth + 1);
                    }
                }
                Statement::Call { function, ref arguments, result: Some(result) } if self.writer.is_pure(function) => {
                    let depth = arguments.iter().map(|&a| self.depth_with(&depths, a)).max().unwrap_or(0) + 1;
                    if self.needs_name(result, depth) {
                        return None;
                    }
                    depths.insert(result, depth);
                    roots.extend(arguments);
                    reads.extend((self.info[result].ref_count > 0).then_some(result));
                }
                Statement::If { condition, ref accept, ref reject } => {
                    let found = self.find_short_circuit(accept, reject)?;
                    conditions.insert(found.local, self.depth_with(&depths, condition) + found.depth + 1);
                    roots.push(condition);
                }
                _ => return None,
            }
        }
        let mut reached = HashSet::new();
        while let Some(handle) = roots.pop() {
            if !self.baked.contains_key(&handle) && reached.insert(handle) {
                for_each_operand(&self.function.expressions[handle], |operand| roots.push(operand));
            }
        }
        if !reads.iter().all(|read| reached.contains(read)) {
            return None;
        }
        Some(self.depth_with(&depths, value)).filter(|&depth| depth <= MAX_DEPTH)
    }
}
