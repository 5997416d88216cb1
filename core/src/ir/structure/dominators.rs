//! Dominator tree and loop nesting of a reducible graph.

use super::reducible_graph::Flow;

/// Dominators and loops of a reducible graph.
pub(super) struct Dominators {
    /// The reachable blocks in reverse post-order.
    pub order: Vec<usize>,
    /// Position of each block in `order`; `usize::MAX` if it is unreachable.
    positions: Vec<usize>,
    immediate: Vec<usize>,
    /// Number of incoming edges of each block, back edges aside.
    forward_edges: Vec<usize>,
    /// Header of the innermost loop that contains a block; a header is in its own loop.
    innermost_loop: Vec<Option<usize>>,
    /// Header of the loop around the one that a block heads.
    enclosing_loop: Vec<Option<usize>>,
}

impl Dominators {
    /// Computes dominators by the iterative algorithm of Cooper, Harvey and Kennedy, "A Simple,
    /// Fast Dominance Algorithm" (2001).
    pub fn of(flow: &Flow) -> Dominators {
        let order = post_order(flow).into_iter().rev().collect::<Vec<_>>();
        let count = flow.successors.len();
        let mut positions = vec![usize::MAX; count];
        order.iter().enumerate().for_each(|(position, &block)| positions[block] = position);
        let mut predecessors = vec![Vec::new(); count];
        for &block in &order {
            flow.successors[block].iter().for_each(|edge| predecessors[edge.to].push(block));
        }
        let entry = flow.entry.to;
        let mut immediate = vec![usize::MAX; count];
        immediate[entry] = entry;
        let mut changed = true;
        while changed {
            changed = false;
            for &block in order.iter().skip(1) {
                let known = predecessors[block].iter().copied().filter(|&it| immediate[it] != usize::MAX);
                let common_dominator = known.reduce(|a, b| common_dominator(&immediate, &positions, a, b));
                let common_dominator = common_dominator.expect("a block's first predecessor in this order is known");
                changed |= std::mem::replace(&mut immediate[block], common_dominator) != common_dominator;
            }
        }
        let mut it = Dominators {
            forward_edges: vec![0; count],
            innermost_loop: vec![None; count],
            enclosing_loop: vec![None; count],
            order,
            positions,
            immediate,
        };
        it.find_loops(&predecessors);
        it
    }

    fn find_loops(&mut self, predecessors: &[Vec<usize>]) {
        // Inner loops first: a header dominates the headers of the loops inside, and precedes them
        // in `order`.
        for &head in self.order.clone().iter().rev() {
            let (back, forward): (Vec<_>, Vec<_>) =
                predecessors[head].iter().partition(|&&from| self.dominates(head, from));
            self.forward_edges[head] = forward.len();
            if back.is_empty() {
                continue;
            }
            let mut work = back;
            self.innermost_loop[head] = Some(head);
            while let Some(block) = work.pop() {
                let outermost = self.loops_of(block).last();
                match outermost {
                    Some(own) if own == head => {}
                    Some(inner) => {
                        self.enclosing_loop[inner] = Some(head);
                        work.extend(&predecessors[inner]);
                    }
                    None => {
                        self.innermost_loop[block] = Some(head);
                        work.extend(&predecessors[block]);
                    }
                }
            }
        }
    }

    fn dominates(&self, who: usize, whom: usize) -> bool {
        let mut at = whom;
        while self.positions[at] > self.positions[who] {
            at = self.immediate[at];
        }
        at == who
    }

    /// The immediate dominator of a block; `None` for the entry and unreachable blocks.
    pub fn immediate_dominator(&self, block: usize) -> Option<usize> {
        let dominator = self.immediate[block];
        (dominator != block && dominator != usize::MAX).then_some(dominator)
    }

    /// Position in reverse post-order.
    pub fn position(&self, block: usize) -> usize {
        self.positions[block]
    }

    /// Number of incoming edges, back edges aside.
    pub fn forward_edges_into(&self, block: usize) -> usize {
        self.forward_edges[block]
    }

    /// Whether the block is a loop header.
    pub fn is_head(&self, block: usize) -> bool {
        self.innermost_loop[block] == Some(block)
    }

    /// Headers of the loops that contain a block, innermost first.
    pub fn loops_of(&self, block: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(self.innermost_loop[block], |&head| self.enclosing_loop[head])
    }

    /// Whether the block is in the loop with this header.
    pub fn in_loop(&self, block: usize, head: usize) -> bool {
        self.loops_of(block).any(|it| it == head)
    }

    /// Number of loops that contain the block.
    pub fn loops_around(&self, block: usize) -> usize {
        self.loops_of(block).count()
    }
}

fn common_dominator(immediate: &[usize], positions: &[usize], mut a: usize, mut b: usize) -> usize {
    while a != b {
        while positions[a] > positions[b] {
            a = immediate[a];
        }
        while positions[b] > positions[a] {
            b = immediate[b];
        }
    }
    a
}

fn post_order(flow: &Flow) -> Vec<usize> {
    let (mut order, mut seen) = (Vec::new(), vec![false; flow.successors.len()]);
    let mut work = vec![(flow.entry.to, 0)];
    seen[flow.entry.to] = true;
    while let Some((block, next)) = work.last_mut() {
        match flow.successors[*block].get(*next) {
            Some(edge) => {
                *next += 1;
                if !std::mem::replace(&mut seen[edge.to], true) {
                    work.push((edge.to, 0));
                }
            }
            None => {
                order.push(*block);
                work.pop();
            }
        }
    }
    order
}
