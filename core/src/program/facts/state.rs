//! The abstract state: a stack of cells, with an undo log (the trail) of their changes.
//!
//! A cell holds the abstract value of one expression or variable. Branches do not copy the state:
//! each change saves the cell's old value on the trail, so the state at a mark can be restored, and
//! the effect of a branch is the list of cells that it changed (a [`Delta`]). Cost follows the
//! number of changes, not of variables.
//!
//! Invariants:
//! - Marks nest: the last mark set is the first to be undone.
//! - A cell's version names the stored value. Equal versions of a variable mean that it still holds
//!   the same number, even if its range has been narrowed since.
//! - Cells of expressions are written without the trail when the expression is evaluated: nothing
//!   reads them where it was not.

use super::value::{Conditions, Value, conjunction};

/// Work per entry of a [`Delta`], mostly for the memory it holds: the deltas of all `break`s are
/// kept until their loop is done.
const DELTA_ENTRY_WORK: u64 = 4;

/// Abstract value of an expression or a variable.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub(super) value: Value,
    /// Names the stored value, see the module's invariants.
    pub(super) version: u32,
    /// For an expression that loads a whole variable: the variable's cell, and its version at the
    /// load.
    pub(super) loaded: Option<(u32, u32)>,
    /// Position of the cell in the list that was last stamped with `list_stamp`.
    list_stamp: u32,
    list_index: u32,
}

/// A changed cell, with its new (in a delta) or old (on the trail) value.
#[derive(Debug, Clone)]
pub(super) struct Change {
    cell: u32,
    value: Value,
    version: u32,
}

/// Changes along a path, at most one for each cell.
pub(super) type Delta = Vec<Change>;

#[derive(Debug, Default)]
pub(super) struct State {
    cells: Vec<Cell>,
    trail: Vec<Change>,
    list_stamp: u32,
    version: u32,
    /// Whether the current point is reachable.
    pub(super) live: bool,
    /// Work done so far, in units of roughly equal cost; the analysis gives up at a limit.
    pub(super) work: u64,
}

impl State {
    pub(super) fn len(&self) -> u32 {
        self.cells.len() as u32
    }

    /// Pushes `count` cells with the value `Any`. Returns the first.
    pub(super) fn grow(&mut self, count: usize) -> u32 {
        let base = self.len();
        let cell = Cell { value: Value::Any, version: 0, loaded: None, list_stamp: 0, list_index: 0 };
        self.cells.resize(self.cells.len() + count, cell);
        self.work += count as u64;
        base
    }

    /// Pops the cells from `base` on. The changes since `mark` must not mention them.
    pub(super) fn shrink(&mut self, base: u32, mark: usize) {
        self.cells.truncate(base as usize);
        debug_assert!(self.trail[mark..].iter().all(|change| change.cell < base));
    }

    pub(super) fn cell(&self, cell: u32) -> &Cell {
        &self.cells[cell as usize]
    }

    /// Sets the value of an expression that is being evaluated.
    pub(super) fn evaluate(&mut self, cell: u32, value: Value, loaded: Option<(u32, u32)>) {
        let cell = &mut self.cells[cell as usize];
        cell.value = value;
        cell.loaded = loaded;
    }

    /// Stores a new value to a variable.
    pub(super) fn store(&mut self, cell: u32, value: Value) {
        self.version += 1;
        self.change(Change { cell, value, version: self.version });
    }

    /// Refines the value of a cell whose stored value stays the same.
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

    /// Restores the state at `mark`.
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

    /// The current values of the cells below `end` that have changed since `mark`. Undoes nothing.
    pub(super) fn delta(&mut self, mark: usize, end: u32) -> Delta {
        self.list_stamp += 1;
        self.work += (self.trail.len() - mark) as u64;
        let mut delta = Delta::new();
        for i in mark..self.trail.len() {
            let id = self.trail[i].cell;
            let cell = &mut self.cells[id as usize];
            if id < end && cell.list_stamp != self.list_stamp {
                cell.list_stamp = self.list_stamp;
                delta.push(Change { cell: id, value: cell.value.clone(), version: cell.version });
            }
        }
        self.work += DELTA_ENTRY_WORK * delta.len() as u64;
        delta
    }

    /// Joins two paths that both fork at the current state. `conditions` are what the first and the
    /// second path assumed.
    pub(super) fn join(&mut self, a: Delta, b: Delta, conditions: [&Conditions; 2]) -> Delta {
        self.list_stamp += 1;
        self.work += DELTA_ENTRY_WORK * (a.len() + b.len()) as u64;
        for (index, change) in b.iter().enumerate() {
            let cell = &mut self.cells[change.cell as usize];
            cell.list_stamp = self.list_stamp;
            cell.list_index = index as u32;
        }
        let mut common = vec![false; b.len()];
        let mut joined = Delta::with_capacity(a.len() + b.len());
        for change in &a {
            let cell = &self.cells[change.cell as usize];
            let (value, version) = if cell.list_stamp == self.list_stamp {
                common[cell.list_index as usize] = true;
                let other = &b[cell.list_index as usize];
                (&other.value, other.version)
            } else {
                (&cell.value, cell.version)
            };
            let value = join_with_conditions(&change.value, value, conditions);
            let version = if change.version == version { version } else { fresh(&mut self.version) };
            joined.push(Change { cell: change.cell, value, version });
        }
        for (change, _) in b.iter().zip(&common).filter(|(_, common)| !**common) {
            let cell = &self.cells[change.cell as usize];
            let value = join_with_conditions(&cell.value, &change.value, conditions);
            let version = if change.version == cell.version { cell.version } else { fresh(&mut self.version) };
            joined.push(Change { cell: change.cell, value, version });
        }
        joined
    }

    /// Applies the changes of a path that forks at the current state.
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

/// Joins a cell's values on two paths. A bool that tells which path was taken also implies what
/// that path assumed. naga lowers `&&` and `||` to an `If` that sets a bool, and this keeps the
/// conditions of their operands.
fn join_with_conditions(a: &Value, b: &Value, conditions: [&Conditions; 2]) -> Value {
    let (Value::Bool(x), Value::Bool(y)) = (a, b) else { return a.join(b) };
    let mut sides = [x.clone(), y.clone()];
    for (side, taken_for) in sides.iter_mut().zip(conditions) {
        side.when_true = conjunction(&side.when_true, taken_for);
        side.when_false = conjunction(&side.when_false, taken_for);
    }
    let [x, y] = sides;
    Value::Bool(x).join(&Value::Bool(y))
}
