//! What came of a live run, for people and for programs.

use std::collections::BTreeMap;
use std::time::Duration;

use portcullis::device::DeviceInfo;
use portcullis::io::live::Loss;
use portcullis::packet::Action;
use portcullis::pipeline::live::Snapshot;
use serde::Serialize;

use crate::cli::out;

/// A live run that is over.
pub struct Report<'a> {
    /// The filter's name.
    pub filter: String,
    /// The device.
    pub device: &'a DeviceInfo,
    /// How long it took.
    pub elapsed: Duration,
    /// Its lanes, by name.
    pub lanes: &'a [(String, Snapshot)],
}

/// Sums over lanes. Every key is always there.
#[derive(Serialize)]
struct Line<'a> {
    filter: &'a str,
    device: &'a str,
    packets: u64,
    bytes: u64,
    dropped_by_kernel: u64,
    put_together: u64,
    verdicts: BTreeMap<&'static str, u64>,
    /// Verdicts that were carried out.
    carried_out: BTreeMap<&'static str, u64>,
    lost: BTreeMap<&'static str, u64>,
    checksums_completed: u64,
    batches: u64,
    elapsed_s: f64,
    mpps: f64,
    latency_us: Latency,
}

/// Microseconds, from when a batch's first packet was received to when its verdicts were carried out; each packet counts.
#[derive(Serialize)]
struct Latency {
    p50: f64,
    p99: f64,
    #[serde(rename = "p99.9")]
    p99_9: f64,
    max: f64,
}

impl Report<'_> {
    /// All lanes together.
    fn sum(&self) -> Line<'_> {
        let sum = |of: &dyn Fn(&Snapshot) -> u64| self.lanes.iter().map(|(_, lane)| of(lane)).sum::<u64>();
        let by_action = |of: &dyn Fn(&Snapshot, usize) -> u64| -> BTreeMap<_, _> {
            Action::ALL.map(|action| (action.name(), sum(&|lane| of(lane, action as usize)))).into()
        };
        let mut latency: Option<hdrhistogram::Histogram<u64>> = None;
        for (_, lane) in self.lanes {
            match &mut latency {
                Some(all) => all.add(&lane.latency).expect("all have the same bounds"),
                none => *none = Some(lane.latency.clone()),
            }
        }
        let at = |percentile| latency.as_ref().map_or(0.0, |all| all.value_at_percentile(percentile) as f64 / 1000.0);
        let (packets, seconds) = (sum(&|lane| lane.received.packets), self.elapsed.as_secs_f64());
        Line {
            filter: &self.filter,
            device: &self.device.id,
            packets,
            bytes: sum(&|lane| lane.received.bytes),
            dropped_by_kernel: sum(&|lane| lane.received.dropped_by_kernel),
            put_together: sum(&|lane| lane.received.put_together),
            verdicts: by_action(&|lane, action| lane.verdicts[action]),
            carried_out: by_action(&|lane, action| lane.carried.packets[action]),
            lost: Loss::ALL.map(|loss| (loss.name(), sum(&|lane| lane.carried.losses.of(loss)))).into(),
            checksums_completed: sum(&|lane| lane.received.checksums + lane.carried.checksums),
            batches: sum(&|lane| lane.batches),
            elapsed_s: seconds,
            mpps: if seconds > 0.0 { packets as f64 / seconds / 1e6 } else { 0.0 },
            latency_us: Latency { p50: at(50.0), p99: at(99.0), p99_9: at(99.9), max: at(100.0) },
        }
    }

    /// One line, the end of the line included.
    pub fn json(&self) -> String {
        serde_json::to_string(&self.sum()).expect("numbers and texts, with texts for keys") + "\n"
    }

    /// A small table.
    pub fn table(&self, more: &[(&str, String)]) -> String {
        let sum = self.sum();
        let share = |count: u64| match sum.packets {
            0 => String::new(),
            packets => format!("{:.1} %", count as f64 / packets as f64 * 100.0),
        };
        let row = |name: &str, value: String, remark: String| vec![name.to_owned(), value, remark];
        let mut rows = vec![
            row("packets", out::grouped(sum.packets), format!("{:.2} Mpps", sum.mpps)),
            row("bytes", out::grouped(sum.bytes), String::new()),
            row("dropped by the kernel", out::grouped(sum.dropped_by_kernel), String::new()),
        ];
        for action in Action::ALL {
            let count = sum.verdicts[action.name()];
            rows.push(row(action.name(), out::grouped(count), share(count)));
        }
        let losses = Loss::ALL.into_iter().filter(|loss| sum.lost[loss.name()] > 0);
        rows.extend(losses.map(|loss| row("lost", out::grouped(sum.lost[loss.name()]), loss.text().into())));
        for (name, count) in [("checksums completed", sum.checksums_completed), ("put together", sum.put_together)] {
            if count > 0 {
                rows.push(row(name, out::grouped(count), String::new()));
            }
        }
        let mean = if sum.batches > 0 { sum.packets as f64 / sum.batches as f64 } else { 0.0 };
        rows.push(row("batches", out::grouped(sum.batches), format!("{mean:.1} packets each")));
        let Latency { p50, p99, p99_9, max } = sum.latency_us;
        let latency = format!("p50 {p50:.1}, p99 {p99:.1}, p99.9 {p99_9:.1}, max {max:.1} µs");
        rows.push(row("latency", String::new(), latency));
        rows.push(row("time", format!("{:.3} s", sum.elapsed_s), String::new()));
        let (filter, device) = (out::printable(&self.filter), self.device);
        let more: String = more.iter().map(|(name, text)| format!("{name}: {text}\n")).collect();
        format!("{filter}, on {} ({})\n{}{more}", device.id, device.name, out::table(rows, &[1]))
    }
}
