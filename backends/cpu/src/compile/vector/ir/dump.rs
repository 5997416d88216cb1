//! Textual form of lane IR (`check --emit lanes`).
//!
//! Words are `%1`, masks `?1`. A node is written before the first step that needs it, in the region
//! in which it can be computed.

use std::collections::HashSet;
use std::fmt::{self, Write as _};

use super::graph::Dag;
use super::node::{Load, Node, Op, RegionId, ValueKind};
use super::program::{Atomic, Effect, LaneIr, PacketAddress, Step, initial_nodes, iteration_nodes};

impl LaneIr {
    /// Renders the filter.
    pub fn dump(&self) -> String {
        let mut dump = Dump { lanes: self, text: String::new(), written: HashSet::new() };
        // Writing to a string cannot fail.
        let _ = dump.region(RegionId::ROOT, 0);
        let _ = dump.end();
        dump.text
    }
}

struct Dump<'a> {
    lanes: &'a LaneIr,
    text: String,
    written: HashSet<Node>,
}

impl Dump<'_> {
    fn line(&mut self, depth: usize, text: fmt::Arguments) -> fmt::Result {
        writeln!(self.text, "{:indent$}{text}", "", indent = 2 * depth)
    }

    /// Writes the definitions of nodes that have not been written yet, operands first.
    fn write_definitions(&mut self, nodes: &[Node], depth: usize) -> fmt::Result {
        let dag = &self.lanes.dag;
        let mut missing = Vec::new();
        let mut work = nodes.to_vec();
        while let Some(node) = work.pop() {
            if !is_inline(dag, node) && self.written.insert(node) {
                missing.push(node);
                work.extend(dag.operands(node));
            }
        }
        missing.sort_unstable();
        for node in missing {
            let (name, op) = (self.name(node), self.op(node));
            self.line(depth, format_args!("{name} = {op}"))?;
        }
        Ok(())
    }

    fn name(&self, node: Node) -> String {
        let dag = &self.lanes.dag;
        match (dag.op(node), dag.kind(node)) {
            (Op::Constant(value), _) if value < 1024 => value.to_string(),
            (Op::Constant(value), _) => format!("{value:#x}"),
            (Op::Flag(value), _) => if value { "always" } else { "never" }.into(),
            (Op::Length, _) => "length".into(),
            (Op::Result(effect), _) => format!("result{}", effect.0),
            (Op::Live(body), _) => format!("live{}", body.0),
            (Op::LoopCarried { body, index }, _) => format!("carried{}.{index}", body.0),
            (Op::Out { region, index }, _) => format!("out{}.{index}", region.0),
            (_, ValueKind::Word) => format!("%{}", node.index()),
            (_, ValueKind::Mask) => format!("?{}", node.index()),
        }
    }

    fn op(&self, node: Node) -> String {
        let name = |node| self.name(node);
        match self.lanes.dag.op(node) {
            Op::Metadata(field) => format!("{field:?}"),
            Op::Load(Load { root: None, add, size }) => format!("load{size} [{add}]"),
            Op::Load(Load { root: Some(root), add, size }) => format!("load{size} [{} + {add}]", name(root)),
            Op::Table { table, index } => format!("table{table}[{}]", name(index)),
            Op::Unary(op, a) => format!("{op:?} {}", name(a)),
            Op::Binary(op, a, b) => format!("{op:?} {}, {}", name(a), name(b)),
            Op::Select { mask, accept, reject } => format!("{} ? {} : {}", name(mask), name(accept), name(reject)),
            Op::Compare(op, a, b) => format!("{op:?} {}, {}", name(a), name(b)),
            Op::And(a, b) => format!("{} & {}", name(a), name(b)),
            Op::Or(a, b) => format!("{} | {}", name(a), name(b)),
            Op::Not(a) => format!("!{}", name(a)),
            _ => name(node),
        }
    }

    fn place(&self, PacketAddress { start, offset }: PacketAddress) -> String {
        match start {
            None => format!("[{}]", self.name(offset)),
            Some(start) => format!("[{} + {}]", self.name(start), self.name(offset)),
        }
    }

    fn region(&mut self, region: RegionId, depth: usize) -> fmt::Result {
        let lanes = self.lanes;
        for step in &lanes.regions[region.index()].steps {
            match step {
                Step::Effect { id, mask, effect } => {
                    let operands: Vec<Node> = effect.operands().chain([*mask]).collect();
                    self.write_definitions(&operands, depth)?;
                    let (mask, text) = (self.name(*mask), self.effect(effect));
                    let result = if effect.has_result() { format!("result{} = ", id.0) } else { String::new() };
                    self.line(depth, format_args!("{result}{text}, where {mask}"))?;
                }
                Step::When { mask, body, outs } => {
                    self.write_definitions(&[*mask], depth)?;
                    let name = self.name(*mask);
                    self.line(depth, format_args!("when {name} {{"))?;
                    self.region(*body, depth + 1)?;
                    self.write_definitions(outs, depth + 1)?;
                    for (index, &out) in outs.iter().enumerate() {
                        let name = self.name(out);
                        self.line(depth + 1, format_args!("out{}.{index} = {name}", body.0))?;
                    }
                    self.line(depth, format_args!("}}"))?;
                }
                Step::Loop { live, carried, body } => {
                    self.write_definitions(&initial_nodes(live, carried).collect::<Vec<_>>(), depth)?;
                    let first = self.names([live.initial].into_iter().chain(carried.iter().map(|carry| carry.initial)));
                    self.line(depth, format_args!("loop{} {first} {{", body.0))?;
                    self.region(*body, depth + 1)?;
                    self.write_definitions(&iteration_nodes(live, carried).collect::<Vec<_>>(), depth + 1)?;
                    let next = self.names([live.next].into_iter().chain(carried.iter().map(|carry| carry.next)));
                    self.line(depth + 1, format_args!("next {next}"))?;
                    let left = self.names(carried.iter().map(|carry| carry.on_exit));
                    self.line(depth + 1, format_args!("left {left}"))?;
                    self.line(depth, format_args!("}}"))?;
                }
            }
        }
        Ok(())
    }

    fn names(&self, nodes: impl Iterator<Item = Node>) -> String {
        nodes.map(|node| self.name(node)).collect::<Vec<_>>().join(", ")
    }

    fn effect(&self, effect: &Effect) -> String {
        let name = |node| self.name(node);
        match *effect {
            Effect::LoadPacket { at, size } => format!("load{size} {}", self.place(at)),
            Effect::StorePacket { at, size, value } => format!("store{size} {}, {}", self.place(at), name(value)),
            Effect::ClearPacket { at, count } => format!("clear {}, {}", self.place(at), name(count)),
            Effect::Map { map, word, atomic } => {
                let (what, operands) = match atomic {
                    Atomic::Load => ("load", vec![]),
                    Atomic::Store(value) => ("store", vec![value]),
                    Atomic::Add(value) => ("add", vec![value]),
                    Atomic::Min(value) => ("min", vec![value]),
                    Atomic::Max(value) => ("max", vec![value]),
                    Atomic::Or(value) => ("or", vec![value]),
                    Atomic::Exchange(value) => ("exchange", vec![value]),
                    Atomic::CompareExchange { expected, value } => ("compare_exchange", vec![expected, value]),
                };
                let operands: String = operands.into_iter().map(|node| format!(", {}", name(node))).collect();
                format!("map{map}.{what} [{}]{operands}", name(word))
            }
            Effect::ArrayLoad { array, index } => format!("array{array}[{}]", name(index)),
            Effect::ArrayStore { array, index, value } => format!("array{array}[{}] = {}", name(index), name(value)),
            Effect::ArrayFill { array, value } => format!("array{array}[..] = {}", name(value)),
        }
    }

    fn end(&mut self) -> fmt::Result {
        let LaneIr { verdict, ends, .. } = self.lanes;
        self.write_definitions(&[*verdict], 0)?;
        let verdict = self.name(*verdict);
        self.line(0, format_args!("verdict {verdict}"))?;
        if let Some((start, length)) = *ends {
            self.write_definitions(&[start, length], 0)?;
            let (start, length) = (self.name(start), self.name(length));
            self.line(0, format_args!("ends {start}, {length}"))?;
        }
        Ok(())
    }
}

/// Whether a node is written in place, without a definition.
fn is_inline(dag: &Dag, node: Node) -> bool {
    use Op::{Constant, Flag, Length, Live, LoopCarried, Out, Result};
    matches!(dag.op(node), Constant(_) | Flag(_) | Length | Result(_) | Live(_) | LoopCarried { .. } | Out { .. })
}
