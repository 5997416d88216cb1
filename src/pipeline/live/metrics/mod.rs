//! Metrics of a live run in the OpenMetrics text format, for Prometheus.
//!
//! - [`render`] writes them by Prometheus's conventions: monotonic counters in base units, no
//!   rates.
//! - [`http`] answers a request, as a function of its bytes.
//! - [`server`] listens, on this machine only.

pub mod http;
pub mod server;

use std::fmt;
use std::time::UNIX_EPOCH;

use portcullis_core::packet::Action;
use portcullis_io::live::Loss;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::{RunSnapshot, RunStats, Sizing, Snapshot};

/// Upper bounds of the latency buckets in nanoseconds: 1, 2 and 5 times each power of ten, from a
/// microsecond to a second.
const LATENCY_BUCKETS_NS: [u64; 19] = {
    let mut bounds = [0; 19];
    let (mut at, mut power) = (0, 1000);
    while at < bounds.len() {
        bounds[at] = power * [1, 2, 5][at % 3];
        at += 1;
        if at.is_multiple_of(3) {
            power *= 10;
        }
    }
    bounds
};

/// An instruction of an XDP program that aborted packets.
#[derive(Debug, Clone)]
pub struct Trap {
    /// Number of packets.
    pub count: u64,
    /// The instruction with its number and function.
    pub instruction: String,
    /// Source file; empty if unknown.
    pub file: String,
    /// Source line; empty if unknown.
    pub line: String,
    /// Why packets were aborted.
    pub reason: String,
}

/// Renders the run's current numbers in the OpenMetrics text format. `traps` come from the filter's
/// session, which `run` has no access to.
pub fn render(run: &RunStats, traps: Vec<Trap>) -> String {
    let reading = run.read();
    let summary = run.summary(&reading);
    // Treat a clock before 1970 as not set.
    let start_time = run.start_time().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    encode(RunCollector { reading, filter: summary.filter, device: summary.device, start_time, traps })
}

fn encode(run: RunCollector) -> String {
    let mut registry = Registry::with_prefix("portcullis");
    registry.register_collector(Box::new(run));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("writing to a string cannot fail");
    text
}

/// Collects the metrics of a run at one point in time.
#[derive(Debug)]
struct RunCollector {
    reading: RunSnapshot,
    filter: String,
    device: String,
    /// Seconds since 1970.
    start_time: f64,
    traps: Vec<Trap>,
}

impl RunCollector {
    fn lanes(&self) -> impl Iterator<Item = (&str, &Snapshot)> {
        self.reading.lanes.iter().map(|(name, lane)| (name.as_str(), lane))
    }

    /// Encodes a counter with one value per lane.
    fn encode_counter(
        &self,
        to: &mut DescriptorEncoder<'_>,
        (name, unit): (&str, Option<Unit>),
        help: &str,
        of: impl Fn(&Snapshot) -> u64,
    ) -> fmt::Result {
        let mut metric = to.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        for (lane, numbers) in self.lanes() {
            ConstCounter::new(of(numbers)).encode(metric.encode_family(&[("lane", lane)])?)?;
        }
        Ok(())
    }

    /// Encodes a gauge of lanes with adaptive batch sizes; nothing if there are none.
    fn encode_sizing_gauge<N: EncodeGaugeValue + fmt::Debug>(
        &self,
        to: &mut DescriptorEncoder<'_>,
        (name, unit): (&str, Option<Unit>),
        help: &str,
        of: impl Fn(&Sizing) -> N,
    ) -> fmt::Result {
        let mut lanes = self.lanes().filter_map(|(lane, numbers)| Some((lane, numbers.sizing?))).peekable();
        if lanes.peek().is_none() {
            return Ok(());
        }
        let mut metric = to.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (lane, sizing) in lanes {
            ConstGauge::new(of(&sizing)).encode(metric.encode_family(&[("lane", lane)])?)?;
        }
        Ok(())
    }

    /// Encodes the number of packets aborted by each instruction; nothing if there are none.
    fn encode_traps(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.traps.is_empty() {
            return Ok(());
        }
        let help = "Packets aborted by an instruction that failed a check, by instruction and reason";
        let mut metric = to.encode_descriptor("trapped_packets", help, None, MetricType::Counter)?;
        for Trap { count, instruction, file, line, reason } in &self.traps {
            let labels = [("instruction", instruction), ("file", file), ("line", line), ("reason", reason)];
            ConstCounter::new(*count).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Encodes a counter with one value per lane and value of a second label.
    fn encode_labelled_counter<T: Copy, N: EncodeCounterValue + fmt::Debug>(
        &self,
        to: &mut DescriptorEncoder<'_>,
        (name, unit): (&str, Option<Unit>),
        help: &str,
        (label, values): (&str, &[(&str, T)]),
        of: impl Fn(&Snapshot, T) -> N,
    ) -> fmt::Result {
        let mut metric = to.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        for (lane, numbers) in self.lanes() {
            for (text, value) in values {
                let labels = [("lane", lane), (label, text)];
                ConstCounter::new(of(numbers, *value)).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

impl Collector for RunCollector {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let to = &mut to;
        let mut build = to.encode_descriptor("build", "Version of portcullis", None, MetricType::Info)?;
        build.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])?;
        let mut run = to.encode_descriptor("run", "Filter and device of the run", None, MetricType::Info)?;
        run.encode_info(&[("filter", self.filter.as_str()), ("device", self.device.as_str())])?;
        let help = "Start time of the run since the Unix epoch";
        let start = to.encode_descriptor("start_time", help, Some(&Unit::Seconds), MetricType::Gauge)?;
        ConstGauge::new(self.start_time).encode(start)?;

        self.encode_counter(to, ("received_packets", None), "Packets received", |lane| lane.received.packets)?;
        let help = "Bytes received";
        self.encode_counter(to, ("received", Some(Unit::Bytes)), help, |lane| lane.received.bytes)?;
        let help = "Packets that the kernel dropped because they were not received in time; not among those received";
        self.encode_counter(to, ("kernel_dropped_packets", None), help, |lane| lane.received.dropped_by_kernel)?;
        let help = "Packets that were too long to receive, or malformed; not among those received";
        self.encode_counter(to, ("refused_packets", None), help, |lane| lane.received.refused)?;
        let help = "Packets reassembled from several fragments";
        self.encode_counter(to, ("reassembled_packets", None), help, |lane| lane.received.reassembled)?;
        let help = "Checksums completed that senders had left to their network cards";
        self.encode_counter(to, ("completed_checksums", None), help, |lane| {
            lane.received.checksums + lane.executed.checksums
        })?;
        let help = "Packets from the interface that passed packets go to, transmitted unfiltered";
        self.encode_counter(to, ("from_stack_packets", None), help, |lane| lane.executed.from_stack)?;
        let help = "Packets lost that came from the interface that passed packets go to";
        self.encode_counter(to, ("from_stack_lost_packets", None), help, |lane| lane.executed.from_stack_lost)?;

        let actions = Action::ALL.map(|action| (action.name(), action as usize));
        let verdict = ("verdict", &actions[..]);
        self.encode_labelled_counter(to, ("verdicts", None), "Verdicts of the filter", verdict, |lane, action| {
            lane.verdicts.of(Action::ALL[action])
        })?;
        self.encode_traps(to)?;
        let help = "Packets whose verdict was executed";
        self.encode_labelled_counter(to, ("carried_out_packets", None), help, verdict, |lane, action| {
            lane.executed.packets[action]
        })?;
        let help = "Bytes of the packets whose verdict was executed, after changes by the filter";
        self.encode_labelled_counter(to, ("carried_out", Some(Unit::Bytes)), help, verdict, |lane, action| {
            lane.executed.bytes[action]
        })?;
        let reasons = Loss::ALL.map(|loss| (loss.name(), loss));
        let help = "Packets lost after a forwarding verdict or without a verdict, by reason";
        self.encode_labelled_counter(to, ("lost_packets", None), help, ("reason", &reasons), |lane, loss| {
            lane.executed.losses.of(loss)
        })?;

        self.encode_counter(to, ("batches", None), "Batches completed by the device", |lane| lane.batches)?;
        let help = "Packets at which a batch is closed, as last adapted by --batch auto";
        self.encode_sizing_gauge(to, ("batch_target_packets", None), help, |sizing| sizing.batch as u64)?;
        let help = "Maximum time a batch waits for packets, as last adapted by --batch auto";
        self.encode_sizing_gauge(to, ("batch_delay", Some(Unit::Seconds)), help, |sizing| sizing.delay.as_secs_f64())?;
        let help = "Packets that the CPU filtered because the device was full";
        self.encode_counter(to, ("relieved_packets", None), help, |lane| lane.fallback_packets)?;
        let stages = [("upload", 0), ("kernel", 1), ("download", 2)];
        let seconds = |lane: &Snapshot, stage: usize| {
            [lane.times.upload, lane.times.kernel, lane.times.download][stage].as_secs_f64()
        };
        let help = "Busy time of the device, by stage";
        self.encode_labelled_counter(to, ("device", Some(Unit::Seconds)), help, ("stage", &stages), seconds)?;

        let help =
            "Time from the reception of a batch's first packet until its verdicts were executed; each packet counts";
        let unit = Unit::Seconds;
        let mut latency = to.encode_descriptor("batch_latency", help, Some(&unit), MetricType::Histogram)?;
        for (lane, numbers) in self.lanes() {
            let (buckets, sum) = latency_buckets(numbers);
            let lane = [("lane", lane)];
            let mut family = latency.encode_family(&lane)?;
            family.encode_histogram::<[(&str, &str); 0]>(sum, numbers.latency.len(), &buckets, None)?;
        }
        Ok(())
    }
}

/// Packets per latency bucket, with the upper bounds in seconds, and the sum of all latencies in
/// seconds.
fn latency_buckets(of: &Snapshot) -> (Vec<(f64, u64)>, f64) {
    let mut buckets: Vec<_> =
        LATENCY_BUCKETS_NS.iter().map(|bound| (*bound as f64 / 1e9, 0)).chain([(f64::INFINITY, 0)]).collect();
    let mut sum = 0.0;
    for value in of.latency.iter_recorded() {
        // The highest value that the histogram counts as equal to this one, so all of them are
        // within the bucket's bound.
        let nanoseconds = value.value_iterated_to();
        let bucket = LATENCY_BUCKETS_NS.partition_point(|bound| *bound < nanoseconds);
        buckets[bucket].1 += value.count_at_value();
        sum += nanoseconds as f64 / 1e9 * value.count_at_value() as f64;
    }
    (buckets, sum)
}

#[cfg(test)]
mod tests;
