//! `--stats`: statistics of a live run at regular intervals.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indicatif::ProgressBar;
use portcullis::device::CancelToken;
use portcullis::packet::Action;
use portcullis::packet_io::live::Loss;
use portcullis::pipeline::live::{LanesSummary, RunStats, RunSummary, Summary};
use serde::Serialize;

use crate::failure::Failure;
use crate::run::traps::{self, AbortCounts, SharedAborts};
use crate::{out, progress_bar};

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputFormat {
    /// A table on standard error, a terminal, redrawn in place.
    Table,
    /// A line on standard error for each interval.
    Line,
    /// A line of JSON for each interval, on standard output unless that is in use.
    Json {
        /// Whether standard output is in use for captures or JSON.
        stdout_taken: bool,
    },
}

/// Maximum number of places of aborted packets in the table.
const SHOWN_TRAPS: usize = 4;

/// Where the statistics come from.
pub struct Source {
    /// Statistics of the lanes.
    pub run: Arc<RunStats>,
    /// Counts of aborted packets, by reason.
    pub aborted: SharedAborts,
}

/// The thread that prints statistics; it ends when this is dropped.
pub struct Stats {
    /// Dropped to end the thread.
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    bar: Option<ProgressBar>,
}

impl Stats {
    /// Starts the thread. If standard output cannot be written, `stop` is cancelled.
    pub fn start(every: Duration, source: Source, format: OutputFormat, stop: CancelToken) -> Result<Stats, Failure> {
        let bar = (format == OutputFormat::Table).then(|| progress_bar::new(None, "{msg}"));
        out::live::redraw(bar.clone());
        let (wake, woken) = channel::<()>();
        let shown = bar.clone();
        let span = tracing::Span::current();
        let show = move || {
            let _run = span.entered();
            let Source { run, aborted } = source;
            let mut before = run.read();
            let mut next = Instant::now() + every;
            while woken.recv_timeout(next.saturating_duration_since(Instant::now())) == Err(RecvTimeoutError::Timeout) {
                // Do not catch up on intervals that were missed.
                next = (next + every).max(Instant::now());
                let now = run.read();
                let (interval, total) = (now.since(&before).summary(), run.summary(&now));
                before = now;
                match (format, &shown) {
                    (OutputFormat::Table, Some(bar)) => {
                        bar.set_message(table(&interval, &total, &aborted.read(), out::live::terminal_size()));
                    }
                    (OutputFormat::Json { stdout_taken: false }, _) => {
                        if out::print(json(&interval, &total, &aborted.read())).is_err() {
                            stop.cancel();
                            return;
                        }
                    }
                    (OutputFormat::Json { .. }, _) => out::line(json(&interval, &total, &aborted.read()).trim_end()),
                    _ => out::note(&line(&interval)),
                }
            }
        };
        let thread = thread::Builder::new().name("stats".into()).spawn(show);
        let thread = thread.map_err(|e| Failure::Error(format!("--stats: {}", portcullis::reason(&e))))?;
        Ok(Stats { wake: Some(wake), thread: Some(thread), bar })
    }
}

impl Drop for Stats {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, the panic has been reported.
            let _ = thread.join();
        }
        if let Some(bar) = self.bar.take() {
            out::live::redraw(None);
            bar.finish_and_clear();
        }
    }
}

/// Formats a line of JSON, with its line end.
fn json(interval: &LanesSummary, total: &RunSummary, aborted: &AbortCounts) -> String {
    #[derive(Serialize)]
    struct Line<'a> {
        /// Seconds since 1970.
        time: f64,
        interval: &'a LanesSummary,
        total: Total<'a>,
    }
    #[derive(Serialize)]
    struct Total<'a> {
        #[serde(flatten)]
        run: &'a RunSummary,
        #[serde(flatten)]
        aborted: &'a AbortCounts,
    }
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let line = Line { time, interval, total: Total { run: total, aborted } };
    serde_json::to_string(&line).expect("numbers and texts, with texts for keys") + "\n"
}

/// Formats a line of text about all lanes together.
fn line(interval: &LanesSummary) -> String {
    let sum = &interval.sum;
    let mut parts = vec![
        format!("in {} {}", out::rate(sum.mpps * 1e6, "pps"), out::rate(sum.gbps * 1e9, "b/s")),
        format!("out {} {}", out::rate(sum.mpps_out * 1e6, "pps"), out::rate(sum.gbps_out * 1e9, "b/s")),
    ];
    let named = Action::ALL.map(|action| (action.name(), sum.verdicts(action)));
    let counts = named.into_iter().chain(lost(sum)).filter(|(_, count)| *count > 0);
    parts.extend(counts.map(|(name, count)| format!("{name} {}/s", out::grouped(per_second(count, sum)))));
    let latency = sum.latency_us;
    parts.push(format!("batch {:.1}", sum.batch_mean));
    parts.push(format!("latency p50 {:.1} p99 {:.1} p99.9 {:.1} µs", latency.p50, latency.p99, latency.p99_9));
    parts.join(", ")
}

/// Counts of packets that were dropped or lost, with names for people.
fn lost(sum: &Summary) -> impl Iterator<Item = (&'static str, u64)> {
    let losses = Loss::ALL.map(|loss| (loss.text(), sum.lost(loss)));
    [("dropped by the kernel", sum.dropped_by_kernel), ("not received", sum.refused)].into_iter().chain(losses)
}

fn per_second(count: u64, sum: &Summary) -> u64 {
    if sum.elapsed_s > 0.0 { (count as f64 / sum.elapsed_s).round() as u64 } else { 0 }
}

/// Columns of the lanes' table, in the order in which they are dropped if the terminal is narrow.
const DISPENSABLE: [&str; 7] = ["batch", "p50 µs", "p99.9", "bits out", "bits in", "p99", "packets out"];

/// Formats a table that fits a terminal of `height` lines and `width` columns, with the rates of
/// the last interval and the counts of the whole run.
fn table(
    interval: &LanesSummary,
    total: &RunSummary,
    aborted: &AbortCounts,
    (height, width): (usize, usize),
) -> String {
    let all = &total.numbers.sum;
    let row = |name: &str, count: u64, all: u64| {
        vec![name.to_owned(), out::grouped(per_second(count, &interval.sum)), out::grouped(all)]
    };
    let mut counts = vec![vec![String::new(), "a second".into(), "in all".into()]];
    let verdicts = Action::ALL.map(|action| (action, interval.sum.verdicts(action)));
    counts.extend(verdicts.map(|(action, count)| row(action.name(), count, all.verdicts(action))));
    let lost = lost(&interval.sum).zip(lost(all)).enumerate();
    // The kernel's drops are shown even if there are none.
    let lost = lost.filter(|(at, (_, (_, all)))| *at == 0 || *all > 0);
    counts.extend(lost.map(|(_, ((name, count), (_, all)))| row(name, count, all)));

    let titles = ["lane", "packets in", "bits in", "packets out", "bits out", "batch", "p50 µs", "p99", "p99.9"];
    let numbers = |name: &str, sum: &Summary| {
        let rates = [(sum.mpps, sum.gbps), (sum.mpps_out, sum.gbps_out)];
        let rates = rates.map(|(mpps, gbps)| [out::rate_cell(mpps * 1e6, "pps"), out::rate_cell(gbps * 1e9, "b/s")]);
        let latency = sum.latency_us;
        let rest = [sum.batch_mean, latency.p50, latency.p99, latency.p99_9].map(|number| format!("{number:.1}"));
        [out::printable(name)].into_iter().chain(rates.into_iter().flatten()).chain(rest).collect::<Vec<_>>()
    };
    let mut lanes = vec![titles.map(str::to_owned).to_vec()];
    let traps = traps::lines(&aborted.traps, aborted.out_of_fuel, SHOWN_TRAPS);
    // Two empty lines, two headings, and a line for the cursor.
    let room = height.saturating_sub(counts.len() + traps.lines().count() + lanes.len() + 5).max(1);
    let several = interval.lanes.len() > 1;
    lanes.extend(interval.lanes.iter().take(room).map(|lane| numbers(&lane.lane, &lane.sum)));
    let more = interval.lanes.len().saturating_sub(room);
    if more > 0 {
        lanes.push(vec![format!("({more} more)")]);
    }
    if several {
        lanes.push(numbers("all", &interval.sum));
    }
    let lanes = fit_columns(lanes, width);
    let seconds = all.elapsed_s as u64;
    let time = format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    let head = format!("{}, on {}, {time}", out::printable(&total.filter), total.device);
    let text = format!("{head}\n{lanes}\n{}{traps}", out::table(counts, &[1, 2]));
    let lines: Vec<&str> = text.trim_end().lines().map(|line| truncate(line, width)).collect();
    lines.join("\n")
}

/// Formats the lanes' table, dropping columns until it fits.
fn fit_columns(mut lanes: Vec<Vec<String>>, width: usize) -> String {
    let mut dispensable = DISPENSABLE.into_iter();
    loop {
        let right: Vec<usize> = (1..lanes[0].len()).collect();
        let text = out::table(lanes.clone(), &right);
        if text.lines().all(|line| truncate(line, width) == line) {
            return text;
        }
        let Some(title) = dispensable.next() else { return text };
        let Some(column) = lanes[0].iter().position(|it| it == title) else { continue };
        // The row with the number of lanes that are not shown has one cell.
        for row in lanes.iter_mut().filter(|row| row.len() > column) {
            row.remove(column);
        }
    }
}

/// Returns the longest prefix of a line that takes at most `width` columns of a terminal.
fn truncate(line: &str, width: usize) -> &str {
    // Some characters beyond ASCII take two columns; count all but the sign of microseconds so.
    let columns = |c: char| if c.is_ascii() || c == 'µ' { 1 } else { 2 };
    let mut used = 0;
    let end = line.char_indices().find(|(_, c)| {
        used += columns(*c);
        used > width
    });
    end.map_or(line, |(end, _)| &line[..end])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use portcullis::pipeline::live::{LaneSummary, Latency};

    use super::*;

    /// A summary of two seconds in which the kernel dropped a tenth and six packets were lost.
    fn sum(packets: u64) -> Summary {
        let counts = |pairs: &[(&str, u64)]| -> BTreeMap<String, u64> {
            pairs.iter().map(|(name, count)| (name.to_string(), *count)).collect()
        };
        Summary {
            packets,
            dropped_by_kernel: packets / 10,
            verdicts: counts(&[("drop", packets / 4), ("pass", packets * 3 / 4)]),
            lost: counts(&[("no_room", 6)]),
            batch_mean: 31.25,
            elapsed_s: 2.0,
            mpps: packets as f64 / 2e6,
            gbps: 0.5,
            mpps_out: 0.000_25,
            gbps_out: 0.000_001_25,
            latency_us: Latency { p50: 10.0, p90: 15.0, p99: 20.0, p99_9: 30.0, max: 40.0 },
            ..Summary::default()
        }
    }

    fn lanes(count: usize) -> LanesSummary {
        let lane = |at| LaneSummary { lane: format!("eth0:{at}"), sizing: None, sum: sum(1_000_000) };
        LanesSummary { sum: sum(1_000_000 * count as u64), lanes: (0..count).map(lane).collect() }
    }

    fn total(count: usize) -> RunSummary {
        let mut numbers = lanes(count);
        numbers.sum = Summary { elapsed_s: 3725.5, ..sum(9_000_000_000) };
        RunSummary { filter: "f.wgsl".into(), device: "cpu".into(), numbers }
    }

    #[test]
    fn a_table_has_the_rates_of_each_lane_and_the_counts_of_the_run() {
        let text = table(&lanes(2), &total(2), &AbortCounts::default(), (40, 100));
        assert_eq!(
            text,
            "f.wgsl, on cpu, 1:02:05
lane    packets in    bits in  packets out   bits out  batch  p50 µs   p99  p99.9
eth0:0    500 kpps   500 Mb/s     250  pps  1.25 kb/s   31.2    10.0  20.0   30.0
eth0:1    500 kpps   500 Mb/s     250  pps  1.25 kb/s   31.2    10.0  20.0   30.0
all      1.00 Mpps   500 Mb/s     250  pps  1.25 kb/s   31.2    10.0  20.0   30.0

                              a second         in all
aborted                              0              0
drop                           250 000  2 250 000 000
pass                           750 000  6 750 000 000
tx                                   0              0
redirect                             0              0
dropped by the kernel          100 000    900 000 000
no room to send them in time         3              6"
        );
    }

    fn seven_places() -> Vec<traps::TrapCount> {
        (1..=7).map(|line| traps::tests::trapped(line, line.into())).collect()
    }

    #[test]
    fn aborted_packets_are_listed_below_the_verdicts() {
        let out_of_fuel = Some(traps::OutOfFuel { at_least: 0, at_most: 12 });
        let aborted = AbortCounts { traps: seven_places(), out_of_fuel };
        let text = table(&lanes(64), &total(64), &aborted, (40, 200));
        assert!(text.lines().count() < 40, "{text}");
        let last: Vec<&str> = text.lines().rev().take(SHOWN_TRAPS + 1).collect();
        assert!(last[4].starts_with("7 aborted at instruction 7 of `parse`: exit, p.c:7: "), "{text}");
        assert!(last[1].starts_with("10 aborted at 4 other places"), "{text}");
        assert!(last[0].starts_with("12 aborted for lack of fuel or by the filter itself"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&json(&lanes(1), &total(1), &aborted)).unwrap();
        assert_eq!((&json["total"]["traps"][6]["count"], &json["total"]["filter"]), (&7.into(), &"f.wgsl".into()));
        assert_eq!(json["total"]["out_of_fuel"]["at_most"], 12);
    }

    #[test]
    fn a_table_of_many_lanes_fits_the_terminal() {
        for (count, height) in [(1, 24), (2, 24), (64, 24), (64, 80), (64, 5)] {
            let text = table(&lanes(count), &total(count), &AbortCounts::default(), (height, 100));
            assert!(text.lines().count() < height.max(15), "{count} lanes, {height} lines:\n{text}");
            assert_eq!(text.contains("\nall "), count > 1, "{text}");
            let shown = text.lines().filter(|line| line.starts_with("eth0:")).count();
            let more =
                text.lines().find_map(|line| line.strip_prefix('(')?.strip_suffix(" more)")?.parse::<usize>().ok());
            assert_eq!(shown + more.unwrap_or(0), count, "{text}");
        }
    }

    /// Lines that wrap would leave parts of the table behind when it is redrawn.
    #[test]
    fn a_table_is_as_wide_as_the_terminal_at_most() {
        let mut busy = lanes(3);
        for (at, lane) in busy.lanes.iter_mut().enumerate() {
            lane.lane = format!("enp129s0f{at}np{at}:12");
            lane.sum.batch_mean = 16_384.0;
            lane.sum.latency_us = Latency { p50: 99_999.9, p99: 99_999.9, p99_9: 999_999.9, ..Latency::default() };
        }
        let aborted = AbortCounts { traps: seven_places(), out_of_fuel: None };
        let mut run = total(3);
        run.filter = "filters/名前.wgsl".repeat(9);
        for width in (0..=140).step_by(4) {
            let text = table(&busy, &run, &aborted, (24, width));
            // No other character here takes more than one column.
            let columns = |line: &str| line.chars().map(|c| if "名前".contains(c) { 2 } else { 1 }).sum::<usize>();
            assert!(text.lines().all(|line| columns(line) <= width), "{width}:\n{text}");
        }
        let titles = |width| {
            let text = table(&busy, &run, &aborted, (24, width));
            text.lines()
                .nth(1)
                .unwrap()
                .split("  ")
                .filter(|it| !it.is_empty())
                .map(|it| it.trim().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(titles(140).len(), 9);
        assert_eq!(titles(80), ["lane", "packets in", "bits in", "packets out", "bits out", "p99"]);
        assert_eq!(titles(40), ["lane", "packets in"]);
    }

    #[test]
    fn a_line_has_rates_counts_and_latencies() {
        let want = "in 1.00 Mpps 500 Mb/s, out 250 pps 1.25 kb/s, drop 250 000/s, pass 750 000/s, dropped by the kernel \
                    100 000/s, no room to send them in time 3/s, batch 31.2, latency p50 10.0 p99 20.0 p99.9 30.0 µs";
        assert_eq!(line(&lanes(2)), want);
    }

    #[test]
    fn a_line_of_json_has_the_interval_and_the_run() {
        let text = json(&lanes(2), &total(2), &AbortCounts::default());
        assert_eq!(text.matches('\n').count(), 1);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["interval"]["packets"], 2_000_000);
        assert_eq!(json["interval"]["lanes"][1]["mpps"], 0.5);
        assert_eq!(json["total"]["verdicts"]["pass"], 6_750_000_000_u64);
        assert_eq!(json["total"]["filter"], "f.wgsl");
        assert!(json["time"].as_f64().unwrap() > 1.7e9);
    }
}
