//! Size of a filter with every call inlined, which is what drivers compile and devices execute.

use naga::{Function, Module, Statement};

use crate::program::child_blocks;

/// Number of expressions of `root`, a function of the module or of an entry point, with every call
/// inlined.
///
/// Unlike the verifier's limit, which counts a call of the prelude and a 64-bit operation as one
/// expression each, this counts the lowered code.
pub fn inlined_size(module: &Module, root: &Function) -> u64 {
    // A function follows those it calls, so one pass over the module suffices.
    let mut sizes: Vec<u64> = Vec::with_capacity(module.functions.len());
    for (_, function) in module.functions.iter() {
        sizes.push(size(function, &sizes));
    }
    size(root, &sizes)
}

fn size(function: &Function, sizes: &[u64]) -> u64 {
    let mut size = function.expressions.len() as u64;
    let mut blocks = vec![&function.body];
    while let Some(block) = blocks.pop() {
        for statement in block.iter() {
            if let Statement::Call { function, .. } = statement {
                size = size.saturating_add(sizes[function.index()]);
            }
            blocks.extend(child_blocks(statement));
        }
    }
    size
}

#[cfg(test)]
mod tests {
    use naga::{Block, Expression, Literal, Span};

    use super::*;

    #[test]
    fn a_function_counts_once_per_call() {
        let mut module = Module::default();
        let expressions = |count| {
            let mut function = Function::default();
            for _ in 0..count {
                function.expressions.append(Expression::Literal(Literal::Bool(true)), Span::UNDEFINED);
            }
            function
        };
        let call = |function| Statement::Call { function, arguments: vec![], result: None };
        let block = |statements| Block::from_vec(statements);
        let inner = module.functions.append(expressions(7), Span::UNDEFINED);
        let mut twice = expressions(3);
        let condition = twice.expressions.iter().next().unwrap().0;
        let (accept, reject) = (block(vec![call(inner)]), block(vec![]));
        let (body, continuing) = (block(vec![Statement::If { condition, accept, reject }]), block(vec![call(inner)]));
        twice.body = block(vec![Statement::Loop { body, continuing, break_if: None }]);
        let mut last = module.functions.append(twice, Span::UNDEFINED);
        module.functions.append(expressions(1000), Span::UNDEFINED);
        let mut expected = 3 + 2 * 7;
        for depth in 0..70 {
            let mut root = expressions(5);
            root.body = block(vec![call(last), Statement::Block(block(vec![call(inner)]))]);
            assert_eq!(inlined_size(&module, &root), u64::saturating_add(expected, 5 + 7), "{depth}");
            let mut outer = expressions(1);
            outer.body = block(vec![call(last), call(last)]);
            last = module.functions.append(outer, Span::UNDEFINED);
            expected = expected.saturating_mul(2).saturating_add(1);
        }
        assert_eq!(expected, u64::MAX);
    }
}
