//! Structured statements against the graph that they were made of: both go the same way through the blocks.

use super::*;

/// Which way a block goes when it is come to for the `visit`th time.
fn chosen(seed: u64, block: usize, visit: usize, arms: usize) -> usize {
    let mut x = seed ^ (block as u64) << 32 ^ visit as u64;
    for _ in 0..3 {
        x = (x ^ x >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    (x >> 40) as usize % arms
}

/// The blocks that are come to, as far as `most`.
fn walk(graph: &Graph, seed: u64, most: usize) -> Vec<usize> {
    let (mut trace, mut visits) = (vec![0], vec![0; graph.successors.len()]);
    while trace.len() < most {
        let block = trace[trace.len() - 1];
        let arms = &graph.successors[block];
        if arms.is_empty() {
            break;
        }
        visits[block] += 1;
        trace.push(arms[chosen(seed, block, visits[block], arms.len())]);
    }
    trace
}

/// How control leaves a list of statements.
#[derive(PartialEq)]
enum Way {
    On,
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
    fn all(&mut self, nodes: &[Node]) -> Way {
        for node in nodes {
            if self.trace.len() >= self.most {
                return Way::Return;
            }
            let way = self.one(node);
            if way != Way::On {
                return way;
            }
        }
        Way::On
    }

    fn one(&mut self, node: &Node) -> Way {
        match node {
            Node::Block(block) => {
                // A block without a choice is not asked for one.
                assert!(!self.kept, "nothing runs behind the function's end");
                self.trace.push(*block);
                self.visits[*block] += 1;
                Way::On
            }
            Node::Branch { block, arms } => {
                assert_eq!(self.trace.last(), Some(block), "a branch stands behind its block");
                let arm = chosen(self.seed, *block, self.visits[*block], arms.len());
                self.all(&arms[arm])
            }
            Node::Return(block) => {
                assert_eq!(self.trace.last(), Some(block));
                Way::Return
            }
            Node::Keep(block) => {
                assert_eq!(self.trace.last(), Some(block));
                self.kept = true;
                Way::On
            }
            Node::Flag(flag, value) => {
                self.flags[*flag] = *value;
                Way::On
            }
            Node::If { flag, set, body } if self.flags[*flag] == *set => self.all(body),
            Node::If { .. } => Way::On,
            Node::Loop(body) => loop {
                match self.all(body) {
                    Way::On => panic!("a loop's body ends by itself"),
                    Way::Break => return Way::On,
                    Way::Continue => {}
                    Way::Return => return Way::Return,
                }
            },
            Node::Break => Way::Break,
            Node::Continue => Way::Continue,
            Node::Label { dispatch, arm } => {
                self.labels[*dispatch] = *arm;
                Way::On
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

/// Holds a graph's statements to the graph; gives the statements.
#[track_caller]
fn check(graph: &Graph) -> Structured {
    for (deepest, returns) in [(0, 0), (1, 1), (3, 2)] {
        go(graph, &within(graph, deepest, returns).unwrap());
    }
    let structured = structure(graph).unwrap();
    go(graph, &structured);
    structured
}

#[track_caller]
fn go(graph: &Graph, structured: &Structured) {
    for seed in 0..40 {
        let most = 300;
        let expected = walk(graph, seed, most);
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
        let way = run.all(&structured.body);
        assert_eq!(run.trace, expected, "{graph:#?}\n{structured:#?}");
        if expected.len() < most {
            assert!(run.graph.successors[*expected.last().unwrap()].is_empty());
            assert!(way == Way::Return || run.kept && structured.ends, "{structured:#?}");
        }
    }
}

fn graph(successors: &[&[usize]]) -> Graph {
    let successors: Vec<Vec<usize>> = successors.iter().map(|it| it.to_vec()).collect();
    Graph { copied: vec![false; successors.len()], successors }
}

#[test]
fn what_has_one_way_in_stands_there_and_what_has_several_behind() {
    let structured = check(&graph(&[&[1, 2], &[3], &[3], &[]]));
    use Node::{Block, Branch, Return};
    let arms = vec![vec![Block(1)], vec![Block(2)]];
    assert_eq!(structured.body, [Block(0), Branch { block: 0, arms }, Block(3), Return(3)]);
    assert_eq!((structured.flags, structured.dispatches, structured.ends), (0, 0, false));
}

#[test]
fn early_ends_nest_nothing() {
    // Forty checks that each go on or to a common end, which is copied.
    let mut successors: Vec<Vec<usize>> = (0..40).map(|i| vec![41, i + 1]).collect();
    successors.extend([vec![], vec![]]);
    let mut graph = Graph { copied: vec![false; successors.len()], successors };
    graph.copied[41] = true;
    let structured = check(&graph);
    assert!(structured.ends && structured.flags <= 4, "{structured:#?}");
    // Where it is led to, it is led to by one flag.
    graph.copied[41] = false;
    let structured = check(&graph);
    assert!(deepest(&structured.body, 0) <= DEEPEST + 1, "{structured:#?}");
}

#[test]
fn loops_go_round_without_flags() {
    use Node::{Block, Branch, Break, Continue, Loop, Return};
    // while
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
    // do, with a break in the middle
    let structured = check(&graph(&[&[1], &[3, 2], &[1, 3], &[]]));
    assert_eq!((structured.flags, structured.dispatches), (0, 0));
    // One block.
    check(&graph(&[&[0, 1], &[]]));
    // For ever.
    check(&graph(&[&[0]]));
}

#[test]
fn inner_loops_lead_to_outer_ones() {
    let structured = check(&graph(&[&[1], &[2], &[2, 3, 1], &[1, 4, 0], &[5, 2], &[]]));
    assert_eq!(structured.dispatches, 0);
}

#[test]
fn loops_with_two_entries_are_told_apart() {
    let structured = check(&graph(&[&[1, 2], &[2, 3], &[1], &[]]));
    assert_eq!(structured.dispatches, 1);
    // The first block is one of them.
    assert_eq!(check(&graph(&[&[1, 3], &[2], &[0, 1], &[2, 4], &[]])).dispatches, 1);
    // And one within another.
    check(&graph(&[&[1, 4], &[2, 3], &[3, 5], &[2, 4], &[1, 3], &[]]));
}

#[test]
fn what_is_not_reached_is_no_way_into_a_loop() {
    let structured = check(&graph(&[&[1], &[2, 4], &[1, 4], &[2], &[]]));
    assert_eq!(structured.dispatches, 0);
}

#[test]
fn random_graphs_go_the_same_way() {
    let mut state = 7_u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let (mut irreducible, mut flagged) = (0, 0);
    for round in 0..3_000 {
        let count = 2 + next(if round % 10 == 0 { 60 } else { 14 });
        // From only forward to anywhere.
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
        let copied = (0..count).map(|_| next(2) == 0).collect();
        let structured = check(&Graph { successors, copied });
        irreducible += usize::from(structured.dispatches > 0);
        flagged += usize::from(structured.flags > 0);
    }
    assert!(irreducible > 100 && flagged > 500, "{irreducible} {flagged}");
}

#[test]
fn branches_do_not_nest_without_end() {
    // Each block leads on, or to one far behind: none can stand behind the block before.
    let successors: Vec<Vec<usize>> = (0..400)
        .map(|i| match i {
            0..200 => vec![i + 1, 399 - i],
            399 => Vec::new(),
            _ => vec![i + 1],
        })
        .collect();
    let structured = check(&Graph { copied: vec![false; 400], successors });
    assert!(deepest(&structured.body, 0) <= 2 * DEEPEST, "{}", deepest(&structured.body, 0));
}

#[test]
fn loops_nest_only_so_deep() {
    let nested = |depth: usize| {
        let mut successors: Vec<Vec<usize>> = (0..depth).map(|i| vec![i + 1]).collect();
        successors.extend((0..depth).map(|i| vec![depth - 1 - i, depth + i + 1]));
        successors.push(Vec::new());
        Graph { copied: vec![false; successors.len()], successors }
    };
    check(&nested(MAX_LOOPS));
    assert_eq!(structure(&nested(MAX_LOOPS + 1)).unwrap_err(), TooDeep);
    assert_eq!(structure(&nested(5_000)).unwrap_err(), TooDeep);
}
