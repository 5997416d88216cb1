//! Packets that a program of XDP was aborted at, by the instruction.

use portcullis::device::{DeviceError, Session};
use portcullis::map::{self, Kind};
use portcullis::program::Program;
use serde::Serialize;

use crate::cli::out;

/// A place where packets were aborted, since what the program was about to do was not right.
#[derive(Debug, Clone, Serialize)]
pub struct Trapped {
    /// How many.
    count: u64,
    /// The instruction, with its number and its function.
    instruction: String,
    /// Where it is in the source, if that is known.
    file: Option<String>,
    line: Option<u32>,
    /// What was not right.
    reason: &'static str,
}

/// All of them, in order of their instructions; none of other filters. No batch is in flight.
///
/// # Errors
/// The session's.
pub fn trapped(program: &Program, session: &mut dyn Session) -> Result<Vec<Trapped>, DeviceError> {
    let Some(object) = program.object().filter(|object| !object.traps.is_empty()) else { return Ok(Vec::new()) };
    // No map of an object's is a counter.
    let counts = program.maps().iter().position(|map| map.kind == Kind::Counter);
    let Some(number) = counts else { return Ok(Vec::new()) };
    let rows = map::rows(&program.maps()[number], &session.map_words(number)?);
    let of = |row: map::Row| {
        let trap = object.traps.get(*row.key.first()? as usize)?;
        let count = row.value.iter().rev().fold(0, |sum, &word| sum << 32 | u64::from(word));
        let (file, line) = trap.line.clone().unzip();
        Some(Trapped { count, instruction: trap.instruction.clone(), file, line, reason: trap.reason })
    };
    Ok(rows.into_iter().filter_map(of).filter(|it| it.count > 0).collect())
}

/// A line for each, behind a table.
pub fn lines(all: &[Trapped]) -> String {
    let line = |it: &Trapped| {
        let place = match (&it.file, it.line) {
            (Some(file), Some(line)) => format!(", {}:{line}", out::printable(file)),
            _ => String::new(),
        };
        format!("{} aborted at {}{place}: {}\n", out::grouped(it.count), out::printable(&it.instruction), it.reason)
    };
    all.iter().map(line).collect()
}
