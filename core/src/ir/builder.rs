//! Expressions and statements of the function under way.

use std::collections::HashMap;

use naga::{
    BinaryOperator, Block, Expression, Function, Handle, Literal, LocalVariable, Range, ScalarKind, Statement,
    SwizzleComponent, UnaryOperator, VectorSize,
};

pub type Value = Handle<Expression>;

/// A function in the making. Statements go to the innermost open block.
#[derive(Default)]
pub struct Builder {
    pub function: Function,
    open: Vec<Block>,
    current: Block,
    /// Where what is made now comes from.
    pub span: naga::Span,
    literals: HashMap<String, Value>,
    /// Whether control cannot come to the end of the current block.
    pub left: bool,
}

impl Builder {
    pub fn add(&mut self, expression: Expression) -> Value {
        let is_free = expression.needs_pre_emit() || matches!(expression, Expression::CallResult(_));
        let handle = self.function.expressions.append(expression, self.span);
        if is_free {
            return handle;
        }
        // One `Emit` for as many as stand beside each other.
        let last = self.current.len().checked_sub(1);
        if let Some(Statement::Emit(range)) = last.map(|last| &mut self.current[last])
            && let Some((first, end)) = range.first_and_last()
            && end.index() + 1 == handle.index()
        {
            *range = Range::new_from_bounds(first, handle);
            return handle;
        }
        self.current.push(Statement::Emit(Range::new_from_bounds(handle, handle)), self.span);
        handle
    }

    pub fn push(&mut self, statement: Statement) {
        self.left |= matches!(statement, Statement::Return { .. } | Statement::Break | Statement::Continue);
        self.current.push(statement, self.span);
    }

    /// Begins a block within.
    pub fn open(&mut self) {
        self.open.push(std::mem::take(&mut self.current));
        self.left = false;
    }

    /// Ends it.
    pub fn close(&mut self) -> Block {
        self.left = false;
        std::mem::replace(&mut self.current, self.open.pop().unwrap_or_default())
    }

    pub fn literal(&mut self, literal: Literal) -> Value {
        // A float is told apart by its bits.
        let key = match literal {
            Literal::F32(value) => format!("f{}", value.to_bits()),
            other => format!("{other:?}"),
        };
        if let Some(&handle) = self.literals.get(&key) {
            return handle;
        }
        let handle = self.function.expressions.append(Expression::Literal(literal), naga::Span::UNDEFINED);
        self.literals.insert(key, handle);
        handle
    }

    pub fn u32(&mut self, value: u32) -> Value {
        self.literal(Literal::U32(value))
    }

    pub fn known(&self, value: Value) -> Option<Literal> {
        match self.function.expressions[value] {
            Expression::Literal(literal) => Some(literal),
            _ => None,
        }
    }

    pub fn known_u32(&self, value: Value) -> Option<u32> {
        match self.known(value)? {
            Literal::U32(value) => Some(value),
            _ => None,
        }
    }

    pub fn binary(&mut self, op: BinaryOperator, left: Value, right: Value) -> Value {
        self.add(Expression::Binary { op, left, right })
    }

    pub fn unary(&mut self, op: UnaryOperator, expr: Value) -> Value {
        self.add(Expression::Unary { op, expr })
    }

    /// Converts to a scalar kind of so many bytes, or takes the same bits for it.
    pub fn cast(&mut self, expr: Value, kind: ScalarKind, convert: Option<u8>) -> Value {
        self.add(Expression::As { expr, kind, convert })
    }

    pub fn select(&mut self, condition: Value, accept: Value, reject: Value) -> Value {
        self.add(Expression::Select { condition, accept, reject })
    }

    /// u32 addition, what is known worked out.
    pub fn sum(&mut self, left: Value, right: Value) -> Value {
        match (self.known_u32(left), self.known_u32(right)) {
            (Some(a), Some(b)) => self.u32(a.wrapping_add(b)),
            (Some(0), _) => right,
            (_, Some(0)) => left,
            _ => self.binary(BinaryOperator::Add, left, right),
        }
    }

    /// u32 multiplication by a number.
    pub fn times(&mut self, value: Value, factor: u32) -> Value {
        match (self.known_u32(value), factor) {
            (_, 1) => value,
            (Some(known), _) => self.u32(known.wrapping_mul(factor)),
            _ => {
                let factor = self.u32(factor);
                self.binary(BinaryOperator::Multiply, value, factor)
            }
        }
    }

    /// A component, member or element that is known.
    pub fn at(&mut self, base: Value, index: u32) -> Value {
        self.add(Expression::AccessIndex { base, index })
    }

    pub fn swizzle(&mut self, vector: Value, picked: &[u8]) -> Value {
        if let [one] = picked {
            return self.at(vector, u32::from(*one));
        }
        let mut pattern = [SwizzleComponent::X; 4];
        for (to, from) in pattern.iter_mut().zip(picked) {
            *to = SwizzleComponent::XYZW[usize::from(*from)];
        }
        self.add(Expression::Swizzle { size: vector_size(picked.len() as u8), vector, pattern })
    }

    pub fn splat(&mut self, value: Value, size: Option<u8>) -> Value {
        match size {
            Some(size) => self.add(Expression::Splat { size: vector_size(size), value }),
            None => value,
        }
    }

    pub fn load(&mut self, pointer: Value) -> Value {
        self.add(Expression::Load { pointer })
    }

    pub fn store(&mut self, pointer: Value, value: Value) {
        self.push(Statement::Store { pointer, value });
    }

    pub fn local(&mut self, name: Option<&str>, ty: Handle<naga::Type>) -> Value {
        let name = name.map(str::to_owned);
        let local = self.function.local_variables.append(LocalVariable { name, ty, init: None }, self.span);
        self.function.expressions.append(Expression::LocalVariable(local), self.span)
    }

    pub fn call(&mut self, function: Handle<Function>, arguments: Vec<Value>, gives: bool) -> Option<Value> {
        let result = gives.then(|| self.add(Expression::CallResult(function)));
        self.push(Statement::Call { function, arguments, result });
        result
    }

    /// Gives a value the name that it has in the text.
    pub fn name(&mut self, value: Value, name: &str) {
        if !name.is_empty() && !self.function.expressions[value].needs_pre_emit() {
            self.function.named_expressions.entry(value).or_insert_with(|| name.to_owned());
        }
    }

    /// Whether control never comes to the end of what was built.
    pub fn leaves(&self) -> bool {
        leaves(&self.current)
    }

    /// The function's body: what was built.
    pub fn finish(mut self) -> Function {
        self.function.body = self.current;
        self.function
    }
}

/// A vector's size as naga has it.
pub fn vector_size(size: u8) -> VectorSize {
    match size {
        2 => VectorSize::Bi,
        3 => VectorSize::Tri,
        _ => VectorSize::Quad,
    }
}

fn leaves(block: &Block) -> bool {
    match block.last() {
        Some(Statement::Return { .. } | Statement::Break | Statement::Continue) => true,
        Some(Statement::If { accept, reject, .. }) => leaves(accept) && leaves(reject),
        Some(Statement::Block(inner)) => leaves(inner),
        _ => false,
    }
}
