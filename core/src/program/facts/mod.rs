//! What is known about a filter before it runs (`docs/facts.md`).

mod calls;
mod eval;
mod interpreter;
mod interval;
mod loops;
mod scan;
mod state;
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

/// A window that ends further out than this is taken for the whole packet, in bytes.
const MAX_WINDOW: u64 = 1 << 16;

/// How far into a packet something may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// No byte at all.
    Nothing,
    /// Bytes `0..n`, counted from the packet's first byte as it arrived.
    Bytes(u32),
    /// No bound is known.
    WholePacket,
}

impl Window {
    fn to(end: u64) -> Window {
        match u32::try_from(end) {
            Ok(0) => Window::Nothing,
            Ok(end) if end as u64 <= MAX_WINDOW => Window::Bytes(end),
            _ => Window::WholePacket,
        }
    }

    /// How many bytes from a packet's first on it may be at most.
    pub fn max_bytes(self) -> u32 {
        self.of(u32::MAX)
    }

    /// How many bytes from its first on that is of a packet of `length` bytes.
    pub fn of(self, length: u32) -> u32 {
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

/// A set of verdicts, their targets aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VerdictSet(u8);

impl VerdictSet {
    /// No verdict.
    pub const NONE: VerdictSet = VerdictSet(0);
    /// Every verdict.
    pub const ALL: VerdictSet = VerdictSet(0b1_1111);

    /// The set of one.
    pub const fn of(action: Action) -> VerdictSet {
        VerdictSet(1 << action as u8)
    }

    /// What is in either set.
    #[must_use]
    pub const fn union(self, other: VerdictSet) -> VerdictSet {
        VerdictSet(self.0 | other.0)
    }

    /// What is in both sets.
    #[must_use]
    pub const fn intersection(self, other: VerdictSet) -> VerdictSet {
        VerdictSet(self.0 & other.0)
    }

    /// Whether the verdict is in the set.
    pub const fn contains(self, action: Action) -> bool {
        self.0 & VerdictSet::of(action).0 != 0
    }

    /// The verdicts in the set, in numerical order.
    pub fn iter(self) -> impl Iterator<Item = Action> {
        Action::ALL.into_iter().filter(move |&action| self.contains(action))
    }

    /// What the return values in a range mean: 1, 2 and 3 themselves, a low byte of 4 a redirect,
    /// everything else aborted.
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
        // Any number from 5 on that is no redirect.
        let other = range.lo.max(5);
        if has(if other & 0xff == 4 { other + 1 } else { other }) {
            set = set.union(VerdictSet::of(Action::Aborted));
        }
        set
    }

    /// What `redirect` gives for the ports in a range.
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

/// What the analysis knows about a filter. Every entry errs on the safe side. Windows, verdicts and
/// iterations are about what can happen: code that is never come to does not count. The others are
/// about what the filter and the helpers that it calls contain, because a device has to compile
/// that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Bytes that may be read.
    pub reads: Window,
    /// Bytes that may be written. The whole packet where `adjust_head` or `adjust_tail` may make it
    /// longer, since they clear what they add.
    pub writes: Window,
    /// Whether it calls `adjust_head` or `adjust_tail`.
    pub changes_length: bool,
    /// Whether the verdict may be a redirect.
    pub redirects: bool,
    /// Verdicts that packets may get, running out of fuel included.
    pub verdicts: VerdictSet,
    /// Verdicts that the filter may return by itself: without it, ABORTED packets were out of fuel.
    pub returned_verdicts: VerdictSet,
    /// Whether it reads the wire length, the port or the time, so that the batch's metadata matters.
    pub uses_metadata: bool,
    /// Whether it reads the packet's length on the wire.
    pub uses_wire_length: bool,
    /// Whether it reads the packet's port.
    pub uses_port: bool,
    /// Whether it reads the packet's time.
    pub uses_time: bool,
    /// The most fuel a packet can cost, where that is known: how often the bodies of loops begin, the
    /// last time included, when a loop's own condition ends it. 0 without loops.
    pub max_iterations: Option<u32>,
    /// Whether 64-bit integers occur.
    pub uses_int64: bool,
    /// Whether floating point occurs: outside the promise of identical results.
    pub uses_float: bool,
}

impl Facts {
    /// Nothing known, everything possible.
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

    /// Includes what else of the batch's metadata matters, to the same filter's flows.
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

    /// Analyses a filter that has `fuel`.
    pub(super) fn analyze(subject: &AnalysisInput, fuel: u32) -> Facts {
        let text = SyntacticFacts::read(subject);
        let found = AbstractInterpreter::new(subject).solve().unwrap_or_else(|| text.bounds());
        let max_iterations = u32::try_from(found.iterations).ok();
        let mut verdicts = found.verdicts;
        if max_iterations.is_none_or(|most| most > fuel) {
            verdicts = verdicts.union(VerdictSet::of(Action::Aborted));
        }
        let (uses_int64, uses_float) = scalars(subject);
        Facts {
            reads: Window::to(found.read_end),
            writes: Window::to(found.write_end),
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

/// What the functions that the filter can reach contain, whether it is ever come to or not. Devices
/// compile it all, so this decides what they have to provide.
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
    fn read(subject: &AnalysisInput) -> SyntacticFacts {
        let mut text = SyntacticFacts::default();
        let mut seen: HashSet<Handle<Function>> = HashSet::from([subject.filter]);
        let mut functions = vec![subject.filter];
        while let Some(function) = functions.pop() {
            let mut blocks = vec![&subject.module.functions[function].body];
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
                        Statement::Call { function, .. } => match subject.intrinsics.get(function) {
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

    /// What can be said of a filter that is too large to be walked.
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

/// Whether 64-bit integers and whether floating point occur anywhere in the filter's part of the
/// module, dead code included: a device has to compile it all.
fn scalars(subject: &AnalysisInput) -> (bool, bool) {
    let module = subject.module;
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
    for (handle, function) in module.functions.iter().filter(|(handle, _)| !subject.prelude.contains(handle)) {
        for (expression, _) in function.expressions.iter() {
            note(subject.info[handle][expression].ty.inner_with(&module.types));
        }
    }
    (int64, float)
}
