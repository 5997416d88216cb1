//! The abstract state: a stack of cells with a trail of what changed.
//!
//! A cell holds what one expression or one variable may be. Branches do not copy the state: every
//! change of a cell leaves its old value on the trail, so that going back to a mark is cheap, and
//! what a branch did is the list of the cells it changed (a [`Delta`]).
//!
//! Invariants:
//! - marks are used like a stack: what is undone last was marked first;
//! - a cell's version names the value stored in it: equal versions of a variable mean that it still
//!   holds the same number, however much more is known about it by now;
//! - the cells of an expression are written without the trail when it is evaluated: nothing reads
//!   them where it was not.

use super::value::{Conditions, Value, all};

/// What an entry of a [`Delta`] costs, in memory above all: those of every `break` are kept until
/// their loop has been walked.
const DELTA_ENTRY_WORK: u64 = 4;

/// What an expression or a variable may be.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub(super) value: Value,
    /// See the module's head.
    pub(super) version: u32,
    /// For an expression that loads a whole variable: which, and its version then.
    pub(super) loaded: Option<(u32, u32)>,
    /// For finding a cell in a list: the list's number and the place in it.
    stamp: u32,
    at: u32,
}

/// One changed cell.
#[derive(Debug, Clone)]
pub(super) struct Change {
    cell: u32,
    value: Value,
    version: u32,
}

/// What a path through a block did to the cells, each at most once.
pub(super) type Delta = Vec<Change>;

#[derive(Debug, Default)]
pub(super) struct State {
    cells: Vec<Cell>,
    trail: Vec<Change>,
    stamp: u32,
    version: u32,
    /// Whether control can come here at all.
    pub(super) live: bool,
    /// Work done so far, about the same for each unit: the analysis gives up when it gets too much.
    pub(super) work: u64,
}

impl State {
    pub(super) fn len(&self) -> u32 {
        self.cells.len() as u32
    }

    /// Adds cells, all of them `Any`.
    pub(super) fn grow(&mut self, count: usize) -> u32 {
        let base = self.len();
        let cell = Cell { value: Value::Any, version: 0, loaded: None, stamp: 0, at: 0 };
        self.cells.resize(self.cells.len() + count, cell);
        self.work += count as u64;
        base
    }

    /// Takes the cells from `base` on away, and with them what the trail says of them.
    pub(super) fn shrink(&mut self, base: u32, mark: usize) {
        self.cells.truncate(base as usize);
        debug_assert!(self.trail[mark..].iter().all(|change| change.cell < base));
    }

    pub(super) fn cell(&self, cell: u32) -> &Cell {
        &self.cells[cell as usize]
    }

    /// An expression is evaluated.
    pub(super) fn evaluate(&mut self, cell: u32, value: Value, loaded: Option<(u32, u32)>) {
        let cell = &mut self.cells[cell as usize];
        cell.value = value;
        cell.loaded = loaded;
    }

    /// A variable gets a value.
    pub(super) fn store(&mut self, cell: u32, value: Value) {
        self.version += 1;
        self.change(Change { cell, value, version: self.version });
    }

    /// More is known about what a cell holds.
    pub(super) fn narrow(&mut self, cell: u32, value: Value) {
        let version = self.cell(cell).version;
        self.change(Change { cell, value, version });
    }

    fn change(&mut self, new: Change) {
        let cell = &mut self.cells[new.cell as usize];
        let value = std::mem::replace(&mut cell.value, new.value);
        let version = std::mem::replace(&mut cell.version, new.version);
        self.trail.push(Change { cell: new.cell, value, version });
    }

    pub(super) fn mark(&self) -> usize {
        self.trail.len()
    }

    /// Back to how things were at the mark.
    pub(super) fn undo(&mut self, mark: usize) {
        self.work += (self.trail.len() - mark) as u64;
        while self.trail.len() > mark {
            if let Some(old) = self.trail.pop() {
                let cell = &mut self.cells[old.cell as usize];
                cell.value = old.value;
                cell.version = old.version;
            }
        }
    }

    /// What has changed since the mark, of the cells below `end`. Nothing is undone.
    pub(super) fn delta(&mut self, mark: usize, end: u32) -> Delta {
        self.stamp += 1;
        self.work += (self.trail.len() - mark) as u64;
        let mut delta = Delta::new();
        for i in mark..self.trail.len() {
            let id = self.trail[i].cell;
            let cell = &mut self.cells[id as usize];
            if id < end && cell.stamp != self.stamp {
                cell.stamp = self.stamp;
                delta.push(Change { cell: id, value: cell.value.clone(), version: cell.version });
            }
        }
        self.work += DELTA_ENTRY_WORK * delta.len() as u64;
        delta
    }

    /// What holds after one of two paths that both began here and now. `conditions` are what the
    /// first and the second path were taken for.
    pub(super) fn join(&mut self, a: Delta, b: Delta, conditions: [&Conditions; 2]) -> Delta {
        self.stamp += 1;
        self.work += DELTA_ENTRY_WORK * (a.len() + b.len()) as u64;
        for (at, change) in b.iter().enumerate() {
            let cell = &mut self.cells[change.cell as usize];
            cell.stamp = self.stamp;
            cell.at = at as u32;
        }
        let mut common = vec![false; b.len()];
        let mut joined = Delta::with_capacity(a.len() + b.len());
        for change in &a {
            let cell = &self.cells[change.cell as usize];
            let (value, version) = if cell.stamp == self.stamp {
                common[cell.at as usize] = true;
                let other = &b[cell.at as usize];
                (&other.value, other.version)
            } else {
                (&cell.value, cell.version)
            };
            let value = join_on(&change.value, value, conditions);
            let version = if change.version == version { version } else { fresh(&mut self.version) };
            joined.push(Change { cell: change.cell, value, version });
        }
        for (change, _) in b.iter().zip(&common).filter(|(_, common)| !**common) {
            let cell = &self.cells[change.cell as usize];
            let value = join_on(&cell.value, &change.value, conditions);
            let version = if change.version == cell.version { cell.version } else { fresh(&mut self.version) };
            joined.push(Change { cell: change.cell, value, version });
        }
        joined
    }

    /// Follows a path whose changes began here and now.
    pub(super) fn apply(&mut self, delta: Delta) {
        self.work += delta.len() as u64;
        for change in delta {
            self.change(change);
        }
    }
}

fn fresh(version: &mut u32) -> u32 {
    *version += 1;
    *version
}

/// The join of two values of a cell, one for each path. A bool that says which path was taken also
/// says what that path was taken for: so naga's `&&` and `||`, an `If` that sets a bool, keep what
/// their operands say.
fn join_on(a: &Value, b: &Value, conditions: [&Conditions; 2]) -> Value {
    let (Value::Bool(x), Value::Bool(y)) = (a, b) else { return a.join(b) };
    let mut sides = [x.clone(), y.clone()];
    for (side, taken_for) in sides.iter_mut().zip(conditions) {
        side.when_true = all(&side.when_true, taken_for);
        side.when_false = all(&side.when_false, taken_for);
    }
    let [x, y] = sides;
    Value::Bool(x).join(&Value::Bool(y))
}
