//! What only one arm of a choice needs, and may be left out where no lane takes that arm.
//!
//! The graph computes both arms of every choice. Where one is long, and packets are much alike, no packet of a group may ask
//! for it: http_only's arm for VLAN tags, in traffic without any. To test for that costs little more than a choice.

use std::collections::{BTreeSet, HashMap};

use super::super::plan::{Plan, used};
use crate::compile::vector::ir::{Lanes, Load, Node, Op, Step, firsts, nexts};

/// Instructions from which on an arm is worth the test: about as many as are executed while one wrongly foreseen branch is
/// found out, of eight that are not.
const WORTH_A_TEST: u32 = 40;

/// Nodes looked at for all arms together: what is nested deeply is looked at again and again.
const MOST_LOOKS: u32 = 200_000;

pub(super) struct Arms {
    /// How many nodes, and steps, need a node.
    users: Vec<u32>,
    looks: u32,
}

impl Arms {
    pub fn new(lanes: &Lanes) -> Arms {
        let mut users = vec![0; lanes.dag.len()];
        let mut count = |node: Node| users[node.index()] += 1;
        for node in used(lanes) {
            lanes.dag.operands(node).for_each(&mut count);
        }
        count(lanes.verdict);
        for step in lanes.regions.iter().flat_map(|region| &region.steps) {
            match step {
                Step::Effect { mask, effect, .. } => effect.operands().chain([*mask]).for_each(&mut count),
                Step::When { mask, outs, .. } => outs.iter().copied().chain([*mask]).for_each(&mut count),
                Step::Loop { live, carried, .. } => {
                    firsts(live, carried).chain(nexts(live, carried)).for_each(&mut count);
                }
            }
        }
        Arms { users, looks: 0 }
    }

    /// Whether an arm is worth being left out: then what it needs that others need as well, which is to be made before.
    pub fn apart(
        &mut self,
        lanes: &Lanes,
        plan: &Plan,
        arm: Node,
        is_there: impl Fn(Node) -> bool,
    ) -> Option<Vec<Node>> {
        let dag = &lanes.dag;
        if self.users[arm.index()] != 1 {
            return None;
        }
        // Each node that is needed by nothing but what is in the arm: those that need it have higher numbers.
        let (mut open, mut needs, mut shared, mut cost) = (BTreeSet::from([arm]), HashMap::new(), Vec::new(), 0);
        while let Some(node) = open.pop_last() {
            self.looks += 1;
            if self.looks > MOST_LOOKS {
                return None;
            }
            let mine = node == arm || needs.get(&node) == Some(&self.users[node.index()]);
            if !mine || is_there(node) || is_step(dag.op(node)) || guessed_with_others(plan, dag.op(node)) {
                shared.push(node);
                continue;
            }
            cost += cost_of(dag.op(node));
            for operand in dag.operands(node) {
                *needs.entry(operand).or_insert(0) += 1;
                open.insert(operand);
            }
        }
        (cost >= WORTH_A_TEST).then_some(shared)
    }
}

/// What a step gave: it is there, or cannot be made.
fn is_step(op: Op) -> bool {
    matches!(op, Op::Result(_) | Op::Carried { .. } | Op::Live(_) | Op::Out { .. })
}

/// Loads at one offset that varies are made together, which are not to be made twice.
fn guessed_with_others(plan: &Plan, op: Op) -> bool {
    match op {
        Op::Load(Load { root: Some(root), .. }) => plan.guesses.get(&root).is_some_and(|guess| guess.loads.len() > 1),
        _ => false,
    }
}

/// In instructions, about.
fn cost_of(op: Op) -> u32 {
    match op {
        Op::Constant(_) | Op::Flag(_) | Op::Length | Op::Not(_) => 0,
        Op::Load(Load { root: None, .. }) => 3,
        Op::Load(Load { root: Some(_), .. }) => 12,
        Op::Table { .. } | Op::Metadata(_) => 12,
        _ => 1,
    }
}
