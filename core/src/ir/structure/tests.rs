//! Compares structured statements with the graph that they were made from: both must visit the same
//! blocks.

use super::*;

/// The arm that a block takes on its `visit`th visit.
fn chosen_arm(seed: u64, block: usize, visit: usize, arms: usize) -> usize {
    let mut x = seed ^ (block as u64) << 32 ^ visit as u64;
    for _ in 0..3 {
        x = (x ^ x >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    (x >> 40) as usize % arms
}

/// The first `most` blocks on the path through the graph.
fn path(graph: &Graph, seed: u64, most: usize) -> Vec<usize> {
    let (mut trace, mut visits) = (vec![0], vec![0; graph.successors.len()]);
    while trace.len() < most {
        let block = trace[trace.len() - 1];
        let arms = &graph.successors[block];
        if arms.is_empty() {
            break;
        }
        visits[block] += 1;
        trace.push(arms[chosen_arm(seed, block, visits[block], arms.len())]);
    }
    trace
}

/// How control leaves a list of statements.
#[derive(PartialEq)]
enum Exit {
    FallThrough,
    Break,
    Continue,
    Return,
}

struct Run<'a> {
    graph: &'a Graph,
    seed: u64,
    most: usize,
    trace: Vec<usize>,
    visits: Vec<usize>,
    flags: Vec<bool>,
    labels: Vec<usize>,
    kept: bool,
}

impl Run<'_> {
    fn all(&mut self, nodes: &[Node]) -> Exit {
        for node in nodes {
            if self.trace.len() >= self.most {
                return Exit::Return;
            }
            let exit = self.one(node);
            if exit != Exit::FallThrough {
                return exit;
            }
        }
        Exit::FallThrough
    }

    fn one(&mut self, node: &Node) -> Exit {
        match node {
            Node::Block(block) => {
                // A block without a branch is not asked for an arm.
                assert!(!self.kept, "no block runs after the end of the function");
                self.trace.push(*block);
                self.visits[*block] += 1;
                Exit::FallThrough
            }
            Node::Branch { block, arms } => {
                assert_eq!(self.trace.last(), Some(block), "a branch follows its block");
                let arm = chosen_arm(self.seed, *block, self.visits[*block], arms.len());
                self.all(&arms[arm])
            }
            Node::Return(block) => {
                assert_eq!(self.trace.last(), Some(block));
                Exit::Return
            }
            Node::SetResult(block) => {
                assert_eq!(self.trace.last(), Some(block));
                self.kept = true;
                Exit::FallThrough
            }
            Node::SetFlag(flag, value) => {
                self.flags[*flag] = *value;
                Exit::FallThrough
            }
            Node::If { flag, set, body } if self.flags[*flag] == *set => self.all(body),
            Node::If { .. } => Exit::FallThrough,
            Node::Loop(body) => loop {
                match self.all(body) {
                    Exit::FallThrough => panic!("control reached the end of a loop body"),
                    Exit::Break => return Exit::FallThrough,
                    Exit::Continue => {}
                    Exit::Return => return Exit::Return,
                }
            },
            Node::Break => Exit::Break,
            Node::Continue => Exit::Continue,
            Node::SetLabel { dispatch, arm } => {
                self.labels[*dispatch] = *arm;
                Exit::FallThrough
            }
            Node::Dispatch { dispatch, arms } => self.all(&arms[self.labels[*dispatch]]),
        }
    }
}

fn deepest(nodes: &[Node], depth: usize) -> usize {
    let inner = nodes.iter().map(|node| match node {
        Node::Branch { arms, .. } | Node::Dispatch { arms, .. } => {
            arms.iter().map(|arm| deepest(arm, depth + 1)).max().unwrap_or(depth)
        }
        Node::If { body, .. } => deepest(body, depth + 1),
        Node::Loop(body) => deepest(body, 0),
        _ => depth,
    });
    inner.max().unwrap_or(depth).max(depth)
}

/// Compares a graph's structured statements with the graph, and returns them.
#[track_caller]
fn check(graph: &Graph) -> Structured {
    for (deepest, returns) in [(0, 0), (1, 1), (3, 2)] {
        check_paths(graph, &structure_with_limits(graph, deepest, returns).unwrap());
    }
    let structured = structure(graph).unwrap();
    check_paths(graph, &structured);
    structured
}

#[track_caller]
fn check_paths(graph: &Graph, structured: &Structured) {
    for seed in 0..40 {
        let most = 300;
        let expected = path(graph, seed, most);
        let count = graph.successors.len();
        let mut run = Run {
            graph,
            seed,
            most,
            trace: Vec::new(),
            visits: vec![0; count],
            flags: vec![false; structured.flags],
            labels: vec![usize::MAX; structured.dispatches],
            kept: false,
        };
        let exit = run.all(&structured.body);
        assert_eq!(run.trace, expected, "{graph:#?}\n{structured:#?}");
        if expected.len() < most {
            assert!(run.graph.successors[*expected.last().unwrap()].is_empty());
            assert!(exit == Exit::Return || run.kept && structured.falls_through, "{structured:#?}");
        }
    }
}

fn graph(successors: &[&[usize]]) -> Graph {
    let successors: Vec<Vec<usize>> = successors.iter().map(|it| it.to_vec()).collect();
    Graph { duplicated: vec![false; successors.len()], successors }
}

#[test]
fn blocks_nest_with_one_predecessor_and_follow_with_several() {
    let structured = check(&graph(&[&[1, 2], &[3], &[3], &[]]));
    use Node::{Block, Branch, Return};
    let arms = vec![vec![Block(1)], vec![Block(2)]];
    assert_eq!(structured.body, [Block(0), Branch { block: 0, arms }, Block(3), Return(3)]);
    assert_eq!((structured.flags, structured.dispatches, structured.falls_through), (0, 0, false));
}

#[test]
fn early_exits_do_not_nest() {
    // Forty checks that each continue or jump to a common, duplicated end.
    let mut successors: Vec<Vec<usize>> = (0..40).map(|i| vec![41, i + 1]).collect();
    successors.extend([vec![], vec![]]);
    let mut graph = Graph { duplicated: vec![false; successors.len()], successors };
    graph.duplicated[41] = true;
    let structured = check(&graph);
    assert!(structured.falls_through && structured.flags <= 4, "{structured:#?}");
    // If it is not duplicated, one flag suffices.
    graph.duplicated[41] = false;
    let structured = check(&graph);
    assert!(deepest(&structured.body, 0) <= MAX_BRANCH_DEPTH + 1, "{structured:#?}");
}

#[test]
fn plain_loops_need_no_flags() {
    use Node::{Block, Branch, Break, Continue, Loop, Return};
    // A `while` loop.
    let structured = check(&graph(&[&[1], &[2, 3], &[1], &[]]));
    assert_eq!(
        structured.body,
        [
            Block(0),
            Loop(vec![Block(1), Branch { block: 1, arms: vec![vec![], vec![Break]] }, Block(2), Continue]),
            Block(3),
            Return(3)
        ]
    );
    // A `do` loop with a break in the middle.
    let structured = check(&graph(&[&[1], &[3, 2], &[1, 3], &[]]));
    assert_eq!((structured.flags, structured.dispatches), (0, 0));
    // A loop of one block.
    check(&graph(&[&[0, 1], &[]]));
    // An infinite loop.
    check(&graph(&[&[0]]));
}

#[test]
fn inner_loops_may_continue_outer_ones() {
    let structured = check(&graph(&[&[1], &[2], &[2, 3, 1], &[1, 4, 0], &[5, 2], &[]]));
    assert_eq!(structured.dispatches, 0);
}

#[test]
fn loops_with_two_entries_get_a_dispatch() {
    let structured = check(&graph(&[&[1, 2], &[2, 3], &[1], &[]]));
    assert_eq!(structured.dispatches, 1);
    // The entry block is one of the loop's entries.
    assert_eq!(check(&graph(&[&[1, 3], &[2], &[0, 1], &[2, 4], &[]])).dispatches, 1);
    // One irreducible loop inside another.
    check(&graph(&[&[1, 4], &[2, 3], &[3, 5], &[2, 4], &[1, 3], &[]]));
}

#[test]
fn unreachable_blocks_are_no_loop_entries() {
    let structured = check(&graph(&[&[1], &[2, 4], &[1, 4], &[2], &[]]));
    assert_eq!(structured.dispatches, 0);
}

#[test]
fn random_graphs_keep_their_paths() {
    let mut random = crate::testing::Random(7);
    let mut next = |below: usize| random.below(below as u64) as usize;
    let (mut irreducible, mut flagged) = (0, 0);
    for round in 0..3_000 {
        let count = 2 + next(if round % 10 == 0 { 60 } else { 14 });
        // From forward edges only to edges anywhere.
        let back = next(4);
        let successors: Vec<Vec<usize>> = (0..count)
            .map(|block| {
                if block + 1 == count {
                    return Vec::new();
                }
                let mut to = || {
                    let is_back = next(8) < back;
                    if is_back { next(count) } else { block + 1 + next((count - block - 1).min(6)) }
                };
                match to() % 5 {
                    0 => vec![to()],
                    1 if back > 2 => vec![to(), to(), to()],
                    _ => vec![to(), to()],
                }
            })
            .collect();
        let duplicated = (0..count).map(|_| next(2) == 0).collect();
        let structured = check(&Graph { successors, duplicated });
        irreducible += usize::from(structured.dispatches > 0);
        flagged += usize::from(structured.flags > 0);
    }
    assert!(irreducible > 100 && flagged > 500, "{irreducible} {flagged}");
}

#[test]
fn branch_depth_is_bounded() {
    // Each block leads on, or to one far behind, so none can follow the block before it.
    let successors: Vec<Vec<usize>> = (0..400)
        .map(|i| match i {
            0..200 => vec![i + 1, 399 - i],
            399 => Vec::new(),
            _ => vec![i + 1],
        })
        .collect();
    let structured = check(&Graph { duplicated: vec![false; 400], successors });
    assert!(deepest(&structured.body, 0) <= 2 * MAX_BRANCH_DEPTH, "{}", deepest(&structured.body, 0));
}

#[test]
fn loop_depth_is_limited() {
    let nested = |depth: usize| {
        let mut successors: Vec<Vec<usize>> = (0..depth).map(|i| vec![i + 1]).collect();
        successors.extend((0..depth).map(|i| vec![depth - 1 - i, depth + i + 1]));
        successors.push(Vec::new());
        Graph { duplicated: vec![false; successors.len()], successors }
    };
    check(&nested(MAX_LOOP_DEPTH));
    assert_eq!(structure(&nested(MAX_LOOP_DEPTH + 1)).unwrap_err(), TooDeep);
    assert_eq!(structure(&nested(5_000)).unwrap_err(), TooDeep);
}
