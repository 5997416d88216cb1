//! How deep branches stand in each other for a compiler whose device has no jumps.

use naga::{Block, Function, Module, Statement};

/// Levels of branches and loops in each other in `root`, a function of the module or an entry point's, with every
/// function inlined where it is called and nothing left that jumps.
///
/// Where lanes run in lockstep a compiler makes branches of jumps: behind `if a { return 1; }` the rest of the
/// function comes to stand in an `else`, and a hundred such statements one behind the other are a hundred branches in
/// each other. So all behind a statement that may leave its block stands one level deeper.
pub fn inlined_nesting(module: &Module, root: &Function) -> u64 {
    // A function stands behind those it calls, so one look at each is enough. Its returns stay inside of it.
    let mut levels: Vec<u64> = Vec::with_capacity(module.functions.len());
    for (_, function) in module.functions.iter() {
        levels.push(block(&function.body, &levels).deepest);
    }
    block(&root.body, &levels).deepest
}

/// What is said of one statement, or of several in a row.
#[derive(Debug, Clone, Copy, Default)]
struct Shape {
    deepest: u64,
    /// Which jumps may lead out of it.
    breaks: bool,
    continues: bool,
    returns: bool,
}

impl Shape {
    fn jumps(self) -> bool {
        self.breaks || self.continues || self.returns
    }

    /// The same as part of a branch, `levels` deeper.
    fn inside(self, levels: u64) -> Shape {
        Shape { deepest: self.deepest.saturating_add(levels), ..self }
    }

    /// Either of two.
    fn or(self, other: Shape) -> Shape {
        Shape {
            deepest: self.deepest.max(other.deepest),
            breaks: self.breaks || other.breaks,
            continues: self.continues || other.continues,
            returns: self.returns || other.returns,
        }
    }
}

/// One behind the other.
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
        // Each case is a branch, and they stand one behind the other.
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
    use crate::diagnostics::Source;
    use crate::program::ProgramOptions;
    use crate::testing as wgsl;

    /// Levels of a filter with this body and these helpers.
    fn levels(helpers: &str, body: &str) -> u64 {
        let text = format!("{helpers} fn xdp_filter(pkt: u32) -> u32 {{ var y = 3u; {body} return y; }}");
        let program = wgsl::compile(&Source::new("f.wgsl", text), &ProgramOptions::default());
        let program = program.unwrap_or_else(|errors| panic!("{}", errors.render()));
        inlined_nesting(program.module(), &program.module().functions[program.filter()])
    }

    #[test]
    fn what_stands_behind_a_jump_is_one_deeper() {
        for (body, expected) in [
            ("y = 4u;", 0),
            ("if y == 1u { y = 2u; }", 1),
            ("if y == 1u { y = 2u; } if y == 2u { y = 3u; }", 1),
            ("if y == 1u { return 2u; } if y == 2u { y = 3u; }", 2),
            ("if y == 1u { return 2u; } if y == 2u { return 3u; } if y == 3u { y++; } y++;", 3),
            ("if y == 1u { if y == 2u { return 1u; } if y == 3u { y++; } } if y == 4u { y++; }", 3),
            ("if y == 1u { y = 2u; } else if y == 2u { y = 3u; } else { y = 4u; }", 2),
            // Cases stand one behind the other, and a `break` ends the `switch` alone.
            ("switch y { case 1u: { y = 2u; } case 2u: { y = 3u; } default: { y = 1u; } }", 1),
            ("switch y { case 1u: { return 2u; } case 2u: { return 3u; } default: { if y == 1u { y++; } } }", 4),
            ("switch y { case 1u: { if y == 1u { break; } if y == 2u { y++; } } default: {} } if y == 2u { y++; }", 3),
            // The jumps of a loop stay in it, but for returns.
            ("loop { if y == 1u { break; } if y == 2u { y++; } } if y == 2u { y++; }", 3),
            ("loop { if y == 1u { continue; } if y == 2u { break; } if y == 3u { y++; } }", 4),
            ("loop { if y == 1u { return 2u; } break; } if y == 2u { y++; }", 2),
            ("{ if y == 1u { return 2u; } } if y == 2u { y++; }", 2),
        ] {
            assert_eq!(levels("", body), expected, "{body}");
        }
    }

    #[test]
    fn a_call_counts_as_its_body_whose_returns_end_there() {
        let helpers = "fn f(a: u32) -> u32 { if a == 1u { return 2u; } if a == 2u { return 3u; } return a; }";
        assert_eq!(levels(helpers, "y = f(y); y = f(y);"), 2);
        assert_eq!(levels(helpers, "if y == 1u { y = f(y); }"), 3);
    }
}
