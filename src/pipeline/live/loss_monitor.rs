//! Tells of packets that are lost while lanes run, or that a device has no time for, as events: the first time each as a warning,
//! and from then on once a second at most, with how many.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_io::live::Loss;
use tracing::Span;

use super::LaneStats;

/// How often somebody looks, which costs a lock a lane.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How often it is told.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Watches the numbers of lanes.
pub(super) struct LossMonitor<'a> {
    lanes: Vec<WatchedLane<'a>>,
    next: Instant,
}

/// A lane, and what was told of it.
struct WatchedLane<'a> {
    lane: String,
    span: Span,
    stats: &'a LaneStats,
    reported: Counters,
}

/// Packets that the CPU filtered in the device's place, and those that were lost: in the kernel, on their way in, and for each
/// reason after the filter.
type Counters = [u64; KINDS];

const KINDS: usize = 3 + Loss::ALL.len();

impl<'a> LossMonitor<'a> {
    /// Of lanes with these names and spans.
    pub fn new(lanes: impl Iterator<Item = (String, Span)>, stats: &'a [Arc<LaneStats>]) -> LossMonitor<'a> {
        let lanes =
            lanes.zip(stats).map(|((lane, span), stats)| WatchedLane { lane, span, stats, reported: [0; KINDS] });
        LossMonitor { lanes: lanes.collect(), next: Instant::now() }
    }

    /// Tells what is new, if it is time again.
    pub fn report_if_due(&mut self) {
        if Instant::now() >= self.next {
            self.report();
        }
    }

    /// Tells what is new.
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

const RELIEVED: &str = "the CPU filters packets that the device has no time for";

fn read_counters(stats: &LaneStats) -> Counters {
    let (received, carried, fallback_packets) = stats.counters();
    let mut read_counters = [0; KINDS];
    read_counters[..3].copy_from_slice(&[fallback_packets, received.dropped_by_kernel, received.refused]);
    read_counters[3..].copy_from_slice(&Loss::ALL.map(|loss| carried.losses.of(loss)));
    read_counters
}

/// A loss's reason, as a label and in words.
fn describe_kind(kind: usize) -> (&'static str, &'static str) {
    match kind {
        0 => ("overload", RELIEVED),
        1 => ("kernel", "dropped by the kernel, because nobody took them in time"),
        2 => ("not_received", "too long to be received, or made no sense"),
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

    /// The events, a line each.
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
    fn what_is_lost_is_told_once_and_then_how_many_more() {
        let stats = [Arc::new(LaneStats::default()), Arc::new(LaneStats::default())];
        let events = events(|| {
            let mut monitor = LossMonitor::new(lanes(&["eth0:0", "eth0:1"]), &stats);
            monitor.report();
            stats[1].set_received(ReceivedCounts { dropped_by_kernel: 7, ..ReceivedCounts::default() });
            monitor.report();
            monitor.report();
            stats[1].set_received(ReceivedCounts { dropped_by_kernel: 10, ..ReceivedCounts::default() });
            let mut carried = ExecutedCounts::default();
            carried.losses.add(Loss::Overload, 2);
            stats[0].set_executed(&carried);
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
    fn what_a_device_has_no_time_for_is_told() {
        let stats = [Arc::new(LaneStats::default())];
        let events = events(|| {
            let mut monitor = LossMonitor::new(lanes(&["q"]), &stats);
            let completed = CompletedBatch { packets: 30, by_fallback: true, ..CompletedBatch::default() };
            stats[0].record_completed(&completed, &ExecutedCounts::default(), None);
            monitor.report();
        });
        assert_eq!((&events[0]["message"], &events[0]["packets"]), (&RELIEVED.into(), &30.into()));
    }

    #[test]
    fn nothing_is_told_twice_in_a_second() {
        let stats = [Arc::new(LaneStats::default())];
        let events = events(|| {
            let mut monitor = LossMonitor::new(lanes(&["q"]), &stats);
            for refused in 1..100 {
                stats[0].set_received(ReceivedCounts { refused, ..ReceivedCounts::default() });
                monitor.report_if_due();
                // As it is in an hour.
                if refused == 50 {
                    monitor.next = Instant::now();
                }
            }
        });
        assert_eq!(events.iter().map(|event| event["packets"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 50]);
    }
}
