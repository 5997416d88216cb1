//! Tells of packets that are lost while lanes run, or that a device has no time for, as events: the first time each as a warning,
//! and from then on once a second at most, with how many.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_io::live::Loss;
use tracing::Span;

use super::LaneStats;

/// How often somebody looks, which costs a lock a lane.
pub(super) const LOOKED: Duration = Duration::from_millis(100);

/// How often it is told.
const EVERY: Duration = Duration::from_secs(1);

/// Watches the numbers of lanes.
pub(super) struct Monitor<'a> {
    lanes: Vec<Watched<'a>>,
    next: Instant,
}

/// A lane, and what was told of it.
struct Watched<'a> {
    lane: String,
    span: Span,
    stats: &'a LaneStats,
    told: Counts,
}

/// Packets that the CPU filtered in the device's place, and those that were lost: in the kernel, on their way in, and for each
/// reason after the filter.
type Counts = [u64; KINDS];

const KINDS: usize = 3 + Loss::ALL.len();

impl<'a> Monitor<'a> {
    /// Of lanes with these names and spans.
    pub fn new(lanes: impl Iterator<Item = (String, Span)>, stats: &'a [Arc<LaneStats>]) -> Monitor<'a> {
        let lanes = lanes.zip(stats).map(|((lane, span), stats)| Watched { lane, span, stats, told: [0; KINDS] });
        Monitor { lanes: lanes.collect(), next: Instant::now() }
    }

    /// Tells what is new, if it is time again.
    pub fn look(&mut self) {
        if Instant::now() >= self.next {
            self.tell();
        }
    }

    /// Tells what is new.
    pub fn tell(&mut self) {
        for Watched { lane, span, stats, told } in &mut self.lanes {
            let _lane = span.enter();
            let now = counts(stats);
            for (kind, (now, told)) in now.into_iter().zip(told).enumerate() {
                let packets = now.saturating_sub(*told);
                if packets == 0 {
                    continue;
                }
                let (reason, what) = words(kind);
                let lost = if kind == 0 { "" } else { "packets lost: " };
                if *told == 0 {
                    tracing::warn!(%lane, reason, packets, total = now, "{lost}{what}");
                } else {
                    tracing::info!(%lane, reason, packets, total = now, "{lost}{what}");
                }
                *told = now;
                self.next = Instant::now() + EVERY;
            }
        }
    }
}

const RELIEVED: &str = "the CPU filters packets that the device has no time for";

fn counts(stats: &LaneStats) -> Counts {
    let (received, carried, relieved) = stats.counts();
    let mut counts = [0; KINDS];
    counts[..3].copy_from_slice(&[relieved, received.dropped_by_kernel, received.refused]);
    counts[3..].copy_from_slice(&Loss::ALL.map(|loss| carried.losses.of(loss)));
    counts
}

/// A loss's reason, as a label and in words.
fn words(kind: usize) -> (&'static str, &'static str) {
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

    use super::super::stats::Filtered;
    use super::*;

    /// The events, a line each.
    fn events(run: impl FnOnce()) -> Vec<serde_json::Value> {
        struct Into(Arc<Mutex<Vec<u8>>>);
        impl io::Write for Into {
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
        let lines = tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(move || Into(to.clone()));
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
            let mut monitor = Monitor::new(lanes(&["eth0:0", "eth0:1"]), &stats);
            monitor.tell();
            stats[1].received(ReceivedCounts { dropped_by_kernel: 7, ..ReceivedCounts::default() });
            monitor.tell();
            monitor.tell();
            stats[1].received(ReceivedCounts { dropped_by_kernel: 10, ..ReceivedCounts::default() });
            let mut carried = ExecutedCounts::default();
            carried.losses.add(Loss::Overload, 2);
            stats[0].tended(&carried);
            monitor.tell();
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
            let mut monitor = Monitor::new(lanes(&["q"]), &stats);
            let aside = Filtered { packets: 30, aside: true, ..Filtered::default() };
            stats[0].through(&aside, &ExecutedCounts::default(), None);
            monitor.tell();
        });
        assert_eq!((&events[0]["message"], &events[0]["packets"]), (&RELIEVED.into(), &30.into()));
    }

    #[test]
    fn nothing_is_told_twice_in_a_second() {
        let stats = [Arc::new(LaneStats::default())];
        let events = events(|| {
            let mut monitor = Monitor::new(lanes(&["q"]), &stats);
            for refused in 1..100 {
                stats[0].received(ReceivedCounts { refused, ..ReceivedCounts::default() });
                monitor.look();
                // As it is in an hour.
                if refused == 50 {
                    monitor.next = Instant::now();
                }
            }
        });
        assert_eq!(events.iter().map(|event| event["packets"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 50]);
    }
}
