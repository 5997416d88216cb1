//! Regions: code that only some lanes execute, and that is skipped if none does.

use std::collections::HashMap;

use super::facts::MaskFacts;
use super::tracer::{JumpTarget, Tracer};
use crate::compile::errors::Result;
use crate::compile::vector::ir::{Dag, Node, Range, Region, RegionId, Step, ValueKind};

impl Tracer<'_> {
    /// Traces code for some of the lanes; its steps become a region of their own.
    pub fn in_region(&mut self, lanes: Node, code: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let outer = self.region;
        let inner = self.open_region();
        let (loaded, written) = (self.loaded.clone(), self.written);
        self.active = lanes;
        code(self)?;
        self.region = outer;
        if self.regions[inner.index()].steps.is_empty() {
            return Ok(());
        }
        // Values loaded in the region are not available behind it, and if the region wrote to the
        // packet, values loaded before are out of date.
        if self.written == written {
            self.loaded = loaded;
        } else {
            self.loaded.clear();
        }
        self.close_region(inner, lanes);
        Ok(())
    }

    /// Opens a region for the following steps.
    pub fn open_region(&mut self) -> RegionId {
        let region = self.dag.new_region(self.region);
        self.regions.push(Region { parent: Some(self.region), steps: Vec::new() });
        self.region = region;
        region
    }

    /// Appends the region as a step of the current one, and turns values that are used behind it
    /// into outputs.
    pub fn close_region(&mut self, inner: RegionId, lanes: Node) {
        let outer = self.region;
        let mut outs = RegionOutputs { inner, outer, lanes, nodes: Vec::new(), exported: HashMap::new() };
        let Tracer { dag, facts, state, active, targets, returns, aborts, .. } = self;
        outs.export_all(dag, facts, state);
        outs.export_mask(dag, facts, active);
        let breaks = targets.iter_mut().flat_map(|target| match target {
            JumpTarget::Loop { breaks, continues } => vec![breaks, continues],
            JumpTarget::Switch { breaks } => vec![breaks],
        });
        for exit in breaks.chain(returns).chain([aborts]).flatten() {
            outs.export_mask(dag, facts, &mut exit.lanes);
            outs.export_all(dag, facts, &mut exit.state);
            outs.export_all(dag, facts, &mut exit.value);
        }
        let step = Step::When { mask: lanes, body: inner, outs: outs.nodes };
        self.regions[outer.index()].steps.push(step);
        self.steps += 1;
    }
}

/// Collects the outputs of a region.
struct RegionOutputs {
    inner: RegionId,
    outer: RegionId,
    lanes: Node,
    nodes: Vec<Node>,
    exported: HashMap<Node, Node>,
}

impl RegionOutputs {
    fn export_all(&mut self, dag: &mut Dag, facts: &mut MaskFacts, nodes: &mut [Node]) {
        for node in nodes {
            *node = self.export(dag, facts, *node);
        }
    }

    fn export(&mut self, dag: &mut Dag, facts: &mut MaskFacts, node: Node) -> Node {
        if dag.scope(node) != self.inner {
            return node;
        }
        *self.exported.entry(node).or_insert_with(|| {
            let index = self.nodes.len() as u32;
            self.nodes.push(node);
            let kind = dag.kind(node);
            // In lanes that skip the region the output is zero.
            let range = dag.range(node).union(Range::exactly(0));
            let out = dag.out(self.inner, index, kind, self.outer, range);
            if kind == ValueKind::Mask {
                facts.add_implication(out, node);
            }
            out
        })
    }

    /// Exports a mask, cleared in lanes that did not enter the region.
    fn export_mask(&mut self, dag: &mut Dag, facts: &mut MaskFacts, node: &mut Node) {
        let out = self.export(dag, facts, *node);
        if out != *node {
            *node = dag.mask_and(self.lanes, out);
        }
    }
}
