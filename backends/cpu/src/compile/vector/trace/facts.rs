//! What a mask says of the packet's length: this is what lets a load go without its check. A mask
//! is a node like any other, so all that was asked on the way here can be read off it.

use std::collections::HashMap;
use std::rc::Rc;

use crate::compile::vector::ir::{Compare, Dag, Node, Op};

/// Something true: `length >= root + add`, which does not wrap, or `length >= add`. Of any word, for
/// what is a length is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fact {
    length: Node,
    root: Option<Node>,
    add: u32,
}

/// Facts of a mask at the most; more than that helps no filter.
const MAX_FACTS: usize = 48;

/// What masks say.
#[derive(Debug, Default)]
pub(super) struct Facts {
    known: HashMap<(Node, bool), Rc<[Fact]>>,
    /// Masks that hold only where another holds.
    follows: HashMap<Node, Node>,
}

impl Facts {
    /// Notes that wherever a mask holds another does.
    pub fn follow(&mut self, mask: Node, other: Node) {
        self.follows.insert(mask, other);
    }

    /// Whether `root + add + size` bytes, at most `high + size`, are known to be there in the lanes
    /// of a mask.
    pub fn prove(
        &mut self,
        dag: &Dag,
        mask: Node,
        length: Node,
        (root, add): (Option<Node>, u32),
        high: u32,
        size: u32,
    ) -> bool {
        let facts = self.of(dag, mask, true);
        let most = high.checked_add(size);
        let need = add.checked_add(size);
        facts.iter().filter(|fact| fact.length == length).any(|fact| {
            let at_least = fact.add.saturating_add(fact.root.map_or(0, |root| dag.range(root).low));
            most.is_some_and(|most| most <= at_least)
                || (root.is_some() && fact.root == root && need.is_some_and(|need| need <= fact.add))
        })
    }

    /// What follows where a mask is `outcome`.
    fn of(&mut self, dag: &Dag, mask: Node, outcome: bool) -> Rc<[Fact]> {
        if let Some(known) = self.known.get(&(mask, outcome)) {
            return known.clone();
        }
        let facts = match (dag.op(mask), outcome) {
            (Op::Not(a), _) => self.of(dag, a, !outcome),
            (Op::And(a, b), true) | (Op::Or(a, b), false) => {
                joined(&self.of(dag, a, outcome), &self.of(dag, b, outcome))
            }
            (Op::And(a, b), false) | (Op::Or(a, b), true) => {
                common(&self.of(dag, a, outcome), &self.of(dag, b, outcome))
            }
            (Op::Compare(op, a, b), _) => compared(dag, op, a, b, outcome),
            (_, true) => match self.follows.get(&mask).copied() {
                Some(other) => self.of(dag, other, true),
                None => Rc::new([]),
            },
            _ => Rc::new([]),
        };
        self.known.insert((mask, outcome), facts.clone());
        facts
    }
}

/// What a comparison says of its greater side.
fn compared(dag: &Dag, op: Compare, a: Node, b: Node, outcome: bool) -> Rc<[Fact]> {
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
        Some(add) if dag.as_constant(greater).is_none() => Rc::new([Fact { length: greater, root, add }]),
        _ => Rc::new([]),
    }
}

/// What follows where both hold.
fn joined(a: &Rc<[Fact]>, b: &Rc<[Fact]>) -> Rc<[Fact]> {
    if a.is_empty() || b.is_empty() {
        return if a.is_empty() { b.clone() } else { a.clone() };
    }
    let mut all = a.to_vec();
    for fact in b.iter() {
        let full = all.len() >= MAX_FACTS;
        match all.iter_mut().find(|other| other.length == fact.length && other.root == fact.root) {
            Some(known) => known.add = known.add.max(fact.add),
            // Knowing less is never wrong.
            None if full => {}
            None => all.push(*fact),
        }
    }
    all.into()
}

/// What follows from either.
fn common(a: &[Fact], b: &[Fact]) -> Rc<[Fact]> {
    a.iter()
        .filter_map(|fact| {
            let other = b.iter().find(|other| other.length == fact.length && other.root == fact.root)?;
            Some(Fact { add: fact.add.min(other.add), ..*fact })
        })
        .collect()
}
