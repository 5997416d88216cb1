//! Rebuilds a function: expressions in the order in which the old function evaluates them, and the
//! statements around them.

use std::collections::HashMap;

use naga::front::Typifier;
use naga::proc::ResolveContext;
use naga::{
    Block, Expression, Function, FunctionArgument, FunctionResult, Handle, Literal, LocalVariable, Scalar, Span,
    Statement, TypeInner, VectorSize,
};

use super::constants::RewrittenExpressions;
use super::types::WideType;
use super::{Int64Error, SourceModule, TargetModule, library};

/// State of one function's lowering.
pub(super) struct FunctionLowering<'a> {
    pub(super) source: &'a SourceModule<'a>,
    pub(super) target: &'a mut TargetModule,
    pub(super) old: &'a Function,
    types: Typifier,
    /// New expressions, by the index of the old ones.
    map: Vec<Option<Handle<Expression>>>,
    new: Function,
    /// The block under construction.
    block: Block,
    /// Index of the first new expression that no statement emits yet.
    unemitted: Option<usize>,
    /// Span of new expressions.
    pub(super) span: Span,
    literals: HashMap<u32, Handle<Expression>>,
    zero: Option<Handle<Expression>>,
}

/// Component type of a lowered vector.
#[derive(Clone, Copy)]
pub(super) enum Component {
    /// A pair of words.
    Pair,
    Scalar(Scalar),
}

impl<'a> FunctionLowering<'a> {
    pub(super) fn new(
        source: &'a SourceModule,
        target: &'a mut TargetModule,
        old: &'a Function,
    ) -> Result<Self, Int64Error> {
        let mut types = Typifier::new();
        let context = ResolveContext::with_locals(source.module, &old.local_variables, &old.arguments);
        for (handle, _) in old.expressions.iter() {
            types.grow(handle, &old.expressions, &context).map_err(|e| Int64Error(e.to_string()))?;
        }
        let ty = |old: Handle<naga::Type>| source.types[old.index()];
        let new = Function {
            name: old.name.clone(),
            arguments: old.arguments.iter().map(|a| FunctionArgument { ty: ty(a.ty), ..a.clone() }).collect(),
            result: old.result.as_ref().map(|r| FunctionResult { ty: ty(r.ty), ..r.clone() }),
            diagnostic_filter_leaf: old.diagnostic_filter_leaf,
            ..Function::default()
        };
        Ok(FunctionLowering {
            source,
            target,
            old,
            types,
            map: vec![None; old.expressions.len()],
            new,
            block: Block::new(),
            unemitted: None,
            span: Span::UNDEFINED,
            literals: HashMap::new(),
            zero: None,
        })
    }

    /// Lowers the function. Calls in the result have provisional handles.
    pub(super) fn run(mut self) -> Result<Function, Int64Error> {
        for (handle, expression) in self.old.expressions.iter() {
            if expression.needs_pre_emit() {
                self.define(handle)?;
            }
        }
        self.lower_local_variables()?;
        self.lower_statements(&self.old.body)?;
        self.emit();
        self.new.body = self.block;
        for (&handle, name) in &self.old.named_expressions {
            if let Some(new) = self.map[handle.index()] {
                // Two named expressions may have become one; keep the first name.
                self.new.named_expressions.entry(new).or_insert_with(|| name.clone());
            }
        }
        Ok(self.new)
    }

    fn lower_local_variables(&mut self) -> Result<(), Int64Error> {
        let pre_emitted = self.old.expressions.iter().zip(&self.map);
        let mut done: RewrittenExpressions = pre_emitted.filter_map(|((old, _), &new)| Some((old, new?))).collect();
        for (handle, local) in self.old.local_variables.iter() {
            let expressions = &mut self.new.expressions;
            let init = local.init.map(|init| {
                self.target
                    .constant(self.source, &self.old.expressions, init, expressions, &mut done)
                    .ok_or_else(|| Int64Error("a variable's initial value is not evaluated".into()))
            });
            let ty = self.source.types[local.ty.index()];
            let lowered = LocalVariable { name: local.name.clone(), ty, init: init.transpose()? };
            self.new.local_variables.append(lowered, self.old.local_variables.get_span(handle));
        }
        Ok(())
    }

    /// The new expression for an old one.
    pub(super) fn get(&mut self, old: Handle<Expression>) -> Result<Handle<Expression>, Int64Error> {
        match self.map[old.index()] {
            Some(new) => Ok(new),
            // No statement emits it, so it is evaluated where it is used.
            None => self.lower_expression(old),
        }
    }

    /// Lowers an old expression at the current point, for all later uses.
    pub(super) fn define(&mut self, old: Handle<Expression>) -> Result<(), Int64Error> {
        self.map[old.index()] = Some(self.lower_expression(old)?);
        Ok(())
    }

    /// Defines the expression that holds a statement's result.
    pub(super) fn define_result(&mut self, old: Handle<Expression>, result: Expression) -> Handle<Expression> {
        self.emit();
        let new = self.new.expressions.append(result, self.old.expressions.get_span(old));
        self.map[old.index()] = Some(new);
        new
    }

    /// Type of an old expression.
    pub(super) fn type_of(&self, old: Handle<Expression>) -> &TypeInner {
        self.types[old].inner_with(&self.source.module.types)
    }

    /// The 64-bit integer type of an old expression, if it has one.
    pub(super) fn wide(&self, old: Handle<Expression>) -> Option<WideType> {
        WideType::of(self.type_of(old))
    }

    /// Appends an expression that is evaluated at the current point.
    pub(super) fn add(&mut self, expression: Expression) -> Handle<Expression> {
        self.unemitted.get_or_insert(self.new.expressions.len());
        self.new.expressions.append(expression, self.span)
    }

    /// Appends an expression that is available throughout the function, such as a literal.
    pub(super) fn add_pre_emitted(&mut self, expression: Expression) -> Handle<Expression> {
        self.emit();
        self.new.expressions.append(expression, self.span)
    }

    /// Emits the expressions added since the last statement.
    fn emit(&mut self) {
        if let Some(from) = self.unemitted.take() {
            let range = self.new.expressions.range_from(from);
            self.block.push(Statement::Emit(range), self.span);
        }
    }

    /// Appends a statement.
    pub(super) fn push(&mut self, statement: Statement, span: Span) {
        self.emit();
        self.block.push(statement, span);
    }

    /// Returns what `fill` appends as a separate block.
    pub(super) fn nested(
        &mut self,
        fill: impl FnOnce(&mut Self) -> Result<(), Int64Error>,
    ) -> Result<Block, Int64Error> {
        self.emit();
        let outer = std::mem::take(&mut self.block);
        fill(self)?;
        self.emit();
        Ok(std::mem::replace(&mut self.block, outer))
    }

    /// A `u32` literal.
    pub(super) fn literal(&mut self, value: u32) -> Handle<Expression> {
        if let Some(&literal) = self.literals.get(&value) {
            return literal;
        }
        let literal = self.add_pre_emitted(Expression::Literal(Literal::U32(value)));
        self.literals.insert(value, literal);
        literal
    }

    /// The pair of value 0.
    pub(super) fn zero(&mut self) -> Handle<Expression> {
        if let Some(zero) = self.zero {
            return zero;
        }
        let ty = self.target.types.pair();
        let zero = self.add_pre_emitted(Expression::ZeroValue(ty));
        self.zero = Some(zero);
        zero
    }

    /// Calls a library function and returns its result.
    pub(super) fn call(&mut self, name: &str, arguments: Vec<Handle<Expression>>) -> Handle<Expression> {
        let index = library::function(name).index();
        self.target.used[index] = true;
        let function = self.target.library[index];
        self.emit();
        let result = self.new.expressions.append(Expression::CallResult(function), self.span);
        self.push(Statement::Call { function, arguments, result: Some(result) }, self.span);
        result
    }

    /// A component of a lowered value of type `wide`; a scalar is the same for all components.
    pub(super) fn component(&mut self, of: Handle<Expression>, wide: WideType, index: u32) -> Handle<Expression> {
        if wide.size.is_none() {
            return of;
        }
        match self.new.expressions[of] {
            // A lowered vector is composed of pairs, so no access is needed.
            Expression::Compose { ref components, .. } => components[index as usize],
            _ => self.add(Expression::AccessIndex { base: of, index }),
        }
    }

    /// Composes a value from what `make` returns for each component; for a scalar, calls `make`
    /// once.
    pub(super) fn each(
        &mut self,
        size: Option<VectorSize>,
        component: Component,
        mut make: impl FnMut(&mut Self, u32) -> Result<Handle<Expression>, Int64Error>,
    ) -> Result<Handle<Expression>, Int64Error> {
        let Some(size) = size else { return make(self, 0) };
        let components = (0..size as u32).map(|i| make(self, i)).collect::<Result<_, _>>()?;
        let ty = match component {
            Component::Pair => self.target.types.wide(Some(size)),
            Component::Scalar(scalar) => self.target.types.vector(size, scalar),
        };
        Ok(self.add(Expression::Compose { ty, components }))
    }
}
