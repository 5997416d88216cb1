//! Two runs beside each other: what has changed by more than noise.

use std::fmt;

use super::results::{Cell, Estimate, Outcome, Results, SCHEMA, packets_in_words};

/// Change of a cell from one run to the next.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The cell was measured in both runs.
    Ratio {
        /// Rate in the first run, in Mpps.
        before: f64,
        /// Rate in the second run, in Mpps.
        after: f64,
        /// Second rate divided by the first; its interval holds if both rates' do.
        ratio: Estimate,
    },
    /// The cell was measured in at most one of the runs.
    Outcome {
        /// Outcome in the first run.
        before: &'static str,
        /// Outcome in the second run.
        after: &'static str,
        /// Whether the cell was measured in the first run, or is wrong in the second.
        is_worse: bool,
    },
}

/// Comparison of two runs, cell by cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Cells of both runs, in the order of the first.
    pub both: Vec<(Cell, Change)>,
    /// Cells of the first run only.
    pub only_first: Vec<String>,
    /// Cells of the second run only.
    pub only_second: Vec<String>,
    /// Reasons why the runs are hard to compare: different machines, an interrupted run.
    pub warnings: Vec<String>,
}

/// Why a file could not be read as results.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The text is not JSON of this format.
    #[error("these are no results of portcullis bench: {0}")]
    Shape(String),
    /// The results were written by another version of the format.
    #[error("these are results in version {0} of their format, and this program reads version {SCHEMA}: measure again")]
    Version(u64),
}

/// Reads results from a file's text.
///
/// # Errors
/// See [`ReadError`].
pub fn read(text: &str) -> Result<Results, ReadError> {
    // The version first: the rest of another version may have any shape.
    let value: serde_json::Value = serde_json::from_str(text).map_err(|error| ReadError::Shape(error.to_string()))?;
    match value.get("schema").and_then(serde_json::Value::as_u64) {
        Some(version) if version == u64::from(SCHEMA) => {}
        Some(version) => return Err(ReadError::Version(version)),
        None => return Err(ReadError::Shape("there is no `schema`".into())),
    }
    serde_json::from_value(value).map_err(|error| ReadError::Shape(error.to_string()))
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { filter, device, batch, packets, transfer, dispatch, .. } = self;
        write!(f, "{filter}, {device}, batches of {batch}, {}, {transfer}, {dispatch}", packets_in_words(packets))
    }
}

fn is_same(one: &Cell, other: &Cell) -> bool {
    let key =
        |it: &Cell| (it.batch, [&it.filter, &it.device, &it.packets, &it.transfer, &it.dispatch].map(String::clone));
    key(one) == key(other)
}

fn outcome_name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Measured(_) => "measured",
        Outcome::Mismatch { .. } => "WRONG",
        Outcome::Failed { .. } => "failed",
    }
}

impl Comparison {
    /// Compares a first and a second run.
    pub fn of(first: &Results, second: &Results) -> Comparison {
        let mut both = Vec::new();
        let mut only_first = Vec::new();
        for cell in &first.cells {
            let Some(other) = second.cells.iter().find(|other| is_same(cell, other)) else {
                only_first.push(cell.to_string());
                continue;
            };
            let change = match (&cell.outcome, &other.outcome) {
                (Outcome::Measured(before), Outcome::Measured(after)) => Change::Ratio {
                    before: before.mpps.median,
                    after: after.mpps.median,
                    ratio: after.mpps.ratio(&before.mpps),
                },
                (before, after) => Change::Outcome {
                    before: outcome_name(before),
                    after: outcome_name(after),
                    is_worse: matches!(before, Outcome::Measured(_)) || matches!(after, Outcome::Mismatch { .. }),
                },
            };
            both.push((cell.clone(), change));
        }
        let is_new = |cell: &&Cell| first.cells.iter().all(|other| !is_same(cell, other));
        let only_second = second.cells.iter().filter(is_new).map(ToString::to_string).collect();
        let mut warnings = Vec::new();
        let machine = |it: &Results| format!("{}, {} threads", it.machine.processor, it.machine.threads);
        if machine(first) != machine(second) {
            warnings.push(format!("the machines differ: {} and {}", machine(first), machine(second)));
        }
        for (results, name) in [(first, "first"), (second, "second")] {
            if results.run.interrupted {
                warnings.push(format!("the {name} run was interrupted"));
            }
        }
        Comparison { both, only_first, only_second, warnings }
    }

    /// Whether a cell is slower by more than noise, or no longer measured.
    pub fn is_worse(&self) -> bool {
        let is_worse = |(_, change): &(Cell, Change)| match change {
            Change::Ratio { ratio, .. } => ratio.high < 1.0,
            Change::Outcome { is_worse, .. } => *is_worse,
        };
        !self.only_first.is_empty() || self.both.iter().any(is_worse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    /// The full fixture with all rates multiplied by a factor.
    fn scaled(factor: f64) -> Results {
        let mut results = fixture::full();
        for measured in results.cells.iter_mut().filter_map(fixture::measured) {
            let Estimate { median, low, high } = measured.mpps;
            measured.mpps = Estimate { median: median * factor, low: low * factor, high: high * factor };
        }
        results
    }

    fn ratios(comparison: &Comparison) -> Vec<Estimate> {
        let ratio = |(_, change): &(Cell, Change)| match change {
            Change::Ratio { ratio, .. } => Some(*ratio),
            Change::Outcome { .. } => None,
        };
        comparison.both.iter().filter_map(ratio).collect()
    }

    #[test]
    fn changes_are_distinguished_from_noise() {
        // Leave out wrong and failed cells, which count as worse whatever their speed.
        let measured = |mut results: Results| {
            results.cells.retain(|cell| cell.measured().is_some());
            results
        };
        let first = measured(fixture::full());
        for (factor, is_change, is_worse) in
            [(1.0, false, false), (1.01, false, false), (2.0, true, false), (0.5, true, true)]
        {
            let comparison = Comparison::of(&first, &measured(scaled(factor)));
            assert!(ratios(&comparison).iter().all(|ratio| (ratio.median / factor - 1.0).abs() < 1e-9));
            assert!(ratios(&comparison).iter().all(|ratio| ratio.is_change() == is_change), "{factor}");
            assert_eq!(comparison.is_worse(), is_worse, "{factor}");
            assert_eq!(comparison.both.len(), first.cells.len());
        }
    }

    #[test]
    fn cells_of_one_run_alone_are_named() {
        let (first, mut second) = (fixture::full(), fixture::full());
        let gone = second.cells.remove(5).to_string();
        second.cells[0].filter = "new".into();
        second.run.interrupted = true;
        second.machine.threads += 1;
        let comparison = Comparison::of(&first, &second);
        assert_eq!(comparison.only_first, [first.cells[0].to_string(), gone]);
        assert_eq!(comparison.only_second, [second.cells[0].to_string()]);
        assert_eq!(comparison.warnings.len(), 2, "{:?}", comparison.warnings);
        assert!(comparison.is_worse());
    }

    #[test]
    fn a_cell_that_became_wrong_is_worse() {
        let (first, mut second) = (fixture::empty(), fixture::empty());
        let (mut first, cell) = (first, fixture::cell(0, 0, 64, 0, "in place"));
        first.cells.push(cell.clone());
        second.cells.push(Cell { outcome: Outcome::Mismatch { detail: "x".into() }, ..cell });
        assert!(Comparison::of(&first, &second).is_worse());
        assert!(!Comparison::of(&first, &first).is_worse());
        // A new cell is not worse.
        assert!(!Comparison::of(&fixture::empty(), &first).is_worse());
    }

    #[test]
    fn other_files_are_refused_with_the_reason() {
        let text = serde_json::to_string(&fixture::full()).unwrap();
        assert_eq!(read(&text).unwrap().cells.len(), fixture::full().cells.len());
        let other = text.replacen("\"schema\":1", "\"schema\":7", 1);
        assert_eq!(read(&other), Err(ReadError::Version(7)));
        for text in ["", "{}", "[1]", "{\"schema\":\"1\"}", "{\"schema\":1}", "x"] {
            assert!(matches!(read(text), Err(ReadError::Shape(_))), "{text}");
        }
    }
}
