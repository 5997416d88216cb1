//! Why packets were aborted: the instructions of a program of XDP that they were aborted at, and
//! want of fuel.

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

/// Places that people are shown in the end; JSON has all.
pub const SHOWN: usize = 20;

/// A place where packets were aborted, since what the program was about to do was not right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trapped {
    /// How many.
    pub count: u64,
    #[serde(flatten)]
    pub place: Place,
}

/// A place where packets may be aborted, or where what they add may be lost.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The function.
    pub function: String,
    /// The instruction, with its number and its function.
    pub instruction: String,
    /// Where it is in the source, if that is known.
    pub file: Option<String>,
    pub line: Option<u32>,
    /// Why.
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
    /// In words, on one line: `instruction 4 of `parse`: r0 = *(u8 *)(r1 + 60), prog.c:7: the
    /// packet is not so long`.
    pub fn text(&self) -> String {
        let place = match (&self.file, self.line) {
            (Some(file), Some(line)) => format!(", {}:{line}", out::printable(file)),
            _ => String::new(),
        };
        format!("{}{place}: {}", out::printable(&self.instruction), out::printable(&self.reason))
    }
}

/// Packets that were out of fuel. Nobody counts them: they are ABORTED, and at no instruction that
/// is told of. The filter may have returned that by itself, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutOfFuel {
    /// Lower bound: all of them if no filter of the run returns ABORTED itself, else zero.
    pub at_least: u64,
    /// Upper bound.
    pub at_most: u64,
}

impl OutOfFuel {
    /// A line behind a table.
    fn line(self) -> String {
        let OutOfFuel { at_least, at_most } = self;
        let also = if at_least < at_most { ", or since the filter says so" } else { "" };
        format!("{} aborted for want of fuel{also}: see --fuel\n", out::grouped(at_most))
    }
}

/// Why packets were aborted.
#[cfg(all(target_os = "linux", feature = "live"))]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Aborted {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub traps: Vec<Trapped>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_fuel: Option<OutOfFuel>,
}

/// What a run's packets were aborted at, also where one program took over from another.
pub struct Traps {
    program: Arc<Program>,
    /// Whether packets may have been out of fuel, and whether a filter may have returned ABORTED by
    /// itself.
    may_exhaust: bool,
    may_return: bool,
    /// The map that counts, of a program that may abort packets.
    map: Option<usize>,
    /// Counters before the run.
    base: Vec<u64>,
    /// Aborts of programs that a reload has replaced.
    before: Vec<Trapped>,
}

impl Traps {
    /// Begins with what comes from now on.
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

    /// Whether there may ever be any.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn any(&self) -> bool {
        self.map.is_some() || !self.before.is_empty()
    }

    /// Whether packets may be aborted by anything but what the filter returns.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub fn may_abort(&self) -> bool {
        self.any() || self.may_exhaust
    }

    /// What the map says now. It waits for the batches submitted before.
    fn counts(&self, session: &mut dyn Session) -> Result<Vec<u64>, DeviceError> {
        let Some(number) = self.map else { return Ok(Vec::new()) };
        let rows = map::rows(&self.program.maps()[number], &session.map_words(number)?);
        let count = |row: map::Row| row.value.iter().rev().fold(0, |sum, &word| sum << 32 | u64::from(word));
        Ok(rows.into_iter().map(count).collect())
    }

    /// Where packets were aborted up to now, in order of their instructions; none of other filters.
    ///
    /// # Errors
    /// If the session fails.
    pub fn read(&self, session: &mut dyn Session) -> Result<Vec<Trapped>, DeviceError> {
        let mut all = self.before.clone();
        let Some(object) = portcullis::frontend::xdp::ObjectInfo::of(&self.program).filter(|_| self.map.is_some())
        else {
            return Ok(all);
        };
        let counts = self.counts(session)?;
        let base = self.base.iter().copied().chain(std::iter::repeat(0));
        // Somebody may have set it lower meanwhile.
        let counts = counts.into_iter().zip(base).map(|(now, before)| now.saturating_sub(before));
        let known: HashMap<Place, usize> = (0..).zip(&all).map(|(number, it)| (it.place.clone(), number)).collect();
        for (trap, count) in object.traps.iter().zip(counts).filter(|(_, count)| *count > 0) {
            let place = Place::from(trap);
            match known.get(&place) {
                Some(&number) => all[number].count += count,
                None => all.push(Trapped { count, place }),
            }
        }
        Ok(all)
    }

    /// How many of so many ABORTED packets were out of fuel, if any may have been; of others this
    /// has been read.
    pub fn out_of_fuel(&self, aborted: u64, others: &[Trapped]) -> Option<OutOfFuel> {
        let others: u64 = others.iter().map(|it| it.count).sum();
        let at_most = aborted.saturating_sub(others);
        let at_least = if self.may_return { 0 } else { at_most };
        (self.may_exhaust && at_most > 0).then_some(OutOfFuel { at_least, at_most })
    }

    /// Goes on with another program in another session, where its maps have what was carried over.
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

/// How old what is shown while packets flow may be, about.
#[cfg(all(target_os = "linux", feature = "live"))]
const LATEST: Duration = Duration::from_millis(100);

/// What others are shown of it while packets flow.
#[cfg(all(target_os = "linux", feature = "live"))]
#[derive(Clone, Default)]
pub struct Board(Arc<Mutex<Aborted>>);

#[cfg(all(target_os = "linux", feature = "live"))]
impl Board {
    /// Reads the counters.
    pub fn read(&self) -> Aborted {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn put(&self, all: Aborted) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = all;
    }
}

/// Who writes on a board between batches.
#[cfg(all(target_os = "linux", feature = "live"))]
pub struct TrapRecorder {
    board: Board,
    /// Packets that had been aborted when it last did.
    aborted: u64,
    last: Instant,
}

#[cfg(all(target_os = "linux", feature = "live"))]
impl TrapRecorder {
    /// Writes on this one.
    pub fn new(board: Board) -> TrapRecorder {
        TrapRecorder { board, aborted: 0, last: Instant::now() }
    }

    /// Writes down why packets were aborted, if it is time and more of them were: to know where, a
    /// device has to be waited for.
    pub fn boundary(
        &mut self,
        traps: &Traps,
        aborted: impl FnOnce() -> u64,
        session: &mut dyn Session,
    ) -> Result<(), DeviceError> {
        if !traps.may_abort() || self.last.elapsed() < LATEST {
            return Ok(());
        }
        self.last = Instant::now();
        let aborted = aborted();
        if aborted != self.aborted {
            self.aborted = aborted;
            let read = traps.read(session)?;
            self.board.put(Aborted { out_of_fuel: traps.out_of_fuel(aborted, &read), traps: read });
        }
        Ok(())
    }
}

/// A line for each, so many at most, behind a table, and one for those that were out of fuel.
pub fn lines(all: &[Trapped], out_of_fuel: Option<OutOfFuel>, most: usize) -> String {
    shown(all, most) + &out_of_fuel.map_or_else(String::new, OutOfFuel::line)
}

/// A line for each, so many at most: then those with the most packets, and how many more there are.
fn shown(all: &[Trapped], most: usize) -> String {
    let line = |it: &Trapped| format!("{} aborted at {}\n", out::grouped(it.count), it.place.text());
    if all.len() <= most {
        return all.iter().map(line).collect();
    }
    let mut order: Vec<&Trapped> = all.iter().collect();
    order.sort_by_key(|it| std::cmp::Reverse(it.count));
    let (first, rest) = order.split_at(most.saturating_sub(1));
    let count = rest.iter().map(|it| it.count).sum();
    let places = rest.len();
    first.iter().copied().map(line).collect::<String>()
        + &format!("{} aborted at {places} other places, which --json has\n", out::grouped(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trapped(line: u32, count: u64) -> Trapped {
        let place = Place {
            function: "parse".into(),
            instruction: format!("instruction {line} of `parse`: exit"),
            file: Some("p.c".into()),
            line: Some(line),
            reason: "the packet is not so long".into(),
        };
        Trapped { count, place }
    }

    #[test]
    fn of_many_places_those_with_the_most_packets_are_shown() {
        let all: Vec<Trapped> = (1..=6).map(|line| trapped(line, u64::from(line % 4) * 1000)).collect();
        let whole = "1 000 aborted at instruction 1 of `parse`: exit, p.c:1: the packet is not so long\n";
        assert_eq!(shown(&all[..1], 1), whole);
        let text = shown(&all, 3);
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
        assert_eq!(serde_json::from_str::<Trapped>(&text).unwrap(), one);
    }
}
