//! How states meet.

use std::collections::HashSet;

use super::tracer::{Exit, Trace};
use crate::compile::vector::ir::{Node, Op};

/// Parts of a mask that are looked at; more would take long and help no filter.
const MAX_PARTS: usize = 64;

impl Trace<'_> {
    /// What holds where exits meet, each lane in at most one of them; `all` is a mask that none of
    /// the lanes is outside of.
    pub(super) fn meet(&mut self, exits: Vec<Exit>, all: Node) -> Option<Exit> {
        let mut exits: Vec<Exit> =
            exits.into_iter().filter(|exit| self.dag.as_flag(exit.lanes) != Some(false)).collect();
        let mut met = exits.pop()?;
        let truths: HashSet<Node> = self.parts(all).into_iter().collect();
        // Who comes to an exit has not left by those before it.
        let mut gone = HashSet::new();
        let mut masks = Vec::new();
        for exit in &exits {
            let mask = self.relaxed(exit.lanes, &truths, &gone);
            gone.insert(mask);
            gone.insert(exit.lanes);
            masks.push(mask);
        }
        for (exit, mask) in exits.into_iter().zip(masks).rev() {
            met.lanes = self.dag.either(exit.lanes, met.lanes);
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
    fn parts(&self, mask: Node) -> Vec<Node> {
        let (mut parts, mut work) = (Vec::new(), vec![mask]);
        while let Some(node) = work.pop() {
            match self.dag.op(node) {
                Op::And(x, y) if parts.len() + work.len() < MAX_PARTS => work.extend([y, x]),
                _ => parts.push(node),
            }
        }
        parts
    }

    /// A mask without what is known anyway: that some hold, and that others do not.
    fn relaxed(&mut self, mask: Node, truths: &HashSet<Node>, gone: &HashSet<Node>) -> Node {
        let parts = self.parts(mask);
        let mut relaxed = self.dag.flag(true);
        for part in parts {
            let opposite = self.dag.not(part);
            if !truths.contains(&part) && !gone.contains(&opposite) {
                relaxed = self.dag.both(relaxed, part);
            }
        }
        relaxed
    }
}
