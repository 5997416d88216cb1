//! A live run's numbers for Prometheus, in the OpenMetrics text format.
//!
//! - [`text`] writes them down, by Prometheus's conventions: counters that only grow, in base units, and no rates.
//! - [`http`] answers a request, as a function of its bytes.
//! - [`server`] listens, on this machine alone.

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

/// Upper bounds of latencies, in nanoseconds: 1, 2 and 5 of each power of ten, from a microsecond to a second.
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

/// A place where a program of XDP aborts packets.
#[derive(Debug, Clone)]
pub struct Trap {
    /// How many were.
    pub count: u64,
    /// The instruction, with its number and its function.
    pub instruction: String,
    /// Where it is in the source; empty where that is not known.
    pub file: String,
    /// See `file`.
    pub line: String,
    /// Why.
    pub reason: String,
}

/// The run at this moment, in the OpenMetrics text format; with where packets were aborted, of which the run itself has no number.
pub fn render(run: &RunStats, traps: Vec<Trap>) -> String {
    let reading = run.read();
    let summary = run.summary(&reading);
    // A clock before 1970 is none.
    let begun = run.start_time().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    encode(RunCollector { reading, filter: summary.filter, device: summary.device, begun, traps })
}

fn encode(run: RunCollector) -> String {
    let mut registry = Registry::with_prefix("portcullis");
    registry.register_collector(Box::new(run));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("a text takes whatever is written to it");
    text
}

/// What is written down.
#[derive(Debug)]
struct RunCollector {
    reading: RunSnapshot,
    filter: String,
    device: String,
    /// Seconds since 1970.
    begun: f64,
    traps: Vec<Trap>,
}

impl RunCollector {
    fn lanes(&self) -> impl Iterator<Item = (&str, &Snapshot)> {
        self.reading.lanes.iter().map(|(name, lane)| (name.as_str(), lane))
    }

    /// A counter that each lane has once.
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

    /// A gauge of the lanes whose batches find their size; nothing where there are none.
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

    /// How many packets were aborted where; nothing where none were.
    fn traps(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.traps.is_empty() {
            return Ok(());
        }
        let help = "Packets that were aborted because what an instruction was about to do was not right";
        let mut metric = to.encode_descriptor("trapped_packets", help, None, MetricType::Counter)?;
        for Trap { count, instruction, file, line, reason } in &self.traps {
            let labels = [("instruction", instruction), ("file", file), ("line", line), ("reason", reason)];
            ConstCounter::new(*count).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// A counter that each lane has once for each of these values of a second label.
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
        let mut build = to.encode_descriptor("build", "The program", None, MetricType::Info)?;
        build.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])?;
        let mut run = to.encode_descriptor("run", "What runs where", None, MetricType::Info)?;
        run.encode_info(&[("filter", self.filter.as_str()), ("device", self.device.as_str())])?;
        let help = "When the run began, since 1970";
        let start = to.encode_descriptor("start_time", help, Some(&Unit::Seconds), MetricType::Gauge)?;
        ConstGauge::new(self.begun).encode(start)?;

        self.encode_counter(to, ("received_packets", None), "Packets received", |lane| lane.received.packets)?;
        let help = "Bytes of the packets received";
        self.encode_counter(to, ("received", Some(Unit::Bytes)), help, |lane| lane.received.bytes)?;
        let help = "Packets that the kernel dropped because nobody took them in time; not among those received";
        self.encode_counter(to, ("kernel_dropped_packets", None), help, |lane| lane.received.dropped_by_kernel)?;
        let help = "Packets that were too long to be received, or made no sense; not among those received";
        self.encode_counter(to, ("refused_packets", None), help, |lane| lane.received.refused)?;
        let help = "Packets that came in several pieces";
        self.encode_counter(to, ("reassembled_packets", None), help, |lane| lane.received.reassembled)?;
        let help = "Checksums that senders had left to their network cards, and that were completed";
        self.encode_counter(to, ("completed_checksums", None), help, |lane| {
            lane.received.checksums + lane.carried.checksums
        })?;
        let help = "Packets that came from where those go that pass, and that went out unfiltered";
        self.encode_counter(to, ("from_stack_packets", None), help, |lane| lane.carried.from_stack)?;
        let help = "Packets that came from where those go that pass, and that were lost";
        self.encode_counter(to, ("from_stack_lost_packets", None), help, |lane| lane.carried.from_stack_lost)?;

        let actions = Action::ALL.map(|action| (action.name(), action as usize));
        let verdict = ("verdict", &actions[..]);
        self.encode_labelled_counter(to, ("verdicts", None), "Verdicts that the filter gave", verdict, |lane, it| {
            lane.verdicts[it]
        })?;
        self.traps(to)?;
        let help = "Packets whose verdict was carried out";
        self.encode_labelled_counter(to, ("carried_out_packets", None), help, verdict, |lane, it| {
            lane.carried.packets[it]
        })?;
        let help = "Bytes of the packets whose verdict was carried out, as they went out";
        self.encode_labelled_counter(to, ("carried_out", Some(Unit::Bytes)), help, verdict, |lane, it| {
            lane.carried.bytes[it]
        })?;
        let reasons = Loss::ALL.map(|loss| (loss.name(), loss));
        let help = "Packets that went nowhere against their verdict, or for want of one";
        self.encode_labelled_counter(to, ("lost_packets", None), help, ("reason", &reasons), |lane, loss| {
            lane.carried.losses.of(loss)
        })?;

        self.encode_counter(to, ("batches", None), "Batches that the device has been through with", |lane| {
            lane.batches
        })?;
        let help = "Packets with which a batch is closed, as --batch auto has found it last";
        self.encode_sizing_gauge(to, ("batch_target_packets", None), help, |sizing| sizing.batch as u64)?;
        let help = "How long a batch waits for its packets, as --batch auto has found it last";
        self.encode_sizing_gauge(to, ("batch_delay", Some(Unit::Seconds)), help, |sizing| sizing.delay.as_secs_f64())?;
        let help = "Packets that the CPU filtered, because the device had all the batches that it takes";
        self.encode_counter(to, ("relieved_packets", None), help, |lane| lane.fallback_packets)?;
        let stages = [("upload", 0), ("kernel", 1), ("download", 2)];
        let seconds = |lane: &Snapshot, stage: usize| {
            [lane.times.upload, lane.times.kernel, lane.times.download][stage].as_secs_f64()
        };
        let help = "Where the device's time went";
        self.encode_labelled_counter(to, ("device", Some(Unit::Seconds)), help, ("stage", &stages), seconds)?;

        let help =
            "From when a batch's first packet was received until its verdicts were carried out; each packet counts";
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

/// How many packets took as long as each bound and longer than that before it, by the bounds in seconds; and all their times.
fn latency_buckets(of: &Snapshot) -> (Vec<(f64, u64)>, f64) {
    let mut buckets: Vec<_> =
        LATENCY_BUCKETS_NS.iter().map(|bound| (*bound as f64 / 1e9, 0)).chain([(f64::INFINITY, 0)]).collect();
    let mut sum = 0.0;
    for value in of.latency.iter_recorded() {
        // Of all values that count as one this is the highest: so the others are below the bound, too.
        let nanoseconds = value.value_iterated_to();
        let bucket = LATENCY_BUCKETS_NS.partition_point(|bound| *bound < nanoseconds);
        buckets[bucket].1 += value.count_at_value();
        sum += nanoseconds as f64 / 1e9 * value.count_at_value() as f64;
    }
    (buckets, sum)
}

#[cfg(test)]
mod tests;
