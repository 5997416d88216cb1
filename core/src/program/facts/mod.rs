//! Static facts about a filter, by abstract interpretation (`docs/reference/facts.md`).
//!
//! The abstract domain is intervals of 32-bit integers (Cousot and Cousot 1977), with the set of
//! verdicts that a value can be, conditions implied by booleans, and composites by component. Calls
//! are interpreted in the callee for every call site; loops are solved to a fixpoint with widening,
//! then narrowed. Facts over-approximate: a device that relies on one never computes a wrong
//! verdict.

mod calls;
mod eval;
mod interpreter;
mod interval;
mod loops;
mod scan;
mod state;
mod targets;
#[cfg(test)]
mod tests;
mod value;

use std::collections::HashSet;
use std::fmt;

use naga::{Function, Handle, Scalar, ScalarKind, Statement, TypeInner};

pub(in crate::program) use interpreter::AnalysisInput;

use crate::packet::Action;
use crate::program::prelude::Intrinsic;
use interpreter::{AbstractInterpreter, InferredFacts};
use interval::Interval;

/// Largest end, in bytes, of a window that is reported as a window; beyond it the whole packet
/// counts.
const MAX_WINDOW: u64 = 1 << 16;

/// The part of a packet that a filter may access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// No byte.
    Nothing,
    /// Bytes `0..n`, counted from the packet's first byte as it arrived.
    Bytes(u32),
    /// Any byte: no bound is known.
    WholePacket,
}

impl Window {
    fn from_end(end: u64) -> Window {
        match u32::try_from(end) {
            Ok(0) => Window::Nothing,
            Ok(end) if end as u64 <= MAX_WINDOW => Window::Bytes(end),
            _ => Window::WholePacket,
        }
    }

    /// Maximum number of bytes, counted from the packet's first byte.
    pub fn max_bytes(self) -> u32 {
        self.bytes_in(u32::MAX)
    }

    /// Number of bytes that the window covers in a packet of `length` bytes.
    pub fn bytes_in(self, length: u32) -> u32 {
        match self {
            Window::Nothing => 0,
            Window::Bytes(end) => end.min(length),
            Window::WholePacket => length,
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Window::Nothing => f.write_str("nothing"),
            Window::Bytes(end) => write!(f, "bytes 0..{end}"),
            Window::WholePacket => f.write_str("the whole packet"),
        }
    }
}

/// A set of actions; a redirect's target is not part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VerdictSet(u8);

impl VerdictSet {
    /// The empty set.
    pub const NONE: VerdictSet = VerdictSet(0);
    /// All actions.
    pub const ALL: VerdictSet = VerdictSet(0b1_1111);

    /// The set of a single action.
    pub const fn of(action: Action) -> VerdictSet {
        VerdictSet(1 << action as u8)
    }

    /// Union of two sets.
    #[must_use]
    pub const fn union(self, other: VerdictSet) -> VerdictSet {
        VerdictSet(self.0 | other.0)
    }

    /// Intersection of two sets.
    #[must_use]
    pub const fn intersection(self, other: VerdictSet) -> VerdictSet {
        VerdictSet(self.0 & other.0)
    }

    /// Whether the set contains `action`.
    pub const fn contains(self, action: Action) -> bool {
        self.0 & VerdictSet::of(action).0 != 0
    }

    /// The actions in the set, in numerical order.
    pub fn iter(self) -> impl Iterator<Item = Action> {
        Action::ALL.into_iter().filter(move |&action| self.contains(action))
    }

    /// Actions that return values in `range` stand for: 1, 2 and 3 themselves, a low byte of 4 a
    /// redirect, everything else ABORTED.
    fn of_range(range: Interval) -> VerdictSet {
        if range.lo < 0 {
            return VerdictSet::ALL;
        }
        let has = |n: i64| range.lo <= n && n <= range.hi;
        let mut set = VerdictSet::NONE;
        for (n, action) in [(0, Action::Aborted), (1, Action::Drop), (2, Action::Pass), (3, Action::Tx)] {
            if has(n) {
                set = set.union(VerdictSet::of(action));
            }
        }
        let redirect = range.lo + (4 - range.lo).rem_euclid(256);
        if has(redirect) {
            set = set.union(VerdictSet::of(Action::Redirect));
        }
        // The smallest number from 5 on that is not a redirect.
        let other = range.lo.max(5);
        if has(if other & 0xff == 4 { other + 1 } else { other }) {
            set = set.union(VerdictSet::of(Action::Aborted));
        }
        set
    }

    /// Actions that `redirect` returns for ports in a range.
    fn of_redirect(port: Interval) -> VerdictSet {
        let mut set = VerdictSet::NONE;
        if port.lo < 1 << 24 {
            set = set.union(VerdictSet::of(Action::Redirect));
        }
        if port.hi >= 1 << 24 {
            set = set.union(VerdictSet::of(Action::Aborted));
        }
        set
    }
}

/// The facts about a filter; each over-approximates.
///
/// Windows, verdicts and iterations describe executions: unreachable code does not count. The other
/// facts describe the text of the filter and of the helpers it calls, dead code included, because a
/// device has to compile it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Bytes that the filter may read.
    pub reads: Window,
    /// Bytes that the filter may write. The whole packet if `adjust_head` or `adjust_tail` may
    /// lengthen it, because they clear the bytes they add.
    pub writes: Window,
    /// Whether the filter calls `adjust_head` or `adjust_tail`.
    pub changes_length: bool,
    /// Whether a verdict may be a redirect.
    pub redirects: bool,
    /// Verdicts that packets may get, running out of fuel included.
    pub verdicts: VerdictSet,
    /// Verdicts that the filter itself may return. If ABORTED is not among them, an aborted packet
    /// ran out of fuel.
    pub returned_verdicts: VerdictSet,
    /// Whether the filter reads the wire length, the port or the time, so that the batch needs
    /// metadata.
    pub uses_metadata: bool,
    /// Whether the filter reads the packet's length on the wire.
    pub uses_wire_length: bool,
    /// Whether the filter reads the packet's ingress port.
    pub uses_port: bool,
    /// Whether the filter reads the packet's timestamp.
    pub uses_time: bool,
    /// Maximum fuel that a packet uses, if a bound is known: the number of times that loop bodies
    /// are entered, counting the entry in which a loop's own condition ends it. 0 without loops.
    pub max_iterations: Option<u32>,
    /// Whether the module contains 64-bit integers.
    pub uses_int64: bool,
    /// Whether the module contains floating point, for which devices need not agree bit by bit.
    pub uses_float: bool,
}

impl Facts {
    /// The facts that hold for every filter.
    pub fn unknown() -> Facts {
        Facts {
            reads: Window::WholePacket,
            writes: Window::WholePacket,
            changes_length: true,
            redirects: true,
            verdicts: VerdictSet::ALL,
            returned_verdicts: VerdictSet::ALL,
            uses_metadata: true,
            uses_wire_length: true,
            uses_port: true,
            uses_time: true,
            max_iterations: None,
            uses_int64: true,
            uses_float: true,
        }
    }

    /// Whether the filter may change its packet's bytes or length.
    pub fn rewrites(&self) -> bool {
        self.changes_length || self.writes != Window::Nothing
    }

    /// Adds the metadata that computing a packet's flow reads.
    pub(super) fn include_metadata_of(&mut self, flows: &Facts) {
        self.uses_metadata |= flows.uses_metadata;
        self.uses_wire_length |= flows.uses_wire_length;
        self.uses_port |= flows.uses_port;
        self.uses_time |= flows.uses_time;
    }

    /// Whether a packet may run out of `fuel`.
    pub fn may_exhaust(&self, fuel: u32) -> bool {
        self.max_iterations.is_none_or(|most| most > fuel)
    }

    /// Analyses a filter that runs with `fuel`.
    pub(super) fn analyze(input: &AnalysisInput, fuel: u32) -> Facts {
        let text = SyntacticFacts::read(input);
        let found = AbstractInterpreter::new(input).solve().unwrap_or_else(|| text.bounds());
        let max_iterations = u32::try_from(found.iterations).ok();
        let mut verdicts = found.verdicts;
        if max_iterations.is_none_or(|most| most > fuel) {
            verdicts = verdicts.union(VerdictSet::of(Action::Aborted));
        }
        let (uses_int64, uses_float) = scalars(input);
        Facts {
            reads: Window::from_end(found.read_end),
            writes: Window::from_end(found.write_end),
            changes_length: text.changes_length,
            redirects: verdicts.contains(Action::Redirect),
            verdicts,
            returned_verdicts: found.verdicts,
            uses_metadata: text.wire_length || text.port || text.time,
            uses_wire_length: text.wire_length,
            uses_port: text.port,
            uses_time: text.time,
            max_iterations,
            uses_int64,
            uses_float,
        }
    }
}

/// Facts read off the text of all functions that the filter can call, whether or not the calls are
/// reachable. Devices compile all of them, so this decides which features they need.
#[derive(Debug, Default)]
struct SyntacticFacts {
    reads: bool,
    writes: bool,
    changes_length: bool,
    wire_length: bool,
    port: bool,
    time: bool,
    loops: bool,
}

impl SyntacticFacts {
    fn read(input: &AnalysisInput) -> SyntacticFacts {
        let mut text = SyntacticFacts::default();
        let mut seen: HashSet<Handle<Function>> = HashSet::from([input.filter]);
        let mut functions = vec![input.filter];
        while let Some(function) = functions.pop() {
            let mut blocks = vec![&input.module.functions[function].body];
            while let Some(block) = blocks.pop() {
                for statement in block {
                    match statement {
                        Statement::Block(inner) => blocks.push(inner),
                        Statement::If { accept, reject, .. } => blocks.extend([accept, reject]),
                        Statement::Switch { cases, .. } => blocks.extend(cases.iter().map(|case| &case.body)),
                        Statement::Loop { body, continuing, .. } => {
                            text.loops = true;
                            blocks.extend([body, continuing]);
                        }
                        Statement::Call { function, .. } => match input.intrinsics.get(function) {
                            Some(&intrinsic) => text.call(intrinsic),
                            None if seen.insert(*function) => functions.push(*function),
                            None => {}
                        },
                        _ => {}
                    }
                }
            }
        }
        text
    }

    fn call(&mut self, intrinsic: Intrinsic) {
        match intrinsic {
            Intrinsic::Load { .. } => self.reads = true,
            Intrinsic::Store { .. } => self.writes = true,
            Intrinsic::AdjustHead | Intrinsic::AdjustTail => self.changes_length = true,
            Intrinsic::PktWireLen => self.wire_length = true,
            Intrinsic::PktPort => self.port = true,
            Intrinsic::PktTime | Intrinsic::PktTimeMs => self.time = true,
            _ => {}
        }
    }

    /// Facts for a filter that is too large for the abstract interpreter.
    fn bounds(&self) -> InferredFacts {
        let all = |some: bool| if some { u64::MAX } else { 0 };
        InferredFacts {
            read_end: all(self.reads),
            write_end: all(self.writes || self.changes_length),
            verdicts: VerdictSet::ALL,
            iterations: all(self.loops),
        }
    }
}

/// Whether 64-bit integers and whether floating point occur in the module outside the prelude's
/// functions. Dead code counts, because a device has to compile it.
fn scalars(input: &AnalysisInput) -> (bool, bool) {
    let module = input.module;
    let (mut int64, mut float) = (false, false);
    let mut note = |inner: &TypeInner| {
        let (TypeInner::Scalar(scalar)
        | TypeInner::Vector { scalar, .. }
        | TypeInner::Matrix { scalar, .. }
        | TypeInner::ValuePointer { scalar, .. }) = *inner
        else {
            return;
        };
        int64 |= matches!(scalar, Scalar { kind: ScalarKind::Uint | ScalarKind::Sint, width: 8 });
        float |= scalar.kind == ScalarKind::Float;
    };
    module.types.iter().for_each(|(_, ty)| note(&ty.inner));
    for (handle, function) in module.functions.iter().filter(|(handle, _)| !input.prelude.contains(handle)) {
        for (expression, _) in function.expressions.iter() {
            note(input.info[handle][expression].ty.inner_with(&module.types));
        }
    }
    (int64, float)
}
