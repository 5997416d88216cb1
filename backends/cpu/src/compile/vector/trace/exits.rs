//! Merging of states where lanes that left on different paths continue.

use std::collections::HashSet;

use super::tracer::{Exit, Tracer};
use crate::compile::vector::ir::{Node, Op};

/// Maximum number of conjuncts of a mask that are examined; more would take long and help no
/// filter.
const MAX_CONJUNCTS: usize = 64;

impl Tracer<'_> {
    /// Merges exits; each lane is in at most one of them. `all` is a mask that contains all of
    /// their lanes. Returns `None` if there are no lanes.
    pub(super) fn merge_exits(&mut self, exits: Vec<Exit>, all: Node) -> Option<Exit> {
        let mut exits: Vec<Exit> =
            exits.into_iter().filter(|exit| self.dag.as_flag(exit.lanes) != Some(false)).collect();
        let mut merged = exits.pop()?;
        let known_true: HashSet<Node> = self.conjuncts(all).into_iter().collect();
        // A lane of an exit has not left through the exits before it.
        let mut left_lanes = HashSet::new();
        let mut masks = Vec::new();
        for exit in &exits {
            let mask = self.drop_implied(exit.lanes, &known_true, &left_lanes);
            left_lanes.insert(mask);
            left_lanes.insert(exit.lanes);
            masks.push(mask);
        }
        for (exit, mask) in exits.into_iter().zip(masks).rev() {
            merged.lanes = self.dag.mask_or(exit.lanes, merged.lanes);
            for (theirs, slot) in exit.state.iter().zip(&mut merged.state) {
                *slot = self.dag.select(mask, *theirs, *slot);
            }
            for (theirs, slot) in exit.value.iter().zip(&mut merged.value) {
                *slot = self.dag.select(mask, *theirs, *slot);
            }
        }
        Some(merged)
    }

    /// Splits a mask into the terms of a conjunction.
    fn conjuncts(&self, mask: Node) -> Vec<Node> {
        let (mut parts, mut work) = (Vec::new(), vec![mask]);
        while let Some(node) = work.pop() {
            match self.dag.op(node) {
                Op::And(x, y) if parts.len() + work.len() < MAX_CONJUNCTS => work.extend([y, x]),
                _ => parts.push(node),
            }
        }
        parts
    }

    /// Drops the conjuncts of a mask that are known to hold, and those whose negation is known not
    /// to.
    fn drop_implied(&mut self, mask: Node, known_true: &HashSet<Node>, left_lanes: &HashSet<Node>) -> Node {
        let parts = self.conjuncts(mask);
        let mut relaxed = self.dag.flag(true);
        for part in parts {
            let opposite = self.dag.mask_not(part);
            if !known_true.contains(&part) && !left_lanes.contains(&opposite) {
                relaxed = self.dag.mask_and(relaxed, part);
            }
        }
        relaxed
    }
}
