//! State of the tracer, and the steps that it appends.

use std::collections::HashMap;

use naga::{Expression, Function, GlobalVariable, Handle, Module};
use portcullis_core::program::Program;

use super::facts::MaskFacts;
use super::module::LoweredModule;
use super::scan::ModuleScan;
use crate::compile::errors::{Result, Unsupported};
use crate::compile::vector::ir::{
    Compare, Dag, Effect, EffectId, LaneIr, Node, Op, PacketAddress, Range, Region, RegionId, Step, ValueKind,
};

/// Maximum number of nodes; more take longer to compile than vector code can save.
const MAX_NODES: usize = 20_000;

/// Maximum number of steps.
const MAX_STEPS: usize = 4_000;

/// Maximum number of statements and expressions executed while tracing; inlined calls and unrolled
/// iterations count every time.
const MAX_EXECUTED: usize = 200_000;

/// State slots that always exist: remaining fuel, and the packet's current start and length, which
/// only some filters change.
pub(super) const FUEL: usize = 0;
pub(super) const START: usize = 1;
pub(super) const LENGTH: usize = 2;
pub(super) const FIXED_SLOTS: usize = 3;

/// Target of a pointer: consecutive scalars.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Scalars in state slots, from this one on.
    Slots(usize),
    /// Words of a lane's own array, from this index on.
    Array { array: u32, index: Node },
    /// Words of a map, from this index on.
    Map { map: u32, index: Node },
}

/// Where a variable is stored.
#[derive(Debug, Clone, Copy)]
pub(super) enum VariableLocation {
    Slots { first: usize, count: usize },
    Array(u32),
}

/// The value of an expression.
#[derive(Debug, Clone)]
pub(super) enum Operand {
    Value(Vec<Node>),
    Place(Place),
    /// A constant of the module, not yet materialised: tables are better read from memory.
    Constant(Handle<Expression>),
}

/// Lanes that have left the current path and continue elsewhere.
#[derive(Debug, Clone)]
pub(super) struct Exit {
    pub lanes: Node,
    /// State of the variables that exist where the lanes continue.
    pub state: Vec<Node>,
    /// The value that the lanes return.
    pub value: Vec<Node>,
}

/// An inlined call of a function.
pub(super) struct Frame<'a> {
    pub handle: Handle<Function>,
    pub code: &'a Function,
    pub info: &'a naga::valid::FunctionInfo,
    pub arguments: Vec<Operand>,
    pub locals: Vec<VariableLocation>,
    pub values: Vec<Option<Operand>>,
    /// Length of the state before the call's variables.
    pub base: usize,
    /// Whether the function's loops burn fuel; the prelude's do not.
    pub burns_fuel: bool,
}

/// A statement that `break` and `continue` can leave, and the lanes that have done so.
pub(super) enum JumpTarget {
    Loop { breaks: Vec<Exit>, continues: Vec<Exit> },
    Switch { breaks: Vec<Exit> },
}

pub(super) struct Tracer<'a> {
    pub code: &'a LoweredModule,
    pub module: &'a Module,
    pub scan: &'a ModuleScan,
    pub dag: Dag,
    pub regions: Vec<Region>,
    pub arrays: Vec<u32>,
    pub tables: Vec<Vec<u32>>,
    pub table_of: HashMap<Handle<naga::Expression>, u32>,
    pub effects: u32,
    pub steps: usize,
    pub work: usize,
    /// Region that steps are appended to.
    pub region: RegionId,
    /// Mask of the active lanes.
    pub active: Node,
    /// Current value of every variable, in active lanes.
    pub state: Vec<Node>,
    pub globals: HashMap<Handle<GlobalVariable>, VariableLocation>,
    pub targets: Vec<JumpTarget>,
    /// Lanes that have returned, for each enclosing call.
    pub returns: Vec<Vec<Exit>>,
    /// Lanes that have run out of fuel.
    pub aborts: Vec<Exit>,
    /// Number of times that lanes have left for anywhere but the end of the current statement.
    pub departures: usize,
    pub facts: MaskFacts,
    /// Packet bytes loaded since the last write, in filters that write to packets, with the mask of
    /// lanes that loaded them.
    pub loaded: HashMap<(PacketAddress, u32), (Node, Node)>,
    /// Number of writes to the packet so far.
    pub written: usize,
    /// Whether the filter writes to packets.
    pub writes: bool,
    /// Whether the filter changes the packet's start or length.
    pub moves: bool,
    /// Whether packets may run out of fuel.
    pub exhausts: bool,
}

impl<'a> Tracer<'a> {
    pub fn new(program: &'a Program, code: &'a LoweredModule, scan: &'a ModuleScan) -> Tracer<'a> {
        let facts = program.facts();
        let mut dag = Dag::new();
        let active = dag.flag(true);
        let state = vec![dag.constant(program.fuel()), dag.constant(0), dag.length()];
        // Not from the program's facts: those leave out code that is never reached, which is traced
        // all the same.
        let effects = scan.effects(code.filter);
        Tracer {
            code,
            module: &code.module,
            scan,
            dag,
            regions: vec![Region::default()],
            arrays: Vec::new(),
            tables: Vec::new(),
            table_of: HashMap::new(),
            effects: 0,
            steps: 0,
            work: 0,
            region: RegionId::ROOT,
            active,
            state,
            globals: HashMap::new(),
            targets: Vec::new(),
            returns: Vec::new(),
            aborts: Vec::new(),
            departures: 0,
            facts: MaskFacts::default(),
            loaded: HashMap::new(),
            written: 0,
            writes: effects.stores || effects.moves,
            moves: effects.moves,
            exhausts: facts.may_exhaust(program.fuel()),
        }
    }

    pub fn run(mut self) -> Result<LaneIr> {
        self.init_globals()?;
        let packet = Operand::Value(vec![self.dag.constant(0)]);
        let value = self.inline_call(self.code.filter, vec![packet])?;
        let verdict = match value.as_slice() {
            &[value] => self.normalise_verdict(value, &mut HashMap::new()),
            _ => return Err(Unsupported("a filter that does not return one scalar".into())),
        };
        // A packet that ran out of fuel keeps the changes made by then, and is aborted.
        let aborted = self.dag.constant(0);
        let mut exits = std::mem::take(&mut self.aborts);
        for exit in &mut exits {
            exit.value = vec![aborted];
        }
        self.state.truncate(FIXED_SLOTS);
        if self.dag.as_flag(self.active) != Some(false) {
            exits.push(Exit { lanes: self.active, state: self.state.clone(), value: vec![verdict] });
        }
        let all = self.dag.flag(true);
        let Some(end) = self.merge_exits(exits, all) else {
            return Err(Unsupported("a filter that never returns".into()));
        };
        Ok(LaneIr {
            verdict: end.value[0],
            ends: self.moves.then_some((end.state[START], end.state[LENGTH])),
            writes: self.writes,
            dag: self.dag,
            regions: self.regions,
            arrays: self.arrays,
            tables: self.tables,
        })
    }

    /// Counts statements and expressions that are executed.
    pub fn count_executed(&mut self, work: usize) -> Result<()> {
        self.work += work;
        let (nodes, steps) = (self.dag.len(), self.steps);
        if self.work > MAX_EXECUTED || nodes > MAX_NODES || steps > MAX_STEPS {
            return Err(Unsupported(format!(
                "too large for vector code: {nodes} operations (at most {MAX_NODES}), {steps} effects (at most {MAX_STEPS})"
            )));
        }
        Ok(())
    }

    /// Appends an effect in lanes of the mask; returns its result, or a constant if it has none.
    pub fn push_effect(&mut self, mask: Node, effect: Effect, range: Range) -> Node {
        if self.dag.as_flag(mask) == Some(false) {
            return self.dag.constant(range.low);
        }
        let id = EffectId(self.effects);
        self.effects += 1;
        self.steps += 1;
        self.regions[self.region.index()].steps.push(Step::Effect { id, mask, effect });
        if effect.has_result() { self.dag.result(id, self.region, range) } else { self.dag.constant(0) }
    }

    /// Converts a filter's return value to a verdict: values that are no verdict mean `ABORTED`.
    pub fn normalise_verdict(&mut self, value: Node, known: &mut HashMap<Node, Node>) -> Node {
        if self.dag.range(value).high <= 3 {
            return value;
        }
        if let Some(&verdict) = known.get(&value) {
            return verdict;
        }
        let verdict = match self.dag.op(value) {
            Op::Select { mask, accept, reject } => {
                let (accept, reject) = (self.normalise_verdict(accept, known), self.normalise_verdict(reject, known));
                self.dag.select(mask, accept, reject)
            }
            _ => {
                let (low, four) = (self.dag.and(value, 0xff), self.dag.constant(4));
                let redirects = self.dag.compare(Compare::Equal, low, four);
                let (three, none) = (self.dag.constant(3), self.dag.constant(0));
                let plain = self.dag.compare(Compare::LessEqual, value, three);
                let good = self.dag.mask_or(plain, redirects);
                self.dag.select(good, value, none)
            }
        };
        known.insert(value, verdict);
        verdict
    }

    /// Zero, or a mask that is clear.
    pub fn zero(&mut self, kind: ValueKind) -> Node {
        match kind {
            ValueKind::Word => self.dag.constant(0),
            ValueKind::Mask => self.dag.flag(false),
        }
    }
}
