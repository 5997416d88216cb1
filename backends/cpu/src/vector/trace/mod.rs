//! From a program to lane IR: the filter is executed with symbols in place of its packet.
//!
//! There is one state, what every variable is now ([`Trace::state`]), and one mask, which lanes are
//! here ([`Trace::here`]). An `if` is executed both ways, each from the same state with its part of
//! the lanes, and where the ways meet the condition selects between what they left. Whoever leaves
//! early (`break`, `continue`, `return`, out of fuel) is an [`Exit`]: which lanes, and their state;
//! they are put together where those lanes go on. What the state is in lanes that are not here does
//! not matter, so stores need no masks.
//!
//! - `control`: statements and calls, which are all inlined;
//! - `loops`: loops, unrolled where their ends are known;
//! - `exits`: how states meet;
//! - `expressions`, `math`, `places`: what is computed, and what pointers point to;
//! - `packet`: the prelude's functions of packets, and which of their checks are needed;
//! - `facts`: what a mask says of the packet's length;
//! - `scan`: what is found out before: variables that are indexed, and what loops assign.

mod control;
mod exits;
mod expressions;
mod facts;
mod loops;
mod math;
mod packet;
mod places;
mod scan;

use std::collections::{HashMap, HashSet};

use naga::valid::ModuleInfo;
use naga::{Function, GlobalVariable, Handle, Module};
use portcullis_core::program::prelude::Intrinsic;
use portcullis_core::program::{Lowering, Program, lower};

use super::dag::{Dag, Effect, EffectId, Kind, Lanes, Node, Op, Place as PacketPlace, Range, Region, RegionId, Step};
use crate::compile::Unsupported;
use exits::Exit;
use facts::Facts;
use places::{Home, Operand};

type Result<T, E = Unsupported> = std::result::Result<T, E>;

/// Nodes that a filter may come to; more take longer to compile than vectors can save.
const MAX_NODES: usize = 20_000;

/// Steps that a filter may come to.
const MAX_STEPS: usize = 4_000;

/// Statements and expressions that may be executed, calls and rounds of loops counted as often as
/// they are inlined.
const MAX_WORK: usize = 200_000;

/// Words of constant tables.
const MAX_TABLES: usize = 4 << 20;

/// What the filter's module is, its 64-bit integers made pairs.
struct Code {
    module: Module,
    info: ModuleInfo,
    filter: Handle<Function>,
    intrinsics: HashMap<Handle<Function>, Intrinsic>,
    prelude: HashSet<Handle<Function>>,
}

/// Traces a filter.
///
/// # Errors
/// [`Unsupported`], with what the filter does that cannot be done in lanes, or what there is too
/// much of.
pub(crate) fn trace(program: &Program) -> Result<Lanes> {
    let facts = program.facts();
    if program.has_flows() {
        return Err(Unsupported("packets of a flow in their order".into()));
    }
    let lowering = Lowering { int64: facts.uses_int64, ..Lowering::NONE };
    let lowered = lower(program, lowering).map_err(|error| Unsupported(error.to_string()))?;
    let code = Code {
        filter: lowered.filter,
        intrinsics: lowered.intrinsics,
        prelude: lowered.prelude,
        module: lowered.module,
        info: lowered.info,
    };
    let scanned = scan::Scan::of(&code);
    Trace::new(program, &code, &scanned).run()
}

/// The slots of the state that are there always: the fuel, and where the packet begins and how long
/// it is, in filters that change that.
const FUEL: usize = 0;
const START: usize = 1;
const LENGTH: usize = 2;
const FIXED: usize = 3;

/// One call of a function, inlined.
struct Frame<'a> {
    handle: Handle<Function>,
    code: &'a Function,
    info: &'a naga::valid::FunctionInfo,
    arguments: Vec<Operand>,
    locals: Vec<Home>,
    values: Vec<Option<Operand>>,
    /// How long the state was before its variables.
    base: usize,
    /// Whether its loops cost fuel.
    own: bool,
}

/// What `break` and `continue` leave.
enum Target {
    Loop { breaks: Vec<Exit>, continues: Vec<Exit> },
    Switch { breaks: Vec<Exit> },
}

struct Trace<'a> {
    code: &'a Code,
    module: &'a Module,
    scan: &'a scan::Scan,
    dag: Dag,
    regions: Vec<Region>,
    arrays: Vec<u32>,
    tables: Vec<Vec<u32>>,
    table_of: HashMap<Handle<naga::Expression>, u32>,
    effects: u32,
    steps: usize,
    work: usize,
    /// Where steps go.
    region: RegionId,
    /// Which lanes are here.
    here: Node,
    /// What every variable is, in those lanes.
    state: Vec<Node>,
    globals: HashMap<Handle<GlobalVariable>, Home>,
    targets: Vec<Target>,
    /// Who has returned, of each call under way.
    returns: Vec<Vec<Exit>>,
    /// Who has run out of fuel.
    aborts: Vec<Exit>,
    /// How often lanes have left for somewhere else than the end of the statement that they are in.
    departures: usize,
    facts: Facts,
    /// Bytes of the packet that have been loaded already, in filters that write to it, and by which lanes.
    loaded: HashMap<(PacketPlace, u32), (Node, Node)>,
    /// How often the packet has been written to.
    written: usize,
    /// Packets are written to.
    writes: bool,
    /// Lengths change.
    moves: bool,
    /// Packets may run out of fuel.
    exhausts: bool,
}

impl<'a> Trace<'a> {
    fn new(program: &'a Program, code: &'a Code, scan: &'a scan::Scan) -> Trace<'a> {
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

    fn run(mut self) -> Result<Lanes> {
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
    fn spend(&mut self, work: usize) -> Result<()> {
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
    fn effect(&mut self, mask: Node, effect: Effect, range: Range) -> Node {
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
    fn verdict(&mut self, value: Node, known: &mut HashMap<Node, Node>) -> Node {
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
                let redirects = self.dag.compare(super::dag::Compare::Equal, low, four);
                let (three, none) = (self.dag.constant(3), self.dag.constant(0));
                let plain = self.dag.compare(super::dag::Compare::LessEqual, value, three);
                let good = self.dag.either(plain, redirects);
                self.dag.select(good, value, none)
            }
        };
        known.insert(value, verdict);
        verdict
    }

    /// A mask, or a word, of a kind.
    fn zero(&mut self, kind: Kind) -> Node {
        match kind {
            Kind::Word => self.dag.constant(0),
            Kind::Mask => self.dag.flag(false),
        }
    }

    /// Code that lanes come to only in part: its steps are a region of their own.
    fn within(&mut self, lanes: Node, code: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
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
    fn open(&mut self) -> RegionId {
        let region = self.dag.region(self.region);
        self.regions.push(Region { parent: Some(self.region), steps: Vec::new() });
        self.region = region;
        region
    }

    /// Puts a region's steps where they belong, and has what is of use behind them come out.
    fn close(&mut self, inner: RegionId, lanes: Node) {
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
