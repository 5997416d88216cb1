//! Summaries of a live run in the form that all outputs share: the table and lines of `--stats`,
//! the final totals, metrics, and answers on the control socket.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use portcullis_core::packet::Action;
use portcullis_io::live::Loss;
use serde::{Deserialize, Serialize};

use super::{LaneStats, Sizing, Snapshot};

/// Statistics of a running live run.
#[derive(Debug)]
pub struct RunStats {
    filter: Mutex<String>,
    device: String,
    start: Instant,
    start_time: SystemTime,
    lanes: Vec<(String, Arc<LaneStats>)>,
}

/// Numbers of all lanes, up to now or between two points in time.
#[derive(Debug, Clone)]
pub struct RunSnapshot {
    /// Time since the start of the run, or between the two points.
    pub elapsed: Duration,
    /// Each lane's name and numbers.
    pub lanes: Vec<(String, Snapshot)>,
}

/// Serialised summary of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    /// Name of the filter.
    pub filter: String,
    /// Id of the device, for example `cpu`.
    pub device: String,
    /// Numbers of the run.
    #[serde(flatten)]
    pub numbers: LanesSummary,
}

/// Numbers of all lanes together, and of each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LanesSummary {
    /// All lanes together.
    #[serde(flatten)]
    pub sum: Summary,
    /// Each lane.
    pub lanes: Vec<LaneSummary>,
}

/// Numbers of one lane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaneSummary {
    /// Name of the lane, for example `eth0:0`.
    pub lane: String,
    /// Current batch size, if sizes adapt.
    pub sizing: Option<SizingSummary>,
    /// Numbers of the lane.
    #[serde(flatten)]
    pub sum: Summary,
}

/// Serialised [`Sizing`]: the current batch size, and what it was computed from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SizingSummary {
    /// Number of packets at which a batch is closed at once.
    pub batch: usize,
    /// Maximum time that a batch waits for them, in microseconds.
    pub delay_us: f64,
    /// Arrival rate in million packets per second.
    pub arriving_mpps: f64,
    /// Fixed cost of a batch, in microseconds.
    pub fixed_us: f64,
    /// Additional cost of each packet, in nanoseconds.
    pub packet_ns: f64,
}

impl From<Sizing> for SizingSummary {
    fn from(Sizing { batch, delay, rate, fixed, packet_ns }: Sizing) -> SizingSummary {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        SizingSummary { batch, delay_us: us(delay), arriving_mpps: rate / 1e6, fixed_us: us(fixed), packet_ns }
    }
}

/// Numbers of one lane or several over a time. All keys are always present, those of the maps
/// included.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Packets received.
    pub packets: u64,
    /// Bytes received.
    pub bytes: u64,
    /// Packets that the kernel dropped because they were not received in time. Not among those
    /// received.
    pub dropped_by_kernel: u64,
    /// Packets that were too long to receive, or malformed. Not among those received.
    pub refused: u64,
    /// Packets reassembled from several fragments.
    #[serde(rename = "put_together")]
    pub reassembled: u64,
    /// Number of verdicts, by action.
    pub verdicts: BTreeMap<String, u64>,
    /// Number of executed verdicts, by action.
    pub carried_out: BTreeMap<String, u64>,
    /// Packets forwarded by PASS, TX or REDIRECT.
    pub packets_out: u64,
    /// Bytes forwarded, after changes by the filter.
    pub bytes_out: u64,
    /// Packets lost after a forwarding verdict or without a verdict, by reason.
    pub lost: BTreeMap<String, u64>,
    /// Checksums completed that senders had left to their network cards.
    pub checksums_completed: u64,
    /// Packets from the interface of `--pass-to`, transmitted unfiltered. Not in any other count.
    pub from_stack: u64,
    /// Packets from the interface of `--pass-to` that were lost: malformed, or not transmitted by
    /// the end. Not in any other count.
    pub from_stack_lost: u64,
    /// Batches completed.
    pub batches: u64,
    /// Packets that the CPU filtered because the device was full.
    #[serde(rename = "judged_by_cpu")]
    pub fallback_packets: u64,
    /// Mean number of packets per batch.
    pub batch_mean: f64,
    /// Duration in seconds.
    pub elapsed_s: f64,
    /// Million packets received per second.
    pub mpps: f64,
    /// Received 10⁹ bits per second, counted from the Ethernet header to the end of the packet.
    pub gbps: f64,
    /// Million packets forwarded per second.
    pub mpps_out: f64,
    /// Forwarded 10⁹ bits per second.
    pub gbps_out: f64,
    /// Latency percentiles.
    pub latency_us: Latency,
}

/// Latency percentiles in microseconds, from the reception of a batch's first packet until its
/// verdicts were executed. Each packet counts. All are 0 without packets.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    #[serde(default)]
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    #[serde(rename = "p99.9")]
    pub p99_9: f64,
    /// Maximum.
    pub max: f64,
}

impl RunStats {
    /// Creates statistics of a run that starts now.
    pub fn start(filter: String, device: String, lanes: Vec<(String, Arc<LaneStats>)>) -> RunStats {
        RunStats { filter: Mutex::new(filter), device, start: Instant::now(), start_time: SystemTime::now(), lanes }
    }

    /// Changes the name of the filter, after a reload.
    pub fn set_filter(&self, name: String) {
        *self.filter.lock().unwrap_or_else(PoisonError::into_inner) = name;
    }

    /// Wall-clock time at which the run started.
    pub fn start_time(&self) -> SystemTime {
        self.start_time
    }

    /// Returns the numbers up to now.
    pub fn read(&self) -> RunSnapshot {
        let lanes = self.lanes.iter().map(|(name, lane)| (name.clone(), lane.snapshot()));
        RunSnapshot { lanes: lanes.collect(), elapsed: self.start.elapsed() }
    }

    /// Packets of all lanes in batches that are not completed ([`LaneStats::packets_in_flight`]).
    pub fn packets_in_flight(&self) -> u64 {
        self.lanes.iter().map(|(_, lane)| lane.packets_in_flight()).sum()
    }

    /// Packets of all lanes that were lost with a device ([`LaneStats::lost_with_device`]).
    pub fn lost_with_device(&self) -> u64 {
        self.lanes.iter().map(|(_, lane)| lane.lost_with_device()).sum()
    }

    /// Summarises the run as of `snapshot`.
    pub fn summary(&self, snapshot: &RunSnapshot) -> RunSummary {
        let filter = self.filter.lock().unwrap_or_else(PoisonError::into_inner).clone();
        RunSummary { filter, device: self.device.clone(), numbers: snapshot.summary() }
    }
}

impl RunSnapshot {
    /// Returns the difference to `before`, an earlier snapshot of the same run.
    pub fn since(&self, before: &RunSnapshot) -> RunSnapshot {
        let lanes = self.lanes.iter().zip(&before.lanes);
        let lanes = lanes.map(|((name, now), (_, before))| (name.clone(), now.since(before))).collect();
        RunSnapshot { elapsed: self.elapsed.saturating_sub(before.elapsed), lanes }
    }

    /// Summarises all lanes together and each lane.
    pub fn summary(&self) -> LanesSummary {
        let mut sum = Snapshot::default();
        self.lanes.iter().for_each(|(_, lane)| sum.add(lane));
        let lanes = self.lanes.iter().map(|(name, lane)| LaneSummary {
            lane: name.clone(),
            sizing: lane.sizing.map(Into::into),
            sum: Summary::new(lane, self.elapsed),
        });
        LanesSummary { lanes: lanes.collect(), sum: Summary::new(&sum, self.elapsed) }
    }
}

impl Summary {
    /// Summarises `of`, the numbers of `elapsed`.
    pub fn new(of: &Snapshot, elapsed: Duration) -> Summary {
        let by_action = |counts: &[u64; Action::ALL.len()]| -> BTreeMap<_, _> {
            Action::ALL.map(|action| (action.name().to_owned(), counts[action as usize])).into()
        };
        let forwarded = |counts: &[u64; Action::ALL.len()]| {
            [Action::Pass, Action::Tx, Action::Redirect].map(|action| counts[action as usize]).iter().sum::<u64>()
        };
        let (packets_out, bytes_out) = (forwarded(&of.executed.packets), forwarded(&of.executed.bytes));
        let seconds = elapsed.as_secs_f64();
        let per_second = |count: f64, unit: f64| if seconds > 0.0 { count / seconds / unit } else { 0.0 };
        let at = |percentile| of.latency.value_at_percentile(percentile) as f64 / 1e3;
        Summary {
            packets: of.received.packets,
            bytes: of.received.bytes,
            dropped_by_kernel: of.received.dropped_by_kernel,
            refused: of.received.refused,
            reassembled: of.received.reassembled,
            verdicts: Action::ALL.map(|action| (action.name().to_owned(), of.verdicts.of(action))).into(),
            carried_out: by_action(&of.executed.packets),
            packets_out,
            bytes_out,
            lost: Loss::ALL.map(|loss| (loss.name().to_owned(), of.executed.losses.of(loss))).into(),
            checksums_completed: of.received.checksums + of.executed.checksums,
            from_stack: of.executed.from_stack,
            from_stack_lost: of.executed.from_stack_lost,
            batches: of.batches,
            fallback_packets: of.fallback_packets,
            batch_mean: if of.batches > 0 { of.verdict_count() as f64 / of.batches as f64 } else { 0.0 },
            elapsed_s: seconds,
            mpps: per_second(of.received.packets as f64, 1e6),
            gbps: per_second(of.received.bytes as f64 * 8.0, 1e9),
            mpps_out: per_second(packets_out as f64, 1e6),
            gbps_out: per_second(bytes_out as f64 * 8.0, 1e9),
            latency_us: Latency { p50: at(50.0), p90: at(90.0), p99: at(99.0), p99_9: at(99.9), max: at(100.0) },
        }
    }

    /// Number of verdicts of this action.
    pub fn verdicts(&self, action: Action) -> u64 {
        self.verdicts.get(action.name()).copied().unwrap_or_default()
    }

    /// Number of packets lost for this reason.
    pub fn lost(&self, loss: Loss) -> u64 {
        self.lost.get(loss.name()).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use portcullis_core::packet::VerdictCounts;
    use portcullis_io::live::{ExecutedCounts, Losses, ReceivedCounts};

    use super::*;

    /// A snapshot whose counters all differ, times `k`.
    fn snapshot(k: u64, latencies: &[(u64, u64)]) -> Snapshot {
        let mut losses = Losses::default();
        losses.add(Loss::NoRoom, 7 * k);
        losses.add(Loss::Overload, 2 * k);
        let mut snapshot = Snapshot {
            received: ReceivedCounts {
                packets: 1000 * k,
                bytes: 64_000 * k,
                reassembled: 3 * k,
                checksums: 5 * k,
                dropped_by_kernel: 11 * k,
                refused: 13 * k,
            },
            executed: ExecutedCounts {
                packets: [0, 100 * k, 500 * k, 200 * k, 91 * k],
                bytes: [0, 6_400 * k, 30_000 * k, 12_000 * k, 6_000 * k],
                losses,
                checksums: 6 * k,
                from_stack: 17 * k,
                from_stack_lost: 19 * k,
            },
            verdicts: VerdictCounts { aborted: 0, drop: 100 * k, pass: 500 * k, tx: 207 * k, redirect: 93 * k },
            batches: 10 * k,
            fallback_packets: 4 * k,
            ..Snapshot::default()
        };
        for (latency, packets) in latencies {
            snapshot.latency.record_n(*latency, *packets).unwrap();
        }
        snapshot
    }

    #[test]
    fn rates_and_means_refer_to_the_elapsed_time() {
        let summary =
            Summary::new(&snapshot(1000, &[(5_000, 9950), (80_000, 45), (200_000, 5)]), Duration::from_millis(500));
        assert_eq!(
            (summary.packets, summary.bytes, summary.packets_out, summary.bytes_out),
            (1_000_000, 64_000_000, 791_000, 48_000_000)
        );
        assert_eq!((summary.mpps, summary.gbps), (2.0, 1.024));
        assert_eq!((summary.mpps_out, summary.gbps_out), (1.582, 0.768));
        assert_eq!((summary.batches, summary.batch_mean, summary.fallback_packets), (10_000, 90.0, 4000));
        assert_eq!(
            (summary.lost(Loss::NoRoom), summary.lost(Loss::Overload), summary.lost(Loss::Aborted)),
            (7000, 2000, 0)
        );
        assert_eq!((summary.verdicts(Action::Tx), summary.carried_out["tx"]), (207_000, 200_000));
        assert_eq!(
            (summary.checksums_completed, summary.from_stack, summary.from_stack_lost),
            (11_000, 17_000, 19_000)
        );
        let near = |is: f64, want: f64| assert!((is / want - 1.0).abs() < 0.001, "{is} is not {want}");
        near(summary.latency_us.p50, 5.0);
        near(summary.latency_us.p99, 5.0);
        near(summary.latency_us.p99_9, 80.0);
        near(summary.latency_us.max, 200.0);
    }

    #[test]
    fn an_empty_summary_has_zero_rates_and_all_keys() {
        let summary = Summary::new(&Snapshot::default(), Duration::ZERO);
        let numbers = [summary.mpps, summary.gbps, summary.mpps_out, summary.batch_mean, summary.latency_us.p99];
        assert_eq!(numbers, [0.0; 5]);
        assert_eq!(summary.verdicts.len(), Action::ALL.len(), "all keys are present");
        assert_eq!(summary.lost.len(), Loss::ALL.len());
    }

    #[test]
    fn a_difference_of_snapshots_covers_only_the_time_between() {
        let lanes = |k: u64, latencies: &[(u64, u64)]| {
            vec![("a:0".to_owned(), snapshot(k, latencies)), ("a:1".to_owned(), snapshot(10 * k, latencies))]
        };
        let before = RunSnapshot { elapsed: Duration::from_secs(1), lanes: lanes(3, &[(9_000_000, 50)]) };
        let now = RunSnapshot { elapsed: Duration::from_secs(3), lanes: lanes(5, &[(9_000_000, 50), (4_000, 10)]) };
        let since = now.since(&before);
        assert_eq!(since.elapsed, Duration::from_secs(2));
        let is = since.summary();
        let want = RunSnapshot { elapsed: since.elapsed, lanes: lanes(2, &[(4_000, 10)]) }.summary();
        assert_eq!(is, want);
        assert_eq!((is.sum.packets, is.lanes[0].sum.packets, is.lanes[1].sum.packets), (22_000, 2_000, 20_000));
        assert!(is.sum.latency_us.max < 5.0, "the long latencies were before");
    }

    #[test]
    fn a_run_summary_survives_json_and_keeps_its_keys() {
        let lane = Arc::new(LaneStats::default());
        let fixed = Duration::from_micros(20);
        lane.set_sizing(Sizing { batch: 40, delay: Duration::from_micros(250), rate: 2.5e6, fixed, packet_ns: 1.5 });
        let lanes = vec![("eth0:0".to_owned(), lane)];
        let stats = RunStats::start("f.wgsl".into(), "cpu".into(), lanes);
        stats.set_filter("g.wgsl".into());
        let summary = stats.summary(&stats.read());
        let text = serde_json::to_string(&summary).unwrap();
        assert_eq!(serde_json::from_str::<RunSummary>(&text).unwrap(), summary);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&json["filter"], &json["lanes"][0]["lane"]), (&"g.wgsl".into(), &"eth0:0".into()));
        let sizing = &json["lanes"][0]["sizing"];
        assert_eq!((&sizing["batch"], &sizing["delay_us"]), (&40.into(), &250.0.into()));
        assert_eq!((&sizing["arriving_mpps"], &sizing["fixed_us"]), (&2.5.into(), &20.0.into()));
        assert_eq!((&json["packets"], &json["latency_us"]["p99.9"]), (&0.into(), &0.0.into()));
    }
}
