//! Results of a run as a table and as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use portcullis::device::DeviceInfo;
use portcullis::frontend::xdp::events::EventCounts;
use portcullis::packet::{Action, VerdictCounts};
use portcullis::pipeline::Totals;
use serde::{Deserialize, Serialize};

use super::traps::{self, OutOfFuel, TrapCount};
use crate::out;

/// Maximum number of redirect targets in the table; the JSON line has all that are counted.
const SHOWN_TARGETS: usize = 16;

/// Results of a finished run.
pub struct Run<'a> {
    /// Name of the filter.
    pub filter: String,
    /// The device that ran it.
    pub device: &'a DeviceInfo,
    /// Totals of the run.
    pub totals: &'a Totals,
    /// Counts of events, if the filter has any.
    pub events: Option<EventCounts>,
    /// Where an XDP program aborted packets.
    pub traps: Vec<TrapCount>,
    /// How many packets ran out of fuel, if any may have.
    pub out_of_fuel: Option<OutOfFuel>,
    /// Whether the run was interrupted before the end of its input.
    pub interrupted: bool,
}

/// The line of JSON. Keys are always present, except those that only some filters have.
#[derive(Serialize)]
struct Line<'a> {
    filter: &'a str,
    device: &'a str,
    packets: u64,
    bytes: u64,
    verdicts: Verdicts,
    /// Redirected packets by target; `other` is the sum of targets that are not counted
    /// individually.
    redirect_targets: BTreeMap<Target, u64>,
    elapsed_s: f64,
    mpps: f64,
    interrupted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<EventTotals>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    traps: &'a [TrapCount],
    #[serde(skip_serializing_if = "Option::is_none")]
    out_of_fuel: Option<OutOfFuel>,
}

/// Counts of events.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct EventTotals {
    /// Events that were read, and written if a file was given.
    count: u64,
    /// Events lost because a ring was full or because writing failed.
    lost: u64,
}

impl From<EventCounts> for EventTotals {
    fn from(EventCounts { events, lost }: EventCounts) -> EventTotals {
        EventTotals { count: events, lost }
    }
}

impl From<EventTotals> for EventCounts {
    fn from(EventTotals { count, lost }: EventTotals) -> EventCounts {
        EventCounts { events: count, lost }
    }
}

/// Formats the counts of events as a table row.
pub fn events_row(EventCounts { events, lost }: EventCounts) -> Vec<String> {
    vec!["events".into(), out::grouped(events), format!("{} lost", out::grouped(lost))]
}

#[derive(Serialize)]
struct Verdicts {
    aborted: u64,
    drop: u64,
    pass: u64,
    tx: u64,
    redirect: u64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Port(u32),
    Other,
}

impl Serialize for Target {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Target::Port(port) => serializer.collect_str(port),
            Target::Other => serializer.serialize_str("other"),
        }
    }
}

impl Run<'_> {
    /// Formats the results as one line of JSON, with its line end.
    pub fn json(&self) -> String {
        let totals = self.totals;
        let VerdictCounts { aborted, drop, pass, tx, redirect } = totals.verdicts;
        let mut redirect_targets: BTreeMap<_, _> =
            totals.targets.iter().map(|(target, count)| (Target::Port(target), count)).collect();
        if totals.targets.other() > 0 {
            redirect_targets.insert(Target::Other, totals.targets.other());
        }
        let line = Line {
            filter: &self.filter,
            device: &self.device.id,
            packets: totals.packets,
            bytes: totals.bytes,
            verdicts: Verdicts { aborted, drop, pass, tx, redirect },
            redirect_targets,
            elapsed_s: totals.elapsed.as_secs_f64(),
            mpps: totals.mpps(),
            interrupted: self.interrupted,
            events: self.events.map(EventTotals::from),
            traps: &self.traps,
            out_of_fuel: self.out_of_fuel,
        };
        serde_json::to_string(&line).expect("numbers and texts, with texts for keys") + "\n"
    }

    /// Formats the results as a table.
    pub fn table(&self) -> String {
        let totals = self.totals;
        let share = |count: u64| match totals.packets {
            0 => String::new(),
            packets => format!("{:.1} %", count as f64 / packets as f64 * 100.0),
        };
        let row = |name: &str, value: String, remark: String| vec![name.to_owned(), value, remark];
        let mut rows = vec![
            row("packets", out::grouped(totals.packets), String::new()),
            row("bytes", out::grouped(totals.bytes), String::new()),
        ];
        for action in Action::ALL {
            let count = totals.verdicts.of(action);
            rows.push(row(action.name(), out::grouped(count), share(count)));
        }
        rows.extend(self.targets().into_iter().map(|(name, count)| row(&name, out::grouped(count), share(count))));
        rows.extend(self.events.map(events_row));
        rows.push(row("time", seconds(totals.elapsed), out::rate(totals.mpps() * 1e6, "pps")));
        rows.extend(self.stage_rows());
        format!(
            "{}, on {} ({})\n{}{}",
            out::printable(&self.filter),
            self.device.id,
            self.device.name,
            out::table(rows, &[1]),
            traps::lines(&self.traps, self.out_of_fuel, traps::SHOWN)
        )
    }

    /// Rows with the busy time of each stage, marked if stages overlapped.
    fn stage_rows(&self) -> Vec<Vec<String>> {
        let times = &self.totals.times;
        let stages = [
            ("  read", times.read),
            ("  upload", times.device.upload),
            ("  filter", times.device.kernel),
            ("  download", times.device.download),
            ("  write", times.write),
            ("  other", self.totals.unattributed()),
        ];
        let sum: Duration = stages.iter().map(|(_, time)| time).sum();
        let remark = if sum > self.totals.elapsed { "stages overlap" } else { "" };
        let taken = stages.into_iter().filter(|(_, time)| !time.is_zero());
        taken.map(|(name, time)| vec![name.into(), seconds(time), remark.into()]).collect()
    }

    /// The targets with the most packets, followed by the sum of all others.
    fn targets(&self) -> Vec<(String, u64)> {
        let mut counts: Vec<_> = self.totals.targets.iter().collect();
        if counts.len() > SHOWN_TARGETS {
            counts.sort_by_key(|&(target, count)| (std::cmp::Reverse(count), target));
        }
        let shown = counts.len().min(SHOWN_TARGETS);
        let rest: u64 = counts[shown..].iter().map(|c| c.1).sum::<u64>() + self.totals.targets.other();
        let mut named: Vec<_> =
            counts[..shown].iter().map(|&(target, count)| (format!("  to {target}"), count)).collect();
        if rest > 0 {
            named.push(("  to others".into(), rest));
        }
        named
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use portcullis::device::{DeviceKind, StageTimes};
    use portcullis::pipeline::Times;

    use super::*;

    /// Without the mark, a reader would wonder why stages take longer than the run.
    #[test]
    fn overlapping_stages_are_marked() {
        let device = DeviceInfo {
            id: "cpu".into(),
            name: "CPU".into(),
            kind: DeviceKind::Cpu,
            driver: String::new(),
            dispatch: &[],
            limits: Vec::new(),
        };
        let table = |elapsed| {
            let device_times = StageTimes { kernel: Duration::from_secs(2), ..StageTimes::default() };
            let times = Times { read: Duration::from_secs(1), device: device_times, write: Duration::ZERO };
            let totals = Totals { times, elapsed: Duration::from_secs(elapsed), ..Totals::default() };
            let run = Run {
                filter: "f.wgsl".into(),
                device: &device,
                totals: &totals,
                events: None,
                traps: Vec::new(),
                out_of_fuel: None,
                interrupted: false,
            };
            let rows =
                run.table().lines().skip_while(|row| !row.starts_with("time")).map(str::to_owned).collect::<Vec<_>>();
            rows.join("\n")
        };
        let overlapping =
            "time      2.000 s  0 pps\n  read    1.000 s  stages overlap\n  filter  2.000 s  stages overlap";
        assert_eq!(table(2), overlapping);
        assert_eq!(table(4), "time      4.000 s  0 pps\n  read    1.000 s\n  filter  2.000 s\n  other   1.000 s");
    }
}
