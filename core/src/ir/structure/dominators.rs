//! Who must be passed on the way to whom, and which blocks are a loop's.

use super::reducible_graph::Flow;

/// Of a reducible graph.
pub(super) struct Dominators {
    /// The blocks that are reached, in reverse post-order.
    pub order: Vec<usize>,
    /// Where in that order a block is; `usize::MAX` where it is not reached.
    positions: Vec<usize>,
    immediate: Vec<usize>,
    /// Edges that lead forward to a block.
    edges: Vec<usize>,
    /// The block that begins the innermost loop around a block, or the block itself where it begins one.
    innermost: Vec<Option<usize>>,
    /// The same of the loop around the one that a block begins.
    around: Vec<Option<usize>>,
}

impl Dominators {
    /// By Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm".
    pub fn of(flow: &Flow) -> Dominators {
        let order = post_order(flow).into_iter().rev().collect::<Vec<_>>();
        let count = flow.successors.len();
        let mut positions = vec![usize::MAX; count];
        order.iter().enumerate().for_each(|(position, &block)| positions[block] = position);
        let mut before = vec![Vec::new(); count];
        for &block in &order {
            flow.successors[block].iter().for_each(|edge| before[edge.to].push(block));
        }
        let entry = flow.entry.to;
        let mut immediate = vec![usize::MAX; count];
        immediate[entry] = entry;
        let mut changed = true;
        while changed {
            changed = false;
            for &block in order.iter().skip(1) {
                let known = before[block].iter().copied().filter(|&it| immediate[it] != usize::MAX);
                let common = known.reduce(|a, b| common(&immediate, &positions, a, b));
                let common = common.expect("a block's first predecessor in this order is known");
                changed |= std::mem::replace(&mut immediate[block], common) != common;
            }
        }
        let mut it = Dominators {
            edges: vec![0; count],
            innermost: vec![None; count],
            around: vec![None; count],
            order,
            positions,
            immediate,
        };
        it.find_loops(&before);
        it
    }

    fn find_loops(&mut self, before: &[Vec<usize>]) {
        // Those inside first: a loop's head dominates those of the loops in it, and stands before them.
        for &head in self.order.clone().iter().rev() {
            let (back, forward): (Vec<_>, Vec<_>) = before[head].iter().partition(|&&from| self.dominates(head, from));
            self.edges[head] = forward.len();
            if back.is_empty() {
                continue;
            }
            let mut work = back;
            self.innermost[head] = Some(head);
            while let Some(block) = work.pop() {
                let outermost = self.loops_of(block).last();
                match outermost {
                    Some(own) if own == head => {}
                    Some(inner) => {
                        self.around[inner] = Some(head);
                        work.extend(&before[inner]);
                    }
                    None => {
                        self.innermost[block] = Some(head);
                        work.extend(&before[block]);
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

    /// The last block that must be passed on the way to this one.
    pub fn immediate(&self, block: usize) -> Option<usize> {
        let dominator = self.immediate[block];
        (dominator != block && dominator != usize::MAX).then_some(dominator)
    }

    /// Where in reverse post-order it stands.
    pub fn position(&self, block: usize) -> usize {
        self.positions[block]
    }

    /// How many edges lead to it, but for those of its own loop.
    pub fn edges_into(&self, block: usize) -> usize {
        self.edges[block]
    }

    /// Whether it begins a loop.
    pub fn is_head(&self, block: usize) -> bool {
        self.innermost[block] == Some(block)
    }

    /// The heads of the loops that a block is in, from the innermost on.
    pub fn loops_of(&self, block: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(self.innermost[block], |&head| self.around[head])
    }

    /// Whether it is in the loop of this head.
    pub fn in_loop(&self, block: usize, head: usize) -> bool {
        self.loops_of(block).any(|it| it == head)
    }

    /// How many loops it is in.
    pub fn loops_around(&self, block: usize) -> usize {
        self.loops_of(block).count()
    }
}

fn common(immediate: &[usize], positions: &[usize], mut a: usize, mut b: usize) -> usize {
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
