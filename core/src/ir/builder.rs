//! A builder for the expressions and statements of a naga function.

use std::collections::HashMap;

use naga::{
    BinaryOperator, Block, Expression, Function, Handle, Literal, LocalVariable, Range, ScalarKind, Statement,
    SwizzleComponent, UnaryOperator, VectorSize,
};

/// An expression of the function being built.
pub type Value = Handle<Expression>;

/// Builds a function. Statements are appended to the innermost open block.
#[derive(Default)]
pub struct FunctionBuilder {
    /// The function so far, without its body.
    pub function: Function,
    open_blocks: Vec<Block>,
    current: Block,
    /// Source span of the expressions and statements that are added.
    pub span: naga::Span,
    literals: HashMap<String, Value>,
    /// Whether control cannot reach the end of the current block.
    pub is_unreachable: bool,
}

impl FunctionBuilder {
    /// Appends an expression, and emits it unless naga forbids that for its kind.
    pub fn add(&mut self, expression: Expression) -> Value {
        let is_implicit = expression.needs_pre_emit() || matches!(expression, Expression::CallResult(_));
        let handle = self.function.expressions.append(expression, self.span);
        if is_implicit {
            return handle;
        }
        // Extend the previous `Emit` if the expressions are adjacent.
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

    /// Appends a statement.
    pub fn push(&mut self, statement: Statement) {
        self.is_unreachable |= matches!(statement, Statement::Return { .. } | Statement::Break | Statement::Continue);
        self.current.push(statement, self.span);
    }

    /// Opens a nested block.
    pub fn begin_block(&mut self) {
        self.open_blocks.push(std::mem::take(&mut self.current));
        self.is_unreachable = false;
    }

    /// Closes the innermost block and returns it.
    pub fn end_block(&mut self) -> Block {
        self.is_unreachable = false;
        std::mem::replace(&mut self.current, self.open_blocks.pop().unwrap_or_default())
    }

    /// Returns the literal, which is shared by all its uses.
    pub fn literal(&mut self, literal: Literal) -> Value {
        // Key floats by their bits: -0.0 and NaNs are distinct literals.
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

    /// A `u32` literal.
    pub fn u32(&mut self, value: u32) -> Value {
        self.literal(Literal::U32(value))
    }

    /// The literal that `value` is, if it is one.
    pub fn constant(&self, value: Value) -> Option<Literal> {
        match self.function.expressions[value] {
            Expression::Literal(literal) => Some(literal),
            _ => None,
        }
    }

    /// The `u32` literal that `value` is, if it is one.
    pub fn constant_u32(&self, value: Value) -> Option<u32> {
        match self.constant(value)? {
            Literal::U32(value) => Some(value),
            _ => None,
        }
    }

    /// A binary operation.
    pub fn binary(&mut self, op: BinaryOperator, left: Value, right: Value) -> Value {
        self.add(Expression::Binary { op, left, right })
    }

    /// A unary operation.
    pub fn unary(&mut self, op: UnaryOperator, expr: Value) -> Value {
        self.add(Expression::Unary { op, expr })
    }

    /// Converts to a scalar kind of `convert` bytes, or reinterprets the bits if that is `None`.
    pub fn cast(&mut self, expr: Value, kind: ScalarKind, convert: Option<u8>) -> Value {
        self.add(Expression::As { expr, kind, convert })
    }

    /// `accept` if `condition` is true, else `reject`.
    pub fn select(&mut self, condition: Value, accept: Value, reject: Value) -> Value {
        self.add(Expression::Select { condition, accept, reject })
    }

    /// Adds two `u32` values, with constant folding.
    pub fn add_u32(&mut self, left: Value, right: Value) -> Value {
        match (self.constant_u32(left), self.constant_u32(right)) {
            (Some(a), Some(b)) => self.u32(a.wrapping_add(b)),
            (Some(0), _) => right,
            (_, Some(0)) => left,
            _ => self.binary(BinaryOperator::Add, left, right),
        }
    }

    /// Multiplies a `u32` value by a constant, with constant folding.
    pub fn mul_u32(&mut self, value: Value, factor: u32) -> Value {
        match (self.constant_u32(value), factor) {
            (_, 1) => value,
            (Some(known), _) => self.u32(known.wrapping_mul(factor)),
            _ => {
                let factor = self.u32(factor);
                self.binary(BinaryOperator::Multiply, value, factor)
            }
        }
    }

    /// The component, member or element at a constant index.
    pub fn access_index(&mut self, base: Value, index: u32) -> Value {
        self.add(Expression::AccessIndex { base, index })
    }

    /// The components of a vector at the indices in `picked`: a vector, or a scalar for one index.
    pub fn swizzle(&mut self, vector: Value, picked: &[u8]) -> Value {
        if let [one] = picked {
            return self.access_index(vector, u32::from(*one));
        }
        let mut pattern = [SwizzleComponent::X; 4];
        for (to, from) in pattern.iter_mut().zip(picked) {
            *to = SwizzleComponent::XYZW[usize::from(*from)];
        }
        self.add(Expression::Swizzle { size: vector_size(picked.len() as u8), vector, pattern })
    }

    /// A vector of `size` equal components, or `value` itself if `size` is `None`.
    pub fn splat(&mut self, value: Value, size: Option<u8>) -> Value {
        match size {
            Some(size) => self.add(Expression::Splat { size: vector_size(size), value }),
            None => value,
        }
    }

    /// Loads through a pointer.
    pub fn load(&mut self, pointer: Value) -> Value {
        self.add(Expression::Load { pointer })
    }

    /// Stores through a pointer.
    pub fn store(&mut self, pointer: Value, value: Value) {
        self.push(Statement::Store { pointer, value });
    }

    /// Declares a zero-initialised local variable and returns a pointer to it.
    pub fn local(&mut self, name: Option<&str>, ty: Handle<naga::Type>) -> Value {
        let name = name.map(str::to_owned);
        let local = self.function.local_variables.append(LocalVariable { name, ty, init: None }, self.span);
        self.function.expressions.append(Expression::LocalVariable(local), self.span)
    }

    /// Calls a function; returns its result if it has one.
    pub fn call(&mut self, function: Handle<Function>, arguments: Vec<Value>, has_result: bool) -> Option<Value> {
        let result = has_result.then(|| self.add(Expression::CallResult(function)));
        self.push(Statement::Call { function, arguments, result });
        result
    }

    /// Gives a value the name that it has in the source text.
    pub fn name(&mut self, value: Value, name: &str) {
        if !name.is_empty() && !self.function.expressions[value].needs_pre_emit() {
            self.function.named_expressions.entry(value).or_insert_with(|| name.to_owned());
        }
    }

    /// Whether control never reaches the end of the function so far.
    pub fn diverges(&self) -> bool {
        diverges(&self.current)
    }

    /// Returns the function, with everything built so far as its body.
    pub fn finish(mut self) -> Function {
        self.function.body = self.current;
        self.function
    }
}

/// Converts a number of components (2 to 4) to naga's vector size.
pub fn vector_size(size: u8) -> VectorSize {
    match size {
        2 => VectorSize::Bi,
        3 => VectorSize::Tri,
        _ => VectorSize::Quad,
    }
}

fn diverges(block: &Block) -> bool {
    match block.last() {
        Some(Statement::Return { .. } | Statement::Break | Statement::Continue) => true,
        Some(Statement::If { accept, reject, .. }) => diverges(accept) && diverges(reject),
        Some(Statement::Block(inner)) => diverges(inner),
        _ => false,
    }
}
