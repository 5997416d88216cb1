//! Results of a live run as a table and as JSON.

use std::fmt;

use portcullis::frontend::xdp::events::EventCounts;
use portcullis::packet::Action;
use portcullis::packet_io::live::Loss;
use portcullis::pipeline::live::{LaneSummary, Latency, RunSummary, SizingSummary};

use serde::{Deserialize, Serialize};

use crate::out;
use crate::run::report::{EventTotals, events_row};
use crate::run::traps::{self, OutOfFuel, TrapCount, Traps};

/// Maximum number of lanes whose batch sizes are in the table; the JSON line has all.
const SHOWN_LANES: usize = 16;

/// Frames of a run's packet memory at the end, by location.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Balance {
    /// Total number.
    pub all: usize,
    /// Frames in free lists.
    pub free: usize,
    /// Frames in the kernel's fill and RX rings.
    pub receiving: usize,
    /// Frames in the kernel's TX and completion rings.
    pub sending: usize,
    /// Frames held by a device that was abandoned.
    pub with_device: usize,
    /// Frames that are in no list; any but zero is a bug.
    pub missing: isize,
}

impl Balance {
    /// Attributes missing frames to an abandoned device that had at most this many packets.
    pub fn attribute_to_device(self, packets: u64) -> Balance {
        let with_device = self.missing.clamp(0, packets.try_into().unwrap_or(isize::MAX));
        Balance { with_device: with_device as usize, missing: self.missing - with_device, ..self }
    }

    /// Returns a description of the bug if frames are missing.
    pub fn fault(&self) -> Option<String> {
        let Balance { all, missing, .. } = self;
        let what = || format!("{missing} of {all} buffers are missing (a bug, please report it)");
        (*missing != 0).then(what)
    }
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Balance { all, free, receiving, sending, with_device, missing } = self;
        if *missing != 0 {
            return write!(f, "{all}, of which {missing} are missing");
        }
        write!(f, "{all}, all accounted for ({free} free, {receiving} in RX rings, {sending} in TX rings")?;
        if *with_device > 0 {
            write!(f, ", {with_device} with the abandoned device")?;
        }
        f.write_str(")")
    }
}

/// Results that only some filters have.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ExtraReport {
    /// Counts of events, if the filter has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<EventTotals>,
    /// Where an XDP program aborted packets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub traps: Vec<TrapCount>,
    /// How many packets ran out of fuel, if any may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_fuel: Option<OutOfFuel>,
}

impl ExtraReport {
    /// Collects the results of a run: its events, and the trap counters that were read.
    pub fn of(run: &RunSummary, events: Option<EventCounts>, (traps, read): (&Traps, Vec<TrapCount>)) -> ExtraReport {
        let out_of_fuel = traps.out_of_fuel(run.numbers.sum.verdicts(Action::Aborted), &read);
        ExtraReport { events: events.map(EventTotals::from), traps: read, out_of_fuel }
    }
}

/// Formats the results as one line of JSON, with its line end.
pub fn json(run: &RunSummary, frames: Option<Balance>, extra: &ExtraReport) -> String {
    #[derive(Serialize)]
    struct Line<'a> {
        #[serde(flatten)]
        run: &'a RunSummary,
        #[serde(skip_serializing_if = "Option::is_none")]
        frames: Option<Balance>,
        #[serde(flatten)]
        extra: &'a ExtraReport,
    }
    serde_json::to_string(&Line { run, frames, extra }).expect("numbers and texts, with texts for keys") + "\n"
}

/// Formats the results as a table. `device` describes the device.
pub fn table(run: &RunSummary, device: &str, frames: Option<Balance>, extra: &ExtraReport) -> String {
    let sum = &run.numbers.sum;
    // Shares are of all verdicts: a running lane publishes the count of received packets less
    // often.
    let judged = Action::ALL.map(|action| sum.verdicts(action)).iter().sum::<u64>();
    let share = |count: u64| match judged {
        0 => String::new(),
        judged => format!("{:.1} %", count as f64 / judged as f64 * 100.0),
    };
    let row = |name: &str, value: String, remark: String| vec![name.to_owned(), value, remark];
    let mut rows = vec![
        row("packets", out::grouped(sum.packets), out::rate(sum.mpps * 1e6, "pps")),
        row("bytes", out::grouped(sum.bytes), String::new()),
        row("dropped by the kernel", out::grouped(sum.dropped_by_kernel), String::new()),
    ];
    for action in Action::ALL {
        let count = sum.verdicts(action);
        rows.push(row(action.name(), out::grouped(count), share(count)));
    }
    let losses = Loss::ALL.into_iter().filter(|loss| sum.lost(*loss) > 0);
    rows.extend(losses.map(|loss| row("lost", out::grouped(sum.lost(loss)), loss.text().into())));
    let rare = [
        ("not received", sum.refused, "too long, or malformed"),
        ("checksums completed", sum.checksums_completed, ""),
        ("reassembled", sum.reassembled, ""),
        ("unfiltered", sum.from_stack, "from the interface of --pass-to"),
        ("unfiltered, lost", sum.from_stack_lost, "malformed, or not sent by the end"),
        ("filtered by the CPU", sum.fallback_packets, "the queue of the device was full, or the device had failed"),
    ];
    for (name, count, remark) in rare {
        if count > 0 {
            rows.push(row(name, out::grouped(count), remark.into()));
        }
    }
    // Frames that remain in TX rings at the end: an interface went down, or it is too slow for the
    // time that the end may take.
    let unsent = frames.map_or(0, |frames| frames.sending as u64);
    if unsent > 0 {
        let remark = "frames still in TX rings at the end; an interface may be down";
        rows.push(row("not sent", out::grouped(unsent), remark.into()));
    }
    rows.push(row("batches", out::grouped(sum.batches), format!("{:.1} packets each", sum.batch_mean)));
    rows.extend(sizes(&run.numbers.lanes));
    rows.extend(extra.events.map(|events| events_row(events.into())));
    let Latency { p50, p99, p99_9, max, .. } = sum.latency_us;
    let latency = format!("p50 {p50:.1}, p99 {p99:.1}, p99.9 {p99_9:.1}, max {max:.1} µs");
    rows.push(row("latency", String::new(), latency));
    rows.push(row("time", format!("{:.3} s", sum.elapsed_s), String::new()));
    let (filter, id) = (out::printable(&run.filter), &run.device);
    let frames = frames.map_or_else(String::new, |frames| format!("frames: {frames}\n"));
    let traps = traps::lines(&extra.traps, extra.out_of_fuel, traps::SHOWN);
    format!("{filter}, on {id} ({device})\n{}{frames}{traps}", out::table(rows, &[1]))
}

/// Rows with the current batch size of each lane that adapts it.
fn sizes(lanes: &[LaneSummary]) -> Vec<Vec<String>> {
    let found = || lanes.iter().filter_map(|lane| Some((&lane.lane, lane.sizing?)));
    let row = |(lane, sizing): (&String, SizingSummary)| {
        let SizingSummary { batch, delay_us, .. } = sizing;
        let packets = if batch == 1 { "packet" } else { "packets" };
        let waits = if delay_us > 0.0 { format!("or after {delay_us:.1} µs") } else { "no delay".into() };
        vec![format!("  at {}", out::printable(lane)), out::grouped(batch as u64), format!("{packets}, {waits}")]
    };
    let mut rows: Vec<_> = found().take(SHOWN_LANES).map(row).collect();
    let more = found().count().saturating_sub(SHOWN_LANES);
    if more > 0 {
        rows.push(vec![format!("  ({more} more)"), String::new(), String::new()]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use portcullis::pipeline::live::{LanesSummary, Summary};

    use super::*;

    /// A running lane publishes how many packets it has received less often than its verdicts.
    #[test]
    fn shares_are_of_all_verdicts() {
        let verdicts = [("drop", 30_u64), ("pass", 90)].map(|(name, count)| (name.to_owned(), count));
        let sum = Summary { packets: 64, verdicts: verdicts.into_iter().collect(), ..Summary::default() };
        let numbers = LanesSummary { sum, lanes: Vec::new() };
        let run = RunSummary { filter: "f.wgsl".into(), device: "cpu".into(), numbers };
        let table = super::table(&run, "so far", None, &ExtraReport::default());
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        let share = |name: &str| rows.iter().find(|row| row[0] == name).map(|row| row[2..].join(" "));
        assert_eq!((share("drop"), share("pass")), (Some("25.0 %".into()), Some("75.0 %".into())), "{table}");
    }

    #[test]
    fn unsent_frames_have_a_row() {
        let numbers = LanesSummary { sum: Summary::default(), lanes: Vec::new() };
        let run = RunSummary { filter: "f.wgsl".into(), device: "cpu".into(), numbers };
        let table = |sending| {
            let frames = Balance { all: 4096, free: 4096 - sending, sending, ..Balance::default() };
            super::table(&run, "CPU", Some(frames), &ExtraReport::default())
        };
        let line = |text: &str| text.lines().find(|line| line.starts_with("not sent")).map(str::to_owned);
        assert_eq!(line(&table(0)), None);
        let line = line(&table(1200)).expect("a row of unsent frames");
        assert!(line.contains(&out::grouped(1200)) && line.contains("frames"), "{line}");
    }

    #[test]
    fn frames_of_an_abandoned_device_are_not_missing() {
        let missing = |missing| Balance { all: 100, free: 90, missing, ..Balance::default() };
        let left = |of: Balance| (of.with_device, of.missing, of.fault().is_some());
        assert_eq!(left(missing(10)), (0, 10, true));
        assert_eq!(left(missing(10).attribute_to_device(64)), (10, 0, false));
        assert_eq!(left(missing(10).attribute_to_device(7)), (7, 3, true));
        assert_eq!(left(missing(0).attribute_to_device(64)), (0, 0, false));
        // More frames than exist.
        assert_eq!(left(missing(-1).attribute_to_device(64)), (0, -1, true));
        assert!(missing(10).attribute_to_device(64).to_string().contains("10 with the abandoned device"));
        assert!(missing(10).to_string().contains("of which 10 are missing"));
    }

    #[test]
    fn adaptive_batch_sizes_have_a_row_for_each_lane() {
        let lane = |name: &str, found: Option<(usize, f64)>| LaneSummary {
            lane: name.into(),
            sizing: found.map(|(batch, delay_us)| SizingSummary {
                batch,
                delay_us,
                arriving_mpps: 1.0,
                fixed_us: 1.0,
                packet_ns: 1.0,
            }),
            sum: Summary::default(),
        };
        let lanes = [lane("eth0:0", Some((1200, 250.0))), lane("eth0:1", Some((1, 0.0))), lane("eth0:2", None)];
        let want = [["  at eth0:0", "1 200", "packets, or after 250.0 µs"], ["  at eth0:1", "1", "packet, no delay"]];
        assert_eq!(sizes(&lanes), want);
        let many: Vec<_> = (0..64).map(|at| lane(&format!("eth0:{at}"), Some((1, 0.0)))).collect();
        let rows = sizes(&many);
        assert_eq!((rows.len(), rows[16][0].trim()), (17, "(48 more)"));
    }
}
