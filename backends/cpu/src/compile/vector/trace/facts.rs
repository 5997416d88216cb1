//! What masks imply about the packet's length, which allows loads to be traced without a bounds
//! check. A mask is a node of the graph, so the conditions on the path to the current code can be
//! read off it.

use std::collections::HashMap;
use std::rc::Rc;

use crate::compile::vector::ir::{Compare, Dag, Node, Op};

/// A lower bound of a word: `length >= root + add`, a sum that does not wrap, or `length >= add`.
/// Facts are recorded for any word, as lengths cannot be told from other words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LengthFact {
    length: Node,
    root: Option<Node>,
    add: u32,
}

/// Maximum number of facts about a mask; more helps no filter.
const MAX_FACTS: usize = 48;

/// Facts by mask, computed on demand.
#[derive(Debug, Default)]
pub(super) struct MaskFacts {
    known: HashMap<(Node, bool), Rc<[LengthFact]>>,
    /// Masks that imply another mask.
    implications: HashMap<Node, Node>,
}

impl MaskFacts {
    /// Records that a mask implies another one.
    pub fn add_implication(&mut self, mask: Node, other: Node) {
        self.implications.insert(mask, other);
    }

    /// Whether the mask implies that `root + add + size` bytes, which are at most `high + size`,
    /// are in the packet.
    pub fn proves(
        &mut self,
        dag: &Dag,
        mask: Node,
        length: Node,
        (root, add): (Option<Node>, u32),
        high: u32,
        size: u32,
    ) -> bool {
        let facts = self.facts_of(dag, mask, true);
        let most = high.checked_add(size);
        let need = add.checked_add(size);
        facts.iter().filter(|fact| fact.length == length).any(|fact| {
            let at_least = fact.add.saturating_add(fact.root.map_or(0, |root| dag.range(root).low));
            most.is_some_and(|most| most <= at_least)
                || (root.is_some() && fact.root == root && need.is_some_and(|need| need <= fact.add))
        })
    }

    /// Returns the facts that hold in lanes where a mask is `outcome`.
    fn facts_of(&mut self, dag: &Dag, mask: Node, outcome: bool) -> Rc<[LengthFact]> {
        if let Some(known) = self.known.get(&(mask, outcome)) {
            return known.clone();
        }
        let facts = match (dag.op(mask), outcome) {
            (Op::Not(a), _) => self.facts_of(dag, a, !outcome),
            (Op::And(a, b), true) | (Op::Or(a, b), false) => {
                conjunction(&self.facts_of(dag, a, outcome), &self.facts_of(dag, b, outcome))
            }
            (Op::And(a, b), false) | (Op::Or(a, b), true) => {
                disjunction(&self.facts_of(dag, a, outcome), &self.facts_of(dag, b, outcome))
            }
            (Op::Compare(op, a, b), _) => comparison_facts(dag, op, a, b, outcome),
            (_, true) => match self.implications.get(&mask).copied() {
                Some(other) => self.facts_of(dag, other, true),
                None => Rc::new([]),
            },
            _ => Rc::new([]),
        };
        self.known.insert((mask, outcome), facts.clone());
        facts
    }
}

/// Returns the lower bound that a comparison implies for its greater operand.
fn comparison_facts(dag: &Dag, op: Compare, a: Node, b: Node, outcome: bool) -> Rc<[LengthFact]> {
    let (less, greater, strict) = match (op, outcome) {
        (Compare::LessEqual, true) => (a, b, 0),
        (Compare::Less, true) => (a, b, 1),
        (Compare::LessEqual, false) => (b, a, 1),
        (Compare::Less, false) => (b, a, 0),
        _ => return Rc::new([]),
    };
    let (root, add) = dag.sum(less);
    // `less + 1 <= greater`, so it does not wrap.
    match add.checked_add(strict) {
        Some(add) if dag.as_constant(greater).is_none() => Rc::new([LengthFact { length: greater, root, add }]),
        _ => Rc::new([]),
    }
}

/// Facts that hold where both sets hold.
fn conjunction(a: &Rc<[LengthFact]>, b: &Rc<[LengthFact]>) -> Rc<[LengthFact]> {
    if a.is_empty() || b.is_empty() {
        return if a.is_empty() { b.clone() } else { a.clone() };
    }
    let mut all = a.to_vec();
    for fact in b.iter() {
        let full = all.len() >= MAX_FACTS;
        match all.iter_mut().find(|other| other.length == fact.length && other.root == fact.root) {
            Some(known) => known.add = known.add.max(fact.add),
            // Dropping a fact is always safe.
            None if full => {}
            None => all.push(*fact),
        }
    }
    all.into()
}

/// Facts that hold where at least one of the sets holds.
fn disjunction(a: &[LengthFact], b: &[LengthFact]) -> Rc<[LengthFact]> {
    a.iter()
        .filter_map(|fact| {
            let other = b.iter().find(|other| other.length == fact.length && other.root == fact.root)?;
            Some(LengthFact { add: fact.add.min(other.add), ..*fact })
        })
        .collect()
}
