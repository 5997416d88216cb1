//! State of the tracer, and the steps that it appends.

use std::collections::HashMap;

use naga::{Expression, Function, GlobalVariable, Handle, Module};
use portcullis_core::program::Program;

use super::facts::Facts;
use super::module::Code;
use super::scan::Scan;
use crate::compile::errors::{Result, Unsupported};
use crate::compile::vector::ir::{
    Compare, Dag, Effect, EffectId, Kind, Lanes, Node, Op, Place as PacketPlace, Range, Region, RegionId, Step,
};

/// Nodes that a filter may come to; more take longer to compile than vectors can save.
const MAX_NODES: usize = 20_000;

/// Steps that a filter may come to.
const MAX_STEPS: usize = 4_000;

/// Statements and expressions that may be executed, calls and rounds of loops counted as often as
/// they are inlined.
const MAX_WORK: usize = 200_000;

/// The slots of the state that are there always: the fuel, and where the packet begins and how long
/// it is, in filters that change that.
pub(super) const FUEL: usize = 0;
pub(super) const START: usize = 1;
pub(super) const LENGTH: usize = 2;
pub(super) const FIXED: usize = 3;

/// What a pointer points to. Scalars follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// From this slot on.
    Slots(usize),
    /// From this word of an array on.
    Array { array: u32, index: Node },
    /// From this word of a map on.
    Map { map: u32, index: Node },
}

/// Where a variable is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Home {
    Slots { first: usize, count: usize },
    Array(u32),
}

/// What an expression came to.
#[derive(Debug, Clone)]
pub(super) enum Operand {
    Value(Vec<Node>),
    Place(Place),
    /// A constant of the module: tables are better read from memory.
    Constant(Handle<Expression>),
}

/// Lanes that go on elsewhere.
#[derive(Debug, Clone)]
pub(super) struct Exit {
    pub lanes: Node,
    /// What the variables were, of which those are there that are where they go on.
    pub state: Vec<Node>,
    /// What was returned.
    pub value: Vec<Node>,
}

/// One call of a function, inlined.
pub(super) struct Frame<'a> {
    pub handle: Handle<Function>,
    pub code: &'a Function,
    pub info: &'a naga::valid::FunctionInfo,
    pub arguments: Vec<Operand>,
    pub locals: Vec<Home>,
    pub values: Vec<Option<Operand>>,
    /// How long the state was before its variables.
    pub base: usize,
    /// Whether its loops cost fuel.
    pub own: bool,
}

/// What `break` and `continue` leave.
pub(super) enum Target {
    Loop { breaks: Vec<Exit>, continues: Vec<Exit> },
    Switch { breaks: Vec<Exit> },
}

pub(super) struct Trace<'a> {
    pub code: &'a Code,
    pub module: &'a Module,
    pub scan: &'a Scan,
    pub dag: Dag,
    pub regions: Vec<Region>,
    pub arrays: Vec<u32>,
    pub tables: Vec<Vec<u32>>,
    pub table_of: HashMap<Handle<naga::Expression>, u32>,
    pub effects: u32,
    pub steps: usize,
    pub work: usize,
    /// Where steps go.
    pub region: RegionId,
    /// Which lanes are here.
    pub here: Node,
    /// What every variable is, in those lanes.
    pub state: Vec<Node>,
    pub globals: HashMap<Handle<GlobalVariable>, Home>,
    pub targets: Vec<Target>,
    /// Who has returned, of each call under way.
    pub returns: Vec<Vec<Exit>>,
    /// Who has run out of fuel.
    pub aborts: Vec<Exit>,
    /// How often lanes have left for somewhere else than the end of the statement that they are in.
    pub departures: usize,
    pub facts: Facts,
    /// Bytes of the packet that have been loaded already, in filters that write to it, and by which lanes.
    pub loaded: HashMap<(PacketPlace, u32), (Node, Node)>,
    /// How often the packet has been written to.
    pub written: usize,
    /// Packets are written to.
    pub writes: bool,
    /// Lengths change.
    pub moves: bool,
    /// Packets may run out of fuel.
    pub exhausts: bool,
}

impl<'a> Trace<'a> {
    pub fn new(program: &'a Program, code: &'a Code, scan: &'a Scan) -> Trace<'a> {
        let facts = program.facts();
        let mut dag = Dag::new();
        let here = dag.flag(true);
        let state = vec![dag.constant(program.fuel()), dag.constant(0), dag.length()];
        // Not by what the facts say of what is ever come to: it is traced all the same.
        let effects = scan.effects(code.filter);
        Trace {
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
            here,
            state,
            globals: HashMap::new(),
            targets: Vec::new(),
            returns: Vec::new(),
            aborts: Vec::new(),
            departures: 0,
            facts: Facts::default(),
            loaded: HashMap::new(),
            written: 0,
            writes: effects.stores || effects.moves,
            moves: effects.moves,
            exhausts: facts.may_exhaust(program.fuel()),
        }
    }

    pub fn run(mut self) -> Result<Lanes> {
        self.init_globals()?;
        let packet = Operand::Value(vec![self.dag.constant(0)]);
        let value = self.call(self.code.filter, vec![packet])?;
        let verdict = match value.as_slice() {
            &[value] => self.verdict(value, &mut HashMap::new()),
            _ => return Err(Unsupported("a filter that returns no number".into())),
        };
        // Who ran out of fuel has what it had by then, and is aborted.
        let aborted = self.dag.constant(0);
        let mut exits = std::mem::take(&mut self.aborts);
        for exit in &mut exits {
            exit.value = vec![aborted];
        }
        self.state.truncate(FIXED);
        if self.dag.as_flag(self.here) != Some(false) {
            exits.push(Exit { lanes: self.here, state: self.state.clone(), value: vec![verdict] });
        }
        let all = self.dag.flag(true);
        let Some(end) = self.meet(exits, all) else {
            return Err(Unsupported("a filter that no packet comes out of".into()));
        };
        Ok(Lanes {
            verdict: end.value[0],
            ends: self.moves.then_some((end.state[START], end.state[LENGTH])),
            writes: self.writes,
            dag: self.dag,
            regions: self.regions,
            arrays: self.arrays,
            tables: self.tables,
        })
    }

    /// Counts something that is executed.
    pub fn spend(&mut self, work: usize) -> Result<()> {
        self.work += work;
        let (nodes, steps) = (self.dag.len(), self.steps);
        if self.work > MAX_WORK || nodes > MAX_NODES || steps > MAX_STEPS {
            return Err(Unsupported(format!(
                "more than fits in lanes: {nodes} operations (at most {MAX_NODES}), {steps} effects (at most {MAX_STEPS})"
            )));
        }
        Ok(())
    }

    /// A step, in some of the lanes that are here; what it gives, if it gives anything.
    pub fn effect(&mut self, mask: Node, effect: Effect, range: Range) -> Node {
        if self.dag.as_flag(mask) == Some(false) {
            return self.dag.constant(range.low);
        }
        let id = EffectId(self.effects);
        self.effects += 1;
        self.steps += 1;
        self.regions[self.region.index()].steps.push(Step::Effect { id, mask, effect });
        if effect.gives() { self.dag.result(id, self.region, range) } else { self.dag.constant(0) }
    }

    /// A number in place of what a filter returned: any that is no verdict is ABORTED.
    pub fn verdict(&mut self, value: Node, known: &mut HashMap<Node, Node>) -> Node {
        if self.dag.range(value).high <= 3 {
            return value;
        }
        if let Some(&verdict) = known.get(&value) {
            return verdict;
        }
        let verdict = match self.dag.op(value) {
            Op::Select { mask, accept, reject } => {
                let (accept, reject) = (self.verdict(accept, known), self.verdict(reject, known));
                self.dag.select(mask, accept, reject)
            }
            _ => {
                let (low, four) = (self.dag.and(value, 0xff), self.dag.constant(4));
                let redirects = self.dag.compare(Compare::Equal, low, four);
                let (three, none) = (self.dag.constant(3), self.dag.constant(0));
                let plain = self.dag.compare(Compare::LessEqual, value, three);
                let good = self.dag.either(plain, redirects);
                self.dag.select(good, value, none)
            }
        };
        known.insert(value, verdict);
        verdict
    }

    /// A mask, or a word, of a kind.
    pub fn zero(&mut self, kind: Kind) -> Node {
        match kind {
            Kind::Word => self.dag.constant(0),
            Kind::Mask => self.dag.flag(false),
        }
    }
}
