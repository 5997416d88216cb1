//! What a reader must know before trusting the figures of a run: warnings of devices, unconverged
//! intervals, load of the machine, filters without a measurement. The report and the terminal
//! summary begin with it.

use super::number::{grouped, trimmed};
use super::results::{Cell, Results, StopReason};

/// Share of the machine that other processes may use before the figures are called unreliable.
const TOLERATED_LOAD: f64 = 0.05;

/// Returns the caveats of a run, a sentence or two each.
pub fn caveats(results: &Results) -> Vec<String> {
    let warnings = results.run.warnings.iter().map(|warning| format!("{warning}."));
    let others = [missing_filters(results), unconverged(results), load(results)];
    warnings.chain(others.into_iter().flatten()).collect()
}

/// Filters that were to be measured and have no figure.
fn missing_filters(results: &Results) -> Option<String> {
    let is_measured =
        |filter: &String| results.cells.iter().any(|cell| cell.filter == *filter && cell.measured().is_some());
    let missing: Vec<_> = results.method.filters.iter().filter(|filter| !is_measured(filter)).cloned().collect();
    (!missing.is_empty()).then(|| format!("No figures for {}: see what was left out, and why.", missing.join(", ")))
}

fn unconverged(results: &Results) -> Option<String> {
    let measured: Vec<_> = results.cells.iter().filter_map(Cell::measured).collect();
    let wide = measured.iter().filter(|it| it.ended != StopReason::Narrow).count();
    let wanted = results.method.wanted_width.map_or(String::new(), |width| {
        format!(" while they were wider than {} % of the median", trimmed(width * 100.0))
    });
    let (wide, all) = (grouped(wide as i64), grouped(measured.len() as i64));
    (wide != "0")
        .then(|| format!("{wide} of {all} confidence intervals did not converge: their time was used up{wanted}."))
}

fn load(results: &Results) -> Option<String> {
    let (load, threads) = (results.run.load?, results.machine.threads);
    let mut text = format!(
        "Other processes kept {:.1} of {threads} logical processors busy during the run; the load average at its start was {:.2}.",
        load.busy_elsewhere, load.average_at_start
    );
    if load.busy_elsewhere > threads as f64 * TOLERATED_LOAD {
        text += " The machine was not idle: do not compare these figures with those of another run.";
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::iter::repeat;

    use super::*;
    use crate::report::fixture;
    use crate::results::{Outcome, SystemLoad};

    #[test]
    fn only_warnings_are_caveats_of_a_clean_run() {
        let mut results = fixture::full();
        for measured in results.cells.iter_mut().filter_map(fixture::measured) {
            measured.ended = StopReason::Narrow;
        }
        results.run.load = None;
        assert_eq!(caveats(&results), [""; 0]);
        results.run.warnings = vec!["cuda:0: host memory cannot be pinned".into()];
        assert_eq!(caveats(&results), ["cuda:0: host memory cannot be pinned."]);
    }

    #[test]
    fn unconverged_intervals_and_missing_filters_are_counted() {
        let mut results = fixture::empty();
        results.cells = vec![fixture::cell(0, 0, 64, 0, "in place"); 5];
        let ended = [StopReason::Time, StopReason::Interrupted].into_iter().chain(repeat(StopReason::Narrow));
        for (cell, ended) in results.cells.iter_mut().zip(ended) {
            fixture::measured(cell).expect("the fixture measures it").ended = ended;
        }
        results.method.filters = vec!["one".into(), results.cells[0].filter.clone(), "two".into()];
        results.method.wanted_width = Some(0.03);
        let found = caveats(&results);
        assert!(found[0].starts_with("No figures for one, two:"), "{found:?}");
        assert!(found[1].starts_with("2 of 5 confidence intervals did not converge"), "{found:?}");
        assert!(found[1].contains("wider than 3 % of the median"), "{found:?}");
        // A filter that only failed has no figure either.
        results.cells.iter_mut().for_each(|cell| cell.outcome = Outcome::Failed { reason: "lost".into() });
        assert!(caveats(&results)[0].contains(&format!("one, {}, two", results.method.filters[1])));
    }

    #[test]
    fn a_busy_machine_is_called_so() {
        let mut results = fixture::empty();
        results.machine.threads = 16;
        let mut of = |busy_elsewhere| {
            results.run.load = Some(SystemLoad { average_at_start: 2.5, busy_elsewhere });
            caveats(&results).concat()
        };
        assert!(of(0.1).contains("kept 0.1 of 16 logical processors") && !of(0.1).contains("not idle"));
        assert!(of(4.0).contains("kept 4.0 of 16") && of(4.0).contains("2.50") && of(4.0).contains("not idle"));
    }
}
