//! Makes a control-flow graph reducible: a loop with several entries gets a *dispatch* block in
//! front of them, which is entered with the number of the entry to take.

use super::{Edge, Graph, MAX_LOOP_DEPTH, TooDeep};

/// A reducible graph: the blocks of the original graph, followed by the dispatches.
pub(super) struct Flow {
    pub successors: Vec<Vec<Edge>>,
    pub entry: Edge,
}

/// Makes a graph reducible by giving each strongly connected component, recursively, a single
/// entry.
pub(super) fn make_reducible(graph: &Graph) -> Result<Flow, TooDeep> {
    let edges = |to: &Vec<usize>| to.iter().map(|&to| Edge { to, arm: None }).collect();
    let mut flow = Flow { successors: graph.successors.iter().map(edges).collect(), entry: Edge { to: 0, arm: None } };
    let reachable_blocks = reachable(&flow);
    // Cut the edges of unreachable blocks: they would count as entries to loops.
    let mut leads = vec![false; flow.successors.len()];
    reachable_blocks.iter().for_each(|&block| leads[block] = true);
    flow.successors.iter_mut().zip(leads).filter(|(_, leads)| !leads).for_each(|(edges, _)| edges.clear());
    let mut work = vec![(reachable_blocks, 0)];
    while let Some((blocks, depth)) = work.pop() {
        if depth > MAX_LOOP_DEPTH {
            return Err(TooDeep);
        }
        for component in components(&flow, &blocks) {
            let rest = flow.enter_once(component);
            work.push((rest, depth + 1));
        }
    }
    Ok(flow)
}

impl Flow {
    /// Gives a loop a single entry, and returns the blocks in which to look for inner loops.
    fn enter_once(&mut self, component: Vec<usize>) -> Vec<usize> {
        let mut is_inside = vec![false; self.successors.len()];
        component.iter().for_each(|&block| is_inside[block] = true);
        let mut is_entry = vec![false; self.successors.len()];
        is_entry[self.entry.to] = is_inside[self.entry.to];
        for (block, edges) in self.successors.iter().enumerate() {
            edges
                .iter()
                .filter(|edge| !is_inside[block] && is_inside[edge.to])
                .for_each(|edge| is_entry[edge.to] = true);
        }
        let mut entries: Vec<usize> = component.iter().copied().filter(|&block| is_entry[block]).collect();
        if let [head] = entries[..] {
            return component.into_iter().filter(|&block| block != head).collect();
        }
        entries.sort_unstable();
        let dispatch = self.successors.len();
        for edge in self.successors.iter_mut().flatten().chain([&mut self.entry]) {
            if let Ok(arm) = entries.binary_search(&edge.to) {
                *edge = Edge { to: dispatch, arm: Some(arm) };
            }
        }
        self.successors.push(entries.into_iter().map(|to| Edge { to, arm: None }).collect());
        component
    }
}

fn reachable(flow: &Flow) -> Vec<usize> {
    let mut seen = vec![false; flow.successors.len()];
    let mut work = vec![flow.entry.to];
    while let Some(block) = work.pop() {
        if !std::mem::replace(&mut seen[block], true) {
            work.extend(flow.successors[block].iter().map(|edge| edge.to));
        }
    }
    (0..seen.len()).filter(|&block| seen[block]).collect()
}

/// The non-trivial strongly connected components among `blocks` (Tarjan, "Depth-First Search and
/// Linear Graph Algorithms", 1972).
fn components(flow: &Flow, blocks: &[usize]) -> Vec<Vec<usize>> {
    const NEVER: usize = usize::MAX;
    let count = flow.successors.len();
    let mut inside = vec![false; count];
    blocks.iter().for_each(|&block| inside[block] = true);
    let (mut number, mut low, mut open) = (vec![NEVER; count], vec![NEVER; count], vec![false; count]);
    let (mut next, mut stack, mut found) = (0, Vec::new(), Vec::new());
    for &root in blocks {
        if number[root] != NEVER {
            continue;
        }
        let mut work = vec![(root, 0)];
        while let Some(&mut (block, ref mut arm)) = work.last_mut() {
            if *arm == 0 {
                (number[block], low[block], open[block]) = (next, next, true);
                next += 1;
                stack.push(block);
            }
            let mut edges = flow.successors[block].iter().skip(*arm).map(|edge| edge.to);
            let mut went = false;
            for to in edges.by_ref() {
                *arm += 1;
                if !inside[to] {
                    continue;
                }
                if number[to] == NEVER {
                    went = true;
                    work.push((to, 0));
                    break;
                }
                if open[to] {
                    low[block] = low[block].min(number[to]);
                }
            }
            if went {
                continue;
            }
            work.pop();
            if let Some(&(parent, _)) = work.last() {
                low[parent] = low[parent].min(low[block]);
            }
            if low[block] == number[block] {
                let from = stack.iter().rposition(|&it| it == block).expect("it was pushed");
                let component: Vec<usize> = stack.drain(from..).collect();
                component.iter().for_each(|&it| open[it] = false);
                let is_loop = component.len() > 1 || flow.successors[block].iter().any(|edge| edge.to == block);
                if is_loop {
                    found.push(component);
                }
            }
        }
    }
    found
}
