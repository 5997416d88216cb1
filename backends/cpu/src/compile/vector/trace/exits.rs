//! How states meet.

use std::collections::HashSet;

use super::tracer::{Exit, Tracer};
use crate::compile::vector::ir::{Node, Op};

/// Parts of a mask that are looked at; more would take long and help no filter.
const MAX_CONJUNCTS: usize = 64;

impl Tracer<'_> {
    /// What holds where exits meet, each lane in at most one of them; `all` is a mask that none of
    /// the lanes is outside of.
    pub(super) fn merge_exits(&mut self, exits: Vec<Exit>, all: Node) -> Option<Exit> {
        let mut exits: Vec<Exit> =
            exits.into_iter().filter(|exit| self.dag.as_flag(exit.lanes) != Some(false)).collect();
        let mut met = exits.pop()?;
        let truths: HashSet<Node> = self.conjuncts(all).into_iter().collect();
        // Who comes to an exit has not left by those before it.
        let mut gone = HashSet::new();
        let mut masks = Vec::new();
        for exit in &exits {
            let mask = self.drop_implied(exit.lanes, &truths, &gone);
            gone.insert(mask);
            gone.insert(exit.lanes);
            masks.push(mask);
        }
        for (exit, mask) in exits.into_iter().zip(masks).rev() {
            met.lanes = self.dag.mask_or(exit.lanes, met.lanes);
            for (theirs, slot) in exit.state.iter().zip(&mut met.state) {
                *slot = self.dag.select(mask, *theirs, *slot);
            }
            for (theirs, slot) in exit.value.iter().zip(&mut met.value) {
                *slot = self.dag.select(mask, *theirs, *slot);
            }
        }
        Some(met)
    }

    /// What all has to hold for a mask.
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

    /// A mask without what is known anyway: that some hold, and that others do not.
    fn drop_implied(&mut self, mask: Node, truths: &HashSet<Node>, gone: &HashSet<Node>) -> Node {
        let parts = self.conjuncts(mask);
        let mut relaxed = self.dag.flag(true);
        for part in parts {
            let opposite = self.dag.mask_not(part);
            if !truths.contains(&part) && !gone.contains(&opposite) {
                relaxed = self.dag.mask_and(relaxed, part);
            }
        }
        relaxed
    }
}
