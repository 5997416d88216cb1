//! Lowering of naga's expressions, constants and tables.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{AtomicRmwOp, InstBuilder, MemFlagsData, Value, types as clif};
use naga::{AtomicFunction, Expression, Handle, Literal, TypeInner};

use super::codegen::{Codegen, Frame, Operand, Place};
use crate::compile::errors::{Result, Unsupported};
use crate::compile::types::{self, Leaf};

/// Maximum size in bytes of the constant tables that a filter indexes.
const MAX_TABLE_BYTES: usize = 16 << 20;

impl<'a> Codegen<'a, '_> {
    /// Type of an expression.
    pub(super) fn type_of(&self, frame: &Frame<'a>, expression: Handle<Expression>) -> &'a TypeInner {
        frame.info[expression].ty.inner_with(&self.module.types)
    }

    /// Evaluates the expressions of an `Emit` statement in order.
    pub(super) fn emit(&mut self, frame: &mut Frame<'a>, range: naga::Range<Expression>) -> Result<()> {
        for handle in range {
            let operand = self.evaluate(frame, handle)?;
            if let Operand::Value(leaves) = &operand {
                self.count_operations(leaves.len())?;
            }
            frame.values[handle.index()] = Some(operand);
        }
        Ok(())
    }

    /// Returns the value of an expression, evaluating it if it needs no `Emit`.
    pub(super) fn operand(&mut self, frame: &mut Frame<'a>, handle: Handle<Expression>) -> Result<Operand> {
        match &frame.values[handle.index()] {
            Some(operand) => Ok(operand.clone()),
            // Constants are emitted anew at each use: a value does not dominate blocks other than
            // its own.
            None => self.evaluate(frame, handle),
        }
    }

    /// Returns the scalars of an expression.
    pub(super) fn value(&mut self, frame: &mut Frame<'a>, handle: Handle<Expression>) -> Result<Vec<Value>> {
        match self.operand(frame, handle)? {
            Operand::Value(leaves) => Ok(leaves),
            Operand::Constant(constant) => self.materialise(constant),
            Operand::Place(_) => Err(Unsupported("a pointer used as a value".into())),
        }
    }

    /// Returns the only scalar of an expression.
    pub(super) fn scalar(&mut self, frame: &mut Frame<'a>, handle: Handle<Expression>) -> Result<Value> {
        match self.value(frame, handle)?.as_slice() {
            [value] => Ok(*value),
            _ => Err(Unsupported("a composite value where a scalar is expected".into())),
        }
    }

    fn place(&mut self, frame: &mut Frame<'a>, handle: Handle<Expression>) -> Result<Place> {
        match self.operand(frame, handle)? {
            Operand::Place(place) => Ok(place),
            _ => Err(Unsupported("a value used as a pointer".into())),
        }
    }

    /// Stores a value through a pointer.
    pub(super) fn store_through(
        &mut self,
        frame: &mut Frame<'a>,
        pointer: Handle<Expression>,
        value: Handle<Expression>,
    ) -> Result<()> {
        let place = self.place(frame, pointer)?;
        let value = self.value(frame, value)?;
        self.store(place, &value)
    }

    /// Emits an atomic read-modify-write of a word of a map. The result is the old value, followed
    /// for compare-exchange by whether it succeeded.
    pub(super) fn atomic(
        &mut self,
        frame: &mut Frame<'a>,
        pointer: Handle<Expression>,
        function: AtomicFunction,
        value: Handle<Expression>,
    ) -> Result<Vec<Value>> {
        let Place::Memory { address, offset } = self.place(frame, pointer)? else {
            return Err(Unsupported("an atomic variable that is not in memory".into()));
        };
        let value = self.scalar(frame, value)?;
        let at = self.b.ins().iadd_imm_u(address, i64::from(offset));
        // Map words are aligned and mapped, as for loads.
        let flags = MemFlagsData::trusted();
        let mut modify = |operation| self.b.ins().atomic_rmw(clif::I32, flags, operation, at, value);
        Ok(match function {
            AtomicFunction::Add => vec![modify(AtomicRmwOp::Add)],
            AtomicFunction::Min => vec![modify(AtomicRmwOp::Umin)],
            AtomicFunction::Max => vec![modify(AtomicRmwOp::Umax)],
            AtomicFunction::InclusiveOr => vec![modify(AtomicRmwOp::Or)],
            AtomicFunction::Exchange { compare: None } => vec![modify(AtomicRmwOp::Xchg)],
            AtomicFunction::Exchange { compare: Some(compare) } => {
                let expected = self.scalar(frame, compare)?;
                let before = self.b.ins().atomic_cas(flags, at, expected, value);
                let exchanged = self.b.ins().icmp(IntCC::Equal, before, expected);
                vec![before, exchanged]
            }
            other => return Err(Unsupported(format!("the atomic function {other:?}"))),
        })
    }

    fn evaluate(&mut self, frame: &mut Frame<'a>, handle: Handle<Expression>) -> Result<Operand> {
        let values = match frame.code.expressions[handle] {
            Expression::Literal(literal) => vec![self.literal(literal)?],
            Expression::Constant(constant) => return Ok(Operand::Constant(self.module.constants[constant].init)),
            Expression::ZeroValue(ty) => self.zeros(types::inner(self.module, ty))?,
            Expression::Compose { ref components, .. } => {
                let mut leaves = Vec::new();
                for &component in components {
                    leaves.extend(self.value(frame, component)?);
                }
                leaves
            }
            Expression::Splat { size, value } => vec![self.scalar(frame, value)?; size as usize],
            Expression::Swizzle { size, vector, pattern } => {
                let vector = self.value(frame, vector)?;
                pattern[..size as usize].iter().map(|&c| vector[c as usize]).collect()
            }
            Expression::FunctionArgument(index) => return Ok(frame.arguments[index as usize].clone()),
            Expression::LocalVariable(local) => {
                let location = self.locals.get(&(frame.function, local)).copied();
                return Ok(Operand::Place(self.variable_place(location)?));
            }
            Expression::GlobalVariable(global) => {
                if let Some(words) = self.map_place(global) {
                    return Ok(Operand::Place(words));
                }
                let location = self.globals.get(&global).copied();
                return Ok(Operand::Place(self.variable_place(location)?));
            }
            Expression::AccessIndex { base, index } => {
                let inner = self.type_of(frame, base);
                match (types::pointee(self.module, inner), self.operand(frame, base)?) {
                    (Some(pointee), Operand::Place(place)) => {
                        return Ok(Operand::Place(self.subplace(place, &pointee, index)?));
                    }
                    (None, _) => {
                        let value = self.value(frame, base)?;
                        let (part, leaves, _) = types::part(self.module, inner, index)?;
                        value[leaves as usize..][..part.leaves as usize].to_vec()
                    }
                    _ => return Err(Unsupported("a pointer to something other than a variable".into())),
                }
            }
            Expression::Access { base, index } => {
                let inner = self.type_of(frame, base);
                let index = self.scalar(frame, index)?;
                let index = self.index(index);
                match types::pointee(self.module, inner) {
                    Some(pointee) => {
                        let place = self.place(frame, base)?;
                        return Ok(Operand::Place(self.element_address(place, &pointee, index)?));
                    }
                    None => self.value_element(frame, base, inner, index)?,
                }
            }
            Expression::Load { pointer } => {
                let inner = types::pointee(self.module, self.type_of(frame, pointer))
                    .ok_or_else(|| Unsupported("a load through a value that is not a pointer".into()))?;
                let place = self.place(frame, pointer)?;
                self.load_place(place, &inner)?
            }
            Expression::Unary { op, expr } => {
                let leaf = self.leaf(frame, expr)?;
                let values = self.value(frame, expr)?;
                values.into_iter().map(|v| self.unary(op, leaf, v)).collect()
            }
            Expression::Binary { op, left, right } => self.binary_expression(frame, op, left, right)?,
            Expression::Select { condition, accept, reject } => {
                let condition = self.value(frame, condition)?;
                let (accept, reject) = (self.value(frame, accept)?, self.value(frame, reject)?);
                (0..accept.len())
                    .map(|i| self.select(condition[if condition.len() == 1 { 0 } else { i }], accept[i], reject[i]))
                    .collect()
            }
            Expression::Relational { fun, argument } => {
                let values = self.value(frame, argument)?;
                self.relational(fun, &values)?
            }
            Expression::Math { fun, arg, arg1, arg2, arg3 } => {
                let leaf = self.leaf(frame, arg)?;
                let mut arguments = vec![self.value(frame, arg)?];
                for argument in [arg1, arg2, arg3].into_iter().flatten() {
                    arguments.push(self.value(frame, argument)?);
                }
                let result = self.type_of(frame, handle);
                self.math(fun, leaf, &arguments, result)?
            }
            Expression::As { expr, kind, convert } => {
                let from = self.leaf(frame, expr)?;
                let values = self.value(frame, expr)?;
                values.into_iter().map(|v| self.cast(v, from, kind, convert)).collect::<Result<_>>()?
            }
            ref other => return Err(Unsupported(format!("the expression {other:?}"))),
        };
        Ok(Operand::Value(values))
    }

    /// The scalar type of an expression, all of whose scalars are of the same type.
    pub(super) fn leaf(&self, frame: &Frame<'a>, expression: Handle<Expression>) -> Result<Leaf> {
        match self.type_of(frame, expression).scalar() {
            Some(scalar) => Ok(Leaf(scalar)),
            None => Err(Unsupported("an operator on a composite value".into())),
        }
    }

    /// Converts an index to 32 bits, unsigned.
    fn index(&mut self, index: Value) -> Value {
        match self.b.func.dfg.value_type(index) {
            // An index beyond 32 bits is out of any array's bounds.
            clif::I64 => {
                let most = self.b.ins().iconst(clif::I64, i64::from(u32::MAX));
                let clamped = self.b.ins().umin(index, most);
                self.b.ins().ireduce(clif::I32, clamped)
            }
            _ => index,
        }
    }

    fn literal(&mut self, literal: Literal) -> Result<Value> {
        Ok(match literal {
            Literal::U32(v) => self.constant(v),
            Literal::I32(v) => self.constant(v as u32),
            Literal::U64(v) => self.b.ins().iconst(clif::I64, v as i64),
            Literal::I64(v) => self.b.ins().iconst(clif::I64, v),
            Literal::Bool(v) => self.boolean(v),
            Literal::F32(v) => self.b.ins().f32const(v),
            Literal::F64(v) => self.b.ins().f64const(v),
            other => return Err(Unsupported(format!("the literal {other:?}"))),
        })
    }

    pub(super) fn zeros(&mut self, inner: &TypeInner) -> Result<Vec<Value>> {
        let leaves = types::leaves(self.module, inner)?;
        self.count_operations(leaves.len())?;
        Ok(leaves.into_iter().map(|leaf| self.zero(leaf)).collect())
    }

    /// Emits the scalars of a constant of the module.
    pub(super) fn materialise(&mut self, constant: Handle<Expression>) -> Result<Vec<Value>> {
        match self.module.global_expressions[constant] {
            Expression::Literal(literal) => Ok(vec![self.literal(literal)?]),
            Expression::Constant(constant) => self.materialise(self.module.constants[constant].init),
            Expression::ZeroValue(ty) => self.zeros(types::inner(self.module, ty)),
            Expression::Compose { ref components, .. } => {
                let mut leaves = Vec::new();
                for &component in components {
                    leaves.extend(self.materialise(component)?);
                    self.count_operations(1)?;
                }
                Ok(leaves)
            }
            Expression::Splat { size, value } => {
                let value = self.materialise(value)?;
                Ok(std::iter::repeat_n(value, size as usize).flatten().collect())
            }
            ref other => Err(Unsupported(format!("the constant expression {other:?}"))),
        }
    }

    /// Returns the offset of a constant in the tables in bytes, appending it at its first use.
    pub(super) fn table(&mut self, constant: Handle<Expression>) -> Result<u32> {
        if let Some(&offset) = self.table_offsets.get(&constant) {
            return Ok(offset);
        }
        let offset = self.tables.len() as u32;
        let mut bytes = std::mem::take(&mut self.tables);
        let written = self.table_bytes(constant, &mut bytes);
        self.tables = bytes;
        written?;
        self.table_offsets.insert(constant, offset);
        Ok(offset)
    }

    fn table_bytes(&self, constant: Handle<Expression>, into: &mut Vec<u8>) -> Result<()> {
        match self.module.global_expressions[constant] {
            Expression::Literal(literal) => match literal {
                Literal::U32(v) => into.extend(v.to_ne_bytes()),
                Literal::I32(v) => into.extend(v.to_ne_bytes()),
                Literal::U64(v) => into.extend(v.to_ne_bytes()),
                Literal::I64(v) => into.extend(v.to_ne_bytes()),
                Literal::F32(v) => into.extend(v.to_ne_bytes()),
                Literal::F64(v) => into.extend(v.to_ne_bytes()),
                Literal::Bool(v) => into.push(v.into()),
                other => return Err(Unsupported(format!("the literal {other:?}"))),
            },
            Expression::Constant(constant) => self.table_bytes(self.module.constants[constant].init, into)?,
            Expression::ZeroValue(ty) => {
                let size = types::size(self.module, types::inner(self.module, ty))?;
                into.resize(into.len() + size as usize, 0);
            }
            Expression::Compose { ref components, .. } => {
                for &component in components {
                    self.table_bytes(component, into)?;
                }
            }
            Expression::Splat { size, value } => {
                for _ in 0..size as u32 {
                    self.table_bytes(value, into)?;
                }
            }
            ref other => return Err(Unsupported(format!("the constant expression {other:?}"))),
        }
        if into.len() > MAX_TABLE_BYTES {
            return Err(Unsupported(format!("constant tables of more than {MAX_TABLE_BYTES} bytes")));
        }
        Ok(())
    }
}
