//! Emits structured nodes as naga statements. The front end supplies the contents of blocks through
//! [`BlockEmitter`].
//!
//! Flags become `bool` local variables; the labels of dispatches and the stored result become `u32`
//! local variables. All are initially zero.

use naga::{BinaryOperator, Expression, Handle, Module, Scalar, Span, Statement, Type, TypeInner, UnaryOperator};

use super::{Node, Structured};
use crate::ir::builder::{FunctionBuilder, Value};

/// Emits the contents of a graph's blocks, in the front end's terms.
///
/// A duplicated block is requested once per copy, each time for new statements: a value emitted for
/// one copy does not exist in another. [`condition`](BlockEmitter::condition) and
/// [`result`](BlockEmitter::result) are requested directly after [`block`](BlockEmitter::block) of
/// the same block, in the same list of statements.
pub trait BlockEmitter {
    /// Emits a block's own statements.
    fn block(&mut self, b: &mut FunctionBuilder, block: usize);

    /// Returns whether a block with two successors continues at the first: a `bool`.
    fn condition(&mut self, b: &mut FunctionBuilder, block: usize) -> Value;

    /// Returns the result of a block without successors: a `u32`.
    fn result(&mut self, b: &mut FunctionBuilder, block: usize) -> Value;

    /// One of the results that the function can return, as the initial value of the stored result.
    /// Analyses of the function then see no other value there.
    fn placeholder_result(&self) -> u32 {
        0
    }
}

/// The types of the variables that are emitted.
#[derive(Debug, Clone, Copy)]
pub struct Types {
    /// `bool`.
    pub bool: Handle<Type>,
    /// `u32`.
    pub u32: Handle<Type>,
}

impl Types {
    /// Gets the types of a module, adding them if needed.
    pub fn of(module: &mut Module) -> Types {
        let mut scalar = |scalar| {
            let ty = Type { name: None, inner: TypeInner::Scalar(scalar) };
            module.types.insert(ty, Span::UNDEFINED)
        };
        Types { bool: scalar(Scalar::BOOL), u32: scalar(Scalar::U32) }
    }
}

/// Appends a function's statements to the builder; the last one is a return.
pub fn emit(structured: &Structured, types: Types, b: &mut FunctionBuilder, blocks: &mut dyn BlockEmitter) {
    let flags = (0..structured.flags).map(|_| b.local(Some("flag"), types.bool)).collect();
    let labels = (0..structured.dispatches).map(|_| b.local(Some("label"), types.u32)).collect();
    let result = structured.falls_through.then(|| b.local(Some("kept"), types.u32));
    if let (Some(result), placeholder @ 1..) = (result, blocks.placeholder_result()) {
        let placeholder = b.u32(placeholder);
        b.store(result, placeholder);
    }
    let mut emitter = Emitter { b, blocks, flags, labels, result };
    emitter.emit_all(&structured.body);
    if !b.diverges() {
        // Without a stored result control never gets here: the function loops forever.
        let value = match result {
            Some(result) => b.load(result),
            None => b.u32(0),
        };
        b.push(Statement::Return { value: Some(value) });
    }
}

struct Emitter<'a> {
    b: &'a mut FunctionBuilder,
    blocks: &'a mut dyn BlockEmitter,
    /// Pointers to the flag variables, by flag number.
    flags: Vec<Value>,
    labels: Vec<Value>,
    result: Option<Value>,
}

impl Emitter<'_> {
    fn emit_all(&mut self, nodes: &[Node]) {
        nodes.iter().for_each(|node| self.emit_node(node));
    }

    fn emit_node(&mut self, node: &Node) {
        match node {
            Node::Block(block) => self.blocks.block(self.b, *block),
            // If every arm is empty there is nothing to branch on.
            Node::Branch { arms, .. } if arms.iter().all(Vec::is_empty) => {}
            Node::Branch { block, arms } => match arms.as_slice() {
                [first, second] => {
                    let condition = self.blocks.condition(self.b, *block);
                    if first.is_empty() {
                        // Negate the condition instead of emitting an empty `if` arm.
                        let condition = self.b.unary(UnaryOperator::LogicalNot, condition);
                        self.emit_if(condition, |it| it.emit_all(second), |_| ());
                    } else {
                        self.emit_if(condition, |it| it.emit_all(first), |it| it.emit_all(second));
                    }
                }
                // Blocks with one successor have no branch, and no front end has more than two.
                _ => unreachable!("a branch of {} arms", arms.len()),
            },
            Node::Return(block) => {
                let value = self.blocks.result(self.b, *block);
                self.b.push(Statement::Return { value: Some(value) });
            }
            Node::SetResult(block) => {
                let value = self.blocks.result(self.b, *block);
                let result = self.result.expect("a stored result is returned at the end");
                self.b.store(result, value);
            }
            Node::SetFlag(flag, value) => {
                let value = self.b.literal(naga::Literal::Bool(*value));
                self.b.store(self.flags[*flag], value);
            }
            Node::If { flag, set, body } => {
                let mut condition = self.b.load(self.flags[*flag]);
                if !set {
                    condition = self.b.unary(UnaryOperator::LogicalNot, condition);
                }
                self.emit_if(condition, |it| it.emit_all(body), |_| ());
            }
            Node::Loop(body) => {
                let body = self.nested_block(|it| it.emit_all(body));
                self.b.push(Statement::Loop { body, continuing: naga::Block::new(), break_if: None });
            }
            Node::Break => self.b.push(Statement::Break),
            Node::Continue => self.b.push(Statement::Continue),
            Node::SetLabel { dispatch, arm } => {
                let arm = self.b.u32(*arm as u32);
                self.b.store(self.labels[*dispatch], arm);
            }
            Node::Dispatch { dispatch, arms } => {
                // Read the label once: an arm may set it for the next iteration.
                let label = self.b.load(self.labels[*dispatch]);
                self.emit_dispatch(label, 0, arms);
            }
        }
    }

    /// Selects one of `arms`, whose labels start at `first`, by binary search. A `switch` would
    /// capture the arms' `break`.
    fn emit_dispatch(&mut self, label: Value, first: usize, arms: &[Vec<Node>]) {
        match arms {
            [] => {}
            [only] => self.emit_all(only),
            _ => {
                let (low, high) = arms.split_at(arms.len() / 2);
                let middle = first + low.len();
                let bound = self.b.u32(middle as u32);
                let condition = self.b.add(Expression::Binary { op: BinaryOperator::Less, left: label, right: bound });
                self.emit_if(
                    condition,
                    |it| it.emit_dispatch(label, first, low),
                    |it| it.emit_dispatch(label, middle, high),
                );
            }
        }
    }

    fn emit_if(&mut self, condition: Value, accept: impl FnOnce(&mut Self), reject: impl FnOnce(&mut Self)) {
        let accept = self.nested_block(accept);
        let reject = self.nested_block(reject);
        self.b.push(Statement::If { condition, accept, reject });
    }

    fn nested_block(&mut self, statements: impl FnOnce(&mut Self)) -> naga::Block {
        self.b.begin_block();
        statements(self);
        self.b.end_block()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use naga::{FunctionArgument, FunctionResult};

    use super::super::{Graph, structure, structure_with_limits};
    use super::*;
    use crate::diagnostics::Source;
    use crate::interp::Interpreter;
    use crate::packet::{Metadata, Verdict};
    use crate::program::{DEFAULT_FUEL, Program, ProgramOptions};
    use crate::program::{FILTER_FUNCTION, prelude};

    /// Multiplier of the hash of the path so far.
    const FACTOR: u32 = 0x9e37_79b1;

    /// Blocks that hash their number into a state, branch on its highest bit, and return it.
    struct HashingBlocks {
        state: Value,
    }

    impl BlockEmitter for HashingBlocks {
        fn block(&mut self, b: &mut FunctionBuilder, block: usize) {
            let state = b.load(self.state);
            let sum = {
                let number = b.u32(block as u32 + 1);
                b.add_u32(state, number)
            };
            let product = b.mul_u32(sum, FACTOR);
            b.store(self.state, product);
        }

        fn condition(&mut self, b: &mut FunctionBuilder, _block: usize) -> Value {
            let (state, half) = (b.load(self.state), b.u32(1 << 31));
            b.binary(BinaryOperator::GreaterEqual, state, half)
        }

        fn result(&mut self, b: &mut FunctionBuilder, block: usize) -> Value {
            // As many bits of both as a redirect target holds.
            let (state, mask, number) = (b.load(self.state), b.u32(0xffff_0000), b.u32((block as u32) << 8 | 4));
            let state = b.binary(BinaryOperator::And, state, mask);
            b.binary(BinaryOperator::InclusiveOr, state, number)
        }
    }

    fn program(structured: &Structured, seed: u32) -> Program {
        let mut module = prelude::module(&[], "");
        let types = Types::of(&mut module);
        let mut b = FunctionBuilder::default();
        b.function.name = Some(FILTER_FUNCTION.to_owned());
        b.function.arguments.push(FunctionArgument { name: Some("pkt".to_owned()), ty: types.u32, binding: None });
        b.function.result = Some(FunctionResult { ty: types.u32, binding: None });
        let state = b.local(Some("state"), types.u32);
        let seed = b.u32(seed);
        b.store(state, seed);
        emit(structured, types, &mut b, &mut HashingBlocks { state });
        module.functions.append(b.finish(), Span::UNDEFINED);
        Program::new(&Source::new("graph", ""), module, Vec::new(), &ProgramOptions::default())
            .unwrap_or_else(|errors| panic!("{}\n{structured:#?}", errors.render()))
    }

    fn expected(graph: &Graph, mut state: u32) -> Verdict {
        let mut block = 0;
        // An iteration of a loop runs at least one block.
        for _ in 0..=DEFAULT_FUEL {
            state = state.wrapping_add(block as u32 + 1).wrapping_mul(FACTOR);
            block = match graph.successors[block][..] {
                [] => return Verdict::Redirect(state >> 16 << 8 | block as u32),
                [only] => only,
                [first, second] => {
                    if state >> 31 == 1 {
                        first
                    } else {
                        second
                    }
                }
                _ => unreachable!(),
            };
        }
        Verdict::Aborted
    }

    /// Compares the emitted function with the graph; returns whether it terminates.
    #[track_caller]
    fn check(graph: &Graph, structured: &Structured, seed: u32) -> bool {
        let interpreter = Interpreter::new(&Arc::new(program(structured, seed))).unwrap();
        let outcome = interpreter.run(&[], &Metadata::default()).unwrap();
        let expected = expected(graph, seed);
        assert_eq!(outcome.verdict, expected, "{graph:#?}\n{structured:#?}");
        expected != Verdict::Aborted
    }

    #[test]
    fn emitted_functions_follow_their_graphs() {
        let mut random = crate::testing::Random(11);
        let mut next = |below: usize| random.below(below as u64) as usize;
        let (mut flags, mut dispatches, mut ends, mut ended) = (0, 0, 0, 0);
        for round in 0..300 {
            let count = 2 + next(if round % 10 == 0 { 40 } else { 12 });
            let back = next(4);
            let mut to = |block: usize| match next(8) < back {
                true => next(count),
                false => block + 1 + next((count - block - 1).min(5)),
            };
            let mut successors: Vec<Vec<usize>> = (0..count - 1)
                .map(|block| match to(block) % 5 {
                    0 => vec![to(block)],
                    _ => vec![to(block), to(block)],
                })
                .collect();
            successors.push(Vec::new());
            let duplicated = (0..count).map(|_| next(2) == 0).collect();
            let graph = Graph { successors, duplicated };
            for structured in [
                structure(&graph).unwrap(),
                structure_with_limits(&graph, 1, 1).unwrap(),
                structure_with_limits(&graph, 3, 0).unwrap(),
            ] {
                flags += usize::from(structured.flags > 0);
                dispatches += usize::from(structured.dispatches > 0);
                ends += usize::from(structured.falls_through);
                ended += usize::from(check(&graph, &structured, round));
            }
        }
        assert!(flags > 200 && dispatches > 50 && ends > 200 && ended > 600, "{flags} {dispatches} {ends} {ended}");
    }

    #[test]
    fn dispatches_with_many_arms_select_the_right_one() {
        // Each block but the last leads to any other: all but the first are entries of one loop.
        let count = 12;
        let mut successors: Vec<Vec<usize>> =
            (0..count - 1).map(|i| vec![(i * 5 + 3) % count, (i * 7 + 4) % count]).collect();
        successors.push(Vec::new());
        let graph = Graph { duplicated: vec![false; count], successors };
        let structured = structure(&graph).unwrap();
        fn most(nodes: &[Node]) -> usize {
            let arms = |node: &Node| match node {
                Node::Dispatch { arms, .. } => arms.len().max(arms.iter().map(|arm| most(arm)).max().unwrap_or(0)),
                Node::Branch { arms, .. } => arms.iter().map(|arm| most(arm)).max().unwrap_or(0),
                Node::Loop(body) | Node::If { body, .. } => most(body),
                _ => 0,
            };
            nodes.iter().map(arms).max().unwrap_or(0)
        }
        assert!(most(&structured.body) > 2, "{structured:#?}");
        for seed in 0..20 {
            check(&graph, &structured, seed);
        }
    }

    #[test]
    fn an_infinite_loop_is_a_valid_function() {
        let graph = Graph { successors: vec![vec![0]], duplicated: vec![false] };
        assert!(!check(&graph, &structure(&graph).unwrap(), 1));
    }
}
