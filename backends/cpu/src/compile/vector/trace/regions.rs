//! Regions: code that only some lanes execute.

use std::collections::HashMap;

use super::facts::Facts;
use super::tracer::{Target, Trace};
use crate::compile::errors::Result;
use crate::compile::vector::ir::{Dag, Kind, Node, Range, Region, RegionId, Step};

impl Trace<'_> {
    /// Code that lanes come to only in part: its steps are a region of their own.
    pub fn within(&mut self, lanes: Node, code: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let outer = self.region;
        let inner = self.open();
        let (loaded, written) = (self.loaded.clone(), self.written);
        self.here = lanes;
        code(self)?;
        self.region = outer;
        if self.regions[inner.index()].steps.is_empty() {
            return Ok(());
        }
        // What has been loaded in there is not for others, and what was written may be what was loaded.
        if self.written == written {
            self.loaded = loaded;
        } else {
            self.loaded.clear();
        }
        self.close(inner, lanes);
        Ok(())
    }

    /// A region for the steps to come.
    pub fn open(&mut self) -> RegionId {
        let region = self.dag.region(self.region);
        self.regions.push(Region { parent: Some(self.region), steps: Vec::new() });
        self.region = region;
        region
    }

    /// Puts a region's steps where they belong, and has what is of use behind them come out.
    pub fn close(&mut self, inner: RegionId, lanes: Node) {
        let outer = self.region;
        let mut outs = Outs { inner, outer, lanes, nodes: Vec::new(), found: HashMap::new() };
        let Trace { dag, facts, state, here, targets, returns, aborts, .. } = self;
        outs.all(dag, facts, state);
        outs.mask(dag, facts, here);
        let breaks = targets.iter_mut().flat_map(|target| match target {
            Target::Loop { breaks, continues } => vec![breaks, continues],
            Target::Switch { breaks } => vec![breaks],
        });
        for exit in breaks.chain(returns).chain([aborts]).flatten() {
            outs.mask(dag, facts, &mut exit.lanes);
            outs.all(dag, facts, &mut exit.state);
            outs.all(dag, facts, &mut exit.value);
        }
        let step = Step::When { mask: lanes, body: inner, outs: outs.nodes };
        self.regions[outer.index()].steps.push(step);
        self.steps += 1;
    }
}

/// What comes out of a region.
struct Outs {
    inner: RegionId,
    outer: RegionId,
    lanes: Node,
    nodes: Vec<Node>,
    found: HashMap<Node, Node>,
}

impl Outs {
    fn all(&mut self, dag: &mut Dag, facts: &mut Facts, nodes: &mut [Node]) {
        for node in nodes {
            *node = self.one(dag, facts, *node);
        }
    }

    fn one(&mut self, dag: &mut Dag, facts: &mut Facts, node: Node) -> Node {
        if dag.home(node) != self.inner {
            return node;
        }
        *self.found.entry(node).or_insert_with(|| {
            let index = self.nodes.len() as u32;
            self.nodes.push(node);
            let kind = dag.kind(node);
            // Where nobody comes in, nothing comes out.
            let range = dag.range(node).union(Range::of(0));
            let out = dag.out(self.inner, index, kind, self.outer, range);
            if kind == Kind::Mask {
                facts.follow(out, node);
            }
            out
        })
    }

    /// Lanes: none of those that did not come in.
    fn mask(&mut self, dag: &mut Dag, facts: &mut Facts, node: &mut Node) {
        let out = self.one(dag, facts, *node);
        if out != *node {
            *node = dag.both(self.lanes, out);
        }
    }
}
