//! Lowering of constants and of constant expressions, which initialise variables.

use std::collections::HashMap;

use naga::{Arena, Constant, Expression, Handle, Literal, Module, Span};

use super::types::{WideType, wide_literal};
use super::{Int64Error, SourceModule, TargetModule};

/// New handles of the expressions that have been rewritten, by old handle.
pub(super) type RewrittenExpressions = HashMap<Handle<Expression>, Handle<Expression>>;

impl TargetModule {
    /// Rewrites the module's constants and constant expressions. Returns the new expressions, by
    /// the index of the old ones.
    pub(super) fn lower_globals(&mut self, source: &mut SourceModule) -> Result<Vec<Handle<Expression>>, Int64Error> {
        let module = source.module;
        let mut made = Arena::new();
        let mut done = RewrittenExpressions::new();
        // A constant follows its initialiser and precedes its users, but expressions may name
        // constants whose initialisers have not been rewritten; so allocate all constants first.
        for (handle, constant) in module.constants.iter() {
            let lowered =
                Constant { name: constant.name.clone(), ty: source.types[constant.ty.index()], init: constant.init };
            source.constants.push(self.constants.append(lowered, module.constants.get_span(handle)));
        }
        let globals = module
            .global_expressions
            .iter()
            .map(|(handle, _)| {
                self.constant(source, &module.global_expressions, handle, &mut made, &mut done)
                    .ok_or_else(|| Int64Error("a constant is not evaluated".into()))
            })
            .collect::<Result<Vec<_>, _>>()?;
        for (_, constant) in self.constants.iter_mut() {
            constant.init = globals[constant.init.index()];
        }
        self.global_expressions = made;
        Ok(globals)
    }

    /// Rewrites the constant expression `old` of `from` into `to`. `None` if it is not in evaluated
    /// form.
    pub(super) fn constant(
        &mut self,
        source: &SourceModule,
        from: &Arena<Expression>,
        old: Handle<Expression>,
        to: &mut Arena<Expression>,
        done: &mut RewrittenExpressions,
    ) -> Option<Handle<Expression>> {
        if let Some(&new) = done.get(&old) {
            return Some(new);
        }
        let span = from.get_span(old);
        let expression = match from[old] {
            Expression::Literal(literal) => match wide_literal(literal) {
                Some(bits) => {
                    let components = words(bits).map(|l| to.append(Expression::Literal(l), span)).to_vec();
                    Expression::Compose { ty: self.types.pair(), components }
                }
                None => Expression::Literal(literal),
            },
            Expression::Constant(constant) => Expression::Constant(source.constants[constant.index()]),
            Expression::Override(parameter) => Expression::Override(parameter),
            Expression::ZeroValue(ty) => Expression::ZeroValue(source.types[ty.index()]),
            Expression::Compose { .. } | Expression::Splat { .. }
                if wide_constant(source.module, from, old).is_some() =>
            {
                let components = self.components(source, from, old, to, done)?;
                Expression::Compose { ty: self.types.wide(wide_constant(source.module, from, old)?.size), components }
            }
            Expression::Compose { ty, ref components } => {
                let each = components.iter().map(|&c| self.constant(source, from, c, to, done));
                let components = each.collect::<Option<_>>()?;
                Expression::Compose { ty: source.types[ty.index()], components }
            }
            Expression::Splat { size, value } => {
                Expression::Splat { size, value: self.constant(source, from, value, to, done)? }
            }
            _ => return None,
        };
        let new = to.append(expression, span);
        done.insert(old, new);
        Some(new)
    }

    /// The scalars of a constant vector of 64-bit integers, or the scalar itself.
    fn components(
        &mut self,
        source: &SourceModule,
        from: &Arena<Expression>,
        old: Handle<Expression>,
        to: &mut Arena<Expression>,
        done: &mut RewrittenExpressions,
    ) -> Option<Vec<Handle<Expression>>> {
        let Some(size) = wide_constant(source.module, from, old)?.size else {
            return Some(vec![self.constant(source, from, old, to, done)?]);
        };
        match from[old] {
            Expression::Compose { ref components, .. } => {
                let mut scalars = Vec::with_capacity(size as usize);
                for &component in components {
                    scalars.extend(self.components(source, from, component, to, done)?);
                }
                Some(scalars)
            }
            Expression::Splat { value, .. } => Some(vec![self.constant(source, from, value, to, done)?; size as usize]),
            Expression::ZeroValue(_) => {
                let zero = Expression::ZeroValue(self.types.pair());
                Some(vec![to.append(zero, from.get_span(old)); size as usize])
            }
            // `to` may be a function's arena, which cannot refer to the module's expressions, so
            // copy the initialiser.
            Expression::Constant(constant) => {
                let init = source.module.constants[constant].init;
                self.components(source, &source.module.global_expressions, init, to, &mut RewrittenExpressions::new())
            }
            _ => None,
        }
    }

    /// A constant for a 64-bit literal in a function. Like a literal, it needs no emitting; a
    /// composition would.
    pub(super) fn wide_literal(&mut self, bits: u64) -> Handle<Constant> {
        if let Some(&constant) = self.literals.get(&bits) {
            return constant;
        }
        let ty = self.types.pair();
        let components =
            words(bits).map(|l| self.global_expressions.append(Expression::Literal(l), Span::UNDEFINED)).to_vec();
        let init = self.global_expressions.append(Expression::Compose { ty, components }, Span::UNDEFINED);
        let constant = self.constants.append(Constant { name: None, ty, init }, Span::UNDEFINED);
        self.literals.insert(bits, constant);
        constant
    }
}

/// Low word and high word.
fn words(bits: u64) -> [Literal; 2] {
    [Literal::U32(bits as u32), Literal::U32((bits >> 32) as u32)]
}

/// The type of a constant expression if it is a 64-bit integer or a vector of them.
fn wide_constant(module: &Module, from: &Arena<Expression>, expression: Handle<Expression>) -> Option<WideType> {
    match from[expression] {
        Expression::Literal(literal) => WideType::of(&literal.ty_inner()),
        Expression::Constant(constant) => WideType::of(&module.types[module.constants[constant].ty].inner),
        Expression::ZeroValue(ty) | Expression::Compose { ty, .. } => WideType::of(&module.types[ty].inner),
        Expression::Splat { size, value } => {
            wide_constant(module, from, value).map(|wide| WideType { size: Some(size), ..wide })
        }
        _ => None,
    }
}
