//! Logs packets that lanes lose or filter on the fallback device: the first of each kind as a
//! warning, later ones at most once per second with their number.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_io::live::Loss;
use tracing::Span;

use super::LaneStats;

/// How often lanes are checked, which costs a lock per lane.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Minimum time between reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Watches the counters of all lanes.
pub(super) struct LossMonitor<'a> {
    lanes: Vec<WatchedLane<'a>>,
    next: Instant,
}

/// A lane, and the counters that were reported last.
struct WatchedLane<'a> {
    lane: String,
    span: Span,
    stats: &'a LaneStats,
    reported: Counters,
}

/// Packets filtered by the fallback, dropped by the kernel, refused by the receiver, and lost after
/// the filter for each reason.
type Counters = [u64; KINDS];

const KINDS: usize = 3 + Loss::ALL.len();

impl<'a> LossMonitor<'a> {
    /// Creates a monitor for lanes with these names and spans.
    pub fn new(lanes: impl Iterator<Item = (String, Span)>, stats: &'a [Arc<LaneStats>]) -> LossMonitor<'a> {
        let lanes =
            lanes.zip(stats).map(|((lane, span), stats)| WatchedLane { lane, span, stats, reported: [0; KINDS] });
        LossMonitor { lanes: lanes.collect(), next: Instant::now() }
    }

    /// Reports new losses unless some were reported within the last second.
    pub fn report_if_due(&mut self) {
        if Instant::now() >= self.next {
            self.report();
        }
    }

    /// Reports losses since the last report.
    pub fn report(&mut self) {
        for WatchedLane { lane, span, stats, reported } in &mut self.lanes {
            let _lane = span.enter();
            let now = read_counters(stats);
            for (kind, (now, reported)) in now.into_iter().zip(reported).enumerate() {
                let packets = now.saturating_sub(*reported);
                if packets == 0 {
                    continue;
                }
                let (reason, what) = describe_kind(kind);
                let lost = if kind == 0 { "" } else { "packets lost: " };
                if *reported == 0 {
                    tracing::warn!(%lane, reason, packets, total = now, "{lost}{what}");
                } else {
                    tracing::info!(%lane, reason, packets, total = now, "{lost}{what}");
                }
                *reported = now;
                self.next = Instant::now() + REPORT_INTERVAL;
            }
        }
    }
}

const FALLBACK_ACTIVE: &str = "the CPU filters packets that exceed the capacity of the device";

fn read_counters(stats: &LaneStats) -> Counters {
    let (received, executed, fallback_packets) = stats.counters();
    let mut counters = [0; KINDS];
    counters[..3].copy_from_slice(&[fallback_packets, received.dropped_by_kernel, received.refused]);
    counters[3..].copy_from_slice(&Loss::ALL.map(|loss| executed.losses.of(loss)));
    counters
}

/// The reason as a label, and its description.
fn describe_kind(kind: usize) -> (&'static str, &'static str) {
    match kind {
        0 => ("overload", FALLBACK_ACTIVE),
        1 => ("kernel", "dropped by the kernel because they were not received in time"),
        2 => ("not_received", "too long to receive, or malformed"),
        loss => (Loss::ALL[loss - 3].name(), Loss::ALL[loss - 3].text()),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;

    use portcullis_io::live::{ExecutedCounts, ReceivedCounts};
    use tracing_subscriber::layer::SubscriberExt;

    use super::super::stats::CompletedBatch;
    use super::*;

    /// Runs a function and returns the events that it logs.
    fn events(run: impl FnOnce()) -> Vec<serde_json::Value> {
        struct SharedBuffer(Arc<Mutex<Vec<u8>>>);
        impl io::Write for SharedBuffer {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().extend(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let text = Arc::new(Mutex::new(Vec::new()));
        let to = text.clone();
        let lines =
            tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(move || SharedBuffer(to.clone()));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), run);
        let text = String::from_utf8(text.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn lanes(names: &[&'static str]) -> impl Iterator<Item = (String, Span)> {
        names.iter().map(|lane| (lane.to_string(), tracing::error_span!("lane", lane))).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn a_loss_is_a_warning_first_and_then_an_event_with_its_number() {
        let stats = [Arc::new(LaneStats::default()), Arc::new(LaneStats::default())];
        let events = events(|| {
            let mut monitor = LossMonitor::new(lanes(&["eth0:0", "eth0:1"]), &stats);
            monitor.report();
            stats[1].set_received(ReceivedCounts { dropped_by_kernel: 7, ..ReceivedCounts::default() });
            monitor.report();
            monitor.report();
            stats[1].set_received(ReceivedCounts { dropped_by_kernel: 10, ..ReceivedCounts::default() });
            let mut executed = ExecutedCounts::default();
            executed.losses.add(Loss::Overload, 2);
            stats[0].set_executed(&executed);
            monitor.report();
        });
        let is: Vec<_> = events
            .iter()
            .map(|event| {
                let text = |key| event[key].as_str().unwrap().to_owned();
                let number = |key| event[key].as_u64().unwrap();
                (text("level"), text("lane"), text("reason"), number("packets"), number("total"))
            })
            .collect();
        let want = [
            ("WARN", "eth0:1", "kernel", 7, 7),
            ("WARN", "eth0:0", "overload", 2, 2),
            ("INFO", "eth0:1", "kernel", 3, 10),
        ];
        let want = want.map(|(level, lane, reason, packets, total)| {
            (level.to_owned(), lane.to_owned(), reason.to_owned(), packets, total)
        });
        assert_eq!(is, want);
        assert!(events[0]["message"].as_str().unwrap().starts_with("packets lost: dropped by the kernel"));
        assert_eq!((&events[1]["span"]["name"], &events[1]["span"]["lane"]), (&"lane".into(), &"eth0:0".into()));
    }

    #[test]
    fn packets_filtered_by_the_fallback_are_reported() {
        let stats = [Arc::new(LaneStats::default())];
        let events = events(|| {
            let mut monitor = LossMonitor::new(lanes(&["q"]), &stats);
            let completed = CompletedBatch { packets: 30, by_fallback: true, ..CompletedBatch::default() };
            stats[0].record_completed(&completed, &ExecutedCounts::default(), None);
            monitor.report();
        });
        assert_eq!((&events[0]["message"], &events[0]["packets"]), (&FALLBACK_ACTIVE.into(), &30.into()));
    }

    #[test]
    fn reports_are_at_least_a_second_apart() {
        let stats = [Arc::new(LaneStats::default())];
        let events = events(|| {
            let mut monitor = LossMonitor::new(lanes(&["q"]), &stats);
            for refused in 1..100 {
                stats[0].set_received(ReceivedCounts { refused, ..ReceivedCounts::default() });
                monitor.report_if_due();
                // Pretend that the interval has passed.
                if refused == 50 {
                    monitor.next = Instant::now();
                }
            }
        });
        assert_eq!(events.iter().map(|event| event["packets"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 50]);
    }
}
