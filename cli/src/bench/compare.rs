//! `portcullis bench --compare`: which measurements of two runs differ by more than noise.

use std::path::Path;

use portcullis::packet_io::create_error_reason;
use portcullis_bench::compare::{Change, Comparison, read};
use portcullis_bench::number::digits;
use portcullis_bench::results::Results;

use crate::failure::{FAILED, Failure};
use crate::out;

/// Prints a comparison of the results in two files; fails if the second are worse.
pub fn run(before: &Path, after: &Path) -> Result<(), Failure> {
    let comparison = Comparison::of(&load(before)?, &load(after)?);
    for warning in &comparison.warnings {
        out::warn(warning);
    }
    out::print(out::printable(&text(&comparison)))?;
    if comparison.is_worse() { Err(Failure::Silent(FAILED)) } else { Ok(()) }
}

/// Reads a results file that `bench --json` wrote.
pub fn load(file: &Path) -> Result<Results, Failure> {
    let wrong = |what: String| Failure::Error(format!("{}: {what}", file.display()));
    let text = std::fs::read(file).map_err(|error| wrong(create_error_reason(file, &error)))?;
    let text = String::from_utf8(text).map_err(|_| wrong("not UTF-8 text".into()))?;
    read(&text).map_err(|error| wrong(error.to_string()))
}

fn text(comparison: &Comparison) -> String {
    let head = ["cell", "before", "after", "ratio", "interval", ""].map(String::from).to_vec();
    let mut rows = vec![head];
    let (mut slower, mut faster) = (0, 0);
    for (cell, change) in &comparison.both {
        rows.push(match change {
            Change::Ratio { before, after, ratio } => {
                let mark = match ratio.is_change() {
                    true if ratio.low > 1.0 => "faster",
                    true => "SLOWER",
                    false => "",
                };
                slower += usize::from(mark == "SLOWER");
                faster += usize::from(mark == "faster");
                let interval = format!("{:.2}–{:.2}", ratio.low, ratio.high);
                vec![
                    cell.to_string(),
                    digits(*before),
                    digits(*after),
                    format!("{:.2}", ratio.median),
                    interval,
                    mark.into(),
                ]
            }
            Change::Outcome { before, after, .. } => {
                vec![cell.to_string(), (*before).into(), (*after).into(), "–".into(), "–".into(), String::new()]
            }
        });
    }
    let mut text = out::table(rows, &[1, 2, 3, 4]);
    for (cells, name) in [(&comparison.only_first, "first"), (&comparison.only_second, "second")] {
        for cell in cells {
            text += &format!("only in the {name}: {cell}\n");
        }
    }
    let both = comparison.both.len();
    text + &format!("\n{both} in both, rates in Mpps: {slower} slower and {faster} faster by more than noise\n")
}
