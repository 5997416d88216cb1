//! Which arms of a select are worth a branch around them.
//!
//! The graph computes both arms of every select. If an arm is long and packets are much alike, it
//! may be that no packet of a group uses it: for example http_only's arm for VLAN tags, in traffic
//! without any. Testing for that costs little more than a select.

use std::collections::{BTreeSet, HashMap};

use super::super::plan::{Plan, live_nodes};
use crate::compile::vector::ir::{LaneIr, Load, Node, Op, Step, initial_nodes, iteration_nodes};

/// Cost of an arm in instructions from which a branch is worth it: about as many as are executed
/// during a branch misprediction, at one misprediction in eight branches.
const MIN_ARM_COST: u32 = 40;

/// Maximum number of nodes visited in all analyses of a filter: nested arms are visited repeatedly.
const MAX_VISITS: u32 = 200_000;

pub(super) struct ArmAnalysis {
    /// Number of nodes and steps that use each node.
    use_counts: Vec<u32>,
    visits: u32,
}

impl ArmAnalysis {
    pub fn new(lanes: &LaneIr) -> ArmAnalysis {
        let mut use_counts = vec![0; lanes.dag.len()];
        let mut count = |node: Node| use_counts[node.index()] += 1;
        for node in live_nodes(lanes) {
            lanes.dag.operands(node).for_each(&mut count);
        }
        count(lanes.verdict);
        for step in lanes.regions.iter().flat_map(|region| &region.steps) {
            match step {
                Step::Effect { mask, effect, .. } => effect.operands().chain([*mask]).for_each(&mut count),
                Step::When { mask, outs, .. } => outs.iter().copied().chain([*mask]).for_each(&mut count),
                Step::Loop { live, carried, .. } => {
                    initial_nodes(live, carried).chain(iteration_nodes(live, carried)).for_each(&mut count);
                }
            }
        }
        ArmAnalysis { use_counts, visits: 0 }
    }

    /// Analyses an arm. If a branch around it is worth it, returns the nodes that the arm shares
    /// with other code, which have to be computed before the branch.
    pub fn worth_branching(
        &mut self,
        lanes: &LaneIr,
        plan: &Plan,
        arm: Node,
        is_computed: impl Fn(Node) -> bool,
    ) -> Option<Vec<Node>> {
        let dag = &lanes.dag;
        if self.use_counts[arm.index()] != 1 {
            return None;
        }
        // Collect nodes that only the arm uses. Users have higher numbers than their operands, so
        // all users of a node have been visited before it.
        let (mut open, mut uses, mut shared, mut cost) = (BTreeSet::from([arm]), HashMap::new(), Vec::new(), 0);
        while let Some(node) = open.pop_last() {
            self.visits += 1;
            if self.visits > MAX_VISITS {
                return None;
            }
            let is_own = node == arm || uses.get(&node) == Some(&self.use_counts[node.index()]);
            if !is_own || is_computed(node) || is_step(dag.op(node)) || is_speculated_with_others(plan, dag.op(node)) {
                shared.push(node);
                continue;
            }
            cost += instruction_cost(dag.op(node));
            for operand in dag.operands(node) {
                *uses.entry(operand).or_insert(0) += 1;
                open.insert(operand);
            }
        }
        (cost >= MIN_ARM_COST).then_some(shared)
    }
}

/// Whether a node is the value of a step, which is already computed.
fn is_step(op: Op) -> bool {
    matches!(op, Op::Result(_) | Op::LoopCarried { .. } | Op::Live(_) | Op::Out { .. })
}

/// Whether a load is emitted together with others at the same speculated offset, which must not be
/// emitted twice.
fn is_speculated_with_others(plan: &Plan, op: Op) -> bool {
    match op {
        Op::Load(Load { root: Some(root), .. }) => {
            plan.speculations.get(&root).is_some_and(|guess| guess.loads.len() > 1)
        }
        _ => false,
    }
}

/// Approximate cost of an operation in instructions.
fn instruction_cost(op: Op) -> u32 {
    match op {
        Op::Constant(_) | Op::Flag(_) | Op::Length | Op::Not(_) => 0,
        Op::Load(Load { root: None, .. }) => 3,
        Op::Load(Load { root: Some(_), .. }) => 12,
        Op::Table { .. } | Op::Metadata(_) => 12,
        _ => 1,
    }
}
