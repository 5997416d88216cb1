//! Structured nodes as naga's statements. What a block does, where it goes and what it returns is the front end's: it is
//! asked through [`Blocks`].
//!
//! Flags are `bool` variables, the labels of dispatches `u32` variables, and so is what is kept for the end. All are variables
//! of the function, which begin at zero.

use naga::{BinaryOperator, Expression, Handle, Module, Scalar, Span, Statement, Type, TypeInner, UnaryOperator};

use super::{Node, Structured};
use crate::ir::builder::{Builder, Value};

/// What a graph's blocks are, for the language that they are of.
///
/// A block that is copied is asked about as often as it stands somewhere, each time for statements of its own: a value made
/// for one of them does not exist in another. [`condition`](Blocks::condition) and [`result`](Blocks::result) are asked for
/// directly behind [`block`](Blocks::block) of the same block, in the same list of statements.
pub trait Blocks {
    /// A block's own statements.
    fn block(&mut self, b: &mut Builder, block: usize);

    /// Whether a block with two successors goes on to the first: a `bool`.
    fn condition(&mut self, b: &mut Builder, block: usize) -> Value;

    /// What a block without successors returns: a `u32`.
    fn result(&mut self, b: &mut Builder, block: usize) -> Value;

    /// One of the numbers that are returned, for where it must not matter which: what is kept for the end is this at first. Who
    /// looks at the function then sees no other number there.
    fn any_result(&self) -> u32 {
        0
    }
}

/// The types of the variables that are made here.
#[derive(Debug, Clone, Copy)]
pub struct Types {
    pub bool: Handle<Type>,
    pub u32: Handle<Type>,
}

impl Types {
    /// Those of a module, which gets them where it lacks them.
    pub fn of(module: &mut Module) -> Types {
        let mut scalar = |scalar| {
            let ty = Type { name: None, inner: TypeInner::Scalar(scalar) };
            module.types.insert(ty, Span::UNDEFINED)
        };
        Types { bool: scalar(Scalar::BOOL), u32: scalar(Scalar::U32) }
    }
}

/// Writes a function's statements to the end of what the builder has; the last is a return.
pub fn emit(structured: &Structured, types: Types, b: &mut Builder, blocks: &mut dyn Blocks) {
    let flags = (0..structured.flags).map(|_| b.local(Some("flag"), types.bool)).collect();
    let labels = (0..structured.dispatches).map(|_| b.local(Some("label"), types.u32)).collect();
    let kept = structured.ends.then(|| b.local(Some("kept"), types.u32));
    if let (Some(kept), any @ 1..) = (kept, blocks.any_result()) {
        let any = b.u32(any);
        b.store(kept, any);
    }
    let mut emitter = Emitter { b, blocks, flags, labels, kept };
    emitter.all(&structured.body);
    if !b.leaves() {
        // Where nothing is kept, control does not come here: it goes round a loop for ever.
        let value = match kept {
            Some(kept) => b.load(kept),
            None => b.u32(0),
        };
        b.push(Statement::Return { value: Some(value) });
    }
}

struct Emitter<'a> {
    b: &'a mut Builder,
    blocks: &'a mut dyn Blocks,
    /// Pointers to variables, by number.
    flags: Vec<Value>,
    labels: Vec<Value>,
    kept: Option<Value>,
}

impl Emitter<'_> {
    fn all(&mut self, nodes: &[Node]) {
        nodes.iter().for_each(|node| self.one(node));
    }

    fn one(&mut self, node: &Node) {
        match node {
            Node::Block(block) => self.blocks.block(self.b, *block),
            // Where no arm does anything, there is nothing to decide.
            Node::Branch { arms, .. } if arms.iter().all(Vec::is_empty) => {}
            Node::Branch { block, arms } => match arms.as_slice() {
                [first, second] => {
                    let condition = self.blocks.condition(self.b, *block);
                    if first.is_empty() {
                        // As one would write it.
                        let condition = self.b.unary(UnaryOperator::LogicalNot, condition);
                        self.either(condition, |it| it.all(second), |_| ());
                    } else {
                        self.either(condition, |it| it.all(first), |it| it.all(second));
                    }
                }
                // One successor is no branch; more are taken in no front end.
                _ => unreachable!("a branch of {} arms", arms.len()),
            },
            Node::Return(block) => {
                let value = self.blocks.result(self.b, *block);
                self.b.push(Statement::Return { value: Some(value) });
            }
            Node::Keep(block) => {
                let value = self.blocks.result(self.b, *block);
                let kept = self.kept.expect("what keeps a value comes to the end");
                self.b.store(kept, value);
            }
            Node::Flag(flag, value) => {
                let value = self.b.literal(naga::Literal::Bool(*value));
                self.b.store(self.flags[*flag], value);
            }
            Node::If { flag, set, body } => {
                let mut condition = self.b.load(self.flags[*flag]);
                if !set {
                    condition = self.b.unary(UnaryOperator::LogicalNot, condition);
                }
                self.either(condition, |it| it.all(body), |_| ());
            }
            Node::Loop(body) => {
                let body = self.inside(|it| it.all(body));
                self.b.push(Statement::Loop { body, continuing: naga::Block::new(), break_if: None });
            }
            Node::Break => self.b.push(Statement::Break),
            Node::Continue => self.b.push(Statement::Continue),
            Node::Label { dispatch, arm } => {
                let arm = self.b.u32(*arm as u32);
                self.b.store(self.labels[*dispatch], arm);
            }
            Node::Dispatch { dispatch, arms } => {
                // An arm may say where the next round goes: the label is read once.
                let label = self.b.load(self.labels[*dispatch]);
                self.dispatch(label, 0, arms);
            }
        }
    }

    /// One of some arms, whose labels begin with `first`. In halves and not by a `switch`, whose `break` would be another.
    fn dispatch(&mut self, label: Value, first: usize, arms: &[Vec<Node>]) {
        match arms {
            [] => {}
            [only] => self.all(only),
            _ => {
                let (low, high) = arms.split_at(arms.len() / 2);
                let middle = first + low.len();
                let bound = self.b.u32(middle as u32);
                let condition = self.b.add(Expression::Binary { op: BinaryOperator::Less, left: label, right: bound });
                self.either(condition, |it| it.dispatch(label, first, low), |it| it.dispatch(label, middle, high));
            }
        }
    }

    fn either(&mut self, condition: Value, accept: impl FnOnce(&mut Self), reject: impl FnOnce(&mut Self)) {
        let accept = self.inside(accept);
        let reject = self.inside(reject);
        self.b.push(Statement::If { condition, accept, reject });
    }

    fn inside(&mut self, statements: impl FnOnce(&mut Self)) -> naga::Block {
        self.b.open();
        statements(self);
        self.b.close()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use naga::{FunctionArgument, FunctionResult};

    use super::super::{Graph, structure, within};
    use super::*;
    use crate::diagnostics::Source;
    use crate::interp::Interpreter;
    use crate::packet::{Metadata, Verdict};
    use crate::program::{DEFAULT_FUEL, Program, ProgramOptions};
    use crate::program::{FILTER_FUNCTION, prelude};

    /// What each block makes of the way so far.
    const FACTOR: u32 = 0x9e37_79b1;

    /// Blocks that mix their number into a state, go on as its highest bit says, and return it.
    struct Mixing {
        state: Value,
    }

    impl Blocks for Mixing {
        fn block(&mut self, b: &mut Builder, block: usize) {
            let state = b.load(self.state);
            let sum = {
                let number = b.u32(block as u32 + 1);
                b.sum(state, number)
            };
            let product = b.times(sum, FACTOR);
            b.store(self.state, product);
        }

        fn condition(&mut self, b: &mut Builder, _block: usize) -> Value {
            let (state, half) = (b.load(self.state), b.u32(1 << 31));
            b.binary(BinaryOperator::GreaterEqual, state, half)
        }

        fn result(&mut self, b: &mut Builder, block: usize) -> Value {
            // As much of both as a redirect's target can hold.
            let (state, mask, number) = (b.load(self.state), b.u32(0xffff_0000), b.u32((block as u32) << 8 | 4));
            let state = b.binary(BinaryOperator::And, state, mask);
            b.binary(BinaryOperator::InclusiveOr, state, number)
        }
    }

    fn program(structured: &Structured, seed: u32) -> Program {
        let mut module = prelude::module(&[], "");
        let types = Types::of(&mut module);
        let mut b = Builder::default();
        b.function.name = Some(FILTER_FUNCTION.to_owned());
        b.function.arguments.push(FunctionArgument { name: Some("pkt".to_owned()), ty: types.u32, binding: None });
        b.function.result = Some(FunctionResult { ty: types.u32, binding: None });
        let state = b.local(Some("state"), types.u32);
        let seed = b.u32(seed);
        b.store(state, seed);
        emit(structured, types, &mut b, &mut Mixing { state });
        module.functions.append(b.finish(), Span::UNDEFINED);
        Program::new(&Source::new("graph", ""), module, Vec::new(), &ProgramOptions::default())
            .unwrap_or_else(|errors| panic!("{}\n{structured:#?}", errors.render()))
    }

    fn expected(graph: &Graph, mut state: u32) -> Verdict {
        let mut block = 0;
        // A round of a loop has at least one block in it.
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

    /// Holds a graph's function to the graph; whether it came to an end.
    #[track_caller]
    fn check(graph: &Graph, structured: &Structured, seed: u32) -> bool {
        let interpreter = Interpreter::new(&Arc::new(program(structured, seed))).unwrap();
        let outcome = interpreter.run(&[], &Metadata::default()).unwrap();
        let expected = expected(graph, seed);
        assert_eq!(outcome.verdict, expected, "{graph:#?}\n{structured:#?}");
        expected != Verdict::Aborted
    }

    #[test]
    fn functions_go_as_their_graphs_do() {
        let mut state = 11_u64;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
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
            let copied = (0..count).map(|_| next(2) == 0).collect();
            let graph = Graph { successors, copied };
            for structured in [structure(&graph).unwrap(), within(&graph, 1, 1).unwrap(), within(&graph, 3, 0).unwrap()]
            {
                flags += usize::from(structured.flags > 0);
                dispatches += usize::from(structured.dispatches > 0);
                ends += usize::from(structured.ends);
                ended += usize::from(check(&graph, &structured, round));
            }
        }
        assert!(flags > 200 && dispatches > 50 && ends > 200 && ended > 600, "{flags} {dispatches} {ends} {ended}");
    }

    #[test]
    fn a_dispatch_may_have_many_arms() {
        // Each block but the last leads to any other: all but the first are entries of one loop.
        let count = 12;
        let mut successors: Vec<Vec<usize>> =
            (0..count - 1).map(|i| vec![(i * 5 + 3) % count, (i * 7 + 4) % count]).collect();
        successors.push(Vec::new());
        let graph = Graph { copied: vec![false; count], successors };
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
    fn what_never_ends_is_a_function_all_the_same() {
        let graph = Graph { successors: vec![vec![0]], copied: vec![false] };
        assert!(!check(&graph, &structure(&graph).unwrap(), 1));
    }
}
