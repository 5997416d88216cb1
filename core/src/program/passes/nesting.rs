//! Nesting depth of branches, as seen by a compiler for a device without jumps.

use naga::{Block, Function, Module, Statement};

/// Nesting depth of branches and loops in `root`, a function of the module or of an entry point,
/// with every call inlined and all jumps turned into branches.
///
/// If lanes run in lockstep, the compiler structurises jumps: after `if a { return 1; }`, the rest
/// of the function moves into an `else`, so a hundred such statements in sequence nest a hundred
/// deep. Therefore each statement that may leave its block adds a level to all that follow it.
pub fn inlined_nesting(module: &Module, root: &Function) -> u64 {
    // A function follows those it calls, so one pass over the module suffices. Returns end in the
    // callee.
    let mut levels: Vec<u64> = Vec::with_capacity(module.functions.len());
    for (_, function) in module.functions.iter() {
        levels.push(block(&function.body, &levels).deepest);
    }
    block(&root.body, &levels).deepest
}

/// Depth and jumps of a statement or a sequence of statements.
#[derive(Debug, Clone, Copy, Default)]
struct Shape {
    deepest: u64,
    /// Which jumps may leave it.
    breaks: bool,
    continues: bool,
    returns: bool,
}

impl Shape {
    fn jumps(self) -> bool {
        self.breaks || self.continues || self.returns
    }

    /// The shape as part of a branch, `levels` deeper.
    fn inside(self, levels: u64) -> Shape {
        Shape { deepest: self.deepest.saturating_add(levels), ..self }
    }

    /// The shape of two alternatives.
    fn or(self, other: Shape) -> Shape {
        Shape {
            deepest: self.deepest.max(other.deepest),
            breaks: self.breaks || other.breaks,
            continues: self.continues || other.continues,
            returns: self.returns || other.returns,
        }
    }
}

/// The shape of a sequence.
fn sequence(shapes: impl Iterator<Item = Shape>) -> Shape {
    let (mut all, mut level) = (Shape::default(), 0);
    for shape in shapes {
        all = all.or(shape.inside(level));
        level += u64::from(shape.jumps());
    }
    all
}

fn block(statements: &Block, functions: &[u64]) -> Shape {
    sequence(statements.iter().map(|statement| shape(statement, functions)))
}

fn shape(statement: &Statement, functions: &[u64]) -> Shape {
    match statement {
        Statement::Block(inner) => block(inner, functions),
        Statement::If { accept, reject, .. } => block(accept, functions).or(block(reject, functions)).inside(1),
        // Each case is a branch, and the branches form a sequence.
        Statement::Switch { cases, .. } => {
            let cases = cases.iter().map(|case| Shape { breaks: false, ..block(&case.body, functions) });
            sequence(cases).inside(1)
        }
        Statement::Loop { body, continuing, .. } => {
            let once = sequence([block(body, functions), block(continuing, functions)].into_iter());
            Shape { breaks: false, continues: false, ..once }.inside(1)
        }
        Statement::Call { function, .. } => Shape { deepest: functions[function.index()], ..Shape::default() },
        Statement::Break => Shape { breaks: true, ..Shape::default() },
        Statement::Continue => Shape { continues: true, ..Shape::default() },
        Statement::Return { .. } | Statement::Kill => Shape { returns: true, ..Shape::default() },
        _ => Shape::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::program;

    /// Depth of a filter with this body and these helpers.
    fn levels(helpers: &str, body: &str) -> u64 {
        let text = format!("{helpers} fn xdp_filter(pkt: u32) -> u32 {{ var y = 3u; {body} return y; }}");
        let program = program(&text);
        inlined_nesting(program.module(), &program.module().functions[program.filter()])
    }

    #[test]
    fn code_behind_a_jump_nests_one_deeper() {
        for (body, expected) in [
            ("y = 4u;", 0),
            ("if y == 1u { y = 2u; }", 1),
            ("if y == 1u { y = 2u; } if y == 2u { y = 3u; }", 1),
            ("if y == 1u { return 2u; } if y == 2u { y = 3u; }", 2),
            ("if y == 1u { return 2u; } if y == 2u { return 3u; } if y == 3u { y++; } y++;", 3),
            ("if y == 1u { if y == 2u { return 1u; } if y == 3u { y++; } } if y == 4u { y++; }", 3),
            ("if y == 1u { y = 2u; } else if y == 2u { y = 3u; } else { y = 4u; }", 2),
            // Cases form a sequence, and a `break` ends only the `switch`.
            ("switch y { case 1u: { y = 2u; } case 2u: { y = 3u; } default: { y = 1u; } }", 1),
            ("switch y { case 1u: { return 2u; } case 2u: { return 3u; } default: { if y == 1u { y++; } } }", 4),
            ("switch y { case 1u: { if y == 1u { break; } if y == 2u { y++; } } default: {} } if y == 2u { y++; }", 3),
            // A loop's jumps end in it, except returns.
            ("loop { if y == 1u { break; } if y == 2u { y++; } } if y == 2u { y++; }", 3),
            ("loop { if y == 1u { continue; } if y == 2u { break; } if y == 3u { y++; } }", 4),
            ("loop { if y == 1u { return 2u; } break; } if y == 2u { y++; }", 2),
            ("{ if y == 1u { return 2u; } } if y == 2u { y++; }", 2),
        ] {
            assert_eq!(levels("", body), expected, "{body}");
        }
    }

    #[test]
    fn a_call_nests_like_its_body_without_its_returns() {
        let helpers = "fn f(a: u32) -> u32 { if a == 1u { return 2u; } if a == 2u { return 3u; } return a; }";
        assert_eq!(levels(helpers, "y = f(y); y = f(y);"), 2);
        assert_eq!(levels(helpers, "if y == 1u { y = f(y); }"), 3);
    }
}
