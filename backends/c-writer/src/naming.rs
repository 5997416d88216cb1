//! Which expressions get a name, and when.

use std::collections::{HashMap, HashSet};

use naga::{Expression, Handle, TypeInner};
use portcullis_core::program::for_each_operand;

use crate::Result;
use crate::builtins::is_componentwise;
use crate::c_expr::CExpr;
use crate::function::{Condition, FunctionWriter};

/// Deepest expression that is written without naming a part of it; bounds the writer's recursion
/// and the nesting of parentheses, which compilers limit.
pub(crate) const MAX_DEPTH: u32 = 16;

impl FunctionWriter<'_, '_> {
    /// Marks operands whose text would be written several times although they are used once: a
    /// scalar that all components of a vector need, a vector with two components taken, an index.
    pub(crate) fn find_repeated_operands(&mut self) {
        let function = self.function;
        let is_vector = |inner: &TypeInner| matches!(inner, TypeInner::Vector { .. });
        let mut shared = HashSet::new();
        // Users come after what they use.
        for (handle, expression) in function.expressions.iter().collect::<Vec<_>>().into_iter().rev() {
            let wide = is_vector(self.inner(handle));
            let mut repeated = Vec::new();
            match *expression {
                Expression::Splat { value, .. } => repeated.push(value),
                Expression::Swizzle { vector, .. } => repeated.push(vector),
                Expression::Access { base, .. } | Expression::AccessIndex { base, .. } if self.is_pointer(handle) => {
                    let twice = self.info[handle].ref_count > 1 || shared.contains(&handle);
                    shared.extend(twice.then_some(base));
                    if let (true, Expression::Access { index, .. }) = (twice, expression) {
                        repeated.push(*index);
                    }
                }
                Expression::Access { base, .. } => repeated.push(base),
                Expression::Select { accept, reject, .. } if !wide => self.require_names_for_calls(&[accept, reject]),
                Expression::Select { condition, accept, reject } => {
                    repeated.extend([condition, accept, reject].into_iter().filter(|&e| !is_vector(self.inner(e))));
                }
                Expression::Binary { left, right, .. } if wide => {
                    repeated.extend([left, right].into_iter().filter(|&e| !is_vector(self.inner(e))));
                }
                Expression::Math { fun, arg, arg1, arg2, arg3 } if wide && is_componentwise(fun) => {
                    let arguments = [Some(arg), arg1, arg2, arg3].into_iter().flatten();
                    repeated.extend(arguments.filter(|&e| !is_vector(self.inner(e))));
                }
                // A built-in or matrix operator that returns a vector would be called once for each
                // component.
                Expression::AccessIndex { base, .. } if !is_vector(self.inner(base)) => repeated.push(base),
                _ => {}
            }
            let whole = match *expression {
                Expression::Math { fun, .. } => !is_componentwise(fun),
                Expression::Binary { left, right, .. } => {
                    [left, right].into_iter().any(|e| matches!(self.inner(e), TypeInner::Matrix { .. }))
                }
                Expression::Access { .. } | Expression::AccessIndex { .. } => true,
                _ => false,
            };
            if wide && whole {
                repeated.push(handle);
            }
            self.must_name.extend(repeated);
        }
    }

    /// Marks the calls in both alternatives of a selection. naga evaluates both; within `?:` only
    /// one would be, behind a branch that compilers cannot remove, not knowing that the loads are
    /// harmless.
    fn require_names_for_calls(&mut self, ways: &[Handle<Expression>]) {
        let mut work = ways.to_vec();
        let mut seen = HashSet::new();
        while let Some(handle) = work.pop() {
            if !seen.insert(handle) {
                continue;
            }
            match self.function.expressions[handle] {
                Expression::CallResult(_) => {
                    self.must_name.insert(handle);
                }
                // A nested selection marks its own calls.
                Expression::Select { condition, .. } => work.push(condition),
                ref other => for_each_operand(other, |operand| work.push(operand)),
            }
        }
    }

    pub(crate) fn emit(&mut self, handle: Handle<Expression>) -> Result<()> {
        if self.is_pointer(handle) || self.info[handle].ref_count == 0 {
            return Ok(());
        }
        let function = self.function;
        let expression = &function.expressions[handle];
        let mut depth = 0;
        for_each_operand(expression, |operand| depth = depth.max(self.depth(operand)));
        if let Expression::Load { pointer } = *expression {
            if let Expression::LocalVariable(local) = function.expressions[pointer]
                && let Some(condition) = self.conditions.get_mut(&local)
            {
                depth = condition.depth;
                condition.loaded = true;
            }
            self.pending_reads.push(handle);
        }
        self.depths.insert(handle, depth + 1);
        if self.needs_name(handle, depth + 1) {
            self.write_named(handle)?;
        }
        Ok(())
    }

    /// Whether an expression gets a name as soon as it is evaluated.
    pub(crate) fn needs_name(&self, handle: Handle<Expression>, depth: u32) -> bool {
        let vector = matches!(self.inner(handle), TypeInner::Vector { .. });
        self.info[handle].ref_count > 1
            || depth > MAX_DEPTH
            || self.must_name.contains(&handle)
            || self.function.named_expressions.contains_key(&handle)
            // One call rather than one for each component.
            || (vector && matches!(self.function.expressions[handle], Expression::CallResult(_)))
    }

    pub(crate) fn depth(&self, handle: Handle<Expression>) -> u32 {
        if self.baked.contains_key(&handle) { 0 } else { self.depths.get(&handle).copied().unwrap_or(0) }
    }

    pub(crate) fn depth_with(&self, depths: &HashMap<Handle<Expression>, u32>, handle: Handle<Expression>) -> u32 {
        depths.get(&handle).copied().unwrap_or_else(|| self.depth(handle))
    }

    /// Writes the evaluation of an expression to a named variable.
    pub(crate) fn write_named(&mut self, handle: Handle<Expression>) -> Result<()> {
        let hoisted = self.hoisted.remove(&handle);
        let known = if hoisted { self.baked.remove(&handle) } else { None };
        let text = self.expression(handle)?;
        self.mark_written(&[handle]);
        let name = match known {
            Some(name) => {
                self.line(&format!("{name} = {};", text.text));
                name
            }
            None => {
                let name = self.new_name(handle);
                let ty = self.writer.inner_name(self.inner(handle));
                let ty = match self.info[handle].ty.handle() {
                    Some(handle) => self.writer.type_name(handle)?,
                    None => ty?,
                };
                self.line(&format!("{ty} {name} = {};", text.text));
                name
            }
        };
        self.baked.insert(handle, name);
        Ok(())
    }

    pub(crate) fn new_name(&mut self, handle: Handle<Expression>) -> String {
        match self.function.named_expressions.get(&handle) {
            Some(name) => self.names.unique_name(name),
            None => self.names.numbered_name("t", &mut self.last_temporary),
        }
    }

    /// Removes from the pending reads all that `roots` consist of, since it has been written.
    pub(crate) fn mark_written(&mut self, roots: &[Handle<Expression>]) {
        if self.pending_reads.is_empty() && self.conditions.is_empty() {
            return;
        }
        let mut work = roots.to_vec();
        while let Some(handle) = work.pop() {
            if self.baked.contains_key(&handle) {
                continue;
            }
            if let Some(at) = self.pending_reads.iter().rposition(|&waiting| waiting == handle) {
                self.pending_reads.remove(at);
            }
            let expression = &self.function.expressions[handle];
            if let Expression::Load { pointer } = *expression
                && let Expression::LocalVariable(local) = self.function.expressions[pointer]
            {
                self.conditions.remove(&local);
            }
            for_each_operand(expression, |operand| work.push(operand));
        }
    }

    /// Names the pending reads that a statement does not use, before it may change memory.
    pub(crate) fn flush_pending_reads(&mut self, used: &[Handle<Expression>]) -> Result<()> {
        if self.pending_reads.is_empty() && self.conditions.is_empty() {
            return Ok(());
        }
        let mut consumed = HashSet::new();
        let mut work = used.to_vec();
        while let Some(handle) = work.pop() {
            if !self.baked.contains_key(&handle) && consumed.insert(handle) {
                for_each_operand(&self.function.expressions[handle], |operand| work.push(operand));
            }
        }
        for handle in std::mem::take(&mut self.pending_reads) {
            if !consumed.contains(&handle) && !self.baked.contains_key(&handle) {
                self.write_named(handle)?;
            }
        }
        // The statement's own operands are written with it.
        self.pending_reads.clear();
        let unread: Vec<_> = self.conditions.iter().filter(|(_, c)| !c.loaded).map(|(&local, _)| local).collect();
        for local in unread {
            if let Some(condition) = self.conditions.remove(&local) {
                let name = self.names.numbered_name("t", &mut self.last_temporary);
                self.line(&format!("bool {name} = {};", condition.text.text));
                self.conditions.insert(local, Condition { text: CExpr::atom(name), depth: 0, loaded: false });
            }
        }
        Ok(())
    }
}
