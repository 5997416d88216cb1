//! Why packets were aborted: at which instructions of an XDP program, or for lack of fuel.

use std::collections::HashMap;
use std::sync::Arc;
#[cfg(all(target_os = "linux", feature = "live"))]
use std::sync::{Mutex, PoisonError};
#[cfg(all(target_os = "linux", feature = "live"))]
use std::time::{Duration, Instant};

use portcullis::device::{DeviceError, Session};
use portcullis::frontend::xdp::ProgramSite;
use portcullis::map::{self, MapKind};
use portcullis::packet::Action;
use portcullis::program::Program;
use serde::{Deserialize, Serialize};

use crate::out;

/// Maximum number of places shown in a table; JSON has all.
pub const SHOWN: usize = 20;

/// A place where an XDP program aborted packets because its next operation was invalid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrapCount {
    /// Number of packets.
    pub count: u64,
    /// The place.
    #[serde(flatten)]
    pub place: Place,
}

/// A place where packets may be aborted, or where an addition may be lost.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// Name of the function.
    pub function: String,
    /// The instruction, with its number and function.
    pub instruction: String,
    /// Source file, if it is known.
    pub file: Option<String>,
    /// Line in the source file, counted from 1, if it is known.
    pub line: Option<u32>,
    /// Reason for the abort.
    pub reason: String,
}

impl From<&ProgramSite> for Place {
    fn from(site: &ProgramSite) -> Place {
        let (file, line) = site.line.clone().unzip();
        let ProgramSite { function, instruction, reason, .. } = site;
        Place { function: function.clone(), instruction: instruction.clone(), file, line, reason: (*reason).to_owned() }
    }
}

impl Place {
    /// Describes the place on one line: `` instruction 4 of `parse`: r0 = *(u8 *)(r1 + 60),
    /// prog.c:7: the packet is not so long ``.
    pub fn text(&self) -> String {
        let place = match (&self.file, self.line) {
            (Some(file), Some(line)) => format!(", {}:{line}", out::printable(file)),
            _ => String::new(),
        };
        format!("{}{place}: {}", out::printable(&self.instruction), out::printable(&self.reason))
    }
}

/// Bounds on the number of packets that ran out of fuel. There is no exact count: such packets are
/// ABORTED without an instruction, and so are those for which the filter returns ABORTED.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutOfFuel {
    /// Lower bound: all of them if no filter of the run returns ABORTED itself, else zero.
    pub at_least: u64,
    /// Upper bound.
    pub at_most: u64,
}

impl OutOfFuel {
    /// Formats the line that follows a table.
    fn line(self) -> String {
        let OutOfFuel { at_least, at_most } = self;
        let also = if at_least < at_most { " or by the filter itself" } else { "" };
        format!("{} aborted for lack of fuel{also}: see --fuel\n", out::grouped(at_most))
    }
}

/// Counts of aborted packets, by reason.
#[cfg(all(target_os = "linux", feature = "live"))]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct AbortCounts {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub traps: Vec<TrapCount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_fuel: Option<OutOfFuel>,
}

/// Counters of aborted packets over a run, including programs that a reload has replaced.
pub struct Traps {
    program: Arc<Program>,
    /// Whether packets may run out of fuel, and whether a filter may return ABORTED itself.
    may_exhaust: bool,
    may_return: bool,
    /// The map with the counters, if the program may abort packets.
    map: Option<usize>,
    /// Counters before the run.
    base: Vec<u64>,
    /// Aborts of programs that a reload has replaced.
    before: Vec<TrapCount>,
}

impl Traps {
    /// Starts to count from the session's current state.
    pub fn begin(program: &Arc<Program>, session: &mut dyn Session) -> Result<Traps, DeviceError> {
        let counts = |map: &map::Declaration| map.kind == MapKind::Counter && map.annotations.is_some();
        let map = program.maps().iter().position(counts);
        let facts = program.facts();
        let mut traps = Traps {
            program: program.clone(),
            may_exhaust: facts.may_exhaust(program.fuel()),
            may_return: facts.returned_verdicts.contains(Action::Aborted),
            map,
            base: Vec::new(),
            before: Vec::new(),
        };
        traps.base = traps.counts(session)?;
        Ok(traps)
    }

    /// Whether a filter of the run may abort packets at an instruction.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn any(&self) -> bool {
        self.map.is_some() || !self.before.is_empty()
    }

    /// Whether packets may be aborted other than by the filter's own verdict.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn may_abort(&self) -> bool {
        self.any() || self.may_exhaust
    }

    /// Reads the counters after waiting for the batches submitted before.
    fn counts(&self, session: &mut dyn Session) -> Result<Vec<u64>, DeviceError> {
        let Some(number) = self.map else { return Ok(Vec::new()) };
        let rows = map::rows(&self.program.maps()[number], &session.map_words(number)?);
        let count = |row: map::Row| row.value.iter().rev().fold(0, |sum, &word| sum << 32 | u64::from(word));
        Ok(rows.into_iter().map(count).collect())
    }

    /// Returns where packets were aborted so far, in the order of the instructions; empty for
    /// filters that are no XDP programs.
    ///
    /// # Errors
    /// Errors of the session.
    pub fn read(&self, session: &mut dyn Session) -> Result<Vec<TrapCount>, DeviceError> {
        let mut all = self.before.clone();
        let Some(object) = portcullis::frontend::xdp::ObjectInfo::of(&self.program).filter(|_| self.map.is_some())
        else {
            return Ok(all);
        };
        let counts = self.counts(session)?;
        let base = self.base.iter().copied().chain(std::iter::repeat(0));
        // A client of the control socket may have lowered the counter.
        let counts = counts.into_iter().zip(base).map(|(now, before)| now.saturating_sub(before));
        let known: HashMap<Place, usize> = (0..).zip(&all).map(|(number, it)| (it.place.clone(), number)).collect();
        for (trap, count) in object.traps.iter().zip(counts).filter(|(_, count)| *count > 0) {
            let place = Place::from(trap);
            match known.get(&place) {
                Some(&number) => all[number].count += count,
                None => all.push(TrapCount { count, place }),
            }
        }
        Ok(all)
    }

    /// Bounds how many of `aborted` packets ran out of fuel, if any may have; `others` are those
    /// with a place.
    pub fn out_of_fuel(&self, aborted: u64, others: &[TrapCount]) -> Option<OutOfFuel> {
        let others: u64 = others.iter().map(|it| it.count).sum();
        let at_most = aborted.saturating_sub(others);
        let at_least = if self.may_return { 0 } else { at_most };
        (self.may_exhaust && at_most > 0).then_some(OutOfFuel { at_least, at_most })
    }

    /// Continues with another program in another session, whose maps hold what was carried over.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn take_over(
        &mut self,
        program: &Arc<Program>,
        old: &mut dyn Session,
        new: &mut dyn Session,
    ) -> Result<(), DeviceError> {
        let before = self.read(old)?;
        let next = Traps::begin(program, new)?;
        *self = Traps {
            before,
            may_exhaust: self.may_exhaust | next.may_exhaust,
            may_return: self.may_return | next.may_return,
            ..next
        };
        Ok(())
    }
}

/// Approximate maximum age of the counts shown during a run.
#[cfg(all(target_os = "linux", feature = "live"))]
const MAX_AGE: Duration = Duration::from_millis(100);

/// Counts of aborted packets, shared with the threads that show them.
#[cfg(all(target_os = "linux", feature = "live"))]
#[derive(Clone, Default)]
pub struct SharedAborts(Arc<Mutex<AbortCounts>>);

#[cfg(all(target_os = "linux", feature = "live"))]
impl SharedAborts {
    /// Returns the latest counts.
    pub fn read(&self) -> AbortCounts {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn put(&self, all: AbortCounts) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = all;
    }
}

/// Updates a [`SharedAborts`] between batches.
#[cfg(all(target_os = "linux", feature = "live"))]
pub struct TrapRecorder {
    shared: SharedAborts,
    /// Number of aborted packets at the last update.
    aborted: u64,
    last: Instant,
}

#[cfg(all(target_os = "linux", feature = "live"))]
impl TrapRecorder {
    /// Creates a recorder for `shared`.
    pub fn new(shared: SharedAborts) -> TrapRecorder {
        TrapRecorder { shared, aborted: 0, last: Instant::now() }
    }

    /// Updates the counts if more packets were aborted and the last update is long enough ago:
    /// reading the counters waits for the device.
    pub fn on_batch_boundary(
        &mut self,
        traps: &Traps,
        aborted: impl FnOnce() -> u64,
        session: &mut dyn Session,
    ) -> Result<(), DeviceError> {
        if !traps.may_abort() || self.last.elapsed() < MAX_AGE {
            return Ok(());
        }
        self.last = Instant::now();
        let aborted = aborted();
        if aborted != self.aborted {
            self.aborted = aborted;
            let read = traps.read(session)?;
            self.shared.put(AbortCounts { out_of_fuel: traps.out_of_fuel(aborted, &read), traps: read });
        }
        Ok(())
    }
}

/// Formats at most `most` places, one on a line, and a line about fuel, to follow a table.
pub fn lines(all: &[TrapCount], out_of_fuel: Option<OutOfFuel>, most: usize) -> String {
    format_traps(all, most) + &out_of_fuel.map_or_else(String::new, OutOfFuel::line)
}

/// Formats at most `most` places, one on a line: those with the most packets, and the number of the
/// others.
fn format_traps(all: &[TrapCount], most: usize) -> String {
    let line = |it: &TrapCount| format!("{} aborted at {}\n", out::grouped(it.count), it.place.text());
    if all.len() <= most {
        return all.iter().map(line).collect();
    }
    let mut order: Vec<&TrapCount> = all.iter().collect();
    order.sort_by_key(|it| std::cmp::Reverse(it.count));
    let (first, rest) = order.split_at(most.saturating_sub(1));
    let count = rest.iter().map(|it| it.count).sum();
    let places = rest.len();
    first.iter().copied().map(line).collect::<String>()
        + &format!("{} aborted at {places} other places; --json lists them\n", out::grouped(count))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns packets that were aborted at a line of a function.
    pub fn trapped(line: u32, count: u64) -> TrapCount {
        let place = Place {
            function: "parse".into(),
            instruction: format!("instruction {line} of `parse`: exit"),
            file: Some("p.c".into()),
            line: Some(line),
            reason: "the packet is not so long".into(),
        };
        TrapCount { count, place }
    }

    #[test]
    fn of_many_places_those_with_the_most_packets_are_shown() {
        let all: Vec<TrapCount> = (1..=6).map(|line| trapped(line, u64::from(line % 4) * 1000)).collect();
        let whole = "1 000 aborted at instruction 1 of `parse`: exit, p.c:1: the packet is not so long\n";
        assert_eq!(format_traps(&all[..1], 1), whole);
        let text = format_traps(&all, 3);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].starts_with("3 000 aborted at instruction 3 ") && lines[1].starts_with("2 000 "), "{text}");
        // 1 + 0 + 1 + 2 thousand are left.
        assert!(lines[2].starts_with("4 000 aborted at 4 other places"), "{text}");
    }

    #[test]
    fn json_has_the_place_beside_the_count_and_reads_it_again() {
        let one = trapped(7, 3);
        let text = serde_json::to_string(&one).unwrap();
        assert!(text.starts_with(r#"{"count":3,"function":"parse","instruction":"#), "{text}");
        assert_eq!(serde_json::from_str::<TrapCount>(&text).unwrap(), one);
    }
}
